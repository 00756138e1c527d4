# SPDX-License-Identifier: Apache-2.0
"""What the tables say, whoever shows them: the terminal, Markdown or the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from equality import (
    CHECKED, EQUAL, NOT_CHECKED, WRONG, Verdict, checks, is_noise, paired, stage_0_of,
    verdict_for,
)
from intervals import Estimate
from results import Results, Row, Setup, same_device
from words import (
    FAILED, NOT_MEASURED, NOT_RUN, STAGES, TUNED, TWIN_NOT_RUN, USUAL, count, is_twin, megabytes,
    number, percent, significant, twin_of,
)

WORLD_OF_STAGE = (1, 2, 2, 2, 2, 2, 2)  # how each stage is meant to run
PRECISION_OF_STAGE = ("fp32", "fp32", "fp32", "fp32", "bf16", "fp32", "fp32")
MORE = ("For the time of 200 steps with 95 % intervals, a second network, more processes and the "
        "same programs in Python: ./run bench")


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
                if any(row[place] not in (NOT_RUN, NOT_MEASURED, TWIN_NOT_RUN, FAILED)
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


def unusual(setup: Setup) -> tuple:
    """How far a stage's set-up is from the one that it is meant to have."""
    stage = STAGES.index(setup.program)
    return (setup.world != WORLD_OF_STAGE[stage], setup.precision != PRECISION_OF_STAGE[stage],
            -setup.threads)


def usual_row(results: Results, stage: int, kind: str = "full") -> Row | None:
    """The row that shows a stage as it is meant: its world size, precision, all CPUs.

    If that one failed, it is shown as failed: another recipe is no answer for it.
    """
    def order(row: Row) -> tuple:
        setup = row.key.setup
        world, precision, threads = unusual(setup)
        return (setup.recipe != "basicnet", setup.recipe, setup.width != 1, world, precision,
                bool(row.error), threads)

    rows = [row for row in results.of_kind(kind) if row.key.setup.program == STAGES[stage]
            and row.key.setup.recipe in results.recipes() and not row.key.setup.variant]
    return min(rows, key=order, default=None)


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


def runs_text(rows: list[Row]) -> str:
    """How many whole runs there are of each row."""
    most = max((len(row.good) for row in rows), default=0)
    return "one run each" if most < 2 else f"the median of up to {most} runs"


def stage_notes(results: Results) -> list[str]:
    rows = [row for stage in range(len(STAGES)) if (row := usual_row(results, stage))]
    notes = ["world: processes or replicas x threads of each; time: from the start of the program "
             f"to its end, {runs_text(rows)}; accuracy with its 95 % interval; memory: the peaks "
             "of all ranks; code: lines of main.cpp."]
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
                 "device memory, MB", "sent per step, bytes", "code lines")


def ratio_text(results: Results, setup: Setup) -> str:
    if is_twin(setup.program):
        return "not a twin" if setup.program in TUNED else "is the twin"
    if setup.program == USUAL:
        return "no twin"
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
    noise = " (noise)" if is_noise(row, base) else ""
    return f"{points:+.2f}{noise}"


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
    traffic = more_cells(speed or whole, [counter("sent_bytes_per_step", count)])
    rest = [*more_cells(either, [counter("startup_seconds", lambda value: number(value, 2))]),
            *more_cells(memory, [counter("peak_rss_bytes", megabytes),
                                 counter("device_peak_bytes", megabytes)]), *traffic,
            *more_cells(either, [counter("user_lines", count)])]
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
        rows = [row for setup in setups if (row := results.row("full", setup))]
        notes.append(f"Whole run: from the start of the program to its end, {runs_text(rows)}. "
                     "Peak memory: the sum over the ranks.")
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
    """The C++ rows that were repeated: what a terminal has room for."""
    header = ("program", "world", "prec", "200 steps, s [95 %]", "% of floor")
    setups = [setup for setup in results.setups(recipe, ["slice"]) if not is_twin(setup.program)]
    rows = []
    for setup in setups:
        row = results.row("slice", setup)
        measured = cells(row, [lambda row: estimate_text(row.seconds(), significant),
                               counter("percent_of_floor", number)])
        rows.append([name_text(setup, row), f"{setup.world} x {setup.threads}", setup.precision,
                     *measured])
    return Table(f"Recipe {recipe}, 200 steps", header, rows, [],
                 [setup.program for setup in setups], 3).measured()


