# SPDX-License-Identifier: Apache-2.0
"""All stages on tests/support/fake_cuda: device sets, precisions, modes, and checkpoints that move
between GPU and CPU. Each row is compared with the same training on the CPU."""
from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
import unittest
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.fake_gpu import GLOO, gpu, gpu_ranks, train_and_count  # noqa: E402
from tests.support.ways import (PIPELINE, STAGE0, STAGE1, STAGE2, STAGE3, STAGE4,  # noqa: E402
                                STAGE5, STAGE6, ZERO_REDUNDANCY, Run, Way, alone, distance,
                                ignore_accelerate_configuration, require_equal_weights, small,
                                spawned, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-fake-gpu-"))
atexit.register(shutil.rmtree, FOLDER)
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


RUNS: dict[str, list[str]] = {}  # lines of the table that is printed at the end, by their groups


@dataclass(frozen=True)
class Row:
    """A training on the device, and what it must be like."""

    stage: Path
    devices: str  # as in the table
    way: Way
    flags: tuple[object, ...] = ()
    precision: str = "fp32"
    of_precision: tuple[object, ...] = ()
    like: Callable[[], Way] = lambda: alone(STAGE0)  # on the CPU, with the flags
    same: Way | None = None  # on the device, with the flags: ends with these very weights
    expected: dict[str, Any] = field(default_factory=dict)  # of the record

    @property
    def name(self) -> str:
        what = " ".join(str(flag) for flag in self.flags) or "basicnet"
        return f"{self.stage.name[:6]}  {self.devices:11}  {self.precision:9}  {what}"


@functools.cache
def trained(command: tuple[object, ...], preload: object,
            flags: tuple[object, ...]) -> tuple[Run, list[dict[str, Any]]]:
    environment = {} if preload is None else {"LD_PRELOAD": preload}
    if "torchrun" in str(command[0]):
        environment["OMP_NUM_THREADS"] = 1
    return train_and_count(Way(command, environment), *flags, parent=FOLDER)


def run_of(way: Way, *flags: object) -> Run:
    """Trains unless that was done before."""
    return trained(way.command, way.environment.get("LD_PRELOAD"), (*FLAGS, *flags))[0]


def gpus_of(way: Way, *flags: object) -> list[str]:
    """The GPUs that each process of that run used, such as ["0", "1"] or ["0 1"]."""
    counted = trained(way.command, way.environment.get("LD_PRELOAD"), (*FLAGS, *flags))[1]
    return [" ".join(sorted(device.removeprefix("cuda:") for device in process["devices"]))
            for process in counted]


# By the name of a device set in the table; "0,1 to cpu" has its output on the CPU.
GPUS = {"cuda": ["0"], "cuda:1": ["1"], "0": ["0"], "0,0": ["0"], "0,1": ["0 1"], "1,0": ["0 1"],
        "0,cpu": ["0"], "cpu,0": ["0"], "cpu,1": ["1"], "1 rank": ["0"], "2 ranks": ["0", "1"],
        "2 on cuda:1": ["1", "1"], "3 on 2": ["0", "0", "1"]}


def single(stage: Path = STAGE0, device: str = "cuda") -> Way:
    return gpu(stage, "--device", device, *(() if stage == STAGE0 else ("--nprocs", 1)))


def replicas(devices: str, *flags: object) -> Way:
    return gpu(STAGE1, "--device-ids", devices, *flags)


def of_one_process() -> list[Row]:
    rows = []
    for recipe in ((), CONVNET):
        rows += [
            Row(STAGE0, "cuda", single(), recipe, expected={"device": "cuda:0"}),
            Row(STAGE0, "cuda:1", single(device="cuda:1"), recipe, same=single(),
                expected={"device": "cuda:1"}),
            Row(STAGE1, "0", replicas("0"), recipe, same=single()),
            *(Row(STAGE1, devices, replicas(devices), recipe,
                  like=lambda: alone(STAGE1, "--device-ids", "cpu,cpu"))
              for devices in ("0,1", "1,0", "0,0", "0,cpu", "cpu,1"))]
    rows += [
        Row(STAGE1, f"{devices} to {output}", replicas(devices, "--output-device", output),
            like=lambda: alone(STAGE1, "--device-ids", "cpu,cpu"))
        for devices, output in (("0,1", "1"), ("cpu,0", "0"), ("0,1", "cpu"))]
    return rows + [
        Row(STAGE0, "cuda", single(), flags)
        for flags in (("--pin-memory",), ("--num-workers", 2), ("--pin-memory", "--num-workers", 2),
                      ("--augment", "shift"), ("--augment", "shift", "--pin-memory"))] + [
        Row(STAGE1, "0,1", replicas("0,1"), ("--augment", "shift", "--pin-memory"))]


def of_ranks() -> list[Row]:
    two = {"backend": "gloo", "world_size": 2}
    rows = []
    for recipe in ((), CONVNET):
        rows += [
            *(Row(stage, "2 ranks", gpu_ranks(stage), recipe, expected=two,
                  like=lambda: spawned(program=STAGE2))
              for stage in (STAGE2, STAGE3, STAGE5, STAGE6)),
            Row(STAGE4, "2 ranks", gpu_ranks(STAGE4), recipe, of_precision=("--precision", "fp32"),
                expected=two)]
    for stage in (STAGE2, STAGE5, STAGE6):
        rows.append(Row(stage, "1 rank", single(stage), same=single()))
    rows += [
        Row(STAGE2, "2 on cuda:1", gpu_ranks(STAGE2, device="cuda:1"), expected=two),
        Row(STAGE2, "3 on 2", gpu_ranks(STAGE2, 3), expected={"world_size": 3}),
        Row(STAGE2, "2 ranks", gpu_ranks(STAGE2), ("--sums", "exact"),
            like=lambda: spawned(program=STAGE2)),
        Row(ZERO_REDUNDANCY, "2 ranks", gpu_ranks(ZERO_REDUNDANCY), same=gpu_ranks(STAGE2),
            expected=two),
        Row(PIPELINE, "2 ranks", gpu_ranks(PIPELINE), expected=two,
            like=lambda: spawned(1, program=PIPELINE))]
    return rows


def in_16_bits() -> list[Row]:
    rows = []
    flags = {STAGE4: lambda p: ("--precision", p), STAGE5: lambda p: ("--mixed-precision", p),
             STAGE6: lambda p: (f"--{p}", "true")}
    for stage, of_precision in flags.items():
        for precision in ("bf16", "fp16"):
            for ranks, recipe in ((1, ()), (2, ()), (2, CONVNET)):
                rows.append(Row(stage, f"{ranks} rank{'s'[ranks == 1:]}",
                                gpu_ranks(stage, ranks) if ranks > 1 else single(stage), recipe,
                                precision, of_precision(precision),
                                expected={"precision": precision}))
    return rows


def of_modes() -> list[Row]:
    """Of the Accelerator and the Trainer. Most train other batches than stage 0."""
    two = (STAGE5, "2 ranks", gpu_ranks(STAGE5))
    rows = [Row(*two, flags, like=lambda: spawned(program=STAGE5)) for flags in (
        ("--dispatch-batches",), ("--loader-mode", "per-process"),
        ("--loader-mode", "split-batches"),
        ("--gradient-accumulation-steps", 3, "--loader-mode", "per-process"),
        ("--dispatch-batches", "--loader-mode", "per-process", *CONVNET))]
    return rows + [
        *(Row(STAGE5, "2 ranks", gpu_ranks(STAGE5), flags, "fp16", ("--mixed-precision", "fp16"),
              like=lambda: spawned(program=STAGE5))
          for flags in (("--gradient-accumulation-steps", 2), ("--dispatch-batches",))),
        Row(STAGE6, "2 ranks", gpu_ranks(STAGE6), ("--gradient-accumulation-steps", 2), "fp16",
            ("--fp16", "true"), like=lambda: spawned(program=STAGE6)),
        Row(STAGE6, "1 rank", single(STAGE6), ("--profile", "hf-defaults"),
            like=lambda: alone(STAGE6)),
        Row(STAGE6, "2 ranks", gpu_ranks(STAGE6), ("--gradient-accumulation-steps", 2),
            like=lambda: spawned(program=STAGE6)),
        *(Row(STAGE6, "1 rank", single(STAGE6), ("--profile", "none", "--optim", optimizer, *more),
              like=lambda: alone(STAGE6))
          for optimizer, more in (("sgd", ("--lr-scheduler-type", "cosine")), ("rmsprop", ()),
                                  ("adagrad", ("--label-smoothing-factor", 0.1)), ("adam", ())))]


class Stages(unittest.TestCase):
    def check(self, group: str, rows: list[Row]) -> None:
        for row in rows:
            with self.subTest(row.name):
                lines = RUNS.setdefault(group, [])
                lines.append(f"{row.name}: FAILED")
                run = run_of(row.way, *row.flags, *row.of_precision)
                lines[-1] = f"{row.name}: {self.judged(row, run)}"

    def judged(self, row: Row, run: Run) -> str:
        for key, value in row.expected.items():
            self.assertEqual({**run.header, **run.result}[key], value, key)
        self.assertEqual(gpus_of(row.way, *row.flags, *row.of_precision),
                         GPUS[row.devices.partition(" to ")[0]])
        if row.precision == "fp16":
            self.assertGreater(run.result["loss_scale"], 0)
        if row.same:
            require_equal_weights(run, run_of(row.same, *row.flags))
        apart = distance(run, run_of(row.like(), *row.flags))
        self.assertLess(apart, near(row.flags, row.precision))
        return f"{apart:.0e} from the CPU" + (", weights of stage 0 on cuda" if row.same else "")

    def test_one_process(self) -> None:
        self.check("one process", of_one_process())

    def test_ranks(self) -> None:
        self.check("ranks", of_ranks())

    def test_16_bits(self) -> None:
        self.check("16 bits", in_16_bits())

    def test_modes(self) -> None:
        self.check("modes", of_modes())


@dataclass(frozen=True)
class Checkpointed:
    """A training that writes checkpoints and can resume from one in its middle."""

    stage: Path
    world: int
    flags: tuple[object, ...]
    saving: tuple[object, ...]  # within the folder of a run
    resuming: Callable[[Path], tuple[object, ...]]  # from the checkpoint in this folder of a run
    precision: tuple[object, ...] = ()

    def on(self, device: str) -> Way:
        if device == "cpu":
            return spawned(self.world, program=self.stage)
        return gpu_ranks(self.stage, self.world) if self.world > 1 else single(self.stage)

    @property
    def name(self) -> str:
        what = " ".join(map(str, (*self.flags, *self.precision)))
        return f"{self.stage.name[:6]}  {self.world} rank{'s'[self.world == 1:]}  {what}"


def of_stage5(world: int, *flags: object, precision: tuple[object, ...] = ()) -> Checkpointed:
    return Checkpointed(STAGE5, world, flags,
                        ("--project-dir", "project", "--checkpointing-steps", 3),
                        lambda folder: ("--resume-from-checkpoint",
                                        folder / "project" / "checkpoints" / "checkpoint_0"),
                        precision)


def of_stage6(world: int, *flags: object, precision: tuple[object, ...] = ()) -> Checkpointed:
    return Checkpointed(STAGE6, world, ("--profile", "none", *flags),
                        ("--output-dir", "out", "--save-steps", 3),
                        lambda folder: ("--resume-from-checkpoint", folder / "out" / "checkpoint-3",
                                        "--save-strategy", "no"), precision)


CHECKPOINTED = [
    of_stage5(1),
    of_stage5(2, "--gradient-accumulation-steps", 2),
    of_stage5(1, "--math", "reference"),  # PyTorch's dropout: the state of a GPU's generator counts
    of_stage5(2, precision=("--mixed-precision", "fp16")),
    of_stage5(1, precision=("--mixed-precision", "bf16")),
    of_stage6(1, *CONVNET),
    of_stage6(2, "--lr-scheduler-type", "cosine"),
    of_stage6(1, "--math", "reference"),
    of_stage6(1, precision=("--fp16", "true")),
    of_stage6(2, "--lr-scheduler-type", "linear", precision=("--fp16", "true")),
]


class Checkpoints(unittest.TestCase):
    def test_a_resume_ends_with_the_weights_of_a_run_that_was_not_stopped(self) -> None:
        for case in CHECKPOINTED:
            with self.subTest(case.name):
                whole = run_of(case.on("cuda"), *case.flags, *case.precision, *case.saving)
                again = run_of(case.on("cuda"), *case.flags, *case.precision,
                               *case.resuming(whole.folder))
                require_equal_weights(again, whole)
                RUNS.setdefault("resume", []).append(f"{case.name}: the same weights")

    def test_from_gpu_to_cpu_and_back(self) -> None:
        """In fp32: the CPU has no scaler. Its dropout by PyTorch draws other numbers."""
        for case in CHECKPOINTED:
            if case.precision or "reference" in case.flags:
                continue
            whole = {device: run_of(case.on(device), *case.flags, *case.saving)
                     for device in ("cuda", "cpu")}
            for source, target in (("cuda", "cpu"), ("cpu", "cuda")):
                with self.subTest(f"{case.name}, {source} to {target}"):
                    moved = run_of(case.on(target), *case.flags,
                                   *case.resuming(whole[source].folder))
                    self.assertIn(target, moved.header["device"])
                    self.assertEqual(moved.result["steps"], whole["cuda"].result["steps"])
                    apart = distance(moved, whole["cpu"])
                    self.assertLess(apart, near(case.flags))
                    RUNS.setdefault("resume", []).append(
                        f"{case.name}, {source} to {target}: {apart:.0e} from the CPU")

    def test_a_snapshot_of_stage_3(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        whole = train(gpu_ranks(STAGE3), *small(epochs=2, **SHORT), parent=FOLDER)
        for epochs in (1, 2):
            last = train(gpu_ranks(STAGE3), *small(epochs=epochs, **SHORT), "--snapshot",
                         folder / "snapshot", parent=FOLDER)
        self.assertEqual(sum(record["record"] == "epoch" for record in last.records), 1)
        require_equal_weights(last, whole)

    def test_weights_of_a_gpu_are_read_on_the_cpu_and_back(self) -> None:
        saved = run_of(single(), *CONVNET)
        more = (*CONVNET, "--load", saved.weights)
        for way, like in ((single(), alone(STAGE0)),
                          (replicas("1,0"), alone(STAGE1, "--device-ids", "cpu,cpu"))):
            self.assertLess(distance(run_of(way, *more), run_of(like, *more)), near(more))


def tearDownModule() -> None:  # noqa: N802, unittest's name
    for group, lines in RUNS.items():
        print(f"\n{group}\n  " + "\n  ".join(lines), flush=True)


if __name__ == "__main__":
    unittest.main()
