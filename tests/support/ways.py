# SPDX-License-Identifier: Apache-2.0
"""The ways to start the ranks of stages 2 to 6, as command lines, and what a run of one leaves."""
from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import load_file

from tests.support.programs import (BIN, PYTHON, ROOT, SECONDS, TORCHRUN, Result, free_port,
                                    launch, records)

STAGE0 = BIN / "stage0_single_gpu"
STAGE1 = BIN / "stage1_data_parallel"
STAGE2 = BIN / "stage2_ddp_spawn"
STAGE3 = BIN / "stage3_ddp_torchrun"
STAGE4 = BIN / "stage4_ddp_amp"  # takes the place of stage 2, and of stage 3
STAGE5 = BIN / "stage5_accelerator"  # starts bare, too
STAGE6 = BIN / "stage6_trainer"  # as stage 5
ZERO_REDUNDANCY = BIN / "zero_redundancy"  # as stage 2
PIPELINE = BIN / "pipeline"
FULLY_SHARDED = BIN / "fully_sharded"  # as stage 2
CUDA_GRAPH = BIN / "cuda_graph"  # as stage 0
ACCELERATE = ROOT / ".venv" / "bin" / "accelerate"
CONFIG = ROOT / "tests" / "support" / "accelerate_config.yaml"  # as `accelerate config` writes it
BY_HAND = ROOT / "scripts" / "by_hand.sh"

CPU = ("--device", "cpu")
EXACT = ("--sums", "exact")  # equal weights for any number of ranks and threads


def small(*flags: object, **changes: object) -> tuple[object, ...]:
    """A short run, as flags; limit_train=64 stands for --limit-train 64. With one thread, because
    another number of them gives other last bits."""
    values = {"threads": 1, "limit_train": 640, "limit_test": 500, "epochs": 1} | changes
    named = ((f"--{name}".replace("_", "-"), value) for name, value in values.items())
    return (*itertools.chain.from_iterable(named), *flags)


def endless(*flags: object, **changes: object) -> tuple[object, ...]:
    """Trains until it is stopped, in short steps, with a progress line every other step."""
    return small(*flags, **{"limit_train": 320, "batch_size": 16, "epochs": 100000} | changes)


@dataclass(frozen=True)
class Way:
    """A command to which the flags of the program are added, and variables that it needs."""

    command: tuple[object, ...]
    environment: dict[str, object] = field(default_factory=dict)


def ignore_accelerate_configuration(home: Path) -> None:
    """For this process and its children: that of the user must not count."""
    os.environ["HF_HOME"] = str(home)
    for variable in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[variable]


def alone(stage: Path, *flags: object) -> Way:
    return Way((stage, *flags, *(() if stage == STAGE1 else CPU)))


def spawned(world: int = 2, *flags: object, program: Path = STAGE2) -> Way:
    return Way((program, "--nprocs", world, *CPU, *flags))


def torchrun(world: int = 2, *flags: object, program: Path = STAGE3) -> Way:
    return Way((TORCHRUN, "--standalone", "--nproc-per-node", world, *flags, "--no-python",
                program, *CPU), {"OMP_NUM_THREADS": 1})


def mpirun(world: int = 2, program: Path = STAGE3) -> Way:
    return Way(("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", world, program, *CPU),
               {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()})


def by_hand(world: int = 2, program: Path = STAGE3) -> Way:
    return Way((BY_HAND, *CPU),
               {"PROGRAM": program, "NPROC_PER_NODE": world, "MASTER_PORT": free_port()})


def accelerate(world: int = 2, program: Path = STAGE3) -> Way:
    """With --cpu it would start one process; --multi_gpu needs no GPU."""
    return Way((ACCELERATE, "launch", "--multi_gpu", "--no_python", "--num_machines", 1,
                "--num_processes", world, "--main_process_port", free_port(),
                "--mixed_precision", "no", "--dynamo_backend", "no", program, *CPU))


def one_rank(rank: int, world: int, port: int, *flags: object, program: Path = STAGE3) -> Way:
    """A single rank, as a person types it."""
    return Way((program, *CPU, *flags), {"RANK": rank, "WORLD_SIZE": world,
                                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def with_init_method(url: str, world: int = 2, program: Path = STAGE3) -> Way:
    """Ranks by hand that meet at `url`, with their numbers as flags. The shell expands `url`."""
    script = f'for r in $(seq {world}); do "$@" --init-method "{url}" --rank $((r-1)) ' \
             f'--world-size {world} & ranks+=($!); done; for r in ${{ranks[@]}}; do wait $r || exit; done'
    return Way(("bash", "-c", script, "bash", program, *CPU))


@dataclass
class Run:
    """A run that ended well, in a folder of its own, which holds a.jsonl and a.safetensors."""

    way: Way
    flags: tuple[object, ...]
    folder: Path
    done: Result

    @property
    def records(self) -> list[dict[str, Any]]:
        return records(self.folder / "a.jsonl")

    @property
    def header(self) -> dict[str, Any]:
        return self.records[0]

    @property
    def result(self) -> dict[str, Any]:
        last = self.records[-1]
        assert last["record"] == "result", last
        return last

    @property
    def weights(self) -> Path:
        return self.folder / "a.safetensors"


def train(way: Way, *flags: object, parent: Path, seconds: float = SECONDS) -> Run:
    """Runs `way` to its end in a new folder below `parent`. Fails unless it ends well in time."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    done = launch(*way.command, *flags, "--metrics", folder / "a.jsonl",
                  "--save", folder / "a.safetensors", cwd=folder, environment=way.environment,
                  seconds=seconds)
    if done.code != 0:
        raise AssertionError(f"{way}\nexit code {done.code}\n{done.stdout}{done.stderr}")
    return Run(way, flags, folder, done)


def compare_fingerprints(a: Path, b: Path) -> str:
    """What tools/same_run prints about two runs, whose files begin with `a` and `b`."""
    found = subprocess.run([PYTHON, ROOT / "tools" / "same_run", a, "--against", b],
                           capture_output=True, text=True, timeout=60, check=False)
    return found.stdout + found.stderr


def first_difference(a: Run, b: Run) -> str:
    """Trains both again with fingerprints, and says where they part."""
    marked = [train(run.way, *run.flags, "--fingerprint", 1, parent=run.folder) for run in (a, b)]
    return compare_fingerprints(*(run.folder / "a" for run in marked))


def require_equal_weights(a: Run, b: Run) -> None:
    if a.result["weights_sha256"] != b.result["weights_sha256"]:
        raise AssertionError(f"{a.way}\n{b.way}\n{first_difference(a, b)}")


def distance(a: Run, b: Run, of: Callable[[str], bool] = lambda name: True) -> float:
    """Of all tensors together, or those whose name is wanted, relative to their length."""
    ours, theirs = load_file(a.weights), load_file(b.weights)
    assert sorted(ours) == sorted(theirs)
    squares = [(numpy.square(x.astype(float) - y).sum(), numpy.square(y.astype(float)).sum())
               for x, y in ((ours[name], theirs[name]) for name in ours if of(name))]
    difference, length = numpy.sum(squares, axis=0)
    return float(numpy.sqrt(difference / length))
