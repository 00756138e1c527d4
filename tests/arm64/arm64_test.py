# SPDX-License-Identifier: Apache-2.0
"""Stages that were built for 64-bit Arm, three steps each, under qemu's emulation of it."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.programs import BIN, ROOT, SECONDS, free_port, result_record

EMULATOR = ("qemu-aarch64-static", "-cpu", "max,sve=off", "-L", str(BIN.parent / "sysroot"))
NATIVE = ROOT / "build/bin"
STEPS = ("--threads", "1", "--batch-size", "16", "--limit-train", "48", "--limit-test", "16",
         "--device", "cpu")


def train(folder: Path, program: str, *flags: object, bin: Path = BIN, **variables: str) -> str:
    """The hash of the weights."""
    metrics = folder / "metrics.jsonl"
    emulator = EMULATOR if bin == BIN else ()
    command = (*emulator, bin / program, *STEPS, "--metrics", metrics, *flags)
    done = subprocess.run([*map(str, command)], env=os.environ | variables, capture_output=True,
                          text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(result_record(metrics)["weights_sha256"])


def test_one_process_of_each_stage_trains_the_same_weights(tmp_path: Path) -> None:
    hashes = {train(tmp_path, "stage0_single_gpu"),
              train(tmp_path, "stage2_ddp_spawn", "--nprocs", 1),
              train(tmp_path, "stage3_ddp_torchrun", RANK="0", WORLD_SIZE="1",
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())),
              train(tmp_path, "stage5_accelerator")}
    assert len(hashes) == 1


def test_two_ranks_of_stages_2_and_5_train_the_same_weights(tmp_path: Path) -> None:
    two, five = (train(tmp_path, stage, "--nprocs", 2)
                 for stage in ("stage2_ddp_spawn", "stage5_accelerator"))
    assert two == five


@pytest.mark.skipif(not (NATIVE / "stage0_single_gpu").exists(), reason="build/bin has no stage 0")
def test_weights_are_near_those_of_this_processor(tmp_path: Path) -> None:
    emulated, native = tmp_path / "emulated.safetensors", tmp_path / "native.safetensors"
    for path, folder in ((emulated, BIN), (native, NATIVE)):
        train(tmp_path, "stage0_single_gpu", "--math", "reference", "--save", path, bin=folder)
    wanted = load_file(native)
    farthest = max(float(np.abs(got - wanted[name]).max())
                   for name, got in load_file(emulated).items())
    # Adam's step is 1e-3, whatever the size of a gradient: rounding may change a tenth of one.
    assert farthest < 1e-4
