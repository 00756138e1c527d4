# SPDX-License-Identifier: Apache-2.0
"""Installs the library and builds a program outside the project with it."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import ROOT, SECONDS, run  # noqa: E402

BUILD = Path(os.environ.get("LADDER_BUILD", ROOT / "build"))


def cmake(*arguments: object) -> None:
    done = subprocess.run(["cmake", *map(str, arguments)], capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Consumer(unittest.TestCase):
    def test_an_installed_ladder_trains_a_step_in_a_foreign_program(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ladder-consumer-") as folder:
            prefix, build = Path(folder) / "prefix", Path(folder) / "build"
            cmake("--install", BUILD, "--prefix", prefix)
            cmake("-S", ROOT / "tests" / "consumer", "-B", build, "-G", "Ninja",
                  f"-Dladder_DIR={prefix}/lib/cmake/ladder")
            cmake("--build", build)
            done = run(build / "consumer")
            self.assertEqual((done.code, done.stdout), (0, "one step taken\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
