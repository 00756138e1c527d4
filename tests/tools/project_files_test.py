# SPDX-License-Identifier: Apache-2.0
"""Files that only a forge reads."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_has_the_version_of_the_build() -> None:
    version = re.search(r"project\(ladder VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert version and yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version[1]


def test_the_files_of_the_forge_parse() -> None:
    for path in ROOT.glob(".github/**/*.yml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8")), path
