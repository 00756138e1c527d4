# SPDX-License-Identifier: Apache-2.0
"""One table of trainings: which cells end with equal weights, and which come close to which.

Each cell trains once per process. With LADDER_FULL in the environment, the rows of every program
train whole epochs, and the rows of the other launchers, worlds and precisions are further ones.
"""
from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.programs import FULL, free_port, temporary_folder
from tests.support.ways import (EXACT, FULLY_SHARDED, PIPELINE, STAGE0, STAGE1, STAGE2, STAGE3,
                                STAGE4, STAGE5, STAGE6, ZERO_REDUNDANCY, Run, Way, accelerate,
                                alone, by_hand, distance, ignore_accelerate_configuration, mpirun,
                                one_rank, require_equal_weights, small, spawned, torchrun, train,
                                with_init_method)

SECONDS = 1200 if FULL else 240  # per training, on a machine with other work too
FOLDER = temporary_folder("matrix")
ignore_accelerate_configuration(FOLDER)

PROGRAMS = (STAGE0, STAGE1, STAGE2, STAGE3, STAGE4, STAGE5, STAGE6, ZERO_REDUNDANCY, PIPELINE,
            FULLY_SHARDED)
ZERO, PIPE, SHARDED = 7, 8, 9
TO_ZERO_3, TO_ZERO_2 = ("--reshard-after-forward",), ("--no-reshard-after-forward",)


def itself(world: int, program: Path) -> Way:
    if program == STAGE0:
        return alone(program)
    if program == STAGE1:
        return alone(program, "--device-ids", ",".join(["cpu"] * world))
    if program == STAGE6:
        return alone(program, "--num-processes", world)
    return spawned(world, program=program)


STARTS = {  # with the launcher that the record of the run names
    "itself": (itself, ""),
    "bare": (lambda world, program: alone(program), ""),
    "one by hand": (lambda world, program: one_rank(0, 1, free_port(), program=program), ""),
    "torchrun": (torchrun, "by torchrun ("),
    "mpirun": (mpirun, "by mpirun ("),
    "by hand": (by_hand, "by env ("),
    "accelerate": (accelerate, "by accelerate ("),
    "tcp": (lambda world, program: with_init_method(f"tcp://127.0.0.1:{free_port()}", world,
                                                    program), "by options ("),
    "file": (lambda world, program: with_init_method("file://$PWD/store", world, program),
             "by options ("),
}


class Recipe(NamedTuple):
    images: int
    tests: int
    epochs: int
    batch: int
    points: float  # of accuracy, between one rank and two
    limit: float | None  # of the distance between the weights of one rank and of several
    loss: float | None = None  # between their training losses


# The last batch of basicnet has 2 images: of three and four ranks, some have none. That of convnet
# has 1. AdamW turns last bits of small gradients into whole steps, and the limit has room for that.
# The BatchNorm of convnet is local: several ranks train a slightly different network, on purpose.
SMALL = {
    "basicnet": Recipe(578, 499, 1, 64, points=3.0, limit=2e-3, loss=5e-4),
    "convnet": Recipe(321, 500, 2, 32, points=3.0, limit=2e-3, loss=5e-3),
    "stack": Recipe(258, 200, 1, 64, points=3.0, limit=2e-3, loss=5e-4),
}
# After its 200 steps the stack still learns fast: rounding alone (other ranks or threads) moved its
# accuracy by up to 6.6 points and its loss by up to 0.06, between one rank and two by 0.035.
WHOLE = {
    "basicnet": Recipe(60000, 10000, 1, 64, points=0.3, limit=None),
    "convnet": Recipe(60000, 10000, 3, 32, points=0.3, limit=None),
    "stack": Recipe(12800, 2000, 1, 64, points=10.0, limit=None, loss=0.08),
}


class Cell(NamedTuple):
    stage: int
    start: str = "itself"
    world: int = 1
    recipe: str = "basicnet"
    precision: str = "fp32"
    flags: tuple[object, ...] = ()
    again: bool = False  # the same command once more
    whole: bool = False  # whole epochs
    threads: int = 1  # of each rank
    images: int = 0  # others than those of the recipe, and tests

    def __str__(self) -> str:
        parts = (f"stage {self.stage}", self.start, f"{self.world} ranks", self.recipe,
                 self.precision, *self.flags, *["again"] * self.again,
                 *["whole epochs"] * self.whole, *["two threads"] * (self.threads == 2))
        return ", ".join(map(str, parts))

    @property
    def size(self) -> Recipe:
        size = (WHOLE if self.whole else SMALL)[self.recipe]
        return size._replace(images=self.images, tests=200) if self.images else size

    def command_line(self) -> tuple[object, ...]:
        precision: tuple[object, ...] = ()
        if self.stage == 4:
            precision = ("--precision", self.precision)
        elif self.precision != "fp32":
            precision = ("--mixed-precision", self.precision)
        depth = ("--depth", 4) if self.recipe == "stack" and not self.whole else ()
        return small("--recipe", self.recipe, *depth, *precision, *self.flags, threads=self.threads,
                     epochs=self.size.epochs, limit_train=self.size.images,
                     limit_test=self.size.tests)


