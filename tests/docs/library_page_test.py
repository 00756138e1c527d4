# SPDX-License-Identifier: Apache-2.0
"""The program on docs/library.md is the one that is compiled, and it does what the page says."""
from __future__ import annotations

import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, SECONDS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


class LibraryPage(unittest.TestCase):
    def test_shows_the_program_that_is_compiled(self) -> None:
        page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
        program = (ROOT / "tests/docs/two_inputs.cpp").read_text(encoding="utf-8")
        blocks = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        self.assertIn(program, blocks, "copy tests/docs/two_inputs.cpp into its block of the page")

    def test_the_program_learns_on_two_ranks(self) -> None:
        done = subprocess.run([BIN / "two_inputs"], capture_output=True, text=True, timeout=SECONDS,
                              stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        steps = re.findall(r"^step (\d+), loss (\S+)$", done.stdout, re.MULTILINE)
        self.assertEqual([int(step) for step, _ in steps], [0, 100, 200, 300, 400], done.stdout)
        first, last = float(steps[0][1]), float(steps[-1][1])
        self.assertLess(last, first / 100)


if __name__ == "__main__":
    unittest.main()
