# SPDX-License-Identifier: Apache-2.0
"""Measures what dividing costs and saves: bytes per step, and memory per rank.

    python3 bench/measure/divided.py bench/results/NAME.divided.json

Runs BasicNet on one process, and on four ranks with DistributedDataParallel, with zero redundancy,
and as a pipeline. Bytes are those of Gloo, at the usual width: the difference of two runs, of all
ranks together. Memory is the peak of each process within ten steps, at four times the width: 19
million weights; the median of some runs, without what precedes and follows the training. Takes two
minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import write_record  # noqa: E402
from records import described  # noqa: E402

RANKS = 4
BATCH = 64
STEPS = (5, 15)  # of the two runs
WIDTH = 4  # of the runs for memory
RUNS = 3  # of these; temporary copies of the gradients do not always meet
FOUR = ("--nprocs", RANKS, "--backend", "gloo")
PROGRAMS: dict[str, tuple[object, ...]] = {
    "stage0_single_gpu": (), "stage2_ddp_spawn": FOUR, "zero_redundancy": FOUR, "pipeline": FOUR}
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def command_of(program: str, steps: int, *flags: object) -> list[str]:
    return list(map(str, [ROOT / "build/bin" / program, *PROGRAMS[program], "--threads", 1,
                          "--device", "cpu", "--limit-train", BATCH * steps, "--limit-test", BATCH,
                          *flags]))


def result_of(program: str, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run.jsonl"
        subprocess.run(command_of(program, steps, "--metrics", metrics, "--quiet"), check=True,
                       stdout=subprocess.DEVNULL, timeout=300)
        return json.loads(metrics.read_text().splitlines()[-1])


def processes_of(pid: int) -> list[int]:
    """Its ranks; itself, if it started none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return list(map(int, children)) or [pid]


def wait_for_progress(started: subprocess.Popen[str], lines: int) -> None:
    seen = ""
    for line in started.stderr:
        seen += line
        lines -= line.startswith("epoch ")
        if lines == 0:
            return
    raise SystemExit(f"{started.args[0]} ended: {seen}")


def peaks(program: str) -> list[int]:
    """The bytes of each process, in the steps between the first line of progress and the third."""
    command = command_of(program, 10 * STEPS[0], "--width", WIDTH)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as started:
        wait_for_progress(started, 1)
        folders = [Path(f"/proc/{pid}") for pid in processes_of(started.pid)]
        for folder in folders:
            (folder / "clear_refs").write_text("5")  # VmHWM begins anew
        wait_for_progress(started, 2)
        found = [int(PEAK.search((folder / "status").read_text())[1]) * 1024 for folder in folders]
        started.terminate()
        started.stderr.read()
    return found


def row_of(program: str) -> dict[str, Any]:
    few, many = (result_of(program, steps) for steps in STEPS)
    sent = many["sent_bytes"] - few["sent_bytes"]
    return {"ranks": many["world_size"], "sent_bytes_per_step": round(sent / (STEPS[1] - STEPS[0])),
            "peak_bytes": [round(median(own)) for own in
                           zip(*(peaks(program) for _ in range(RUNS)))]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures bytes per step and memory per rank.")
    parser.add_argument("record", type=Path, metavar="NAME.divided.json")
    options = parser.parse_args(arguments)
    record = described() | {"recipe": "basicnet", "batch": BATCH, "threads": 1,
                            "width_of_memory": WIDTH,
                            "programs": {program: row_of(program) for program in PROGRAMS}}
    write_record(options.record, record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
