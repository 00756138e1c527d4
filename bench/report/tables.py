# SPDX-License-Identifier: Apache-2.0
"""Contents of the tables, for terminal, Markdown and page."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pandas

from equality import (
    CHECKED, EQUAL, NOT_CHECKED, WRONG, Verdict, checks, is_noise, is_wrong, paired, stage_0_of,
    verdict_for,
)
from intervals import Estimate, mean_of, median_of
from results import Results, Row, Setup, same_device
from words import (
    FAILED, NOT_MEASURED, NOT_RUN, STAGES, TUNED, TWIN_NOT_RUN, TWINS, count, is_python, megabytes,
    number, percent, rival_of, significant,
)

WORLD_OF_STAGE = (1, 2, 2, 2, 2, 2, 2)  # how each stage is meant to run
OVER_SEEDS = "Accuracy over seeds"  # the title of its table
PRECISION_OF_STAGE = ("fp32", "fp32", "fp32", "fp32", "bf16", "fp32", "fp32")
MORE = ("For times with 95 % intervals, a second network and all programs in Python: "
        "./run bench --quick")

ALL_EQUAL = "All seven stages have equal weights"
OWNER = ""  # not a column of a table: the program of a row, for its colour
Cells = dict[str, str]  # by column
Writers = Mapping[str, Callable[[Row], str]]


@dataclass
class Table:
    title: str
    header: tuple[str, ...]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)  # of each row, for its colour
    texts: int = 1  # so many columns from the left hold words, the rest numbers


def table_of(title: str, rows: list[Cells], notes: list[str], texts: int = 1) -> Table:
    """Without the columns that have no value in any row, and without rows if no number has one. A
    cell OWNER gives a row its colour."""
    frame = pandas.DataFrame(rows)
    programs = frame.pop(OWNER).tolist() if OWNER in frame else []
    empty = frame.isin([NOT_RUN, NOT_MEASURED, TWIN_NOT_RUN, FAILED]).all()
    kept = frame.loc[:, ~empty] if len(frame) else frame
    rows = [] if len(empty) > texts and empty[texts:].all() else kept.values.tolist()
    return Table(title, tuple(kept.columns), rows, notes, programs,
                 texts - int(empty[:texts].sum()))


def estimate_text(found: Estimate | None, form: str = ".3f", missing: str = NOT_MEASURED) -> str:
    return missing if found is None else found.text(lambda value: format(value, form))


def seconds_text(row: Row) -> str:
    return row.seconds().text(significant)


def whole_seconds(row: Row) -> str:
    return number(row.seconds().value)


def accuracy_text(row: Row) -> str:
    return estimate_text(row.accuracy(), ".2f")


def cells(row: Row | None, writers: Writers, reason: bool = True) -> Cells:
    """Where there are no numbers, the first cell has the reason, unless another one has it."""
    if row and not row.error:
        return {column: write(row) for column, write in writers.items()}
    found = dict.fromkeys(writers, row.missing if row else NOT_RUN)
    if row and reason:
        found[next(iter(writers))] = (row.error if row.missing == NOT_RUN
                                      else f"{FAILED}: {row.error}")
    return found


def counter(name: str, write: Callable[[float | None], str]) -> Callable[[Row], str]:
    return lambda row: write(row.counter(name))


def place_cells(setup: Setup) -> Cells:
    return {"world": f"{setup.world} x {setup.threads}", "prec": setup.precision}


def unusual(setup: Setup) -> tuple:
    """How far a stage's set-up is from the one that it is meant to have."""
    stage = STAGES.index(setup.program)
    return (setup.world != WORLD_OF_STAGE[stage], setup.precision != PRECISION_OF_STAGE[stage],
            -setup.threads)


