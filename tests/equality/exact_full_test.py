# SPDX-License-Identifier: Apache-2.0
"""--sums exact: trainings that end with the same weights, as further cells of matrix_test.py.

They differ in the number of ranks and threads, in the backend, in the number of machines, and in
resumes that change the number of ranks.
"""
from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import matrix_test as matrix
import pytest
from matrix_test import EXACT, LOCAL_BN, SECONDS, Cell, trained

from tests.support.network import two_nodes
from tests.support.nodes import by_hand_on, train_on_nodes
from tests.support.programs import FULL
from tests.support.resume import checkpoints_in
from tests.support.ways import require_equal_weights, spawned, train

pytestmark = pytest.mark.skipif(not FULL, reason="150 trainings, with LADDER_FULL")
os.environ["OMP_WAIT_POLICY"] = "passive"  # there are more threads than cores
IMAGES, TESTS = 1000, 200
STEPS = 16  # batches of 64, the last with 40
SEED = 20_260  # of the steps at which a chain changes the number of ranks
FOLDER = matrix.FOLDER
# With micro-batches of 8, a batch of 64 has one for each of eight ranks, and the last batch has
# five. With 16, the default, four of eight ranks have no sample.
EIGHTHS = ("--micro-batch", 8)


def exact(stage: int, world: int = 1, *flags: object, **more: object) -> Cell:
    return Cell(stage, "by hand" if stage == 3 else "itself", world, flags=(*EXACT, *flags),
                images=IMAGES, **more)


ONE = exact(2, 1, *EIGHTHS)


def cells() -> Iterator[tuple[Cell, Cell]]:
    """And what they equal."""
    for stage in (2, 3, 4, 5, 6):
        for world in (1, 2, 3, 4, 5, 8):
            for threads in (1, 2):
                for backend in ("shm", "gloo"):
                    yield exact(stage, world, *EIGHTHS, "--backend", backend, threads=threads), ONE
    for world in (2, 3):
        yield exact(2, world), exact(2)
        yield exact(2, world, recipe="convnet"), exact(2, recipe="convnet")
        yield exact(4, world, precision="bf16"), exact(4, precision="bf16")
        convnet = exact(4, 1, *LOCAL_BN, recipe="convnet", precision="bf16")
        yield convnet._replace(world=world), convnet


@pytest.mark.parametrize("cell, other", [*cells()], ids=str)
def test_any_number_of_ranks_and_threads_and_any_backend(cell: Cell, other: Cell) -> None:
    run = trained(cell)
    found = [run.header["sums"], run.header["threads"], run.result["world_size"],
             run.result["seen"]]
    assert found == ["exact", cell.threads, cell.world, TESTS]
    require_equal_weights(run, trained(other))


@pytest.mark.parametrize("ranks", [1, 2])  # of each machine
@pytest.mark.parametrize("stage", [3, 4, 5, 6])
def test_two_machines(stage: int, ranks: int) -> None:
    with two_nodes() as nodes:
        ways = [by_hand_on(node, matrix.PROGRAMS[stage], ranks) for node in range(2)]
        run = train_on_nodes(nodes, ways, *exact(stage, 1, *EIGHTHS).command_line(), parent=FOLDER,
                             seconds=SECONDS)
    assert run.result["world_size"] == 2 * ranks
    assert "store 10.77.0.1:" in run.header["launch"]
    assert run.result["weights_sha256"] == trained(ONE).result["weights_sha256"]


@pytest.mark.parametrize("chain", [(1, 2, 3, 1), (8, 1)], ids=str)
def test_resumes_with_another_number_of_ranks(chain: tuple[int, ...]) -> None:
    """Each run of a chain resumes from a checkpoint of the run before, and ends equal."""
    steps = sorted(random.Random(SEED).sample(range(1, STEPS), len(chain) - 1))
    project = Path(tempfile.mkdtemp(dir=FOLDER))
    resume: tuple[object, ...] = ()
    for world, step in zip(chain, [*steps, STEPS]):
        before = len(checkpoints_in(project))
        run = train(spawned(world, program=matrix.PROGRAMS[5]),
                    *exact(5, 1, *EIGHTHS).command_line(), "--project-dir", project,
                    "--checkpointing-steps", step, *resume, parent=FOLDER, seconds=SECONDS)
        assert run.result["steps"] == STEPS, (world, steps)
        assert run.result["weights_sha256"] == trained(ONE).result["weights_sha256"], (world, steps)
        # The first one that it wrote is that of this step.
        resume = ("--resume", checkpoints_in(project)[before])
