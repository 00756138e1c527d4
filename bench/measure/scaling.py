# SPDX-License-Identifier: Apache-2.0
"""Measures training on 1, 2, 3, 4 and more processes: time of a step, and bytes.

    python3 bench/measure/scaling.py bench/results/NAME.scaling.json

Both networks in stage 2, one thread per process, and the same batch for any number of processes,
which divide it; up to four processes, and on more cores up to their number. On one and two: bfloat16,
and the ways to divide state and weights. Beside each, as many processes at the same time that
exchange nothing, each with the batch of one rank: what the ranks could reach if exchanging cost
nothing. Rows take turns, round after round. The step without the first 20, as in the suite; of
processes side by side the slowest. Traces tell for how long the ranks wait for the last one that calls
a collective, and how long they exchange from then on. Takes eight minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import new_record, run_program, write_record  # noqa: E402
from rows import described  # noqa: E402

BATCHES = {"basicnet": 64, "convnet": 32, "stack": 64}
STEPS = {"basicnet": 100, "convnet": 300, "stack": 60}
# Recipe, program and its flags; rows with all numbers of processes, and with two.
STAGE = "stage2_ddp_spawn"
SCALED = {"basicnet": ("basicnet", STAGE), "convnet": ("convnet", STAGE)}
ON_TWO = {
    "basicnet, bf16": ("basicnet", "stage4_ddp_amp", "--precision", "bf16"),
    "basicnet, ZeRO-1": ("basicnet", "zero_redundancy"),
    "basicnet, ZeRO-2": ("basicnet", "fully_sharded", "--no-reshard-after-forward"),
    "basicnet, ZeRO-3": ("basicnet", "fully_sharded", "--reshard-after-forward"),
    "stack": ("stack", STAGE),
    "stack, ZeRO-1": ("stack", "zero_redundancy"),
    "stack, ZeRO-2": ("stack", "fully_sharded", "--no-reshard-after-forward"),
    "stack, ZeRO-3": ("stack", "fully_sharded", "--reshard-after-forward")}
ROWS = SCALED | ON_TWO
WARM_UP = 20
TRACED_STEPS = 5
ROUNDS = 3
SECONDS = 300  # that a run may take


def ranks_of(cores: int) -> list[int]:
    """1 to 4, then doubled up to the number of cores."""
    found = [1, 2, 3, 4]
    while found[-1] < cores:
        found.append(min(2 * found[-1], cores))
    return found


def command_of(name: str, ranks: int, batch: int, metrics: Path) -> list[str]:
    recipe, program, *flags = ROWS[name]
    return list(map(str, [ROOT / "build/bin" / program, "--nprocs", ranks, "--threads", 1, "--device",
                          "cpu", "--recipe", recipe, "--epochs", 1, "--batch-size", batch,
                          "--limit-train", batch * (WARM_UP + STEPS[recipe]), "--limit-test", ranks,
                          "--metrics", metrics, "--quiet", *flags]))


def split(name: str, ranks: int, batch: int) -> tuple[float, float]:
    """Milliseconds of a step that the ranks wait, in the mean, and exchange. Of the traced steps."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        command = [*command_of(name, ranks, batch, Path(folder) / "run.jsonl"), "--trace", str(trace)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)
        files = [trace, *(trace.with_suffix(f".rank{rank}.json") for rank in range(1, ranks))]
        all_ranks = [collectives(json.loads(file.read_text())) for file in files]
    waiting = exchange = 0.0
    for calls in zip(*all_ranks, strict=True):
        last = max(begin for begin, _ in calls)
        waiting += sum(last - begin for begin, _ in calls) / ranks
        exchange += max(end for _, end in calls) - last
    return waiting / 1e3 / TRACED_STEPS, exchange / 1e3 / TRACED_STEPS


def collectives(trace: dict[str, Any]) -> list[tuple[float, float]]:
    """Begin and end of each, in microseconds, in the time of all ranks of a machine."""
    start = trace.get("baseTimeNanoseconds", 0) / 1e3
    return sorted((start + event["ts"], start + event["ts"] + event["dur"])
                  for event in trace["traceEvents"]
                  if event.get("ph") == "X" and event["name"].startswith("c10d::"))


def run(name: str, ranks: int, batch: int, copies: int = 1) -> dict[str, float]:
    """Milliseconds of a step, of the slowest of the copies, and the bytes that a rank sends in it."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{copy}.jsonl" for copy in range(copies)]
        programs = [subprocess.Popen(command_of(name, ranks, batch, file), stdout=subprocess.DEVNULL)
                    for file in files]
        if any([program.wait(SECONDS) for program in programs]):
            raise RuntimeError(" ".join(map(str, programs[0].args)))
        found = [json.loads(file.read_text().splitlines()[-1]) for file in files]
    return {"ms": max(1e3 * (one["train_seconds"] - one["warm_up_seconds"]) / (one["steps"] - WARM_UP)
                      for one in found),
            "sent": found[0]["sent_bytes"] / found[0]["steps"] / ranks}


def measure(cores: int) -> dict[str, dict[str, Any]]:
    """Rows "NAME/RANKS": milliseconds of the ranks, and of processes that exchange nothing; bytes."""
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for name in ROWS:
            for ranks in ranks_of(cores) if name in SCALED else (1, 2):
                batch = BATCHES[ROWS[name][0]]
                row = rows.setdefault(f"{name}/{ranks}", {"ms": [], "apart_ms": []})
                found = run(name, ranks, batch)
                row["ms"].append(round(found["ms"], 3))
                row["sent_bytes_per_rank"] = round(found["sent"])
                apart = found if ranks == 1 else run(name, 1, -(-batch // ranks), copies=ranks)
                row["apart_ms"].append(round(apart["ms"], 3))
                if ranks > 1:
                    for key, time in zip(("waiting_ms", "exchange_ms"), split(name, ranks, batch)):
                        row.setdefault(key, []).append(round(time, 3))
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures a step on 1 to 4 processes and more.")
    parser.add_argument("record", type=new_record, metavar="NAME.scaling.json")
    options = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0))
    write_record(options.record, described() | {"threads": 1, "cores": cores, "rows": measure(cores)})
    return 0


if __name__ == "__main__":
    run_program(main)
