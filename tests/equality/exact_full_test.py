# SPDX-License-Identifier: Apache-2.0
"""--sums exact: one table of trainings, in which each column has to end with one set of weights.

A column is a program with its recipe; a row is a number of ranks and threads, a backend, two
machines, or a chain of resumes in which the number of ranks changes. The table is printed at the
end. By hand: .venv/bin/python tests/equality/exact_full_test.py
"""
from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import sys
import tempfile
import threading
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.network import two_nodes  # noqa: E402
from tests.support.nodes import by_hand_on, train_on_nodes  # noqa: E402
from tests.support.programs import FULL  # noqa: E402
from tests.support.resume import checkpoints_in  # noqa: E402
from tests.support.ways import (EXACT, STAGE2, STAGE3, STAGE4, STAGE5, STAGE6, Run,  # noqa: E402
                                Way, by_hand, require_equal_weights, small, spawned, train)

SECONDS = 600  # per training: eight ranks on two cores, on a machine with other work too
IMAGES, TESTS = 1000, 200
STEPS = 16  # batches of 64, the last with 40
SEED = 20_260  # of the steps at which a chain changes the number of ranks
FOLDER = Path(tempfile.mkdtemp(prefix="ladder-exact-"))
atexit.register(shutil.rmtree, FOLDER)


class Column(NamedTuple):
    """A training that has one result."""

    name: str
    program: Path
    flags: tuple[object, ...] = ()
    whole_grid: bool = False  # each row of ranks, threads and backends, or three of them

    def command_line(self, threads: int = 1) -> tuple[object, ...]:
        return small(*EXACT, *self.flags, threads=threads, limit_train=IMAGES, limit_test=TESTS)


class Row(NamedTuple):
    world: int
    threads: int = 1
    backend: str = "shm"

    def __str__(self) -> str:
        return f"{self.world} x {self.threads} {self.backend}"


# With micro-batches of 8, a batch of 64 has one for each of eight ranks, and the last batch has
# five. With 16, the default, four of eight ranks have no sample.
EIGHTS = ("--micro-batch", 8)
COLUMNS = (
    Column("stage 2", STAGE2, EIGHTS, whole_grid=True),
    Column("stage 3", STAGE3, EIGHTS, whole_grid=True),
    Column("stage 4", STAGE4, ("--precision", "fp32", *EIGHTS), whole_grid=True),
    Column("stage 5", STAGE5, EIGHTS, whole_grid=True),
    Column("stage 6", STAGE6, EIGHTS, whole_grid=True),
    Column("basicnet", STAGE2),
    Column("convnet", STAGE2, ("--recipe", "convnet")),
    Column("bf16", STAGE4, ("--precision", "bf16")),
    Column("convnet bf16", STAGE4, ("--recipe", "convnet", "--precision", "bf16", "--no-sync-bn")),
)
GRID = [Row(world, threads, backend) for world in (1, 2, 3, 4, 5, 8) for threads in (1, 2)
        for backend in ("shm", "gloo")]
NODES = {2: "2 nodes x 1 rank", 4: "2 nodes x 2 ranks"}
CHAINS = ((1, 2, 3, 1), (8, 1))
FP32_BASICNET = [column for column in COLUMNS if column.whole_grid]


def rows_of(column: Column) -> list[Row]:
    return GRID if column.whole_grid else [Row(world) for world in (1, 2, 3)]


def quiet_threads(way: Way) -> Way:
    """Threads that sleep while they wait: there are more of them than cores."""
    return replace(way, environment={**way.environment, "OMP_WAIT_POLICY": "passive"})


def way_of(column: Column, row: Row) -> Way:
    start = by_hand if column.program == STAGE3 else spawned
    return quiet_threads(start(row.world, program=column.program))


@functools.cache
def trained(column: Column, row: Row) -> Run:
    return train(way_of(column, row), *column.command_line(row.threads), "--backend", row.backend,
                 parent=FOLDER, seconds=SECONDS)


