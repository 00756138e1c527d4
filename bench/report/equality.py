# SPDX-License-Identifier: Apache-2.0
"""Whether the stages train the same: a fast program with other weights is a wrong one.

Judged by the runs of kind "check" (fp32, one thread, a few steps): alone, every stage ends with the
weights of stage 0, bit for bit; at world size 2, stages 1 to 6 end with the same ones. And by the
whole runs: they test every image, and their accuracy is not well below that of stage 0.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from intervals import Estimate, mean_of, within_noise
from results import Repetition, Results, Row, Setup
from words import FAILED, STAGES, TEST_IMAGES, is_python, stage_of

EQUAL, WRONG, NOT_CHECKED = "yes", "WRONG", "not checked"
CHECKED = "20 steps, fp32, one thread per process"  # what "equal" is about
SAME_AT_WORLD_2 = STAGES[1:]
POINTS_BELOW = 1.0  # so many percentage points below stage 0 may be chance or rounding


class Verdict(NamedTuple):
    state: str  # EQUAL, WRONG, FAILED or NOT_CHECKED
    reason: str = ""


class Check(NamedTuple):
    recipe: str
    program: str
    world: int
    weights: str  # sha256, or "" if the run failed
    verdict: Verdict


def reference(weights: Mapping[str, str], world: int) -> tuple[str, str] | None:
    """Whose weights the others must have, and these: stage 0's, or those of most at size 2."""
    if world == 1:
        found = weights.get(STAGES[0])
        return (STAGES[0], found) if found else None
    known = Counter(weights[program] for program in SAME_AT_WORLD_2 if weights.get(program))
    return ("the others", known.most_common(1)[0][0]) if known.total() > 1 else None


def verdict_of(program: str, world: int, run: Repetition, weights: Mapping[str, str]) -> Verdict:
    if run.error:
        return Verdict(FAILED, f"its check at world size {world} failed: {run.error}")
    if not weights.get(program):
        return Verdict(FAILED, f"its check at world size {world} has no hash of the weights")
    found = reference(weights, world)
    if found is None or (world > 1 and program not in SAME_AT_WORLD_2):
        return Verdict(NOT_CHECKED, f"nothing to compare with at world size {world}")
    name, expected = found
    if weights[program] == expected:
        return Verdict(EQUAL)
    return Verdict(WRONG, f"its weights differ from those of {name} at world size {world}")


def checks(results: Results) -> list[Check]:
    """Every check with its verdict; files are compared within themselves."""
    groups: defaultdict[tuple[int, str, int], dict[str, Repetition]] = defaultdict(dict)
    for row in results.of_kind("check"):
        setup = row.setup
        for run in row.repetitions:
            groups[run.file, setup.recipe, setup.world][setup.program] = run
    found = []
    for (_, recipe, world), runs in groups.items():
        weights = {program: "" if run.error else run.weights for program, run in runs.items()}
        found += [Check(recipe, program, world, weights[program],
                        verdict_of(program, world, run, weights)) for program, run in runs.items()]
    return sorted(found, key=lambda check: (check.recipe, check.world, stage_of(check.program)))


def worst(verdicts: list[Verdict]) -> Verdict:
    state = min((one.state for one in verdicts), key=(WRONG, FAILED, NOT_CHECKED, EQUAL).index)
    reasons = dict.fromkeys(one.reason for one in verdicts if one.state == state and one.reason)
    return Verdict(state, "; ".join(reasons))


def stage_0_of(results: Results, recipe: str) -> Row | None:
    """The whole run in fp32 that accuracies are compared with, the one with the most threads."""
    rows = [row for row in results.of_kind("full") if row.score() and replace(
        row.setup, world=1, threads=1) == Setup(recipe, STAGES[0])]
    return min(rows, key=lambda row: (row.setup.world, -row.setup.threads), default=None)


def unseen(row: Row) -> Verdict | None:
    """A whole run tests every image."""
    for run in row.good:
        if (seen := run.counters.get("seen")) != TEST_IMAGES:
            words = "an unknown number" if seen is None else f"{seen:.0f}"
            return Verdict(WRONG, f"it saw {words} of {TEST_IMAGES} test images")
    return None


def paired(one: Row, other: Row) -> Estimate | None:
    """Percentage points between two rows: the mean over the seeds that both have."""
    first, second = one.accuracies(), other.accuracies()
    return mean_of([first[seed] - second[seed] for seed in first if seed in second])


def is_noise(one: Row, other: Row) -> bool:
    """Whether two accuracies differ by no more than chance: over seeds, or as two tests."""
    difference = paired(one, other)
    if difference is None or difference.interval is None:
        return within_noise(one.score(), other.score())
    return difference.interval.low <= 0 <= difference.interval.high


def below_stage_0(results: Results, row: Row) -> Verdict | None:
    """A whole run is about as accurate as stage 0: what is below by more than chance is wrong."""
    base = stage_0_of(results, row.setup.recipe)
    if base is None or row.key.kind != "full" or row.setup.width != 1 or not row.score():
        return None
    ours, theirs = row.accuracy().value, base.accuracy().value
    if theirs - ours <= POINTS_BELOW or is_noise(row, base):
        return None
    return Verdict(WRONG, f"its accuracy is {ours:.2f} %, that of {STAGES[0]} {theirs:.2f} %")


@lru_cache(maxsize=1)
def verdicts(results: Results) -> dict[tuple[str, str], Verdict]:
    """By recipe and program: the worst of its checks, and of what its whole runs say."""
    found: dict[tuple[str, str], list[Verdict]] = {}
    checked = checks(results)
    for check in checked:
        found.setdefault((check.recipe, check.program), []).append(check.verdict)
    # Equal weights alone say nothing of rows on more than one process or replica.
    beyond = {(key.setup.recipe, key.setup.program) for key in results.rows if key.setup.world > 1}
    for place in beyond & set(found) - {one[:2] for one in checked if one.world > 1}:
        found[place].append(Verdict(NOT_CHECKED, "it has no check at world size 2"))
    for row in results.of_kind("full", "curve"):
        for verdict in filter(None, (unseen(row), below_stage_0(results, row))):
            found.setdefault((row.setup.recipe, row.setup.program), []).append(verdict)
    return {place: worst(every) for place, every in found.items()}


def verdict_for(results: Results, recipe: str, program: str) -> Verdict:
    reason = ("weights are compared among the C++ stages" if is_python(program)
              else "no check was run")
    return verdicts(results).get((recipe, program), Verdict(NOT_CHECKED, reason))


def is_wrong(results: Results, setup: Setup) -> bool:
    return verdict_for(results, setup.recipe, setup.program).state == WRONG