def usual_row(results: Results, stage: int, kind: str = "full") -> Row | None:
    """The row that shows a stage as it is meant: its world size, precision, all CPUs.

    If that one failed, it is shown as failed: another recipe is no answer for it.
    """
    rows = [row for row in results.of_kind(kind) if row.setup.program == STAGES[stage]
            and row.setup.recipe in results.recipes() and not row.setup.variant]
    return min(rows, default=None, key=lambda row: (
        row.setup.recipe != "basicnet", row.setup.recipe, row.setup.width != 1,
        *unusual(row.setup)[:2], bool(row.error), -row.setup.threads))


def usual_rows(results: Results, kind: str = "full") -> list[Row]:
    return [row for stage in range(len(STAGES)) if (row := usual_row(results, stage, kind))]


def python_text(results: Results, row: Row) -> str:
    """How many times as long a step of its twin takes."""
    if results.load_warning or not (twin := results.twin_row("brief", row.setup)):
        return NOT_MEASURED
    ratio = results.step_ratio(row.setup, twin.setup.program)
    return "-" if ratio is None else f"{ratio.value:.1f} x"


def stage_cells(results: Results, stage: int) -> Cells:
    row = usual_row(results, stage)
    writers: Writers = {
        "time, s": whole_seconds, "Python": lambda row: python_text(results, row),
        "accuracy, %": accuracy_text, "seen": counter("seen", count),
        "equal?": lambda row: verdict_for(results, row.setup.recipe, STAGES[stage]).state,
        "memory, MB": counter("peak_rss_bytes", megabytes), "code": counter("user_lines", count)}
    name = name_text(row.setup, row) if row else STAGES[stage]
    place = place_cells(row.setup) if row else {"world": NOT_RUN, "prec": NOT_RUN}
    return {OWNER: STAGES[stage], "stage": name, **place, **cells(row, writers)}


def runs_text(rows: list[Row]) -> str:
    """How many whole runs there are of each row."""
    most = max((len(row.good) for row in rows), default=0)
    return "one run each" if most < 2 else f"the median of up to {most} runs"


def stage_table(results: Results) -> Table:
    """Without rows if no stage had a whole run."""
    found = usual_rows(results)
    notes = ["world: processes or replicas x threads of each; time: from the start of the program "
             f"to its end, {runs_text(found)}; accuracy with its 95 % interval; memory: the peaks "
             "of all ranks; code: lines of main.cpp."]
    for setup in (row.setup for row in found if not row.error):
        if setup.recipe != "basicnet":
            notes.append(f"{setup.program}: recipe {setup.recipe}.")
        verdict = verdict_for(results, setup.recipe, setup.program)
        if verdict.state != EQUAL:
            notes.append(f"{setup.program}: {verdict.state}: {verdict.reason}.")
    if (briefs := results.of_kind("brief")) and not results.load_warning:
        notes[0] += (" Python: time of a step of its Python twin over that of the stage; the "
                     "twin's is one run of 30 steps.")
        notes += [f"{row.setup.program}: {row.error}." for row in briefs if row.error]
    rows = [stage_cells(results, stage) for stage in range(len(STAGES))] if found else []
    return table_of("The seven stages", rows, notes, 3)


def difference_text(results: Results, row: Row) -> str:
    """How far an accuracy is from that of stage 0, and whether that may be chance."""
    base = stage_0_of(results, row.setup.recipe)
    if row is base:
        return "is stage 0"
    if base is None or row.score() is None:
        return NOT_MEASURED
    apart = row.accuracy().value - base.accuracy().value
    return f"{apart:+.2f}" + " (noise)" * is_noise(row, base)


def name_text(setup: Setup, *rows: Row | None) -> str:
    width = f", width {setup.width:g}" if setup.width != 1 else ""
    alone = any(row and row.label("replicas") == "1" for row in rows) and setup.world > 1
    devices = {row.device for row in rows if row and row.good} - {"cpu"}
    device = f" ({', '.join(sorted(devices))})" if devices else ""
    return setup.program + width + device + (" (1 replica: no GPU)" if alone else "")