# --- stages beside their twins ----------------------------------------------------------


def beside_twin(results: Results, setup: Setup) -> str:
    """The ratio of a stage to its twin at the same world size and precision."""
    if results.row("slice", setup) is None:
        return NOT_RUN
    if verdict_for(results, setup.recipe, setup.program).state == WRONG:
        return WRONG
    return ratio_text(results, setup)


def twin_table(results: Results) -> Table:
    """One row per stage, world size and precision, one column per recipe."""
    setups = results.beside_twins()
    recipes = list(dict.fromkeys(setup.recipe for setup in setups))
    places = dict.fromkeys(replace(setup, recipe="") for setup in setups)
    rows, programs = [], []
    for place in sorted(places, key=Setup.order):
        programs.append(place.program)
        rows.append([place.program, f"{place.world} x {place.threads}", place.precision,
                     *(beside_twin(results, replace(place, recipe=one)) for one in recipes)])
    header = ("stage", "world", "prec", *(f"{one} / twin's [95 %]" for one in recipes))
    notes = ["Time of 200 steps over that of the Python twin with the same world size, precision "
             "and threads, as a ratio of medians. Below 1 the stage is faster."]
    return Table("Each stage beside its twin", header, rows, notes, programs, 3).measured()


# --- feeding and accumulation -----------------------------------------------------------

VARIANTS = {"": "sharding", "dispatch": "dispatch", "accumulate": "4 batches per step, no_sync",
            "accumulate_sync": "4 batches per step, all-reduce in each"}


def over_base(results: Results, row: Row) -> str:
    setup = row.key.setup
    if not setup.variant:
        return "1"
    ratio = results.ratio(setup, replace(setup, variant=""))
    return NOT_MEASURED if ratio is None else ratio.text(lambda value: f"{value:.3f}")


def feeding_table(results: Results) -> Table:
    """The variants of a program, each below the row without one."""
    found = {row.key.setup for row in results.of_kind("slice") if row.key.setup.variant}
    setups = found | {replace(setup, variant="") for setup in found}
    header = ("program", "recipe", "world", "prec", "variant", "time, s [95 %]",
              "time / sharding's [95 %]", "sent per step, bytes", "read by main, bytes",
              "read by others, bytes")
    names = list(VARIANTS)
    rows, programs = [], []
    for setup in sorted(setups, key=lambda one: (
            replace(one, variant="").order(),
            names.index(one.variant) if one.variant in names else len(names), one.variant)):
        row = results.row("slice", setup)
        programs.append(setup.program)
        rows.append([setup.program, setup.recipe, f"{setup.world} x {setup.threads}",
                     setup.precision, VARIANTS.get(setup.variant, setup.variant), *cells(row, [
                         lambda row: estimate_text(row.seconds(), significant),
                         lambda row: over_base(results, row),
                         counter("sent_bytes_per_step", count),
                         counter("read_bytes_main", count), counter("read_bytes_others", count)])])
    notes = ["Sharding: each process reads its own batches. Dispatch: the main process reads all "
             "batches and sends each process its part. Bytes sent: the sum over the processes. "
             "Bytes read, in the whole run: by the main process, and the mean of the others."]
    return Table("Feeding and accumulation", header, rows, notes, programs, 5).measured()


# --- accuracy over seeds ----------------------------------------------------------------


def whole_setups(results: Results) -> list[Setup]:
    """Of the whole runs with seeds."""
    rows = [row for recipe in results.recipes() for setup in results.setups(recipe, ["full"])
            if (row := results.row("full", setup)) and any(row.of_seeds())]
    return [row.key.setup for row in rows]


def points(difference: Estimate | None) -> str:
    if difference is None:
        return NOT_MEASURED
    return difference.text(lambda value: f"{value:+.2f}")


def short_name(setup: Setup) -> str:
    """stage4 bf16: enough within a column of programs."""
    name = setup.program.split("_")[0] if setup.program in STAGES else setup.program
    return name if setup.precision == "fp32" else f"{name} {setup.precision}"


def weights_of(row: Row) -> dict[int, str]:
    found = {seed: run.label.get("weights_sha256", "") for seed, run in row.of_seeds().items()}
    return {seed: weights for seed, weights in found.items() if weights not in ("", "unknown")}


