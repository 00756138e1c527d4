# SPDX-License-Identifier: Apache-2.0
"""Runs of the stages on tests/support/fake_cuda, and what they cost per training step."""
from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.programs import BIN, TORCHRUN
from tests.support.ways import CUDA_GRAPH, STAGE0, STAGE1, STAGE3, STAGE4, STAGE6, Run, Way, train

LIBRARY = BIN / "libfake_cuda.so"
GLOO = ("--backend", "gloo")  # this build has no NCCL


def gpu(program: Path, *flags: object) -> Way:
    """One process with GPUs, as many as the flags say."""
    return Way((program, *flags), {"LD_PRELOAD": LIBRARY})


def gpu_ranks(program: Path, world: int = 2, device: str = "cuda") -> Way:
    """One rank per GPU. Python must not load the library, so stage 3 gets it from `env`."""
    if program == STAGE3:
        return Way((TORCHRUN, "--standalone", "--nproc-per-node", world, "--no-python", "env",
                    f"LD_PRELOAD={LIBRARY}", program, "--device", device, *GLOO),
                   {"OMP_NUM_THREADS": 1})
    return gpu(program, "--nprocs", world, "--device", device, *GLOO)


def single(stage: Path = STAGE0, *flags: object, device: str = "cuda") -> Way:
    ranks = () if stage in (STAGE0, CUDA_GRAPH) else ("--nprocs", 1)
    return gpu(stage, "--device", device, *ranks, *flags)


def replicas(devices: str, *flags: object) -> Way:
    return gpu(STAGE1, "--device-ids", devices, *flags)


def in_precision(stage: Path, name: str) -> tuple[object, ...]:
    if stage == STAGE6:
        return () if name == "fp32" else (f"--{name}", "true")
    return ("--precision" if stage == STAGE4 else "--mixed-precision", name)


@dataclass(frozen=True)
class Costs:
    """What one process did, by name."""

    kernels: Counter[str]
    copies: Counter[str]
    syncs: Counter[str]

    def since(self, earlier: Costs, steps: int) -> Costs:
        """Per step. Every step must cost the same."""
        def per_step(ours: Counter[str], theirs: Counter[str]) -> Counter[str]:
            more = {name: number - theirs[name] for name, number in ours.items()}
            uneven = {name: number for name, number in more.items() if number % steps != 0}
            assert not uneven, f"not the same in each of {steps} steps: {uneven}"
            return Counter({name: number // steps for name, number in more.items() if number})

        return Costs(per_step(self.kernels, earlier.kernels), per_step(self.copies, earlier.copies),
                     per_step(self.syncs, earlier.syncs))

    @property
    def pageable(self) -> int:
        return sum(number for kind, number in self.copies.items() if "pageable" in kind)


def train_and_count(way: Way, *flags: object, parent: Path) -> tuple[Run, list[dict[str, Any]]]:
    """A training, and the counts of each process that used a GPU, in the order of these GPUs."""
    report = Path(tempfile.mkdtemp(dir=parent)) / "costs.jsonl"
    reporting = Way(way.command, way.environment | {"FAKE_CUDA_REPORT": report})
    run = train(reporting, *flags, parent=parent)
    lines = report.read_text().splitlines() if report.exists() else []
    processes = [json.loads(line) for line in lines]
    return run, sorted(processes, key=lambda process: sorted(process["devices"]))


def costs_of(way: Way, *flags: object, parent: Path) -> list[Costs]:
    """Trains, and reads what each process did."""
    return [Costs(*(Counter(process[kind]) for kind in ("kernels", "copies", "syncs")))
            for process in train_and_count(way, *flags, parent=parent)[1]]


def costs_per_step(way: Way, *flags: object, parent: Path, steps: int = 6,
                   batch_size: int = 8) -> list[Costs]:
    """The difference of two runs, of N steps and of 2 N, for each rank. What a run does once, such
    as reading the files and evaluating, cancels out."""
    shared = ("--threads", 1, "--epochs", 1, "--limit-test", batch_size, "--quiet",
              "--batch-size", batch_size, *flags)
    short, long = (costs_of(way, *shared, "--limit-train", count * steps * batch_size,
                            parent=parent) for count in (1, 2))
    return [ours.since(earlier, steps) for ours, earlier in zip(long, short, strict=True)]
