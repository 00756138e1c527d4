# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.sh with the real programs, on the CPU: the flags fit, and the records suffice.

With LADDER_FULL in the environment, all of its checks.
"""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.programs import BIN, FULL, ROOT, launch
from tests.support.ways import CUDA_GRAPH, FULLY_SHARDED, PIPELINE, ZERO_REDUNDANCY

SCRIPT = ROOT / "tools" / "gpu_check.sh"
STAGES = (*sorted(BIN.glob("stage[0-9]_*")), CUDA_GRAPH, ZERO_REDUNDANCY, PIPELINE, FULLY_SHARDED)
TESTS = ("comm_test", "device_test", "kernels_test")  # of the many; each takes a second
# Further ones differ from these by one flag.
SOME = () if FULL else (
    "--only", "not again and not pinned and not bf16 and not rmsprop and not stage1")


@pytest.fixture(name="programs")
def links(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in (*STAGES, BIN / "suite", *(BIN / name for name in TESTS)):
        (folder / program.name).symlink_to(program)
    return folder


def test_every_check_is_well_on_the_cpu(tmp_path: Path, programs: Path) -> None:
    done = launch(SCRIPT, "--bin", programs, "--out", tmp_path, "--device", "cpu",
                  "--limit-train", 320, "--limit-test", 200, "--deadline", 120, *SOME)
    assert done.code == 0, done.stdout + done.stderr
    verdicts = [line.split()[:2] for line in done.stdout.split("\n\n")[0].splitlines()]
    assert [name for verdict, name in verdicts if verdict != "ok"] == [
        "memcheck_fp32", "memcheck_fp16", "twins"]
    assert len(verdicts) == (48 if FULL else 34)
    for name in ("stage2_one", "stage3_torchrun", "syncbn_one", "exact_shared", "exact_all",
                 "first_epoch", "resumed"):
        assert re.search(rf"ok +{name} .*weights of (stage0|convnet|exact|unint)", done.stdout)
    result = json.loads((tmp_path / "stage4_fp16.jsonl").read_text().splitlines()[-1])
    assert (result["precision"], result["steps"]) == ("fp16", 5)
    assert result["loss_scale"] > 0


def test_without_a_gpu_it_is_skipped(tmp_path: Path, programs: Path) -> None:
    done = launch(SCRIPT, "--bin", programs, "--out", tmp_path / "out",
                  environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 77, done.stdout + done.stderr
    assert "skipped: no GPU" in done.stdout
    assert not (tmp_path / "out").exists()
