# SPDX-License-Identifier: Apache-2.0
"""Stages 0 to 6 and the programs of beyond/ in reference math, and their Python twins of
bench/peers: equal bit for bit.

Compared are all ranks in every step (samples, loss, averaged gradients, weights and buffers), and
the record and the tensors of the end. The last batch of an epoch has one image: on two ranks, one
rank has none. Stage 4 runs without SyncBatchNorm, because PyTorch's refuses tensors on the CPU.

Stage 0 trains each recipe, the others one: matrix_test.py has the recipes of the stages among each
other. With LADDER_FULL in the environment, each twin trains all.
"""
from __future__ import annotations

import json
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.support.programs import FULL, PYTHON, TORCHRUN, free_port, records, temporary_folder
from tests.support.twins import (PEERS, Command, Ended, in_reference_math, train_forked, trained,
                                 twin)
from tests.support.ways import (ACCELERATE, CUDA_GRAPH, FULLY_SHARDED, PIPELINE, STAGE0, STAGE1, STAGE2, STAGE3,
                                STAGE4, STAGE5, STAGE6, ZERO_REDUNDANCY, compare_fingerprints,
                                ignore_accelerate_configuration)

sys.path.insert(0, str(PEERS))
from common import RECIPES, save_weights  # noqa: E402

FOLDER = temporary_folder("twins")
ignore_accelerate_configuration(FOLDER)

BF16 = ("--precision", "bf16")
MIXED = ("--mixed-precision", "bf16")
PER_DEVICE = ("--batch-mode", "per-device")
WIDE = ("--width", 2)
DEPTH = {"stack": ("--depth", 2)}
SOME = tuple(RECIPES) if FULL else ("convnet",)
TWO = (TORCHRUN, "--standalone", "--nproc-per-node", 2)
SCALAR = ("env", "ATEN_CPU_CAPABILITY=default")
# With --cpu it would start one process; --multi_gpu needs no GPU.
ACCELERATE_TWO = (ACCELERATE, "launch", "--multi_gpu", "--num_machines", 1, "--num_processes", 2,
                  "--main_process_port", free_port, "--mixed_precision", "bf16",
                  "--dynamo_backend", "no")


class Row(NamedTuple):
    cpp: Command
    python: Command
    recipe: str
    ranks: int = 1
    flags: Command = ()  # of both
    epochs: int = 2
    batches: int = 5  # whole ones in an epoch
    seen: int = 97  # images of the test: the last batch of convnet has one
    steps: int = 0  # in an epoch, if not one more than the whole batches
    # A twin that tests its last round with repeated images, in a batch of another size, or sums up
    # all images at once, rounds the same numbers otherwise.
    rounded: bool = False
    shards: bool = False  # the records of its steps are of each rank's shards

    def commands(self) -> tuple[Command, Command]:
        images = self.batches * RECIPES[self.recipe].batch_size + 1
        flags = ("--recipe", self.recipe, "--epochs", self.epochs, "--limit-train", images,
                 "--limit-test", self.seen, *self.flags, *DEPTH.get(self.recipe, ()))
        return (*in_reference_math(*self.cpp), *flags), (*self.python, *flags)

    def trained(self) -> list[Ended]:
        return trained(*self.commands(), parent=FOLDER)

    def __str__(self) -> str:
        words = (Path(part).name if isinstance(part, Path) else str(part)
                 for part in (*self.cpp, self.recipe, *self.flags))
        return " ".join(words)


def spawned(stage: Path, script: str, recipe: str, ranks: int, *flags: object,
            **more: object) -> Row:
    return Row((stage, "--nprocs", ranks, *flags), twin(script, "--nprocs", ranks), recipe, ranks,
               **more)


def ddp(recipe: str, ranks: int, *flags: object, **more: object) -> Row:
    size = {"batches": 10 if recipe == "basicnet" else 12, "seen": 65} | more
    return spawned(STAGE2, "ddp.py", recipe, ranks, *flags, **size)


