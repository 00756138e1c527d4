# SPDX-License-Identifier: Apache-2.0
"""The pieces of code on docs/library.md, docs/same-weights.md and the pages of stages 4 to 6 run.

That the pages show what is compiled is seen by tools/pages.sh.
"""
from __future__ import annotations

import os
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

    def test_the_pieces_of_code_run(self) -> None:
        lines = self.output_of("page_pieces").splitlines()
        self.assertEqual(lines[0], "seen 64")  # 32 of each rank
        self.assertEqual(lines[1], f"sent {4 * (784 * 8 + 8 + 8 * 10 + 10)} bytes")  # of MyNet
        self.assertEqual(lines[2], "two ranks equal one: 1")


if __name__ == "__main__":
    unittest.main()
