# SPDX-License-Identifier: Apache-2.0
"""What the tables say, whoever shows them: the terminal, Markdown or the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from equality import EQUAL, NOT_CHECKED, WRONG, Verdict, checks, stage_0_of, verdict_for
from intervals import Estimate, within_noise
from results import KINDS, Results, Row, Setup, same_device
from words import (
    FAILED, NOT_MEASURED, NOT_RUN, STAGES, TUNED, TWIN_NOT_RUN, count, is_twin, megabytes, number,
    percent, significant, twin_of,
)

WORLD_OF_STAGE = (1, 2, 2, 2, 2, 1, 1)  # how each stage is meant to run
PRECISION_OF_STAGE = ("fp32", "fp32", "fp32", "fp32", "bf16", "fp32", "fp32")
MORE = ("For the time of 200 steps with 95 % intervals, a second network, more processes and the same "
        "programs in Python: ./run bench")


@dataclass
class Table:
    title: str
    header: tuple[str, ...]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)  # of each row, for its colour
    texts: int = 1  # so many columns from the left hold words, the rest numbers

    def measured(self) -> Table:
        """Without the columns that have no value in any row."""
        if not self.rows:
            return self
        kept = [place for place in range(len(self.header))
                if any(row[place] not in (NOT_RUN, NOT_MEASURED, TWIN_NOT_RUN)
                       for row in self.rows)]
        return replace(self, header=tuple(self.header[place] for place in kept),
                       rows=[[row[place] for place in kept] for row in self.rows],
                       texts=sum(place < self.texts for place in kept))


def estimate_text(estimate: Estimate | None, write: Callable[[float], str]) -> str:
    return NOT_MEASURED if estimate is None else estimate.text(write)


def accuracy_text(row: Row) -> str:
    accuracy = row.accuracy()
    if accuracy is None:
        return NOT_MEASURED
    low, high = accuracy.interval
    return f"{percent(accuracy.value)} [{percent(low)}, {percent(high)}]"


def cells(row: Row | None, writers: list[Callable[[Row], str]]) -> list[str]:
    """A cell a writer; where there are no numbers, the first cell says why."""
    if row is None:
        return [NOT_RUN] * len(writers)
    if row.error:
        reason = row.error if row.missing == NOT_RUN else f"{FAILED}: {row.error}"
        return [reason, *[row.missing] * (len(writers) - 1)]
    return [write(row) for write in writers]


def more_cells(row: Row | None, writers: list[Callable[[Row], str]]) -> list[str]:
    """Behind cells() of the same row: a failure has been explained there."""
    return [row.missing] * len(writers) if row and row.error else cells(row, writers)


def counter(name: str, write: Callable[[float | None], str]) -> Callable[[Row], str]:
    return lambda row: write(row.counter(name))


# --- the seven stages -------------------------------------------------------------------


def usual_row(results: Results, stage: int) -> Row | None:
    """The whole run that shows a stage as it is meant: its world size, precision, all CPUs.

    If that one failed, it is shown as failed: another recipe is no answer for it.
    """
    def unusual(row: Row) -> tuple:
        setup = row.key.setup
        return (setup.recipe != "basicnet", setup.recipe, setup.width != 1,
                setup.world != WORLD_OF_STAGE[stage], setup.precision != PRECISION_OF_STAGE[stage],
                bool(row.error), -setup.threads)

    rows = [row for row in results.of_kind("full") if row.key.setup.program == STAGES[stage]]
    return min(rows, key=unusual, default=None)


STAGE_HEADER = ("stage", "world", "prec", "time, s", "accuracy, %", "seen", "equal?", "memory, MB",
                "code")


def stage_cells(results: Results, stage: int) -> list[str]:
    row = usual_row(results, stage)
    if row is None:
        return [STAGES[stage], *[NOT_RUN] * (len(STAGE_HEADER) - 1)]
    setup = row.key.setup
    verdict = verdict_for(results, setup.recipe, setup.program)
    measured = cells(row, [lambda row: number(row.seconds().value), accuracy_text,
                           counter("seen", count), lambda _: verdict.state,
                           counter("peak_rss_bytes", megabytes), counter("user_lines", count)])
    return [name_text(setup, row), f"{setup.world} x {setup.threads}", setup.precision, *measured]


def stage_notes(results: Results) -> list[str]:
    notes = ["world: processes or replicas x threads of each; time: from the start of the program "
             "to its end, one run each; accuracy with its 95 % interval; memory: the peaks of all "
             "ranks; code: lines of main.cpp."]
    for stage, program in enumerate(STAGES):
        row = usual_row(results, stage)
        if row is None or row.error:
            continue
        if row.key.setup.recipe != "basicnet":
            notes.append(f"{program}: recipe {row.key.setup.recipe}.")
        verdict = verdict_for(results, row.key.setup.recipe, program)
        if verdict.state != EQUAL:
            notes.append(f"{program}: {verdict.state}: {verdict.reason}.")
    return notes


def stage_table(results: Results) -> Table:
    """Without rows if no stage had a whole run."""
    found = [usual_row(results, stage) for stage in range(len(STAGES))]
    rows = [stage_cells(results, stage) for stage in range(len(STAGES))] if any(found) else []
    return Table("The seven stages", STAGE_HEADER, rows, stage_notes(results), list(STAGES),
                 3).measured()


# --- a recipe, every row ----------------------------------------------------------------

RECIPE_HEADER = ("program", "world", "precision", "threads", "200 steps, s [95 %]", "samples/s",
                 "% of floor", "time / twin's [95 %]", "whole run, s", "accuracy, % [95 %]",
                 "to stage 0, points", "seen", "equal?", "start-up, s", "peak memory, MB",
                 "loopback bytes a step", "code lines")


def ratio_text(results: Results, setup: Setup) -> str:
    if is_twin(setup.program):
        return "not a twin" if setup.program in TUNED else "is the twin"
    ours = results.row("slice", setup)
    twin = results.row("slice", replace(setup, program=twin_of(setup.program) or ""))
    if ours and twin and twin.good and not same_device(ours, twin):
        return "other device"
    if twin and twin.error:
        return "twin failed"
    ratio = results.ratio_to_twin(setup)
    return TWIN_NOT_RUN if ratio is None else ratio.text(lambda value: f"{value:.3f}")


def difference_text(results: Results, row: Row) -> str:
    """How far an accuracy is from that of stage 0, and whether that may be chance."""
    base = stage_0_of(results, row.key.setup.recipe)
    if row is base:
        return "is stage 0"
    if base is None or row.score() is None:
        return NOT_MEASURED
    points = row.accuracy().value - base.accuracy().value
    noise = " (noise)" if within_noise(row.score(), base.score()) else ""
    return f"{points:+.2f}{noise}"


def lines_text(row: Row | None) -> str:
    if row is None:
        return NOT_RUN
    if is_twin(row.key.setup.program):
        return "not counted"
    if row.error:
        return FAILED
    return count(row.counter("user_lines"))


def name_text(setup: Setup, *rows: Row | None) -> str:
    width = f", width {setup.width:g}" if setup.width != 1 else ""
    alone = any(row and row.label("replicas") == "1" for row in rows) and setup.world > 1
    devices = {row.device for row in rows if row and row.good} - {"cpu"}
    device = f" ({', '.join(sorted(devices))})" if devices else ""
    return setup.program + width + device + (" (1 replica: no GPU)" if alone else "")


def recipe_cells(results: Results, setup: Setup) -> list[str]:
    speed, whole = results.row("slice", setup), results.row("full", setup)
    either = next((row for row in (speed, whole) if row and not row.error), speed or whole)
    memory = next((row for row in (whole, speed) if row and not row.error), either)
    verdict = verdict_for(results, setup.recipe, setup.program)
    timed = cells(speed, [lambda row: estimate_text(row.seconds(), significant),
                          counter("samples_per_second", count),
                          counter("percent_of_floor", number),
                          lambda _: ratio_text(results, setup)])
    trained = cells(whole, [lambda row: number(row.seconds().value), accuracy_text,
                            lambda row: difference_text(results, row), counter("seen", count)])
    traffic = more_cells(speed or whole, [counter("loopback_bytes_per_step", count)])
    rest = [*more_cells(either, [counter("startup_seconds", lambda value: number(value, 2))]),
            *more_cells(memory, [counter("peak_rss_bytes", megabytes)]), *traffic,
            lines_text(either)]
    return [name_text(setup, speed, whole), str(setup.world), setup.precision, str(setup.threads),
            *timed, *trained, verdict.state, *rest]


def training_notes(results: Results, setups: list[Setup]) -> list[str]:
    """Batch, rate and updates of the whole runs: in one line, if they all have the same."""
    programs: dict[str, list[str]] = {}
    for setup in setups:
        row = results.row("full", setup)
        found = [row.counter(name) if row else None for name in ("batch_size", "lr", "steps")]
        if None not in found:
            batch, rate, steps = found
            line = (f"Batch {batch:.0f} over all processes, learning rate {rate:g}, {steps:.0f} "
                    "updates.")
            programs.setdefault(line, []).append(setup.program)
    if len(programs) == 1:
        return list(programs)
    return [f"{', '.join(dict.fromkeys(names))}: {line}" for line, names in programs.items()]


def recipe_notes(results: Results, setups: list[Setup]) -> list[str]:
    notes = training_notes(results, setups)
    if any(results.row("full", setup) for setup in setups):
        notes.append("Whole run: from the start of the program to its end, one run each. Peak "
                     "memory: the sum over the ranks.")
    for setup in setups:
        for kind in ("slice", "full"):
            row = results.row(kind, setup)
            if row and row.good and row.failures:
                notes.append(f"{setup.program}, world {setup.world}, {kind}: {row.failures}.")
    for program in dict.fromkeys(setup.program for setup in setups):
        verdict = verdict_for(results, setups[0].recipe, program)
        if verdict.state not in (EQUAL, NOT_CHECKED):
            notes.append(f"{program}: {verdict.state}: {verdict.reason}.")
    return notes


def recipe_table(results: Results, recipe: str) -> Table:
    setups = results.setups(recipe)
    rows = [recipe_cells(results, setup) for setup in setups]
    return Table(f"Recipe {recipe}", RECIPE_HEADER, rows, recipe_notes(results, setups),
                 [setup.program for setup in setups], 1).measured()


def speed_table(results: Results, recipe: str) -> Table:
    """The C++ rows that were repeated, against their twins: what a terminal has room for."""
    header = ("program", "world", "prec", "200 steps, s [95 %]", "% of floor",
              "time / twin's [95 %]")
    setups = [setup for setup in results.setups(recipe, ["slice"]) if not is_twin(setup.program)]
    rows = []
    for setup in setups:
        row = results.row("slice", setup)
        measured = cells(row, [lambda row: estimate_text(row.seconds(), significant),
                               counter("percent_of_floor", number)])
        rows.append([name_text(setup, row), f"{setup.world} x {setup.threads}", setup.precision,
                     *measured, ratio_text(results, setup)])
    return Table(f"Recipe {recipe}, 200 steps", header, rows, [],
                 [setup.program for setup in setups], 3).measured()


# --- accuracy over time, and equality ---------------------------------------------------


def curve_rows(results: Results, recipe: str | None = None) -> list[Row]:
    """Runs of fewer epochs and whole runs, those of a set-up beside each other."""
    rows = [row for row in results.of_kind("curve", "full")
            if recipe in (None, row.key.setup.recipe)]
    return sorted(rows, key=lambda row: (row.key.setup.order(), row.key.epochs or 10**9))


def curve_table(results: Results) -> Table:
    header = ("program", "recipe", "world", "precision", "threads", "epochs", "training, s",
              "accuracy, % [95 %]")
    rows, programs = [], []
    curves = {row.key.setup for row in results.of_kind("curve")}
    for row in curve_rows(results):
        setup = row.key.setup
        if setup not in curves:
            continue
        programs.append(setup.program)
        rows.append([setup.program, setup.recipe, str(setup.world), setup.precision,
                     str(setup.threads), str(row.key.epochs or "all"),
                     *cells(row, [counter("train_seconds", number), accuracy_text])])
    return Table("Accuracy over training time", header, rows, [], programs, 2)


def check_table(results: Results) -> Table:
    header = ("program", "recipe", "world", "weights", "equal?")
    rows, programs = [], []
    for check in checks(results):
        state = f"{check.verdict.state}: {check.verdict.reason}".removesuffix(": ")
        rows.append([check.program, check.recipe, str(check.world),
                     check.weights[:16] or "no hash", state])
        programs.append(check.program)
    notes = ["fp32, one thread a process, 20 steps. World size 1: the weights of stage 0, bit for "
             "bit. World size 2: stages 1 to 6 have the same ones, stage 1 with two replicas, "
             "stage 4 in fp32 and without SyncBatchNorm."]
    return Table("Equality", header, rows, notes, programs, 5)


# --- in one sentence --------------------------------------------------------------------


def more(results: Results) -> list[str]:
    """Which command measures the rest, unless all kinds of rows are there."""
    kinds = {row.key.kind for row in results.rows.values()}
    twins = any(is_twin(row.key.setup.program) for row in results.rows.values())
    return [] if twins and kinds >= set(KINDS) else [MORE]


def fastest(results: Results, right: list[Row]) -> str:
    """By the slices, which were repeated, if all have some; else by the whole runs."""
    slices = [results.row("slice", row.key.setup) for row in right]
    if all(row and row.good for row in slices):
        best = min(slices, key=lambda row: row.seconds().value)
        time = best.seconds().text(significant)
        close = [row.key.setup.program for row in slices
                 if row is not best and overlap(row.seconds(), best.seconds())]
        unsure = f"; not told apart from {', '.join(close)}" if close else ""
        return f"Fastest: {setup_text(best)}, {time} seconds for 200 steps{unsure}."
    best = min(right, key=lambda row: row.seconds().value)
    return f"Fastest: {setup_text(best)}, {best.seconds().value:.1f} s (one run each)."


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals have a value in common; without intervals nothing is known."""
    if one.interval is None or other.interval is None:
        return False
    return one.interval.low <= other.interval.high and other.interval.low <= one.interval.high