def in_scalar_math(row: Row) -> Row:
    """fully_shard divides parameters by rows. PyTorch's fused AdamW rounds elements that fill a
    vector of eight otherwise than those behind it, so 10 numbers otherwise than two halves of 5."""
    return row._replace(cpp=(*SCALAR, *row.cpp), python=(*SCALAR, *row.python))


GLOO = ("--backend", "gloo")  # sums of three and more round by their order, and Python's is Gloo's
UNDER_TORCHRUN = ddp("convnet", 2)._replace(cpp=(*TWO, "--no-python", STAGE3),
                                            python=(*TWO, PEERS / "ddp.py"))
SPAWNED = ddp("basicnet", 2)
SINGLE = {recipe: Row((STAGE0,), twin("single.py"), recipe, batches=9, seen=500)
          for recipe in RECIPES}
DATA_PARALLEL = [SINGLE[recipe]._replace(cpp=(STAGE1, "--device-ids", "cpu"),
                                         python=twin("data_parallel.py")) for recipe in SOME]
GRAPH = SINGLE["basicnet"]._replace(cpp=(CUDA_GRAPH,), python=twin("cuda_graph.py"))
BEYOND = [
    *(spawned(ZERO_REDUNDANCY, "zero_redundancy.py", recipe, 2, batches=9, seen=65)
      for recipe in SOME),
    *(spawned(PIPELINE, "pipeline.py", recipe, ranks, flags=("--schedule", schedule))
      for recipe, ranks, schedule in (("basicnet", 4, "1f1b"), ("convnet", 2, "gpipe"), *[
          ("basicnet", 2, "1f1b"), ("stack", 2, "1f1b")] * FULL)),
    # fully_shard divides a sum, and DistributedDataParallel adds quotients: equal on two ranks. Its
    # gradients of each step, gathered, are those of stage 2; buffers stay those of each rank.
    in_scalar_math(spawned(STAGE2, "fully_sharded.py", "basicnet", 2, batches=9, seen=65)),
    *(in_scalar_math(spawned(FULLY_SHARDED, "fully_sharded.py", recipe, 2, batches=9, seen=65,
                             shards=True)) for recipe in SOME)]
TABLE = [
    *SINGLE.values(),
    GRAPH,
    *DATA_PARALLEL,
    UNDER_TORCHRUN,
    SPAWNED,
    ddp("convnet", 3, *GLOO, seen=2),  # one rank has no image to test
    ddp("basicnet", 2, flags=PER_DEVICE, steps=6),
    *(spawned(STAGE4, "ddp.py", recipe, 2, "--no-sync-bn", flags=BF16, epochs=1, batches=9, seen=65)
      for recipe in SOME),
    Row((STAGE5,), twin("accelerated.py"), "basicnet", flags=MIXED),
    Row((STAGE5,), twin("accelerated.py"), "convnet", flags=WIDE),
    spawned(STAGE5, "accelerated.py", "basicnet", 2, rounded=True),
    Row((STAGE5, "--nprocs", 2), (*ACCELERATE_TWO, PEERS / "accelerated.py"), "convnet", 2,
        flags=MIXED, rounded=True),
    Row((STAGE6,), twin("trainer.py"), "basicnet", rounded=True),
    Row((STAGE6,), twin("trainer.py"), "convnet", flags=WIDE, rounded=True),
    spawned(STAGE6, "trainer.py", "convnet", 2, rounded=True),
    *BEYOND,
]