@functools.cache
def trained(cell: Cell) -> Run:
    start, _ = STARTS[cell.start]
    run = train(start(cell.world, program=PROGRAMS[cell.stage]), *cell.command_line(),
                parent=FOLDER, seconds=SECONDS)
    print(f"{cell}: accuracy {run.result['accuracy']:.2f}, {run.done.seconds:.1f} s", flush=True)
    return run


GLOO = ("--backend", "gloo")
LOCAL_BN = ("--no-sync-bn",)
EQUALS, CLOSE_TO = "equals", "close to"
Row = tuple[Cell, str, Cell]


def equals(other: Cell, *cells: Cell) -> Iterator[Row]:
    """Of the recipe and the length of `other`."""
    return ((cell._replace(recipe=other.recipe, whole=other.whole), EQUALS, other)
            for cell in cells)


def every_program(whole: bool) -> Iterator[Row]:
    """On one rank and on two."""
    for recipe in SMALL if whole else ("basicnet", "convnet"):
        one = Cell(0, recipe=recipe, whole=whole)
        two = Cell(2, world=2, recipe=recipe, whole=whole)
        yield two, CLOSE_TO, one
        yield from equals(one, Cell(1), Cell(2), Cell(3, "one by hand"), Cell(4), Cell(5, "bare"),
                          Cell(6, "bare"))
        yield from equals(two, Cell(1, world=2), Cell(3, "by hand", 2), Cell(5, world=2),
                          Cell(4, world=2, flags=LOCAL_BN if recipe == "convnet" else ()),
                          Cell(6, world=2))


def other_ways() -> Iterator[Row]:
    """Each launcher, backend and precision once."""
    two, synced = Cell(2, world=2), Cell(4, "itself", 2, "convnet")
    yield two._replace(again=True), EQUALS, two
    yield from equals(two, Cell(2, world=2, flags=GLOO), Cell(5, "mpirun", 2, flags=("--debug",)),
                      *(Cell(3, start, 2) for start in ("torchrun", "mpirun", "tcp", "file")))
    yield from equals(two._replace(recipe="convnet"), Cell(6, "by hand", 2))
    yield from equals(Cell(4, "itself", 2, "convnet", "bf16", LOCAL_BN),
                      Cell(5, world=2, precision="bf16"))
    yield from equals(synced, synced._replace(start="by hand"))  # with SyncBatchNorm
    yield from equals(Cell(2, world=3), Cell(4, world=3))
    yield Cell(2, world=3), CLOSE_TO, Cell(0)
    yield Cell(1, world=3), CLOSE_TO, Cell(0)


def beyond() -> Iterator[Row]:
    """A divided optimizer or network is that of stage 2; a cut network is that of one process."""
    for world, flags in ((2, TO_ZERO_3), (3, TO_ZERO_2)):
        yield from equals(Cell(2, world=world), Cell(ZERO, world=world),
                          Cell(SHARDED, world=world, flags=flags))
    yield from equals(Cell(0), Cell(ZERO), Cell(PIPE, world=2, flags=micro_batches(1)))
    yield from equals(Cell(2, world=2, recipe="convnet"), Cell(ZERO, world=2),
                      Cell(SHARDED, world=2, flags=GLOO))
    yield from equals(Cell(PIPE), *(Cell(PIPE, world=world) for world in (2, 3, 4)),
                      Cell(PIPE, world=2, flags=("--schedule", "gpipe")),
                      Cell(PIPE, "by hand", 2, flags=GLOO))
    yield from equals(Cell(PIPE, recipe="convnet"), Cell(PIPE, world=2))
    yield from equals(Cell(PIPE, recipe="stack"), Cell(PIPE, world=4))
    yield from equals(Cell(2, world=2, recipe="stack"), Cell(ZERO, world=2), Cell(SHARDED, world=2),
                      *(Cell(stage, world=2) for stage in (1, 4, 5, 6)))
    yield from equals(Cell(0, recipe="stack"), Cell(2), Cell(3, "one by hand"))
    yield from equals(Cell(2, recipe="stack", flags=EXACT), Cell(PIPE, world=2, flags=EXACT))
    yield from equals(Cell(2, flags=EXACT), Cell(ZERO, world=3, flags=EXACT),
                      *(Cell(PIPE, world=world, flags=(*EXACT, *micro_batches(count)))
                        for world, count in ((1, 2), (3, 4))))


