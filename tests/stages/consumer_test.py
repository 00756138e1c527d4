# SPDX-License-Identifier: Apache-2.0
"""Installs the library, builds a program outside the project with it, and tries other LibTorch folders."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import ROOT, SECONDS, run  # noqa: E402

TORCH = next((ROOT / ".venv" / "lib").glob("python3*/site-packages/torch")).resolve()
BUILD = Path(os.environ.get("LADDER_BUILD", ROOT / "build"))


def cmake(*arguments: object) -> None:
    done = subprocess.run(["cmake", *map(str, arguments)], capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Consumer(unittest.TestCase):
    def test_a_foreign_program_trains_two_inputs_in_four_ways_to_the_same_weights(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ladder-consumer-") as folder:
            prefix, build = Path(folder) / "prefix", Path(folder) / "build"
            cmake("--install", BUILD, "--prefix", prefix)
            cmake("-S", ROOT / "tests" / "consumer", "-B", build, "-G", "Ninja",
                  f"-Dladder_DIR={prefix}/lib/cmake/ladder")
            cmake("--build", build)
            installed = [path.relative_to(prefix) for path in prefix.rglob("*.h")]
            self.assertEqual([path for path in installed if "mnist" in str(path)], [])
            done = run(build / "consumer")
            self.assertEqual(done.code, 0, done.stderr)
            hashes = dict(line.split() for line in done.lines)
            self.assertEqual(list(hashes), ["DataParallel", "DistributedDataParallel",
                                            "Accelerator", "Trainer"])
            self.assertEqual(len(set(hashes.values())), 1, done.stdout)
            done = run(prefix / "bin" / "stage0_single_gpu", "--version")
            self.assertEqual(done.code, 0, done.stderr)


class OtherLibTorch(unittest.TestCase):
    """LADDER_TORCH_DIR and Torch_DIR name another LibTorch; only the configuration is tried."""

    def configure(self, **variables: object) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory(prefix="ladder-configure-") as folder:
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            return subprocess.run(
                ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DLADDER_TESTS=OFF",
                 "-DLADDER_BENCH=OFF"], env=environment, capture_output=True, text=True,
                timeout=SECONDS, check=False)

    def test_a_folder_by_name(self) -> None:
        done = self.configure(LADDER_TORCH_DIR=TORCH, PATH="/usr/bin:/bin", CUDA_HOME="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"LibTorch: {TORCH}", done.stdout)

    def test_a_folder_that_is_none(self) -> None:
        done = self.configure(LADDER_TORCH_DIR="/nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere/lib/libtorch_cpu.so", done.stderr)

    def test_a_package_by_torch_dir(self) -> None:
        if shutil.which("nvcc") is None:
            self.skipTest("skipped: LibTorch's own package wants nvcc, and there is none")
        done = self.configure(Torch_DIR=TORCH / "share/cmake/Torch", TORCH_CUDA_ARCH_LIST="9.0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"LibTorch: {TORCH}/share/cmake/Torch", done.stdout)

    def test_a_prefix_path_without_torch_leaves_the_own_one(self) -> None:
        done = self.configure(CMAKE_PREFIX_PATH="/nowhere")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"LibTorch: {TORCH}", done.stdout)


if __name__ == "__main__":
    unittest.main()
