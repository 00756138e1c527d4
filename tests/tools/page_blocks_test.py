# SPDX-License-Identifier: Apache-2.0
"""tools/page_blocks.py, called by cog on a page made here."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.files import write
from tests.support.programs import ROOT

SOURCE = """#include <cstdio>

int main() {
  // #region loop
  for (int i = 0;  i < 3; ++i) {
    std::puts("again");
  }
  // #endregion loop
  const auto c = 3;
}
"""
QUOTES = {
    'A + "#loop"': 'for (int i = 0;  i < 3; ++i) {\n  std::puts("again");\n}',
    'A, "for (int i = 0; i .. }"': 'for (int i = 0;  i < 3; ++i) {\n  std::puts("again");\n}',
    'A, "#include", "int main"': "#include <cstdio>\n\nint main() {",
    'A, "std::puts", "const .. }"': '    std::puts("again");\n...\n  const auto c = 3;\n}'}


def cog_of(folder: Path, *calls: str) -> tuple[int, str]:
    """Exit code of cog, and its page or error."""
    source = write(folder / "a.cpp", SOURCE)
    blocks = (f"<!-- [[[cog {call} ]]] -->\n<!-- [[[end]]] -->\n" for call in calls)
    done = subprocess.run([sys.executable, "-m", "cogapp", "-P", "-d", "-I", ROOT / "tools", "-p",
                           f"from page_blocks import *; A = '{source}'",
                           write(folder / "a.md", "".join(blocks))],
                          check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr or done.stdout


def test_quotes(tmp_path: Path) -> None:
    assert cog_of(tmp_path, *(f"quote({call})" for call in QUOTES)) == (
        0, "".join(f"```cpp\n{lines}\n```\n" for lines in QUOTES.values()))


@pytest.mark.parametrize("call, problem", [
    ('quote(A + "#end")', "a.md:1: expected one `#region end`"),
    ('quote(A, "const", "int main")', "a.cpp has no such line there: int main"),
    ("stage_cells(1, lambda root: {'stage0': [1]})", "expected a row `stage0` in the table")])
def test_a_block_that_cannot_be_written(tmp_path: Path, call: str, problem: str) -> None:
    code, error = cog_of(tmp_path, call)
    assert code == 3 and problem in error