def recipe_cells(results: Results, setup: Setup, by_seed: bool) -> Cells:
    """Without accuracies, if the table of seeds has them."""
    accuracies: Writers = {} if by_seed else {
        "accuracy, % [95 %]": accuracy_text,
        "to stage 0, points": lambda row: difference_text(results, row)}
    speed, whole = results.row("slice", setup), results.row("full", setup)
    either = next((row for row in (speed, whole) if row and not row.error), speed or whole)
    memory = next((row for row in (whole, speed) if row and not row.error), either)
    return {
        OWNER: setup.program, "program": name_text(setup, speed, whole), "world": str(setup.world),
        "precision": setup.precision, "threads": str(setup.threads),
        **cells(speed, {"200 steps, s [95 %]": seconds_text,
                        "samples/s": counter("samples_per_second", count),
                        "% of floor": counter("percent_of_floor", number)}),
        **cells(whole, {"whole run, s": whole_seconds, **accuracies}),
        "equal?": verdict_for(results, setup.recipe, setup.program).state,
        **cells(either, {"start-up, s": counter("startup_seconds",
                                                lambda value: number(value, 2))}, False),
        **cells(memory, {"peak memory, MB": counter("peak_rss_bytes", megabytes),
                         "device memory, MB": counter("device_peak_bytes", megabytes)}, False),
        **cells(speed or whole, {"sent per step, bytes": counter("sent_bytes_per_step", count)},
                False),
        **cells(either, {"code lines": counter("user_lines", count)}, False)}


def training_notes(results: Results, setups: list[Setup]) -> list[str]:
    """Batch, rate and updates of the whole runs: in one line, if they all have the same."""
    programs: defaultdict[str, list[str]] = defaultdict(list)
    for row in filter(None, (results.row("full", setup) for setup in setups)):
        found = [row.counter(name) for name in ("batch_size", "lr", "steps")]
        if None not in found:
            programs["Batch {:.0f} over all processes, learning rate {:g}, {:.0f} updates.".format(
                *found)].append(row.setup.program)
    return list(programs) if len(programs) == 1 else [
        f"{', '.join(dict.fromkeys(names))}: {line}" for line, names in programs.items()]


def recipe_notes(results: Results, setups: list[Setup], by_seed: bool) -> list[str]:
    notes = training_notes(results, setups)
    if rows := [row for setup in setups if (row := results.row("full", setup))]:
        notes.append(f"Whole run: {runs_text(rows)}."
                     + f' Accuracies are in the table "{OVER_SEEDS}".' * by_seed)
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
    whole = [row for setup in setups if (row := results.row("full", setup)) and row.score()]
    by_seed = bool(whole) and all(any(row.of_seeds()) for row in whole)
    return table_of(f"Recipe {recipe}", [recipe_cells(results, one, by_seed) for one in setups],
                    recipe_notes(results, setups, by_seed))


def speed_table(results: Results, recipe: str) -> Table:
    """The C++ rows that were repeated: what a terminal has room for."""
    writers: Writers = {"200 steps, s [95 %]": seconds_text,
                        "% of floor": counter("percent_of_floor", number)}
    rows = [{OWNER: setup.program, "program": name_text(setup, row), **place_cells(setup),
             **cells(row, writers)}
            for setup in results.setups(recipe, ["slice"])
            if not is_python(setup.program) and (row := results.row("slice", setup))]
    return table_of(f"Recipe {recipe}, 200 steps", rows, [], 3)


def beside_twin(results: Results, setup: Setup) -> str:
    """The ratio of a stage to its twin at the same world size and precision."""
    ours, twin = results.row("slice", setup), results.twin_row("slice", setup)
    if ours is None:
        return NOT_RUN
    if is_wrong(results, setup):
        return WRONG
    if twin and twin.error:
        return "twin failed"
    if twin and not same_device(ours, twin):
        return "other device"
    return estimate_text(results.ratio_to_twin(setup), missing=TWIN_NOT_RUN)


