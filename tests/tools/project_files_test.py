# SPDX-License-Identifier: Apache-2.0
"""Files that only a forge reads: they parse, and have the project's commands."""
from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.programs import ROOT


def parsed(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_has_the_version_of_the_build() -> None:
    version = re.search(r"project\(ladder VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert version and parsed("CITATION.cff")["version"] == version[1]


def test_the_issue_template_requires_the_output_of_the_doctor() -> None:
    fields = {field["id"]: field for field in parsed(".github/ISSUE_TEMPLATE/bug.yml")["body"]}
    assert "./run doctor" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"]


def test_the_workflow_runs_both_commands_on_both_releases() -> None:
    job = parsed(".github/workflows/debian.yml")["jobs"]["run-and-test"]
    assert job["strategy"]["matrix"]["suite"] == ["bookworm", "trixie"]
    assert [step["run"] for step in job["steps"] if "run" in step][-2:] == ["./run", "./test"]
