# SPDX-License-Identifier: Apache-2.0
"""What a training step consists of, in reference math and in fast math.

    python3 bench/report/step.py bench/results/NAME.step.json    measures, and writes a record

Runs stage 0 under LibTorch's profiler, both in turns, and keeps for each operation the time of its
own, without that of the operations it calls: medians over all steps. pages.py makes the table and
the picture of docs/performance.md from the record.
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
from html import escape
from pathlib import Path
from typing import Any

from records import described
from words import INK, MUTED, RUNG_COLOURS, Colour

ROOT = Path(__file__).resolve().parents[2]
MATHS = ("reference", "fast")
RUNS = 5  # of each, in turns
STEPS = 10  # a run: the trace ends before
OPTIMIZER = "aten::_fused_"
LEAST = 0.1  # milliseconds: what takes less in both is one row
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
        "flame": {math: flame(typical(steps[math])) for math in MATHS}}


def table(record: dict[str, Any]) -> str:
    """Operations by what they cost in reference math, then those that only fast math has."""
    before, after = (record["operations"][math] for math in MATHS)
    times = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}}
    small = [name for name, pair in times.items() if max(pair) < LEAST and name != REST]
    rest = [sum(times[name][side] for name in (*small, REST)) for side in (0, 1)]
    shown = sorted((name for name in times if name not in small and name != REST),
                   key=lambda name: (-times[name][0], -times[name][1]))
    rows = [(f"`{name}`", *times[name]) for name in shown]
    rows += [(REST, *rest), ("**a step**", *(record["length"][math] for math in MATHS))]
    lines = ["| operation | reference, ms | fast, ms |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {cell(one)} | {cell(other)} |" for name, one, other in rows]
    return "\n".join(lines) + "\n"


def cell(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else ""


# The picture: two bands of boxes on one scale of time.

WIDTH, ROW, LEFT, TOP = 760.0, 19.0, 18.0, 26.0
FAMILIES: tuple[tuple[str, Colour, tuple[str, ...]], ...] = (
    ("convolution", RUNG_COLOURS[2], ("conv",)),
    ("matrix product", RUNG_COLOURS[3], ("mm", "addmm", "linear", "Addmm", "Linear backward")),
    ("of this library", RUNG_COLOURS[4], ("ladder::", "Pool backward", "Dropout")),
    ("optimizer", RUNG_COLOURS[5], ("_fused_",)),
    ("others", MUTED, ()),
)


def family(name: str) -> Colour:
    for _, colour, parts in FAMILIES:
        if any(name.startswith(part) or part in name for part in parts):
            return colour
    return MUTED


def band(boxes: Sequence[Sequence[Any]], top: float, scale: float) -> list[str]:
    parts = []
    for depth, name, begin, length in boxes:
        x, y, width = LEFT + begin * scale, top + depth * ROW, length * scale
        colour = f"var(--{family(name).name})"
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.6, 0.4):.1f}" '
                     f'height="{ROW - 2:.1f}" fill="{colour}" fill-opacity="0.35" '
                     f'stroke="{colour}"><title>{escape(name)}: {length:.2f} ms</title></rect>')
        letters = int(width / 6.8)
        if letters >= 4:
            text = name if len(name) <= letters else name[:letters - 1] + "…"
            parts.append(f'<text x="{x + 3:.1f}" y="{y + 12.5:.1f}" font-size="10.5" '
                         f'fill="var(--{INK.name})">{escape(text)}</text>')
    return parts


def axis(y: float, longest: float, scale: float) -> list[str]:
    parts = []
    for tick in range(0, int(longest) + 1, 5 if longest < 60 else 10):
        x = LEFT + tick * scale
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4:.1f}" x2="{x:.1f}" y2="{y:.1f}" '
                     f'stroke="var(--{MUTED.name})" stroke-opacity="0.3"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" font-size="10.5" text-anchor="middle" '
                     f'fill="var(--{MUTED.name})">{tick} ms</text>')
    return parts


def legend(y: float) -> list[str]:
    parts, x = [], LEFT
    for name, colour, _ in FAMILIES:
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="11" height="11" fill-opacity="0.35" '
                     f'fill="var(--{colour.name})" stroke="var(--{colour.name})"/>')
        parts.append(f'<text x="{x + 16:.1f}" y="{y + 10:.1f}" font-size="11" '
                     f'fill="var(--{INK.name})">{name}</text>')
        x += 34 + 6.6 * len(name)
    return parts


def picture(record: dict[str, Any]) -> str:
    longest = max(record["length"].values())
    scale = (WIDTH - 2 * LEFT - 20) / longest
    parts: list[str] = []
    top = TOP
    for math in MATHS:
        boxes = record["flame"][math]
        depth = 1 + max(box[0] for box in boxes)
        parts.append(f'<text x="{LEFT:.1f}" y="{top + 2:.1f}" font-size="12" font-weight="bold" '
                     f'fill="var(--{INK.name})">--math {math}: {record["length"][math]:.1f} ms'
                     "</text>")
        parts += band(boxes, top + 9, scale)
        top += 9 + depth * ROW + 22
    parts = axis(top - 14, longest, scale) + parts + legend(top + 12)
    title = "One training step of BasicNet, operation by operation"
    about = ("Two rows of boxes on one scale of time: the step in reference math above, the "
             "shorter one in fast math below. The table on the page has the numbers.")
    return (f'<svg viewBox="0 0 {WIDTH:.0f} {top + 32:.0f}" role="img" font-family="sans-serif" '
            f'aria-labelledby="step-title step-desc"><title id="step-title">{title}</title>'
            f'<desc id="step-desc">{about}</desc>' + "".join(parts) + "</svg>")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures the operations of a training step.")
    parser.add_argument("record", type=Path, metavar="NAME.step.json")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    record = measured(options.threads)
    options.record.write_text(json.dumps(record, indent=None) + "\n")
    print(table(record), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