def by_recipe(setups: Sequence[Setup], first: Callable[[Setup], Cells], heading: str,
              text: Callable[[Setup], str]) -> list[Cells]:
    """One row per program, world size and precision, one column per recipe."""
    recipes = list(dict.fromkeys(setup.recipe for setup in setups))
    return [{OWNER: place.program, **first(place), **place_cells(place),
             **{f"{one} / {heading} [95 %]": text(replace(place, recipe=one)) for one in recipes}}
            for place in sorted({replace(setup, recipe="") for setup in setups}, key=Setup.order)]


def twin_table(results: Results) -> Table:
    rows = by_recipe(results.beside_twins(), lambda place: {"stage": place.program}, "twin's",
                     partial(beside_twin, results))
    notes = ["Time of 200 steps over that of the Python twin with the same world size, precision "
             "and threads, as a ratio of medians. Below 1 the stage is faster."]
    return table_of("Each stage beside its twin", rows, notes, 3)


def beside_rival(results: Results, setup: Setup) -> str:
    """The ratio of a stage to a program that is not its twin; else why there is none."""
    row = results.row("slice", setup)
    if row is None or row.error:
        return row.missing if row else NOT_RUN
    ours = replace(setup, program=rival_of(setup.program, setup.precision))
    return WRONG if is_wrong(results, ours) else estimate_text(results.ratio(ours, setup))


def rival_table(results: Results) -> Table:
    setups = [setup for recipe in results.recipes() for setup in results.setups(recipe, ["slice"])
              if rival_of(setup.program, setup.precision)]
    rows = by_recipe(setups, lambda place: {
        "program": place.program,
        "stage": rival_of(place.program, place.precision).split("_")[0]}, "its",
        partial(beside_rival, results))
    notes = ["Time of 200 steps of the stage over that of the program with the same world size, "
             "precision and threads, as a ratio of medians. Below 1 the stage is faster."]
    return table_of("Stages beside other programs", rows, notes, 4)


VARIANTS = {"": "sharding", "dispatch": "dispatch", "accumulate": "4 batches per step, no_sync",
            "accumulate_sync": "4 batches per step, all-reduce in each"}


def over_base(results: Results, row: Row, base: Setup, *form: str) -> str:
    """The time of a row over that of the one with the set-up `base`."""
    return "1" if base == row.setup else estimate_text(
        results.ratio(row.setup, base, kind=row.key.kind), *form)


def feeding_table(results: Results) -> Table:
    """The variants of a program, each below the row without one."""
    found = {row.setup for row in results.of_kind("slice") if row.setup.variant}
    setups = found | {replace(setup, variant="") for setup in found}
    writers: Writers = {
        "time, s [95 %]": seconds_text,
        "time / sharding's [95 %]": lambda row: over_base(
            results, row, replace(row.setup, variant="")),
        "sent per step, bytes": counter("sent_bytes_per_step", count),
        "read by main, bytes": counter("read_bytes_main", count),
        "read by others, bytes": counter("read_bytes_others", count)}
    rows = [{OWNER: setup.program, "program": setup.program, "recipe": setup.recipe,
             **place_cells(setup), "variant": VARIANTS.get(setup.variant, setup.variant),
             **cells(results.row("slice", setup), writers)}
            for setup in sorted(setups, key=lambda one: (
                replace(one, variant="").order(), [*VARIANTS, one.variant].index(one.variant),
                one.variant))]
    notes = ["Sharding: each process reads its own batches. Dispatch: the main process reads all "
             "batches and sends each process its part. Bytes sent: the sum over the processes. "
             "Bytes read, in the whole run: by the main process, and the mean of the others."]
    return table_of("Feeding and accumulation", rows, notes, 5)


