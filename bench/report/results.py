# SPDX-License-Identifier: Apache-2.0
"""Reads what the suite has written: Google Benchmark's JSON, as rows with their repetitions.

The name of a benchmark is KIND/RECIPE/PROGRAM/world:2/precision:fp32/threads:1, with
width:W, epochs:E and seed:S where they are not 1 and the recipe's, micro_batch:M of exact sums, and
variant:NAME of a row that feeds batches or synchronises gradients in another way. What follows is
Google Benchmark's. Runs with different seeds are repetitions of one row.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from intervals import Estimate, mean_of, median_of, ratio_of, wilson
from words import (
    DDP_PRACTICE, FAILED, HF_DEFAULTS, NOT_RUN, OPPONENTS, is_python, stage_of, twin_of,
)

EXACT_KINDS = ("sums", "seeds")  # rows of the tables of exact sums alone
KINDS = ("slice", "full", "curve", "check", "phases", "brief", *EXACT_KINDS)
STEPS = 200  # of a timed row
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class ResultsError(Exception):
    """The file is not what the suite writes."""


@dataclass(frozen=True)
class Setup:
    """A program and how it was started: the subject of a row."""

    recipe: str
    program: str
    world: int = 1
    precision: str = "fp32"
    threads: int = 1
    width: float = 1.0
    micro_batch: int = 0  # of exact sums; 0 = sums in float
    variant: str = ""  # of feeding and accumulation

    def order(self) -> tuple:
        return (self.recipe, stage_of(self.program), is_python(self.program),
                self.program in OPPONENTS, self.program, self.width, self.precision != "fp32",
                self.precision, self.world, self.threads, self.micro_batch, self.variant)


@dataclass(frozen=True)
class Key:
    kind: str
    setup: Setup
    epochs: int = 0  # 0 = the recipe's


@dataclass(frozen=True)
class Repetition:
    """One run of a program."""

    file: int  # the place of its file among those that were read
    seconds: float
    counters: Mapping[str, float]
    label: Mapping[str, str]
    error: str = ""
    seed: int = 0  # 0 = the recipe's

    @property
    def weights(self) -> str:
        """The hash of its weights; "" without."""
        return self.label.get("weights_sha256", "").removeprefix("unknown")

    @property
    def score(self) -> tuple[float, float] | None:
        """How many images of how many."""
        seen, correct = self.counters.get("seen"), self.counters.get("correct")
        return (correct, seen) if seen and correct is not None else None


@dataclass
class Row:
    key: Key
    repetitions: list[Repetition] = field(default_factory=list)

    @property
    def setup(self) -> Setup:
        return self.key.setup

    @property
    def good(self) -> list[Repetition]:
        return [one for one in self.repetitions if not one.error]

    @property
    def error(self) -> str:
        """Why there is no number: the reason of the first failure, if every run failed."""
        return "" if self.good else self.repetitions[0].error

    @property
    def missing(self) -> str:
        """What a cell without a number shows. The suite begins a reason with "not run" or not."""
        return NOT_RUN if self.error.startswith(NOT_RUN) else FAILED

    @property
    def failures(self) -> str:
        """A note beside the numbers if some of the runs failed."""
        lost = [one.error for one in self.repetitions if one.error]
        return f"{len(lost)} of {len(self.repetitions)} failed: {lost[0]}" if lost else ""

    def seconds(self) -> Estimate | None:
        return median_of([one.seconds for one in self.good])

    @property
    def step_ms(self) -> list[float]:
        """Milliseconds per training step of each run; of a whole one without start-up and test."""
        if self.key.kind == "full":
            counted = [run.counters for run in self.good
                       if run.counters.get("steps") and "train_seconds" in run.counters]
            return [1000 * run["train_seconds"] / run["steps"] for run in counted]
        steps = 1 if self.key.kind == "brief" else STEPS
        return [1000 * run.seconds / steps for run in self.good]

    def counter(self, name: str) -> float | None:
        values = [one.counters[name] for one in self.good if name in one.counters]
        return median(values) if values else None

    def label(self, name: str) -> str | None:
        return next((one.label[name] for one in self.good if name in one.label), None)

    @property
    def device(self) -> str:
        """Where it ran: cpu, or a GPU such as cuda:0."""
        device = self.label("device") or "cpu"
        return "cpu" if device.startswith("cpu:") else device  # cpu:0, as Accelerate names it

    def of_seeds(self) -> dict[int, Repetition]:
        """The runs with a test, one of each seed; those without a seed if no run names one."""
        found = {run.seed: run for run in self.good if run.score}
        return {seed: found[seed] for seed in sorted(found) if seed or len(found) == 1}

    def accuracies(self) -> dict[int, float]:
        """In percent, by seed."""
        return {seed: 100 * run.score[0] / run.score[1] for seed, run in self.of_seeds().items()}

    def score(self) -> tuple[float, float] | None:
        """How many images of how many: the mean over the seeds, as of one test."""
        scores = [run.score for run in self.of_seeds().values()]
        return tuple(sum(part) / len(scores) for part in zip(*scores)) if scores else None

    def accuracy(self) -> Estimate | None:
        """In percent: the mean over the seeds, or one run with the interval of its test."""
        found = list(self.accuracies().values())
        if len(found) > 1:
            return mean_of(found)
        return Estimate(found[0], wilson(*self.score())) if found else None


@dataclass(eq=False)  # one is itself alone, and can be looked up
class Results:
    contexts: list[dict[str, Any]]  # of each file
    rows: dict[Key, Row]

    def row(self, kind: str, setup: Setup) -> Row | None:
        return self.rows.get(Key(kind, setup))

    def of_kind(self, *kinds: str) -> list[Row]:
        return [row for row in self.rows.values() if row.key.kind in kinds]

    def recipes(self) -> list[str]:
        return sorted({key.setup.recipe for key in self.rows} - {HF_DEFAULTS, DDP_PRACTICE})

    def measured(self, file: int, name: str) -> list[float]:
        """A counter of all runs of a file."""
        return [run.counters[name] for row in self.rows.values() for run in row.good
                if run.file == file and name in run.counters]

    @cached_property
    def load_warning(self) -> str:
        """Of a load that makes times worthless; "" below.

        The run itself keeps at most one process per CPU busy, or two on one CPU. Over twice that,
        other programs had half of the machine or more. A build keeps fewer than twice busy.
        """
        for file, context in enumerate(self.contexts):
            cpus, loads = int(context.get("num_cpus", 0)), self.measured(file, "load")
            if loads and (load := median(loads)) > (most := 2 * max(2, cpus)):
                return (f"warning: load {load:.1f} on {cpus} CPUs, expected at most {most}: times "
                        "prove nothing; hint: repeat when idle")
        return ""

    def setups(self, recipe: str, kinds: Sequence[str] = ("slice", "full")) -> list[Setup]:
        """Of a recipe, each once, every stage beside its twin, without variants."""
        found = {row.setup for row in self.of_kind(*kinds)
                 if row.setup.recipe == recipe and not row.setup.variant}
        return sorted(found, key=Setup.order)

    def twin_row(self, kind: str, setup: Setup) -> Row | None:
        """Of the Python twin that was started alike."""
        return self.row(kind, replace(setup, program=twin_of(setup.program) or ""))

    def beside_twins(self) -> list[Setup]:
        """The stages that were timed, and whose Python twins were timed alike."""
        return [setup for recipe in self.recipes() for setup in self.setups(recipe, ["slice"])
                if setup.width == 1 and self.twin_row("slice", setup)]

    def ratio_to_twin(self, setup: Setup) -> Estimate | None:
        """Time of a stage over that of its Python twin."""
        twin = self.twin_row("slice", setup)
        return self.ratio(setup, twin and twin.setup)

    def step_ratio(self, setup: Setup, program: str) -> Estimate | None:
        """Time of a step of a program over that of a stage in its whole run; None under load."""
        other, ours = self.row("brief", replace(setup, program=program)), self.row("full", setup)
        if None in (other, ours) or not same_device(other, ours) or self.load_warning:
            return None
        return ratio_of(other.step_ms, ours.step_ms)

    def ratio(self, first: Setup | None, second: Setup | None,
              measure: Callable[[Repetition], float | None] = attrgetter("seconds"),
              kind: str = "slice") -> Estimate | None:
        """The median of a measure of one row over that of another; None on different devices, and
        under load.

        The suite shuffles all repetitions, so those of two rows have no order in common.
        """
        rows = [setup and self.row(kind, setup) for setup in (first, second)]
        if None in rows or not same_device(*rows) or self.load_warning:
            return None
        return ratio_of(*([value for one in row.good if (value := measure(one)) is not None]
                          for row in rows))


def same_device(first: Row, second: Row) -> bool:
    """Whether both ran on the CPU, or both on a GPU of the same make."""
    return first.device.split(":")[0] == second.device.split(":")[0]


def read_key(name: str) -> tuple[Key, int]:
    """The row, and the seed of this run."""
    kind, recipe, program, *rest = (name + "//").split("/")
    if kind not in KINDS or not recipe or not program:
        raise ResultsError(f"benchmark '{name}': expected KIND/RECIPE/PROGRAM/..., with a kind of "
                           + ", ".join(KINDS))
    words = dict(word.split(":", 1) for word in reversed(rest) if ":" in word)
    try:
        setup = Setup(recipe, program, int(words.get("world", 1)), words.get("precision", "fp32"),
                      int(words.get("threads", 1)), float(words.get("width", 1)),
                      int(words.get("micro_batch", 0)), words.get("variant", ""))
        return Key(kind, setup, int(words.get("epochs", 0))), int(words.get("seed", 0))
    except ValueError as error:
        raise ResultsError(f"benchmark '{name}': {error}") from error


def read_repetition(entry: Mapping[str, Any], file: int, seed: int) -> Repetition:
    counters = {name: float(value) for name, value in entry.items()
                if type(value) in (int, float) and math.isfinite(value)}
    label = dict(word.split("=", 1) for word in str(entry.get("label", "")).split() if "=" in word)
    error = " ".join(str(entry.get("error_message", "")).split()) or "no reason was given"
    seconds = counters["real_time"] * SECONDS[entry.get("time_unit", "ns")]
    return Repetition(file, seconds, counters, label, error if entry.get("error_occurred") else "",
                      seed)


def read_file(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Context and entries; of a suite that was stopped, which leaves the file open, what it has."""
    text = path.read_text(encoding="utf-8", errors="replace")  # last words of any program
    try:
        try:
            content = json.loads(text, strict=False)
        except ValueError:
            content = json.loads(text.rstrip().rstrip(",") + "]}", strict=False)
            content["context"]["stopped_early"] = True
        return {**content["context"]}, [*content["benchmarks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path}: expected the JSON that build/bin/suite writes: {error}; hint: "
                           "was it cut off in the middle of a row?") from error


def read(paths: Iterable[Path | str]) -> Results:
    """All files as one; rows of the same name are one row with more repetitions.

    What is no file of the suite or no row is reported on the standard error, if there are others.
    """
    results = Results([], {})
    problems = []
    given: set[Path] = set()
    for path in paths:
        if Path(path).resolve() in given:
            raise ResultsError(f"{path}: given twice; hint: name each file once")
        given.add(Path(path).resolve())
        try:
            context, entries = read_file(Path(path))
        except (ResultsError, OSError) as error:
            problems.append(error)
            continue
        commits: dict[str, None] = {}
        for number, entry in enumerate(entries):
            try:
                if entry.get("run_type", "iteration") == "iteration":
                    key, seed = read_key(entry.get("run_name") or entry["name"])
                    run = read_repetition(entry, len(results.contexts), seed)
                    results.rows.setdefault(key, Row(key)).repetitions.append(run)
                    commits[str(entry.get("commit", context.get("commit", "")))] = None
            except (ResultsError, LookupError, TypeError, ValueError, AttributeError) as error:
                problems.append(f"{path}: benchmark {number} is no row of the suite: {error!r}")
        context["commit"] = " and ".join(commits)
        if len(commits) > 1:  # measured again: ticks were also stolen between the measurements
            context.pop("steal_before", None)
        results.contexts.append(context)
    if not results.rows:
        raise ResultsError(problems[0] if problems else "the file holds no benchmark")
    for problem in problems:
        print(f"not read: {problem}", file=sys.stderr)
    return results