def all_of_beyond() -> Iterator[Row]:
    for recipe in SMALL:
        for world in (1, 2, 3, 4):
            if world <= 3 or recipe != "convnet":  # which has three layers
                yield from equals(Cell(2, recipe=recipe, flags=EXACT),
                                  Cell(PIPE, world=world, flags=EXACT))
            yield from equals(Cell(2, world=world, recipe=recipe), Cell(ZERO, world=world),
                              *(Cell(SHARDED, world=world, flags=flags)
                                for flags in ((), TO_ZERO_2, TO_ZERO_3)))
            yield from equals(Cell(2, recipe=recipe, flags=EXACT),
                              Cell(ZERO, world=world, flags=(*EXACT, *GLOO)))
        yield from equals(Cell(2, world=2, recipe=recipe), Cell(ZERO, world=2, flags=GLOO))
        for world in (1, 2):
            yield from equals(Cell(2, world=world, recipe=recipe),
                              *(Cell(SHARDED, world=world, flags=(*GLOO, *flags))
                                for flags in ((), TO_ZERO_2, TO_ZERO_3)))
    for count in (1, 4, 8):
        one = Cell(PIPE, flags=micro_batches(count))
        for world in (2, 3, 4):
            yield from equals(one, *(Cell(PIPE, world=world,
                                          flags=(*micro_batches(count), "--schedule", schedule))
                                     for schedule in ("1f1b", "gpipe")))


def micro_batches(count: int) -> tuple[object, ...]:
    return ("--micro-batches", count)


def exact_sums() -> Iterator[Row]:
    """Any number of ranks and threads. exact_full_test.py has more of them."""
    one = Cell(2, flags=EXACT)
    yield one, CLOSE_TO, Cell(0)
    yield from equals(one, Cell(2, threads=2, flags=EXACT), Cell(2, world=2, flags=EXACT),
                      Cell(3, "by hand", 3, flags=(*EXACT, *GLOO)),
                      Cell(4, world=2, threads=2, flags=EXACT), Cell(5, world=5, flags=EXACT),
                      Cell(6, world=3, flags=EXACT))
    yield from equals(one._replace(recipe="convnet"),
                      Cell(4, world=3, flags=(*EXACT, *LOCAL_BN)), Cell(6, world=2, flags=EXACT))
    yield from equals(Cell(4, precision="bf16", flags=EXACT),
                      Cell(5, world=2, precision="bf16", flags=EXACT))


def further_ways() -> Iterator[Row]:
    for recipe in SMALL:
        one, two = Cell(0, recipe=recipe), Cell(2, world=2, recipe=recipe)
        yield two._replace(again=True), EQUALS, two
        yield from equals(one, Cell(2, flags=GLOO), Cell(3, "torchrun"), Cell(4, "torchrun"),
                          Cell(3, "one by hand", flags=GLOO), Cell(5), Cell(6))
        for world in (1, 2):
            yield from equals(Cell(4, "itself", world, recipe, "bf16", LOCAL_BN),
                              Cell(5, "itself", world, precision="bf16"))
    yield from equals(Cell(2, world=2), Cell(3, "accelerate", 2))
    yield from equals(Cell(2, world=2, recipe="convnet"), Cell(5, "torchrun", 2),
                      *(Cell(6, start, 2) for start in ("torchrun", "mpirun", "accelerate")))
    for precision in ("fp32", "bf16"):  # with SyncBatchNorm
        yield from equals(Cell(4, "itself", 2, "convnet", precision),
                          *(Cell(4, start, 2, precision=precision)
                            for start in ("torchrun", "by hand")))
    for world in (3, 4):
        yield Cell(2, world=world), CLOSE_TO, Cell(0)
        yield Cell(1, world=world, recipe="convnet"), CLOSE_TO, Cell(0, recipe="convnet")
        yield from equals(Cell(2, world=world, recipe="convnet"), Cell(3, "by hand", world),
                          Cell(4, world=world, flags=LOCAL_BN))
    yield Cell(2, world=3, again=True), EQUALS, Cell(2, world=3)


TABLE = [*every_program(whole=FULL), *exact_sums(),
         *(further_ways() if FULL else other_ways()), *(all_of_beyond() if FULL else beyond())]
