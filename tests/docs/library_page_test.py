# SPDX-License-Identifier: Apache-2.0
"""The programs on docs/library.md are those that are compiled, and they do what the page says."""
from __future__ import annotations

import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, SECONDS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("two_inputs", "own_loss")


class LibraryPage(unittest.TestCase):
    def output_of(self, program: str) -> str:
        done = subprocess.run([BIN / program], capture_output=True, text=True, timeout=SECONDS,
                              stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_shows_the_programs_that_are_compiled(self) -> None:
        page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for name in PROGRAMS:
            program = (ROOT / f"tests/docs/{name}.cpp").read_text(encoding="utf-8")
            self.assertIn(program, blocks, f"copy tests/docs/{name}.cpp into its block of the page")

    def test_the_program_learns_on_two_ranks(self) -> None:
        output = self.output_of("two_inputs")
        steps = re.findall(r"^step (\d+), loss (\S+)$", output, re.MULTILINE)
        self.assertEqual([int(step) for step, _ in steps], [0, 100, 200, 300, 400], output)
        first, last = float(steps[0][1]), float(steps[-1][1])
        self.assertLess(last, first / 100)

    def test_the_trainer_with_a_loss_of_its_own_learns_on_two_ranks(self) -> None:
        output = self.output_of("own_loss")
        heading, *rows = [line.split() for line in output.splitlines()[-4:]]
        self.assertEqual(heading, "Epoch Training Loss Validation Loss Accuracy".split(), output)
        self.assertEqual([row[0] for row in rows], ["1", "2", "3"], output)
        self.assertGreater(float(rows[-1][-1]), 0.93, output)
        self.assertLess(float(rows[-1][1]), float(rows[0][1]), output)


if __name__ == "__main__":
    unittest.main()