def short_name(row: Row) -> str:
    """With the number of a stage alone: enough within a list."""
    stage, name = row.setup.program, name_text(row.setup, row)
    return name.replace(stage, stage.split("_")[0]) if stage in STAGES else name


def weights_of(row: Row) -> dict[int, str]:
    return {seed: run.weights for seed, run in row.of_seeds().items() if run.weights}


def equal_elsewhere(group: list[Row], rows: list[Row]) -> str:
    """Programs of the same language in other rows, with equal weights for some of the seeds."""
    ours, setup = weights_of(group[0]), group[0].setup
    found: defaultdict[int, list[str]] = defaultdict(list)
    for other in rows:
        equal = len(ours.items() & weights_of(other).items())
        alike = (other.setup.recipe == setup.recipe
                 and is_python(other.setup.program) == is_python(setup.program))
        if equal and alike and other not in group:
            found[equal].append(short_name(other))
    return "".join(f" (for {equal} of {len(ours)} seeds also {', '.join(names)})"
                   for equal, names in found.items())


def seed_cells(results: Results, row: Row) -> Cells:
    setup, base = row.setup, stage_0_of(results, row.setup.recipe)
    twin = results.twin_row("full", setup)
    return {
        "accuracy by seed, %": ", ".join(map(percent, row.accuracies().values())),
        "mean, % [95 %]": row.accuracy().text(percent),
        "to its twin, points [95 %]": ("is the twin" if setup.program in TWINS
                                       else estimate_text(twin and paired(row, twin), "+.2f")),
        "to stage 0, points [95 %]": ("is stage 0" if row is base
                                      else estimate_text(base and paired(row, base), "+.2f"))}


def equal_rows(results: Results, rows: list[Row]) -> list[list[Row]]:
    """Those of equal weights for each seed, which also have equal numbers."""
    groups: defaultdict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        groups[(row.setup.recipe, is_python(row.setup.program),
                frozenset(weights_of(row).items()) or row.key,
                *seed_cells(results, row).values())].append(row)
    return list(groups.values())


def group_cells(results: Results, group: list[Row], rows: list[Row]) -> Cells:
    places = [place_cells(row.setup) for row in group]
    setup = group[0].setup
    return {OWNER: setup.program,
            "programs": ", ".join(map(short_name, group)) + equal_elsewhere(group, rows),
            "recipe": setup.recipe,
            **{name: ", ".join(dict.fromkeys(place[name] for place in places))
               for name in places[0]},
            **seed_cells(results, group[0])}


def accuracy_table(results: Results) -> Table:
    """Of the whole runs with seeds, one row for those of equal weights."""
    rows = [row for recipe in results.recipes() for setup in results.setups(recipe, ["full"])
            if (row := results.row("full", setup)) and any(row.of_seeds())]
    seeds = sorted({seed for row in rows for seed in row.of_seeds()})
    notes = ["Programs in one row have equal weights: the same sha256 for each seed, among the C++ "
             f"programs and among the Python programs. Seeds {', '.join(map(str, seeds))}. The "
             "intervals of means and of mean differences are Student's t over the seeds, with one "
             "degree of freedom fewer than seeds; with three seeds they are 4.3 standard errors "
             "to each side. A difference is taken seed by seed."]
    return table_of(OVER_SEEDS, [group_cells(results, group, rows)
                                 for group in equal_rows(results, rows)], notes, 4)


def sums_text(micro_batch: int) -> str:
    return f"exact, micro-batch {micro_batch}" if micro_batch else "fast"


def price_table(results: Results) -> Table:
    writers = {
        "ms per step [95 %]": lambda row: median_of(row.step_ms).text("{:.1f}".format),
        "time / fast [95 %]": lambda row: over_base(
            results, row, replace(row.setup, micro_batch=0), ".2f", NOT_RUN)}
    rows = [{"ranks": place_cells(row.setup)["world"], "sums": sums_text(row.setup.micro_batch),
             **cells(row, writers)}
            for row in sorted(results.of_kind("sums"), key=lambda row: row.setup.order())]
    notes = ["Stage 2, BasicNet, fp32. Ranks x threads; milliseconds per step over 200 steps; all "
             "rows in one run, in random order."]
    return table_of("The price of exact sums", rows, notes, 2)