def same_weights(results: Results, setup: Setup, setups: list[Setup]) -> str:
    """With which others of its language the weights are equal, seed by seed."""
    ours = weights_of(results.row("full", setup))
    if not ours:
        return NOT_MEASURED
    names = []
    for other in setups:
        if other == setup or (other.recipe, is_twin(other.program)) != (
                setup.recipe, is_twin(setup.program)):
            continue
        theirs = weights_of(results.row("full", other))
        equal = sum(theirs.get(seed) == weights for seed, weights in ours.items())
        if equal:
            some = "" if equal == len(ours) else f" ({equal} of {len(ours)} seeds)"
            names.append(short_name(other) + some)
    return ", ".join(names) or "none"


def seed_cells(results: Results, setup: Setup, setups: list[Setup]) -> list[str]:
    row, base = results.row("full", setup), stage_0_of(results, setup.recipe)
    twin = results.row("full", replace(setup, program=twin_of(setup.program) or ""))
    to_twin = "is the twin" if is_twin(setup.program) else points(twin and paired(row, twin))
    to_base = "is stage 0" if row is base else points(base and paired(row, base))
    return [name_text(setup, row), setup.recipe, f"{setup.world} x {setup.threads}",
            setup.precision, same_weights(results, setup, setups),
            ", ".join(map(percent, row.accuracies().values())), row.accuracy().text(percent),
            to_twin, to_base]


def accuracy_table(results: Results) -> Table:
    """Of the whole runs with seeds: accuracies, what is between them, and whose weights agree."""
    header = ("program", "recipe", "world", "prec", "same weights as", "accuracy by seed, %",
              "mean, % [95 %]", "to its twin, points [95 %]", "to stage 0, points [95 %]")
    setups = whole_setups(results)
    seeds = sorted({seed for setup in setups for seed in results.row("full", setup).of_seeds()})
    notes = [f"Seeds {', '.join(map(str, seeds))}. The intervals of means and of mean differences "
             "are Student's t over the seeds, with one degree of freedom fewer than seeds; with "
             "three seeds they are 4.3 standard errors to each side. A difference is taken seed "
             "by seed. Same weights: equal sha256 for each seed, among the C++ programs and among "
             "the Python programs."]
    return Table("Accuracy over seeds", header,
                 [seed_cells(results, setup, setups) for setup in setups], notes,
                 [setup.program for setup in setups], 5).measured()


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
    notes = [f"Checked: {CHECKED}. World size 1: the weights of stage 0, bit for bit. World size "
             "2: stages 1 to 6 have the same ones, stage 1 with two replicas, stage 4 in fp32 and "
             "without SyncBatchNorm."]
    return Table("Equality", header, rows, notes, programs, 5)


# --- in one sentence --------------------------------------------------------------------


def more(results: Results) -> list[str]:
    """Which command measures the rest, unless stages and twins were timed."""
    twins = any(is_twin(row.key.setup.program) for row in results.of_kind("slice"))
    return [] if twins else [MORE]


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
    return f"Fastest: {setup_text(best)}, {best.seconds().value:.1f} s ({runs_text(right)})."


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals have a value in common; without intervals nothing is known."""
    if one.interval is None or other.interval is None:
        return False
    return one.interval.low <= other.interval.high and other.interval.low <= one.interval.high


def setup_text(row: Row) -> str:
    setup = row.key.setup
    return f"{setup.program} ({setup.world} x {setup.threads}, {setup.precision})"


def summary(results: Results) -> list[str]:
    """The answer in short: what was fastest, smallest and shortest of the stages that are right.

    Of the whole runs, or of the slices of a file without any; of neither, nothing.
    """
    kinds = {kind: [row for stage in range(len(STAGES)) if (row := usual_row(results, stage, kind))]
             for kind in ("full", "slice")}
    found = kinds["full"] or kinds["slice"]
    if not found:
        return []
    rows = [row for row in found if not row.error]
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
        return f"WRONG stages: {wrong} of {wanted}. The notes of the table give the reason."
    if equal == wanted:
        return f"All seven stages have equal weights at equal world size: {CHECKED}."
    return (f"{equal} of {wanted} stages have equal weights at equal world size ({CHECKED}); the "
            "others were not checked, or have no whole run here.")