class Table:
    """The hashes that were found, by row and column."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], str] = {}
        self.lock = threading.Lock()

    def add(self, row: str, column: Column, run: Run) -> None:
        with self.lock:
            self.cells[row, column.name] = run.result["weights_sha256"]
        print(f"{column.name}, {row}: {run.done.seconds:.1f} s", flush=True)

    def hashes(self, column: Column) -> set[str]:
        return {found for (_, name), found in self.cells.items() if name == column.name}

    def lines(self) -> Iterator[str]:
        """The hash of a column on top, and where a row has another one, that."""
        rows = list(dict.fromkeys([*map(str, GRID), *(row for row, _ in self.cells)]))
        first = {column.name: next(found for (_, name), found in self.cells.items()
                                   if name == column.name)
                 for column in COLUMNS if self.hashes(column)}
        yield "  ".join(["ranks x threads".ljust(18), *(name.ljust(12) for name in first)]).rstrip()
        yield "  ".join([" " * 18, *(found[:12] for found in first.values())])
        for row in rows:
            cells = []
            for name, expected in first.items():
                found = self.cells.get((row, name), "")
                cells.append("equal" if found == expected else found[:12])
            yield "  ".join([row.ljust(18), *(cell.ljust(12) for cell in cells)]).rstrip()


TABLE = Table()


def tearDownModule() -> None:
    if TABLE.cells:
        print(f"\n{IMAGES} images, {STEPS} steps or, in batches of 32, twice as many; CPU "
              f"instructions {os.environ.get('ATEN_CPU_CAPABILITY', 'as detected')}; the first 12 "
              "digits of weights_sha256")
        print("\n".join(TABLE.lines()), flush=True)


@unittest.skipUnless(FULL, "150 trainings, with LADDER_FULL")
class ExactSums(unittest.TestCase):
    def test_any_number_of_ranks_and_threads_and_any_backend(self) -> None:
        with ThreadPoolExecutor(2) as pool:  # a cell that fails does so below again
            for column in COLUMNS:
                for row in rows_of(column):
                    pool.submit(trained, column, row)
        for column in COLUMNS:
            for row in rows_of(column):
                with self.subTest(f"{column.name}, {row}"):
                    run = trained(column, row)
                    TABLE.add(str(row), column, run)
                    self.assertEqual(run.header["sums"], "exact")
                    self.assertEqual((run.header["threads"], run.result["world_size"],
                                      run.result["seen"]), (row.threads, row.world, TESTS))
                    require_equal_weights(run, trained(column, rows_of(column)[0]))

    def test_stages_in_fp32(self) -> None:
        first = trained(FP32_BASICNET[0], GRID[0])
        for column in FP32_BASICNET[1:]:
            with self.subTest(column.name):
                require_equal_weights(trained(column, GRID[0]), first)

    def test_two_machines(self) -> None:
        for column in FP32_BASICNET[1:]:
            for world, name in NODES.items():
                with self.subTest(f"{column.name}, {name}"), two_nodes() as nodes:
                    ways = [quiet_threads(by_hand_on(node, column.program, world // 2))
                            for node in range(2)]
                    run = train_on_nodes(nodes, ways, *column.command_line(), parent=FOLDER,
                                         seconds=SECONDS)
                    TABLE.add(name, column, run)
                    self.assertEqual(run.result["world_size"], world)
                    self.assertIn("store 10.77.0.1:", run.header["launch"])
                    self.assertEqual(run.result["weights_sha256"],
                                     trained(column, GRID[0]).result["weights_sha256"])

    def test_resumes_with_another_number_of_ranks(self) -> None:
        """Each run of a chain resumes from a checkpoint of the run before, and ends equal."""
        column = next(column for column in COLUMNS if column.program == STAGE5)
        expected = trained(column, GRID[0]).result["weights_sha256"]
        chance = random.Random(SEED)
        for chain in CHAINS:
            steps = sorted(chance.sample(range(1, STEPS), len(chain) - 1))
            project = Path(tempfile.mkdtemp(dir=FOLDER))
            resume: tuple[object, ...] = ()
            name = str(chain[0])
            for world, step in zip(chain, [*steps, STEPS]):
                name += f"-{world}" * bool(resume)
                with self.subTest(f"chain {name}, steps {steps}"):
                    before = len(checkpoints_in(project))
                    run = train(quiet_threads(spawned(world, program=STAGE5)),
                                *column.command_line(), "--project-dir", project,
                                "--checkpointing-steps", step, *resume, parent=FOLDER,
                                seconds=SECONDS)
                    TABLE.add(f"ranks {name}", column, run)
                    self.assertEqual(run.result["steps"], STEPS)
                    self.assertEqual(run.result["weights_sha256"], expected)
                    # The first one that it wrote is that of this step.
                    resume = ("--resume", checkpoints_in(project)[before])
            print(f"ranks {name}: resumed after steps {', '.join(map(str, steps))}", flush=True)


if __name__ == "__main__":
    unittest.main()
