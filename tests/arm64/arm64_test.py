# SPDX-License-Identifier: Apache-2.0
"""Stages that were built for 64-bit Arm, three steps each, under qemu's emulation of it."""
from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, ROOT, free_port, result_record  # noqa: E402

EMULATOR = ("qemu-aarch64-static", "-cpu", "max,sve=off", "-L", str(BIN.parent / "sysroot"))
NATIVE = ROOT / "build/bin"
STEPS = ("--threads", "1", "--batch-size", "16", "--limit-train", "48", "--limit-test", "16",
         "--device", "cpu")
SECONDS = 240


def train(folder: Path, program: Path, *flags: str, before: tuple[str, ...] = EMULATOR,
          **variables: str) -> str:
    """The hash of the weights."""
    metrics = folder / "metrics.jsonl"
    done = subprocess.run([*before, str(program), *STEPS, "--metrics", str(metrics), *flags],
                          env=os.environ | variables, capture_output=True, text=True,
                          timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(result_record(metrics)["weights_sha256"])


class Arm64(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.train = functools.partial(train, self.folder)

    def test_one_process_of_each_stage_trains_the_same_weights(self) -> None:
        hashes = {self.train(BIN / "stage0_single_gpu"),
                  self.train(BIN / "stage2_ddp_spawn", "--nprocs", "1"),
                  self.train(BIN / "stage3_ddp_torchrun", RANK="0", WORLD_SIZE="1",
                             MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())),
                  self.train(BIN / "stage5_accelerator")}
        self.assertEqual(len(hashes), 1)

    def test_two_ranks_of_stages_2_and_5_train_the_same_weights(self) -> None:
        self.assertEqual(*(self.train(BIN / stage, "--nprocs", "2")
                           for stage in ("stage2_ddp_spawn", "stage5_accelerator")))

    @unittest.skipUnless((NATIVE / "stage0_single_gpu").exists(), "build/bin has no stage 0")
    def test_weights_are_near_those_of_this_processor(self) -> None:
        emulated, native = self.folder / "emulated.safetensors", self.folder / "native.safetensors"
        self.train(BIN / "stage0_single_gpu", "--math", "reference", "--save", str(emulated))
        self.train(NATIVE / "stage0_single_gpu", "--math", "reference", "--save", str(native),
                   before=())
        wanted = load_file(native)
        farthest = max(float(np.abs(got - wanted[name]).max())
                       for name, got in load_file(emulated).items())
        # Adam's step is 1e-3, whatever the size of a gradient: rounding may change a tenth of one.
        self.assertLess(farthest, 1e-4)


if __name__ == "__main__":
    unittest.main()
