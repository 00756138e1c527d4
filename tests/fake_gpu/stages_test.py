# SPDX-License-Identifier: Apache-2.0
"""All stages on tests/support/fake_cuda: device sets, precisions, modes, and checkpoints that move
between GPU and CPU. Each row is compared with the same training on the CPU."""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_gpu import gpu_ranks, in_precision, replicas, single, train_and_count
from tests.support.programs import temporary_folder
from tests.support.ways import (CUDA_GRAPH, FULLY_SHARDED, PIPELINE, STAGE0, STAGE1, STAGE2,
                                STAGE3, STAGE4, STAGE5, STAGE6, ZERO_REDUNDANCY, Run, Way, alone,
                                distance, ignore_accelerate_configuration, require_equal_weights,
                                small, spawned, train)

FOLDER = temporary_folder("fake-gpu")
ignore_accelerate_configuration(FOLDER)

SHORT = {"batch_size": 32, "limit_train": 200, "limit_test": 100}  # 7 steps, the last of 8 images
FLAGS = small(**SHORT)
CONVNET = ("--recipe", "convnet")

# How far the weights may be from those of the CPU in fp32. A gradient that is zero but for rounding
# is a full step of AdamW: 1e-3. With shifted images BasicNet's are 0.3 apart, with other dropout
# masks 0.4; ConvNet's, whose learning rate is a tenth, 1e-3.
BASICNET_NEAR = {"fp32": 5e-3, "bf16": 0.1, "fp16": 0.1}
CONVNET_NEAR = {"fp32": 2e-4, "bf16": 5e-3, "fp16": 5e-3}


def near(flags: tuple[object, ...], precision: str = "fp32") -> float:
    return (CONVNET_NEAR if "convnet" in flags else BASICNET_NEAR)[precision]


@dataclass(frozen=True)
class Row:
    """A training on the device, and what it must be like."""

    stage: Path
    devices: str  # as in GPUS
    way: Way
    flags: tuple[object, ...] = ()
    precision: str = "fp32"
    of_precision: tuple[object, ...] = ()
    like: Callable[[], Way] = lambda: alone(STAGE0)  # on the CPU, with the flags
    same: Way | None = None  # on the device, with the flags: ends with these very weights
    expected: dict[str, Any] = field(default_factory=dict)  # of the record

    def __str__(self) -> str:
        what = " ".join(str(flag) for flag in self.flags) or "basicnet"
        return f"{self.stage.name[:6]}, {self.devices}, {self.precision}, {what}"


@functools.cache
def trained(command: tuple[object, ...], preload: object,
            flags: tuple[object, ...]) -> tuple[Run, list[dict[str, Any]]]:
    environment = {} if preload is None else {"LD_PRELOAD": preload}
    if "torchrun" in str(command[0]):
        environment["OMP_NUM_THREADS"] = 1
    return train_and_count(Way(command, environment), *flags, parent=FOLDER)


def run_and_counts(way: Way, *flags: object) -> tuple[Run, list[dict[str, Any]]]:
    """Trains unless that was done before."""
    return trained(way.command, way.environment.get("LD_PRELOAD"), (*FLAGS, *flags))


def run_of(way: Way, *flags: object) -> Run:
    return run_and_counts(way, *flags)[0]


# The GPUs that each process uses, by the name of a device set; "0,1 to cpu" has its output on the
# CPU.
GPUS = {"cuda": ["0"], "cuda:1": ["1"], "0": ["0"], "0,0": ["0"], "0,1": ["0 1"], "1,0": ["0 1"],
        "0,cpu": ["0"], "cpu,0": ["0"], "cpu,1": ["1"], "1 rank": ["0"], "2 ranks": ["0", "1"],
        "2 on cuda:1": ["1", "1"], "3 on 2": ["0", "0", "1"]}


def of_one_process() -> list[Row]:
    two = {"like": lambda: alone(STAGE1, "--device-ids", "cpu,cpu")}
    rows = []
    for recipe in ((), CONVNET):
        rows += [
            Row(STAGE0, "cuda", single(), recipe, expected={"device": "cuda:0"}),
            Row(STAGE0, "cuda:1", single(device="cuda:1"), recipe, same=single(),
                expected={"device": "cuda:1"}),
            Row(STAGE1, "0", replicas("0"), recipe, same=single()),
            Row(CUDA_GRAPH, "cuda", single(CUDA_GRAPH), recipe, expected={"replayed_steps": 3}),
            *(Row(STAGE1, devices, replicas(devices), recipe, **two)
              for devices in ("0,1", "1,0", "0,0", "0,cpu", "cpu,1"))]
    rows += [Row(STAGE1, f"{devices} to {output}", replicas(devices, "--output-device", output),
                 **two)
             for devices, output in (("0,1", "1"), ("cpu,0", "0"), ("0,1", "cpu"))]
    rows += [Row(STAGE0, "cuda", single(), flags) for flags in (
        ("--pin-memory",), ("--num-workers", 2), ("--pin-memory", "--num-workers", 2),
        ("--augment", "shift"), ("--augment", "shift", "--pin-memory"))]
    for precision, recipe in (("fp32", ()), ("fp32", CONVNET), ("bf16", ())):
        flags = in_precision(STAGE6, precision)
        rows.append(Row(STAGE6, "1 rank", single(STAGE6, "--cuda-graph", *flags), recipe, precision,
                        same=single(STAGE6, *flags)))
    return [*rows, Row(STAGE1, "0,1", replicas("0,1"), ("--augment", "shift", "--pin-memory"))]


