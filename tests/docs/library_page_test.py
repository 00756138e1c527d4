# SPDX-License-Identifier: Apache-2.0
"""The programs on docs/library.md do what the page says, and the pieces of code on pages run.

That the pages show what is compiled is seen by tools/docs_sync.py.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, SECONDS  # noqa: E402

NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


class LibraryPage(unittest.TestCase):
    def output_of(self, program: str) -> str:
        done = subprocess.run([BIN / program], capture_output=True, text=True, timeout=SECONDS,
                              stdin=subprocess.DEVNULL, check=False, env=NO_GPU)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

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

    def test_the_pieces_of_code_run(self) -> None:
        lines = self.output_of("page_pieces").splitlines()
        self.assertEqual(lines[0], "seen 64")  # 32 of each rank
        self.assertEqual(lines[1], f"sent {4 * (784 * 8 + 8 + 8 * 10 + 10)} bytes")  # of MyNet
        self.assertEqual(lines[-1], "rank 3 has started")


if __name__ == "__main__":
    unittest.main()
