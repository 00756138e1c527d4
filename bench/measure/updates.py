# SPDX-License-Identifier: Apache-2.0
"""Trains ConvNet on two ranks in three ways, and records its accuracy over updates and images;
then the run of the tutorial DDP-practice with three seeds, in C++ and in Python.

    .venv/bin/python bench/measure/updates.py bench/results/NAME.updates.json

Runs stage 6, which can evaluate during an epoch. The three ways: a batch of 32 that the ranks
divide, a batch of 32 per rank, and the same with twice the learning rate, as --scale-lr linear of
stages 2 to 4 sets it. One seed, no times. Takes about eight minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import new_record, run_program, write_record  # noqa: E402
from rows import described  # noqa: E402

PROGRAM = ROOT / "build/bin/stage6_trainer"
PRACTICE: dict[str, tuple[object, ...]] = {
    "stage4_ddp_amp": (ROOT / "build/bin/stage4_ddp_amp", "--profile", "ddp-practice",
                       "--device", "cpu"),
    "python_ddp_amp": (sys.executable, ROOT / "bench/peers/ddp.py", "--recipe", "convnet",
                       "--epochs", 3, "--batch-size", 32, "--batch-mode", "per-device", "--lr",
                       1e-4, "--device", "cpu")}
SEEDS = (1, 2, 3)
RANKS = 2
BATCH = 32
IMAGES = 60_000
EVERY = 12_000  # images between evaluations
SECONDS = 1800  # that a run may take
EACH_RANK = ("--accelerator-config", '{"split_batches": false}')


class Way(NamedTuple):
    flags: tuple[str, ...]
    batch: int = RANKS * BATCH  # of all ranks


WAYS = {
    "global": Way((), BATCH),
    "per-device": Way(EACH_RANK),
    "per-device, linear": Way((*EACH_RANK, "--lr", "2e-4")),
}


def command_of(way: Way, folder: Path) -> list[str]:
    return [str(PROGRAM), "--recipe", "convnet", "--nprocs", str(RANKS), "--threads", "1",
            "--device", "cpu", "--batch-size", str(BATCH), *way.flags,
            "--eval-steps", str(-(-EVERY // way.batch)), "--save-strategy", "no",
            "--report-to", "jsonl", "--output-dir", str(folder), "--quiet"]


def points_of(lines: Sequence[str]) -> list[list[float]]:
    """Updates, images and accuracy in percent, once for each evaluation of the tracker's lines."""
    found: dict[int, list[float]] = {}
    for line in lines:
        log = json.loads(line)
        if "eval/accuracy" in log:
            found[log["step"]] = [log["step"], round(IMAGES * log["train/epoch"]),
                                  round(100 * log["eval/accuracy"], 2)]
    return [found[step] for step in sorted(found)]


def trained(way: Way) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        subprocess.run(command_of(way, folder), check=True, stdout=subprocess.DEVNULL,
                       timeout=SECONDS)
        [log] = folder.glob("runs/*/metrics.jsonl")
        points = points_of(log.read_text(encoding="utf-8").splitlines())
    return {"batch": way.batch, "flags": list(way.flags), "points": points}


def accuracy_of(program: str, seed: int) -> float:
    """In percent, of the tutorial's run with a batch of its own on each of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        subprocess.run([*map(str, PRACTICE[program]), "--precision", "bf16", "--seed", str(seed),
                        "--metrics", str(metrics)], check=True, stdout=subprocess.DEVNULL,
                       timeout=SECONDS)
        return float(json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])["accuracy"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures accuracy over updates.")
    parser.add_argument("record", type=new_record, metavar="NAME.updates.json")
    options = parser.parse_args(arguments)
    record = described() | {"recipe": "convnet", "ranks": RANKS, "seed": 42,
                            "ways": {name: trained(way) for name, way in WAYS.items()},
                            "practice": {program: [accuracy_of(program, seed) for seed in SEEDS]
                                         for program in PRACTICE}}
    write_record(options.record, record)
    return 0


if __name__ == "__main__":
    run_program(main)