CELLS = list(dict.fromkeys(cell for one, _, other in TABLE for cell in (one, other)))


def setup_module() -> None:
    """Trains the cells of one process, two at a time. One that fails does so in its test again."""
    with ThreadPoolExecutor(2) as pool:
        for cell in CELLS:
            if cell.world == 1:
                pool.submit(trained, cell)


def rows(relation: str) -> Any:
    """The rows of the table, as parameters of a test."""
    return pytest.mark.parametrize("cell, other", [
        pytest.param(cell, other, id=f"{cell} {relation} {other}")
        for cell, name, other in TABLE if name == relation])


@rows(EQUALS)
def test_equal_cells(cell: Cell, other: Cell) -> None:
    run, expected = trained(cell), trained(other)
    require_equal_weights(run, expected)
    for field in ("steps", "seen", "correct"):
        assert run.result[field] == expected.result[field], field
    # Stage 6 adds up means of batches, the others sums.
    assert run.result["eval_loss"] == pytest.approx(
        expected.result["eval_loss"], rel=0, abs=1e-6 if cell.stage == 6 or cell.world > 1 else 0)


@rows(CLOSE_TO)
def test_close_cells(cell: Cell, other: Cell) -> None:
    run, expected = trained(cell), trained(other)
    assert run.result["steps"] == expected.result["steps"]
    assert abs(run.result["accuracy"] - expected.result["accuracy"]) <= cell.size.points
    if cell.size.limit is not None:
        assert distance(run, expected) <= cell.size.limit
    if cell.size.loss is not None:
        apart = run.records[1]["train_loss"] - expected.records[1]["train_loss"]
        assert abs(apart) <= cell.size.loss


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_cell_counts_each_image_once(cell: Cell) -> None:
    run, size = trained(cell), cell.size
    steps = -(-size.images // size.batch)
    epochs = [(record["steps"], record["samples"]) for record in run.records
              if record["record"] == "epoch"]
    assert epochs == [(steps, size.images)] * size.epochs
    world = 1 if cell.stage == 1 else cell.world  # one process with several replicas
    expected = {"world_size": world, "precision": cell.precision, "steps": steps * size.epochs,
                "seen": size.tests}
    assert {name: run.result[name] for name in expected} == expected
    assert isinstance(run.result["correct"], int)
    assert run.result["accuracy"] == 100 * run.result["correct"] / size.tests
    assert STARTS[cell.start][1] in run.header["launch"]


@pytest.mark.skipif(FULL, reason="it is in the default tier")
def test_a_batch_per_device_is_another_global_batch() -> None:
    per_device = ("--batch-mode", "per-device")
    half = Cell(2, world=2, flags=(*per_device, "--batch-size", 32))
    whole = Cell(2, world=3, flags=per_device)
    test_close_cells(half, Cell(0))
    assert distance(trained(whole), trained(Cell(0))) > 0.02
    # 578 images on three ranks are 193 for each, the last one repeated.
    for cell, counts in ((half, (10, 578)), (whole, (4, 579))):
        epoch = trained(cell).records[1]
        assert (epoch["steps"], epoch["samples"]) == counts
        assert trained(cell).result["steps"] == counts[0]


needs_whole_epochs = pytest.mark.skipif(not FULL, reason="whole epochs, with LADDER_FULL")


@needs_whole_epochs
def test_basicnet_reaches_98_percent_in_one_epoch() -> None:
    assert trained(Cell(0, whole=True)).result["accuracy"] >= 98.0  # PyTorch: 98.3 to 98.5


@needs_whole_epochs
@pytest.mark.parametrize("seed", range(3))  # PyTorch: 92.1, 92.0, 92.8
def test_convnet_is_as_accurate_as_pytorch(seed: int) -> None:
    result = trained(Cell(0, recipe="convnet", flags=("--seed", seed), whole=True)).result
    assert (result["steps"], result["seen"]) == (5625, 10000)
    assert 91.0 <= result["accuracy"] <= 93.2


@needs_whole_epochs
def test_the_defaults_of_transformers_give_its_losses() -> None:
    """0.74 to 0.92 and 0.23 to 0.30: three seeds of the real Trainer, with room."""
    run = train(alone(STAGE6), "--profile", "hf-defaults", parent=FOLDER, seconds=SECONDS)
    row = next(line.split() for line in run.done.lines if line.split()[:1] == ["1"])
    assert "  Total optimization steps = 938" in run.done.errors
    assert 0.74 <= float(row[1]) <= 0.92 and 0.23 <= float(row[2]) <= 0.30, row
