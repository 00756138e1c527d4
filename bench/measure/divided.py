# SPDX-License-Identifier: Apache-2.0
"""Measures what dividing costs and saves: memory of each rank, by what is in it, and bytes per step.

    python3 bench/measure/divided.py bench/results/NAME.divided.json

build/bin/divided_memory trains the recipe stack on 1, 2 and 4 ranks over Gloo, each way to divide
for a few steps. The predicted peak has no temporary tensors. When a unit is whole is from traces of
beyond/fully_sharded on two ranks, of the step of median length. Takes a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import new_record, run_program, write_record  # noqa: E402
from rows import described  # noqa: E402

BATCH = 64
LAYERS, WIDTH, CLASSES = 8, 256, 10  # of the stack
LAYER = 2 * 4 * WIDTH * WIDTH + 5 * WIDTH  # parameters
PARAMETERS = (28 * 28 + 1) * WIDTH + LAYERS * LAYER + (WIDTH + 1) * CLASSES
# Numbers that a forward keeps of an image: the output of each linear layer that another one needs.
KEPT = WIDTH + LAYERS * 5 * WIDTH + CLASSES
FLOAT = 4
TRACED = {"zero3": "--reshard-after-forward", "zero2": "--no-reshard-after-forward"}
FORWARD = "FullyShardedDataParallel.forward"
KEPT_IN_A_STEP = ("weights", "gradients", "state", "activations")
# Besides, at the peak: units that are whole, and the gradient of one. In ZeRO-2 it is when backward
# begins: no gradient is divided yet.
WHOLE = {"ddp": 0, "zero1": 0, "zero2": PARAMETERS + LAYER,
         "zero3": PARAMETERS - (LAYERS - 2) * LAYER}
COLLECTIVES = {"ddp": 2, "zero1": 3, "zero2": 2, "zero3": 3}  # each sends (N - 1) / N of all weights


def predicted(way: str, ranks: int) -> dict[str, float]:
    """Bytes of the rank that has most; parts that do not divide are rounded up."""
    all_bytes = FLOAT * PARAMETERS
    share = all_bytes / ranks
    divides_network = way in ("zero2", "zero3", "pipeline")
    network = share if divides_network else all_bytes
    if way == "pipeline":
        found = {"sent_per_step": 2 * (ranks - 1) / ranks * FLOAT * BATCH * WIDTH}
    else:
        found = {"activations": FLOAT * KEPT * BATCH / ranks,
                 "sent_per_step": COLLECTIVES[way] * (ranks - 1) / ranks * all_bytes}
    found |= {"weights": network, "gradients": network,
              "state": 2 * (all_bytes if way == "ddp" else share)}
    if way in WHOLE:
        kept = sum(found[name] for name in KEPT_IN_A_STEP if (way, name) != ("zero2", "gradients"))
        found["peak"] = kept + FLOAT * WHOLE[way]
    return found


def units_of(trace: dict[str, Any]) -> list[list[Any]]:
    """[unit, "whole" or "reduced", begin, end] of a step, in milliseconds since it began."""
    events = sorted((event["ts"] / 1e3, event["dur"] / 1e3, event["name"])
                    for event in trace["traceEvents"] if event.get("ph") == "X")
    starts = [begin for begin, _, name in events if name == FORWARD]
    lengths = sorted((after - begin, begin) for begin, after in zip(starts, starts[1:]))
    length, start = lengths[len(lengths) // 2]
    since: dict[str, float] = {}
    found = []
    for begin, duration, name in events:
        if not start <= begin < start + length:
            continue
        call, _, unit = name.partition(" ")
        if call == "all_gather":
            since[unit] = begin
        elif call == "reshard" and unit in since:
            found.append([unit, "whole", since.pop(unit), begin + duration])
        elif call == "reduce_scatter":
            found.append([unit, "reduced", begin, begin + duration])
    return [[unit, what, round(begin - start, 3), round(end - start, 3)]
            for unit, what, begin, end in found]


def traced(flag: str) -> list[list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        command = [ROOT / "build/bin/fully_sharded", "--recipe", "stack", "--nprocs", 2,
                   "--threads", 1, "--device", "cpu", flag, "--limit-train", 20 * BATCH,
                   "--limit-test", BATCH, "--trace", trace, "--quiet"]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, timeout=300)
        return units_of(json.loads(trace.read_text()))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures memory per rank and bytes per step.")
    parser.add_argument("record", type=new_record, metavar="NAME.divided.json")
    options = parser.parse_args(arguments)
    machine = described()
    done = subprocess.run([ROOT / "build/bin/divided_memory", "stack"], check=True, text=True,
                          stdout=subprocess.PIPE, timeout=300)
    rows = map(json.loads, done.stdout.splitlines())
    write_record(options.record, machine | {
        "recipe": "stack", "batch": BATCH, "threads": 1,
        "rows": {f"{row.pop('way')}/{row.pop('ranks')}": row for row in rows},
        "units": {way: traced(flag) for way, flag in TRACED.items()}})
    return 0


if __name__ == "__main__":
    run_program(main)
