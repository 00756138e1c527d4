#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ddp, trainer and pairs.py, writes examples/results.json and prints a table of it.

    .venv/bin/python examples/compare.py [--build build-examples] [--seeds 1 2 3]
    .venv/bin/python examples/compare.py --table         prints the table of the record again

Each process has one thread. The pairs are the same in all runs; the seed chooses weights, order and
transform, which C++ and Python draw differently.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
RECORD = EXAMPLES / "results.json"
LINE = re.compile(r"^epoch \d+: test loss (\S+), accuracy (\S+) %$", re.MULTILINE)
WEIGHTS = re.compile(r"^weights (\w+)$", re.MULTILINE)
WAYS = (("ddp", 1), ("ddp", 2), ("trainer", 1), ("trainer", 2), ("pairs.py", 1))


def run(command: list[str | Path]) -> dict[str, Any]:
    started = time.monotonic()
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
                          stdout=subprocess.PIPE, check=True)
    seconds = time.monotonic() - started
    loss, accuracy = LINE.findall(done.stdout)[-1]
    weights = WEIGHTS.findall(done.stdout)
    return {"test_loss": float(loss), "accuracy": float(accuracy), "seconds": round(seconds, 1),
            "weights_sha256": weights[0] if weights else None}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    numbers = ["--pairs", str(options.pairs), "--epochs", str(options.epochs)]
    runs = []
    for seed in options.seeds:
        for program, processes in WAYS:
            command: list[str | Path] = [options.build / program, "--nprocs", str(processes)]
            if program == "pairs.py":
                command = [sys.executable, EXAMPLES / "pairs" / program]
            result = run([*command, "--data", options.data, *numbers, "--seed", str(seed)])
            runs.append({"program": program, "processes": processes, "seed": seed, **result})
            print(runs[-1], file=sys.stderr)
    return {"machine": {"processor": processor(), "cpus": os.cpu_count()}, "threads": 1,
            "pairs": options.pairs, "epochs": options.epochs, "runs": runs}


def processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def table(record: dict[str, Any]) -> str:
    """A line with the conditions, and the table."""
    machine = record["machine"]
    seeds = len({one["seed"] for one in record["runs"]})
    lines = [f"Test accuracy after {record['epochs']} epochs over {record['pairs']:,} pairs, mean of "
             f"{seeds} seeds",
             f"({machine['processor']}, {machine['cpus']} CPUs; threads per process: "
             f"{record['threads']}):", "",
             "| Program | Processes | Accuracy, % | Lowest to highest | Seconds |",
             "| --- | ---: | ---: | ---: | ---: |"]
    for program, processes in WAYS:
        runs = [one for one in record["runs"]
                if (one["program"], one["processes"]) == (program, processes)]
        accuracies = [one["accuracy"] for one in runs]
        seconds = sum(one["seconds"] for one in runs) / len(runs)
        lines.append(f"| `{program}` | {processes} | {sum(accuracies) / len(runs):.2f} | "
                     f"{min(accuracies):.2f} to {max(accuracies):.2f} | {seconds:.1f} |")
    return "\n".join(lines)


def pairs_of_equal_weights(record: dict[str, Any]) -> tuple[int, int]:
    """Of how many pairs of a ddp run and its trainer run are the weights equal?"""
    weights: dict[tuple[int, int], set[str]] = {}
    for one in record["runs"]:
        if one["weights_sha256"]:
            weights.setdefault((one["processes"], one["seed"]), set()).add(one["weights_sha256"])
    return sum(len(hashes) == 1 for hashes in weights.values()), len(weights)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build-examples"),
                        help="folder of the built programs")
    parser.add_argument("--data", type=Path, default=EXAMPLES.parent / "data" / "mnist",
                        help="folder of the MNIST files")
    parser.add_argument("--pairs", type=int, default=60_000, help="training pairs")
    parser.add_argument("--epochs", type=int, default=3, help="passes over them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run each")
    parser.add_argument("--output", type=Path, default=RECORD, help="file of the record")
    parser.add_argument("--table", action="store_true", help="run nothing, print the record")
    options = parser.parse_args()
    if not options.table:
        options.output.write_text(json.dumps(measure(options), indent=1) + "\n", encoding="utf-8")
    record = json.loads(options.output.read_text(encoding="utf-8"))
    equal, total = pairs_of_equal_weights(record)
    print(table(record))
    print(f"\nEqual weights of ddp and trainer: {equal} of {total} pairs of runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
