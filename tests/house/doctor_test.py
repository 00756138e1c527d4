# SPDX-License-Identifier: Apache-2.0
"""tools/doctor.py on machines made here: folders, and programs that answer as others would."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import doctor  # noqa: E402

PROGRAMS = {"g++": "g++ (Debian) 12.2.0", "cmake": "cmake version 3.25.1", "ninja": "1.11.1",
            "python3": "Python 3.11.2", "nvidia-smi": ""}
NVIDIA_SMI = """#!/bin/sh
case $1 in
  --query-gpu=name) echo 'NVIDIA H100'; echo 'NVIDIA H100' ;;
  --query-gpu=driver_version) echo {0}; echo {0} ;;
  *) echo '| NVIDIA-SMI {0}    Driver Version: {0}    CUDA Version: {1}  |' ;;
esac
"""


class Doctor(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name) / "checkout"
        self.path = Path(holder.name) / "bin"
        self.path.mkdir()
        for name, text in PROGRAMS.items():
            self.program(name, text, 0 if text else 1)
        for stage in ("stage0_a", "stage1_b"):
            self.file(f"{stage}/main.cpp", b"")
            self.file(f"build/bin/{stage}", b"").chmod(0o755)
        self.file(".venv/lib/python3.11/site-packages/torch-2.11.0.dist-info/METADATA", b"")
        for kind, count in (("train", 60000), ("t10k", 10000)):
            self.file(f"data/mnist/{kind}-images-idx3-ubyte", struct.pack(">II", 2051, count))
            self.file(f"data/mnist/{kind}-labels-idx1-ubyte.gz",
                      gzip.compress(struct.pack(">II", 2049, count)))

    def file(self, name: str, content: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def program(self, name: str, answer: str, code: int = 0) -> None:
        path = self.path / name
        path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
        path.chmod(0o755)

    def look(self, **variables: str) -> tuple[int, dict[str, list[str]], str]:
        """Exit code, the rows by thing as [state, text], and the last line."""
        environment = {"PATH": f"{self.path}", "HOME": "/"} | variables
        with (mock.patch.dict(os.environ, environment, clear=True),
              contextlib.redirect_stdout(io.StringIO()) as output):
            code = doctor.main(["--root", str(self.root)])
        lines = output.getvalue().splitlines()
        found = {line[9:23].strip(): [line[:8].strip(), line[24:]] for line in lines[:-1]}
        return code, found, lines[-1]

    def test_a_machine_that_has_all(self) -> None:
        code, rows, last = self.look()
        self.assertEqual((code, last), (0, "nothing is missing"), rows)
        for thing in ("g++", "cmake", "ninja", "Python", "LibTorch", "programs", "data set",
                      "loopback"):
            self.assertEqual(rows[thing][0], "ok", rows[thing])
        self.assertEqual(rows["CPUs"][1].split()[0], str(len(os.sched_getaffinity(0))))
        self.assertEqual(rows["GPUs"], ["note", "none; everything here runs on the CPU too"])
        self.assertEqual(rows["GPU driver"], ["note", "none; only GPUs need one"])
        self.assertEqual(rows["srun"], ["note", "not found; only on clusters with SLURM"])

    def test_output_that_cannot_be_written_or_a_folder_that_is_none_is_one_line(self) -> None:
        program = [sys.executable, ROOT / "tools/doctor.py"]
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "doctor: [Errno 28] No space left on device\n"))
        done = subprocess.run([*program, "--root", self.root / "none"], capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertTrue(done.stderr.endswith("expected a folder that can be read\n"), done.stderr)

    def test_tools_that_are_missing_or_old(self) -> None:
        (self.path / "ninja").unlink()
        self.program("cmake", "cmake version 3.18.4")
        code, rows, last = self.look()
        self.assertEqual((code, last), (1, "missing: cmake, ninja"))
        self.assertEqual(rows["cmake"], ["missing", "3.18.4; 3.25 or newer is needed; pip install "
                                         "cmake has one, to be put first on the PATH"])
        self.assertEqual(rows["ninja"][1], "not found; ./run sets it up, where there is apt-get")

    def test_python_of_another_version(self) -> None:
        needed = "3.10 to 3.13 is needed: put such a python3 first on the PATH"
        for version, state in (("3.9.18", "missing"), ("3.10.0", "ok"), ("3.13.7", "ok"),
                               ("3.14.0", "missing")):
            self.program("python3", f"Python {version}")
            code, rows, _ = self.look()
            self.assertEqual((code, rows["Python"][0]), (int(state != "ok"), state), version)
        self.assertEqual(rows["Python"][1], f"3.14.0; {needed}")
        (self.path / "python3").unlink()
        self.assertEqual(self.look()[1]["Python"], ["missing", f"not found; {needed}"])
        self.file(".venv/bin/python", b"#!/bin/sh\necho Python 3.12.1\n").chmod(0o755)
        self.assertEqual(self.look()[1]["Python"], ["ok", "3.12.1"])

    def test_the_driver_of_the_gpus(self) -> None:
        nvidia_smi = self.path / "nvidia-smi"
        nvidia_smi.write_text(NVIDIA_SMI.format("580.65.06", "13.0"))
        self.assertEqual(self.look()[1]["GPU driver"], ["ok", "580.65.06, up to CUDA 13.0"])
        nvidia_smi.write_text(NVIDIA_SMI.format("570.124", "12.8"))
        self.assertEqual(self.look()[1]["GPU driver"], [
            "note", "570.124, up to CUDA 12.8; 580 or newer is needed, for CUDA 13: until then no "
                    "GPU is used"])

    def test_libtorch_of_another_version_or_of_ones_own(self) -> None:
        folder = self.root / ".venv/lib/python3.11/site-packages"
        (folder / "torch-2.11.0.dist-info").rename(folder / "torch-2.9.1.dist-info")
        code, rows, _ = self.look()
        self.assertEqual((code, rows["LibTorch"]),
                         (1, ["missing", "2.9.1 in .venv; 2.11 is needed: remove .venv, then ./run"]))
        self.assertEqual(self.look(LADDER_TORCH_DIR=str(self.path))[1]["LibTorch"],
                         ["ok", str(self.path)])
        self.assertEqual(self.look(Torch_DIR="/none")[1]["LibTorch"],
                         ["missing", "/none; there is no such folder"])

    def test_a_fresh_checkout_misses_nothing_that_run_does_not_bring(self) -> None:
        for path in self.root.glob("build/bin/*"):
            path.unlink()
        for path in self.root.glob(".venv/lib/*/*/torch*"):
            path.rename(path.with_name("other"))
        code, rows, last = self.look()
        self.assertEqual((code, last), (0, "nothing is missing"), rows)
        self.assertEqual(rows["programs"], ["note", "0 of 2 stages are built; ./run builds the "
                                            "others"])
        self.assertEqual(rows["LibTorch"][0], "note")

    def test_data_that_is_missing_cut_or_other(self) -> None:
        images = self.root / "data/mnist/train-images-idx3-ubyte"
        for content, said in ((struct.pack(">II", 2051, 9), "train-images-idx3-ubyte is not that"),
                              (b"cut", "train-images-idx3-ubyte: unpack requires"),
                              (None, "no train-images-idx3-ubyte(.gz)")):
            with self.subTest(said):
                images.unlink() if content is None else images.write_bytes(content)
                code, rows, last = self.look()
                self.assertEqual((code, last), (1, "missing: data set"))
                self.assertTrue(rows["data set"][1].startswith(said), rows["data set"])

    def test_gpus_and_launchers_are_named(self) -> None:
        (self.path / "nvidia-smi").write_text(NVIDIA_SMI.format("580.65.06", "13.0"))
        self.program("mpirun", "")
        _, rows, _ = self.look()
        self.assertEqual(rows["GPUs"], ["ok", "NVIDIA H100; NVIDIA H100; tools/gpu_check.sh tries "
                                        "them"])
        self.assertEqual(rows["mpirun"], ["ok", f"{self.path}/mpirun"])


if __name__ == "__main__":
    unittest.main()