def scaled(recipe: str, steps: int, scale: float) -> Row:
    """In fp16 from a file of Python, with a scale that is too large and soon grows again."""
    torch.manual_seed(1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    start = Path(tempfile.mkdtemp(dir=FOLDER)) / "start.safetensors"
    save_weights(RECIPES[recipe].model(), start, {"scaler": json.dumps(scaler.state_dict())})
    return spawned(STAGE4, "ddp.py", recipe, 2, "--no-sync-bn", epochs=1, batches=steps - 1,
                   seen=65, flags=("--precision", "fp16", "--load", start))


SCALED = [scaled("basicnet", 5, 2.0**19), scaled("convnet", 12, 2.0**20)]


def with_defaults(recipe: str, ranks: int) -> tuple[Command, Command]:
    """Of transformers."""
    flags = ("--profile", "hf-defaults", "--nprocs", ranks, "--recipe", recipe,
             "--limit-train", 300, "--limit-test", 97)
    return ((*in_reference_math(STAGE6), "--output-dir", "out", *flags),
            twin("trainer.py", *flags))


# With the steps, and the samples that are trained in them.
DEFAULTS = [(with_defaults("basicnet", 1), 5, 300), (with_defaults("convnet", 2), 3, 3 * 128)]
# --steps ends a run of a twin without a test, in the middle of the second epoch.
EIGHT_STEPS = [twin(script, *more, "--recipe", "convnet", "--epochs", 2,
                    "--limit-train", 5 * 32 + 1, "--steps", 8)
               for script, *more in (("data_parallel.py",), ("accelerated.py", "--nprocs", 2),
                                     ("trainer.py",),
                                     ("trainer.py", "--profile", "hf-defaults", "--nprocs", 2,
                                      "-b", 16))]


# Five steps of tuned Python, and the same of the twin. Convnet has no dropout, whose masks differ.
TUNED = tuple(twin(script, "--recipe", "convnet", "--epochs", 1, "--limit-train", 5 * 32,
                   "--limit-test", 65) for script in ("tuned.py", "single.py"))


def setup_module() -> None:
    """Trains programs and twins at the same time, the twins in forks that start quickly. The rows
    of launchers start as a user starts them, and with LADDER_FULL one of --nprocs."""
    rows = [row for row in (*TABLE, *SCALED) if not (FULL and row == SPAWNED)]
    pairs = [*(row.commands() for row in rows), *(commands for commands, *_ in DEFAULTS)]
    plain, scalar = ([python for _, python in pairs if python[:len(start)] == start]
                     for start in ((PYTHON,), (*SCALAR, PYTHON)))
    forked = [*plain, *scalar]
    with ThreadPoolExecutor(1) as pool:
        twins = [pool.submit(train_forked, commands, FOLDER)
                 for commands in ([*plain, *EIGHT_STEPS, *TUNED], scalar)]
        for cpp, python in pairs:
            trained(*([cpp] if python in forked else [cpp, python]), parent=FOLDER)
        if FULL:
            SPAWNED.trained()
        for ended in twins:
            ended.result()


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_equal_rows(row: Row) -> None:
    ours, theirs = row.trained()
    found = compare_fingerprints(ours.stem, theirs.stem)
    steps = row.epochs * (row.steps or row.batches + 1)
    assert (ours.result["steps"], ours.result["seen"]) == (steps, row.seen)
    for field in ("weights_sha256", "accuracy", "correct", "seen", "steps", "train_loss"):
        assert ours.result[field] == theirs.result[field], f"{field}; {found}"
    one, other = (run.result["eval_loss"] for run in (ours, theirs))
    assert abs(one - other) <= (1e-6 * other if row.rounded else 0)
    if not row.shards:
        assert f"no difference in {steps * row.ranks} records of {row.ranks} rank" in found
    if "bf16" in row.flags:
        assert [run.result["precision"] for run in (ours, theirs)] == ["bf16"] * 2
    assert sorted(ours.tensors) == sorted(theirs.tensors)
    for name, tensor in theirs.tensors.items():
        assert torch.equal(ours.tensors[name], tensor), name


@pytest.mark.parametrize("row", SCALED, ids=str)
def test_fp16_scales_the_loss_alike(row: Row) -> None:
    test_equal_rows(row)
    ours, theirs = row.trained()
    assert ours.result["loss_scale"] == theirs.result["loss_scale"]
    assert json.loads(ours.metadata["scaler"]) == json.loads(theirs.metadata["scaler"])
    assert 0 < ours.result["skipped_steps"] <= row.batches


def test_data_parallel_without_gpus_is_a_single_process() -> None:
    for row in DATA_PARALLEL:
        single, (_, theirs) = SINGLE[row.recipe], row.trained()
        assert "DataParallel runs the module alone" in theirs.done.stderr
        assert [theirs.result[key] for key in ("stage", "replicas", "weights_sha256")] == [
            "peer_data_parallel", 1, single.trained()[1].result["weights_sha256"]]


# Of the record of the end: what differs between programs, and between runs.
OWN = {"stage", "train_seconds", "total_seconds", "first_step_at", "warm_up_seconds",
       "samples_per_second", "peak_rss_bytes", "sent_bytes", "read_bytes"}


def comparable(result: dict[str, Any], own: set[str] = OWN) -> dict[str, Any]:
    return {key: None if key in own else value for key, value in result.items()}


def test_a_user_cannot_tell_stage_three_from_its_twin() -> None:
    kept = ("record", "epoch", "steps", "samples", "train_loss")
    printed, recorded = [], []
    for run in UNDER_TORCHRUN.trained():
        printed.append(re.sub(r"elapsed: \d+\.\d\d s", "elapsed: T s", run.done.stdout))
        _, *epochs, result = run.records
        recorded.append(([[epoch[key] for key in kept] for epoch in epochs], comparable(result)))
    assert len(printed[0].splitlines()) == UNDER_TORCHRUN.epochs + 3, printed[0]
    assert printed[0] == printed[1] and recorded[0] == recorded[1]


@pytest.mark.parametrize("commands, steps, samples", DEFAULTS)
def test_the_defaults_of_transformers_take_the_same_steps(
        commands: tuple[Command, Command], steps: int, samples: int) -> None:
    """Other random numbers, so other weights."""
    runs = trained(*commands, parent=FOLDER)
    for run in runs:
        result, (epoch,) = run.result, [r for r in run.records if r["record"] == "epoch"]
        assert [result[key] for key in ("epochs", "steps", "seen")] == [1, steps, 97]
        assert (epoch["steps"], epoch["samples"]) == (steps, samples)
    assert [runs[1].records[0][key] for key in ("batch_size", "eval_batch_size", "lr")] == [
        64, 64, 5e-5]


def test_tuned_python_trains_as_its_twin() -> None:
    """In channels_last, so sums are in another order, and BatchNorm's are less exact."""
    tuned, single = trained(*TUNED, parent=FOLDER)
    steps = [[record["loss_value"] for record in records(run.stem.with_suffix(".rank0.jsonl"))]
             for run in (tuned, single)]
    assert [len(losses) for losses in steps] == [5, 5]
    torch.testing.assert_close(*map(torch.tensor, steps), rtol=1e-5, atol=0)
    for name, expected in single.tensors.items():
        rtol = 1e-3 if "running" in name else 1e-5
        torch.testing.assert_close(tuned.tensors[name], expected, rtol=rtol, atol=rtol / 10,
                                   msg=lambda text, name=name: f"{name}: {text}")
    own = OWN | {"accuracy", "correct", "train_loss", "eval_loss", "weights_sha256"}
    assert comparable(tuned.result, own) == comparable(single.result, own)


@pytest.mark.parametrize("command", EIGHT_STEPS, ids=lambda command: command[1].name)
def test_steps_end_a_twin_without_a_test(command: Command) -> None:
    run, = trained(command, parent=FOLDER)
    _, first, second, result = run.records
    assert [first["steps"], second["steps"], result["steps"]] == [6, 2, 8]
    assert (result["seen"], result["accuracy"]) == (None, None)
    assert "Accuracy" not in run.done.stdout
    written = {path.name for path in run.stem.parent.iterdir()
               if not path.name.startswith("a.rank")}
    assert written == {"a.jsonl", "a.safetensors", "stderr", "stdout"}
