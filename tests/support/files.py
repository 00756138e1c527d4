# SPDX-License-Identifier: Apache-2.0
"""Writes files of a test, with their folders."""
from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str = "", executable: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if executable else 0o644)
    return path
