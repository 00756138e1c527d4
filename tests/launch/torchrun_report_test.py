# SPDX-License-Identifier: Apache-2.0
"""torchrun's report shows the line of a program that failed: both sides agree on the error file."""
from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, PYTHON, SECONDS  # noqa: E402


class Report(unittest.TestCase):
    def test_names_the_error_and_its_exit_code(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ladder-torchrun-") as folder:
            missing = Path(folder) / "missing"
            command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python",
                       "--nproc-per-node", "1", "--log-dir", folder,
                       BIN / "stage0_single_gpu", "--data-root", missing]
            done = subprocess.run([*map(str, command)], capture_output=True, text=True,
                                  timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"exitcode  : 3 ")
        self.assertRegex(done.stderr, rf"traceback : {missing}/\S+: expected a readable file, got none")


if __name__ == "__main__":
    unittest.main()