def setup_text(row: Row) -> str:
    setup = row.key.setup
    return f"{setup.program} ({setup.world} x {setup.threads}, {setup.precision})"


def summary(results: Results) -> list[str]:
    """The answer in short: what was fastest, smallest and shortest of the stages that are right."""
    found = [usual_row(results, stage) for stage in range(len(STAGES))]
    rows = [row for row in found if row and not row.error]
    states = [verdict_for(results, row.key.setup.recipe, row.key.setup.program) for row in rows]
    right = [row for row, verdict in zip(rows, states) if verdict.state == EQUAL]
    right = [row for row in right if row.key.setup.recipe == right[0].key.setup.recipe
             and row.device == right[0].device]
    lines = [equality_sentence(states, len(STAGES))]
    if right:
        lines.append(fastest(results, right))
    for what, name, write in (
        ("Least memory", "peak_rss_bytes", lambda value: f"{value / 1e6:.0f} MB"),
        ("Least code", "user_lines", lambda value: f"{value:.0f} lines"),
    ):
        best = min((row for row in right if row.counter(name) is not None),
                   key=lambda row: row.counter(name), default=None)
        if best:
            lines.append(f"{what}: {setup_text(best)}, {write(best.counter(name))}.")
    return lines


def equality_sentence(states: list[Verdict], wanted: int) -> str:
    wrong = sum(verdict.state == WRONG for verdict in states)
    equal = sum(verdict.state == EQUAL for verdict in states)
    if wrong:
        return f"WRONG stages: {wrong} of {wanted}. The notes of the table say why."
    if equal == wanted:
        return "All seven stages train the same: equal weights after the steps of the check."
    return (f"{equal} of {wanted} stages are known to train the same; the others were not checked, "
            "or have no whole run here.")