def seeds_table(results: Results) -> Table:
    """Of the seeds with both sums; without rows if no seed has both."""
    found = pandas.DataFrame({row.setup.micro_batch: row.accuracies() for row in results.of_kind(
        "seeds")}).sort_index(axis=1).dropna().sort_index()
    rows: list[Cells] = []
    if len(found) and len(found.columns) == 2:
        apart = list(found.iloc[:, 1] - found.iloc[:, 0])
        differences = [*(f"{one:+.2f}" for one in apart), estimate_text(mean_of(apart), "+.2f")]
        found.loc["mean"] = found.mean()
        rows = [{"seed": str(seed), **{sums_text(size): percent(shares[size]) for size in found},
                 "difference, points": difference}
                for (seed, shares), difference in zip(found.iterrows(), differences)]
    setups = {row.setup for row in results.of_kind("seeds")}
    notes = [f"Stage 2, {setup.recipe}, {setup.precision}, one epoch, {setup.world} x "
             f"{setup.threads}: accuracy in percent. The interval is that of the mean difference "
             "over the seeds, Student's t." for setup in sorted(setups, key=Setup.order)[:1]]
    return table_of("Accuracy of exact sums", rows, notes)


def curve_rows(results: Results, recipe: str | None = None) -> list[Row]:
    """Runs of fewer epochs and whole runs, those of a set-up beside each other."""
    rows = [row for row in results.of_kind("curve", "full") if recipe in (None, row.setup.recipe)]
    return sorted(rows, key=lambda row: (row.setup.order(), row.key.epochs or 10**9))


def curve_table(results: Results) -> Table:
    curves = {row.setup for row in results.of_kind("curve")}
    writers: Writers = {"training, s": counter("train_seconds", number),
                        "accuracy, % [95 %]": accuracy_text}
    rows = [{
        OWNER: setup.program, "program": setup.program, "recipe": setup.recipe,
        "world": str(setup.world), "precision": setup.precision, "threads": str(setup.threads),
        "epochs": str(row.key.epochs or "all"), **cells(row, writers)}
        for row in curve_rows(results) if (setup := row.setup) in curves]
    return table_of("Accuracy over training time", rows, [], 2)


def check_table(results: Results) -> Table:
    """One row for the programs of equal weights."""
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for check in checks(results):
        groups[check.recipe, str(check.world), check.weights[:16] or "no hash",
               f"{check.verdict.state}: {check.verdict.reason}".removesuffix(": ")].append(
                   check.program)
    rows = [{**dict(zip(("recipe", "world", "weights", "equal?"), place)),
             "programs": ", ".join(dict.fromkeys(programs))}
            for place, programs in groups.items()]
    notes = [f"Checked: {CHECKED}. World size 1: the weights of stage 0, bit for bit. World size "
             "2: stages 1 to 6 have the same ones, stage 1 with two replicas, stage 4 in fp32 and "
             "without SyncBatchNorm."]
    return table_of("Equality", rows, notes, 5)


def more(results: Results) -> list[str]:
    """Which command measures the rest, unless stages and twins were timed."""
    twins = any(is_python(row.setup.program) for row in results.of_kind("slice"))
    return [] if twins else [MORE]


