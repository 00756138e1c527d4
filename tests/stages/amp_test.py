# SPDX-License-Identifier: Apache-2.0
"""Stage 4: 16 bits, SyncBatchNorm, the checkpoint with its scaler, and the profile.

Flags are tested in tests/mnist/command_line_test.cpp, the scaler in tests/amp/grad_scaler_test.cpp,
equality with other stages and with Python in tests/equality/.
"""
from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.programs import cpu_has, records, temporary_folder
from tests.support.twins import PEERS
from tests.support.ways import (STAGE0, STAGE4, Run, alone, distance, require_equal_weights, small,
                                spawned, train)

sys.path.insert(0, str(PEERS))
from common import ConvNet  # noqa: E402

FOLDER = temporary_folder("amp")
FP32 = ("--precision", "fp32")
STEPS = 50
FLAGS = small(recipe="convnet", limit_train=STEPS * 32, limit_test=100)


@functools.cache
def trained(stage: Path, *flags: object) -> Run:
    """Two ranks of stage 4, or stage 0."""
    way = alone(STAGE0) if stage == STAGE0 else spawned(program=STAGE4)
    return train(way, *flags, parent=FOLDER)


def is_running(name: str) -> bool:
    return "running" in name


def is_weight(name: str) -> bool:
    return not is_running(name) and not name.endswith("num_batches_tracked")


@pytest.mark.parametrize("flags, of, least, most", [
    ((), is_weight, 0, 1e-6), ((), is_running, 0, 1e-5),
    (("--no-sync-bn",), is_weight, 1e-5, 1), (("--no-sync-bn",), is_running, 1e-3, 1)])
def test_two_ranks_are_close_to_stage_zero_with_sync_batch_norm_alone(
        flags: tuple[object, ...], of: Callable[[str], bool], least: float, most: float) -> None:
    """50 steps on one rank, and with the same global batches on two.

    The distance that rounding leaves depends on the CPU's instructions: in the weights 1e-8 with
    AVX-512 and 5e-7 with AVX2, in the running statistics 2e-7 and 6e-6. Without SyncBatchNorm it is
    5e-5 and 9e-3.
    """
    two, one = trained(STAGE4, *FLAGS, *FP32, *flags), trained(STAGE0, *FLAGS)
    assert (one.result["steps"], two.result["steps"]) == (STEPS, STEPS)
    apart = distance(two, one, of)
    print(f"{flags}, {of.__name__}: {apart:.1e}")
    assert least <= apart <= most


def test_bf16_is_the_default_on_the_cpu() -> None:
    run = trained(STAGE4, *FLAGS, "--fingerprint", 1)
    assert (run.header["precision"], run.result["precision"]) == ("bf16", "bf16")
    assert "on cpu in bf16," in run.done.stderr
    assert distance(run, trained(STAGE4, *FLAGS, *FP32), is_weight) > 2e-6
    assert ("bf16 is emulated" in run.done.stderr) != cpu_has("avx512_bf16", "amx_bf16", "bf16")
    assert "loss_scale" not in run.result
    with safe_open(run.weights, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_in_bf16_both_ranks_hold_the_same_weights_and_statistics_after_each_step() -> None:
    run = trained(STAGE4, *FLAGS, "--fingerprint", 1)
    ranks = [records(run.folder / f"a.rank{rank}.jsonl") for rank in range(2)]
    assert [len(marks) for marks in ranks] == [STEPS, STEPS]
    for one, other in zip(*ranks):
        assert other["gradients"] == one["gradients"], one["step"]
        assert other["weights"] == one["weights"], one["step"]
        assert other["positions"] != one["positions"]


FP16 = small(recipe="convnet", limit_train=64, limit_test=32, precision="fp16")  # two steps


def saved() -> Path:
    return trained(STAGE4, *FP16).weights


def saved_state() -> dict[str, Any]:
    """Of the scaler."""
    with safe_open(saved(), framework="pt") as file:
        return json.loads(file.metadata()["scaler"])


def test_fp16_works_on_the_cpu_and_records_its_scale() -> None:
    run = trained(STAGE4, *FP16)
    assert (run.header["precision"], run.result["precision"]) == ("fp16", "fp16")
    skipped = run.result["skipped_steps"]
    assert skipped < run.result["steps"]
    assert run.result["loss_scale"] == 65536 / 2**skipped
    warnings = [line for line in run.done.errors if "fp16 is emulated" in line]
    # Rank 0 alone logs that it is slow.
    assert len(warnings) == (0 if cpu_has("avx512_fp16", "amx_fp16", "fphp") else 1), warnings


def written(folder: Path, **changes: float) -> Path:
    """A file of Python with the saved weights and the state of the scaler, with these changes."""
    path = folder / "edited.safetensors"
    save_file(load_file(saved()), path, {"scaler": json.dumps(saved_state() | changes)})
    return path


def test_python_loads_the_weights_and_the_scaler() -> None:
    keys = ConvNet().load_state_dict(load_file(saved()), strict=True)
    assert (keys.missing_keys, keys.unexpected_keys) == ([], [])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.load_state_dict(saved_state())
    assert scaler.state_dict() == saved_state()
    assert scaler.get_scale() == trained(STAGE4, *FP16).result["loss_scale"]


def test_scale_and_count_of_good_steps_are_those_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, scale=1024.0, _growth_tracker=1999)
    result = trained(STAGE4, *FP16, "--load", path).result
    assert (result["loss_scale"], result["skipped_steps"]) == (2048, 0)


def test_a_scale_that_is_too_large_skips_steps_and_shrinks(tmp_path: Path) -> None:
    run = trained(STAGE4, *FP16, "--load", written(tmp_path, scale=2.0**60))
    assert (run.result["steps"], run.result["skipped_steps"]) == (2, 2)
    assert run.result["loss_scale"] == 2.0**58
    before, after = load_file(saved()), load_file(run.weights)
    for name in before:  # statistics of BatchNorm move with each forward
        assert torch.equal(before[name], after[name]) == is_weight(name), name


def test_stages_four_and_zero_evaluate_it_alike() -> None:
    flags = small(recipe="convnet", limit_test=32, epochs=0, load=saved())
    four, zero = trained(STAGE4, *flags, *FP32), trained(STAGE0, *flags)
    require_equal_weights(four, zero)
    for field in ("seen", "correct"):
        assert four.result[field] == zero.result[field], field
    for name, tensor in load_file(saved()).items():
        assert torch.equal(load_file(four.weights)[name], tensor), name


def test_the_profile_is_the_run_of_the_tutorial() -> None:
    run = trained(STAGE4, "--profile", "ddp-practice", "--threads", 1, "--limit-train", 192,
                  "--limit-test", 32)
    assert [run.header[key] for key in ("recipe", "epochs", "batch_size", "lr")] == [
        "convnet", 3, 32, 1e-4]
    assert run.header["options"]["--batch-mode"] == "per-device"
    assert run.result["steps"] == 3 * 192 // (2 * 32)
