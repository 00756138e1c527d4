# SPDX-License-Identifier: Apache-2.0
"""Measures the operations of a training step, in reference math and in fast math; and the speed of
a training with 0 to 4 workers of the loader, with either math, and of a network that Python exported.

    .venv/bin/python bench/measure/step.py bench/results/NAME.step.json

Runs stage 0 under LibTorch's profiler, both in turns, and keeps for each operation the time of its
own, without that of the operations it calls: medians over all steps. Speeds: images per second
over 6,400 images, the median of the runs, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import new_record, run_program, write_record  # noqa: E402
from rows import described  # noqa: E402

MATHS = ("reference", "fast")
RUNS = 5  # of each, in turns
STEPS = 10  # a run: the trace ends before
FILE = "basic.pt2"
# What is compared with each other: the flags of each.
SPEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    recipe: {str(workers): ("--recipe", recipe, "--num-workers", str(workers))
             for workers in (0, 1, 2, 4)} for recipe in ("basicnet", "convnet")} | {
    "network": {"fast": (), "reference": ("--math", "reference"), "exported": ("--network", FILE)}}
OPTIMIZER = "aten::_fused_"
REST = "all others, and between them"
OURS = ("ladder::", "CppNode<ladder")


@dataclass
class Box:
    """A call of an operation; times in milliseconds since the step began."""

    name: str
    begin: float
    length: float
    calls: list[Box] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.begin + self.length

    @property
    def own(self) -> float:
        return self.length - sum(box.length for box in self.calls)


@dataclass
class Step:
    length: float
    boxes: list[Box]


def nested(boxes: Sequence[Box]) -> list[Box]:
    """Those that no other calls, with what they call inside."""
    roots: list[Box] = []
    open_boxes: list[Box] = []
    for box in sorted(boxes, key=lambda box: (box.begin, -box.length)):
        while open_boxes and open_boxes[-1].end <= box.begin:
            open_boxes.pop()
        (open_boxes[-1].calls if open_boxes else roots).append(box)
        open_boxes.append(box)
    return roots


def steps_of(trace: dict[str, Any]) -> list[Step]:
    """The steps that lie whole in a Chrome trace: from the end of an optimizer to that of the next."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    optimizers = [event for event in events if event["name"].startswith(OPTIMIZER)]
    ends = sorted(event["ts"] + event["dur"] for event in optimizers)
    found = []
    for begin, end in zip(ends, ends[1:]):
        boxes = [Box(event["name"], (event["ts"] - begin) / 1e3, event["dur"] / 1e3)
                 for event in events if event["tid"] == optimizers[0]["tid"]
                 and begin <= event["ts"] and event["ts"] + event["dur"] <= end]
        found.append(Step((end - begin) / 1e3, nested(boxes)))
    return found


def all_boxes(boxes: Sequence[Box]) -> Iterator[Box]:
    for box in boxes:
        yield box
        yield from all_boxes(box.calls)


def plain(name: str) -> str:
    """As a reader knows it: without namespaces, and our own by their class."""
    if "CppNode<ladder" in name:
        return name.rsplit("::", 1)[1].rstrip(">") + " backward"
    return name.removeprefix("aten::")


def own_times(step: Step) -> dict[str, float]:
    times: dict[str, float] = defaultdict(float)
    for box in all_boxes(step.boxes):
        named = box.name.startswith(("aten::", "mkldnn::", *OURS)) or "CppNode<ladder" in box.name
        times[plain(box.name) if named else REST] += box.own
    times[REST] += step.length - sum(box.length for box in step.boxes)
    return times


def medians(steps: Sequence[Step]) -> dict[str, float]:
    times = [own_times(step) for step in steps]
    names = sorted({name for one in times for name in one})
    return {name: round(statistics.median(one.get(name, 0.0) for one in times), 4)
            for name in names}


def collapsed(box: Box) -> Box:
    """A call that does little but call another one is shown as the other one."""
    while len(box.calls) == 1 and box.calls[0].length > 0.8 * box.length:
        box = box.calls[0]
    return box


def without_engine(boxes: Sequence[Box]) -> Iterator[Box]:
    """The engine of autograd wraps each of its operations once more."""
    for box in boxes:
        if box.name.startswith("autograd::engine"):
            yield from without_engine(box.calls)
        else:
            yield box


def flame(step: Step) -> list[list[Any]]:
    """Depth, name, begin and length of the boxes that are wide enough to be seen."""
    found: list[list[Any]] = []

    def add(boxes: Sequence[Box], depth: int) -> None:
        for box in map(collapsed, without_engine(boxes)):
            if box.length < 0.05:
                continue
            found.append([depth, plain(box.name), round(box.begin, 3), round(box.length, 3)])
            add(box.calls, depth + 1)

    add(step.boxes, 0)
    return found


def trained(math: str, threads: int, folder: Path) -> list[Step]:
    trace = folder / "trace.json"
    command = [ROOT / "build/bin/stage0_single_gpu", "--math", math, "--threads", str(threads),
               "--limit-train", str(64 * STEPS), "--limit-test", "64", "--device", "cpu",
               "--save", folder / "weights.safetensors", "--trace", trace, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    return steps_of(json.loads(trace.read_text()))


def speed_with(flags: Sequence[str], threads: int, folder: Path) -> float:
    """Images per second of a training without its evaluation."""
    command = [ROOT / "build/bin/stage0_single_gpu", *flags, "--threads", str(threads),
               "--limit-train", "6400", "--limit-test", "64", "--epochs", "1", "--device", "cpu",
               "--metrics", "metrics.jsonl", "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300, cwd=folder)
    last = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["samples_per_second"])


def speeds(threads: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {
        group: {name: [] for name in rows} for group, rows in SPEEDS.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, ROOT / "bridges/exported_program/export_network.py",
                        f"{ROOT / 'examples/exported/networks.py'}:basic", folder / FILE],
                       check=True, stdout=subprocess.DEVNULL, timeout=300)
        for _ in range(RUNS):
            for group, rows in SPEEDS.items():
                for row, flags in rows.items():
                    found[group][row].append(speed_with(flags, threads, folder))
    return {group: {row: round(statistics.median(rates), 1) for row, rates in rows.items()}
            for group, rows in found.items()}


def typical(steps: Sequence[Step]) -> Step:
    return sorted(steps, key=lambda step: step.length)[len(steps) // 2]


def measured(threads: int) -> dict[str, Any]:
    machine = described()  # with the load before
    steps: dict[str, list[Step]] = {math: [] for math in MATHS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(RUNS):
            for math in MATHS:
                steps[math] += trained(math, threads, Path(folder))
    return machine | {
        "threads": threads,
        "steps": len(steps["fast"]),
        "length": {math: statistics.median(step.length for step in steps[math]) for math in MATHS},
        "operations": {math: medians(steps[math]) for math in MATHS},
        "flame": {math: flame(typical(steps[math])) for math in MATHS},
        "images_per_second": speeds(threads)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures the operations of a training step.")
    parser.add_argument("record", type=new_record, metavar="NAME.step.json")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    write_record(options.record, measured(options.threads))
    return 0


if __name__ == "__main__":
    run_program(main)