def of_ranks() -> list[Row]:
    two = {"expected": {"backend": "gloo", "world_size": 2}}
    like_two = {"like": lambda: spawned(program=STAGE2)}
    rows = []
    for recipe in ((), CONVNET):
        rows += [Row(stage, "2 ranks", gpu_ranks(stage), recipe, **like_two, **two)
                 for stage in (STAGE2, STAGE3, STAGE5, STAGE6)]
        rows.append(Row(STAGE4, "2 ranks", gpu_ranks(STAGE4), recipe,
                        of_precision=("--precision", "fp32"), **two))
    rows += [Row(stage, "1 rank", single(stage), same=single())
             for stage in (STAGE2, STAGE5, STAGE6)]
    return rows + [
        Row(STAGE2, "2 on cuda:1", gpu_ranks(STAGE2, device="cuda:1"), **two),
        Row(STAGE2, "3 on 2", gpu_ranks(STAGE2, 3), expected={"world_size": 3}),
        Row(STAGE2, "2 ranks", gpu_ranks(STAGE2), ("--sums", "exact"), **like_two),
        Row(ZERO_REDUNDANCY, "2 ranks", gpu_ranks(ZERO_REDUNDANCY), same=gpu_ranks(STAGE2), **two),
        Row(FULLY_SHARDED, "2 ranks", gpu_ranks(FULLY_SHARDED), same=gpu_ranks(STAGE2), **two),
        Row(PIPELINE, "2 ranks", gpu_ranks(PIPELINE), **two,
            like=lambda: spawned(1, program=PIPELINE))]


def in_16_bits() -> list[Row]:
    return [Row(stage, "2 ranks" if ranks == 2 else "1 rank",
                gpu_ranks(stage) if ranks == 2 else single(stage), recipe, precision,
                in_precision(stage, precision), expected={"precision": precision})
            for stage, precision, (ranks, recipe) in itertools.product(
                (STAGE4, STAGE5, STAGE6), ("bf16", "fp16"), ((1, ()), (2, ()), (2, CONVNET)))]


def of_modes() -> list[Row]:
    """Of the Accelerator and the Trainer. Most train other batches than stage 0."""
    def on_two(stage: Path, *flags: object, precision: str = "fp32") -> Row:
        of_precision = () if precision == "fp32" else in_precision(stage, precision)
        return Row(stage, "2 ranks", gpu_ranks(stage), flags, precision, of_precision,
                   like=lambda: spawned(program=stage))

    return [
        on_two(STAGE5, "--dispatch-batches"),
        on_two(STAGE5, "--loader-mode", "per-process"),
        on_two(STAGE5, "--loader-mode", "split-batches"),
        on_two(STAGE5, "--gradient-accumulation-steps", 3, "--loader-mode", "per-process"),
        on_two(STAGE5, "--dispatch-batches", "--loader-mode", "per-process", *CONVNET),
        on_two(STAGE5, "--gradient-accumulation-steps", 2, precision="fp16"),
        on_two(STAGE5, "--dispatch-batches", precision="fp16"),
        on_two(STAGE6, "--gradient-accumulation-steps", 2, precision="fp16"),
        on_two(STAGE6, "--gradient-accumulation-steps", 2),
        *(Row(STAGE6, "1 rank", single(STAGE6), ("--profile", *flags), like=lambda: alone(STAGE6))
          for flags in (("hf-defaults",),
                        ("none", "--optim", "sgd", "--lr-scheduler-type", "cosine"),
                        ("none", "--optim", "rmsprop"), ("none", "--optim", "adam"),
                        ("none", "--optim", "adagrad", "--label-smoothing-factor", 0.1)))]


@pytest.mark.parametrize("row", [*of_one_process(), *of_ranks(), *in_16_bits(), *of_modes()],
                         ids=str)