def fastest(results: Results, right: list[Row]) -> str:
    """By the slices, which were repeated, if all have some; else by the whole runs."""
    slices = [results.row("slice", row.setup) for row in right]
    if all(row and row.good for row in slices):
        best = min(slices, key=lambda row: row.seconds().value)
        close = [row.setup.program for row in slices
                 if row is not best and overlap(row.seconds(), best.seconds())]
        unsure = f"; not told apart from {', '.join(close)}" if close else ""
        return (f"Fastest, one row per stage: {setup_text(best)}, {seconds_text(best)} seconds for 200 steps"
                f"{unsure or what_it_spares(best, right)}.")
    best = min(right, key=lambda row: row.seconds().value)
    return (f"Fastest: {setup_text(best)}, {best.seconds().value:.1f} s ({runs_text(right)})"
            f"{what_it_spares(best, right)}.")


def what_it_spares(best: Row, rows: list[Row]) -> str:
    others = [row.setup for row in rows if row.setup != best.setup]
    if others and best.setup.precision not in {setup.precision for setup in others}:
        return f"; it alone computes in {best.setup.precision}"
    return "; it alone exchanges no gradients" * (
        best.setup.world == 1 < min((setup.world for setup in others), default=1))


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals have a value in common; without intervals nothing is known."""
    return (None not in (one.interval, other.interval) and one.interval.low <= other.interval.high
            and other.interval.low <= one.interval.high)


def setup_text(row: Row) -> str:
    world, precision = place_cells(row.setup).values()
    return f"{row.setup.program} ({world}, {precision})"


def summary(results: Results) -> list[str]:
    """The answer in short: what was fastest, smallest and shortest of the stages that are right.

    Of the whole runs, or of the slices of a file without any; of neither, nothing.
    """
    found = usual_rows(results) or usual_rows(results, "slice")
    if not found:
        return []
    rows = [row for row in found if not row.error]
    states = [verdict_for(results, row.setup.recipe, row.setup.program) for row in rows]
    right = [row for row, verdict in zip(rows, states) if verdict.state == EQUAL]
    right = [row for row in right if row.setup.recipe == right[0].setup.recipe
             and row.device == right[0].device]
    lines = [equality_sentence(states, len(STAGES)),
             fastest(results, right) if right and not results.load_warning else "",
             two_processes(results), tuned_sentence(results)]
    for what, name, write in (("memory", "peak_rss_bytes", lambda value: f"{megabytes(value)} MB"),
                              ("code", "user_lines", lambda value: f"{count(value)} lines")):
        if counted := [row for row in right if row.counter(name) is not None]:
            best = min(counted, key=lambda row: row.counter(name))
            lines.append(f"Least {what}: {setup_text(best)}, {write(best.counter(name))}.")
    return [*filter(None, lines)]


def two_processes(results: Results) -> str:
    """What a second process brings, of repeated or of short runs; "" without them."""
    found = []
    for recipe in results.recipes():
        one, two = (Setup(recipe, STAGES[2], world) for world in (1, 2))
        ratios = (results.ratio(one, two, kind=kind) for kind in ("slice", "brief"))
        found += [f"{ratio.value:.2f} times ({recipe})" for ratio in filter(None, ratios)
                  if not is_wrong(results, two)][:1]
    return (f"Two processes of stage 2, one thread each, train {' and '.join(found)} as fast as "
            "one process with one thread." if found else "")


def tuned_sentence(results: Results) -> str:
    stage0 = usual_row(results, 0)
    ratio = results.step_ratio(stage0.setup, TUNED[0]) if stage0 else None
    return (f"Stage 0 trains {ratio.value:.1f} times as fast as {TUNED[0]}, a Python program tuned "
            "for speed." if ratio else "")


def equality_sentence(states: list[Verdict], wanted: int) -> str:
    wrong, equal = (sum(one.state == state for one in states) for state in (WRONG, EQUAL))
    if wrong:
        return f"WRONG stages: {wrong} of {wanted}. The notes of the table give the reason."
    if equal == wanted:
        return f"{ALL_EQUAL} at equal world size: {CHECKED}."
    return (f"{equal} of {wanted} stages have equal weights at equal world size ({CHECKED}); the "
            "others were not checked, or have no whole run here.")