def test_a_training_on_gpus_is_that_on_the_cpu(row: Row) -> None:
    run, processes = run_and_counts(row.way, *row.flags, *row.of_precision)
    for key, value in row.expected.items():
        assert {**run.header, **run.result}[key] == value, key
    assert [" ".join(sorted(device.removeprefix("cuda:") for device in process["devices"]))
            for process in processes] == GPUS[row.devices.partition(" to ")[0]]
    assert row.precision != "fp16" or run.result["loss_scale"] > 0
    if row.same:
        require_equal_weights(run, run_of(row.same, *row.flags))
    apart = distance(run, run_of(row.like(), *row.flags))
    print(f"{apart:.0e} from the CPU", flush=True)
    assert apart < near(row.flags, row.precision)


@dataclass(frozen=True)
class Checkpointed:
    """A training that writes checkpoints and can resume from one in its middle."""

    stage: Path
    world: int
    flags: tuple[object, ...] = ()
    precision: str = "fp32"

    def on(self, device: str) -> Way:
        if device == "cpu":
            return spawned(self.world, program=self.stage)
        return gpu_ranks(self.stage, self.world) if self.world > 1 else single(self.stage)

    def run(self, device: str, resumed: Path | None = None) -> Run:
        """From the checkpoint in this folder of a run on."""
        folder = resumed or Path()
        saving, resuming = {
            STAGE5: (("--project-dir", "project", "--checkpointing-steps", 3),
                     (folder / "project" / "checkpoints" / "checkpoint_0",)),
            STAGE6: (("--output-dir", "out", "--save-steps", 3),
                     (folder / "out" / "checkpoint-3", "--save-strategy", "no"))}[self.stage]
        profile = ("--profile", "none") if self.stage == STAGE6 else ()
        precision = () if self.precision == "fp32" else in_precision(self.stage, self.precision)
        return run_of(self.on(device), *profile, *self.flags, *precision,
                      *(("--resume-from-checkpoint", *resuming) if resumed else saving))

    def __str__(self) -> str:
        what = " ".join(map(str, (*self.flags, self.precision)))
        return f"{self.stage.name[:6]}, {self.world}, {what}"


CHECKPOINTED = [
    Checkpointed(STAGE5, 1),
    Checkpointed(STAGE5, 2, ("--gradient-accumulation-steps", 2)),
    Checkpointed(STAGE6, 1, CONVNET),
    Checkpointed(STAGE6, 2, ("--lr-scheduler-type", "cosine"))]


# PyTorch's dropout: the state of a GPU's generator counts. The CPU draws other numbers, and it has
# no scaler.
@pytest.mark.parametrize("case", [
    *CHECKPOINTED,
    Checkpointed(STAGE5, 1, ("--math", "reference")),
    Checkpointed(STAGE5, 2, precision="fp16"),
    Checkpointed(STAGE5, 1, precision="bf16"),
    Checkpointed(STAGE6, 1, ("--math", "reference")),
    Checkpointed(STAGE6, 1, precision="fp16"),
    Checkpointed(STAGE6, 2, ("--lr-scheduler-type", "linear"), "fp16")], ids=str)
def test_a_resume_ends_with_the_weights_of_a_run_that_was_not_stopped(case: Checkpointed) -> None:
    whole = case.run("cuda")
    require_equal_weights(case.run("cuda", whole.folder), whole)


@pytest.mark.parametrize("source, target", [("cuda", "cpu"), ("cpu", "cuda")])
@pytest.mark.parametrize("case", CHECKPOINTED, ids=str)
def test_a_checkpoint_goes_from_gpu_to_cpu_and_back(case: Checkpointed, source: str,
                                                    target: str) -> None:
    moved = case.run(target, case.run(source).folder)
    assert target in moved.header["device"]
    assert moved.result["steps"] == case.run("cuda").result["steps"]
    apart = distance(moved, case.run("cpu"))
    print(f"{apart:.0e} from the CPU", flush=True)
    assert apart < near(case.flags)


def test_a_snapshot_of_stage_3_resumes(tmp_path: Path) -> None:
    whole = train(gpu_ranks(STAGE3), *small(epochs=2, **SHORT), parent=FOLDER)
    for epochs in (1, 2):
        last = train(gpu_ranks(STAGE3), *small(epochs=epochs, **SHORT), "--snapshot",
                     tmp_path / "snapshot", parent=FOLDER)
    assert sum(record["record"] == "epoch" for record in last.records) == 1
    require_equal_weights(last, whole)


@pytest.mark.parametrize("way, like", [
    (single(), lambda: alone(STAGE0)),
    (replicas("1,0"), lambda: alone(STAGE1, "--device-ids", "cpu,cpu"))])
def test_weights_of_a_gpu_are_read_on_the_cpu_and_back(way: Way, like: Callable[[], Way]) -> None:
    more = (*CONVNET, "--load", run_of(single(), *CONVNET).weights)
    assert distance(run_of(way, *more), run_of(like(), *more)) < near(more)
