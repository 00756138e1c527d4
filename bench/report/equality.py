# SPDX-License-Identifier: Apache-2.0
"""Whether the stages train the same: a fast program with other weights is a wrong one.

Judged by the runs of kind "check" (fp32, one thread, a few steps): alone, every stage ends with the
weights of stage 0, bit for bit; at world size 2, stages 2, 3, 5 and 6 end with the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from results import Repetition, Results
from words import FAILED, STAGES, TEST_IMAGES, is_twin, rung

EQUAL, WRONG, NOT_CHECKED = "yes", "WRONG", "not checked"
SAME_AT_WORLD_2 = tuple(STAGES[stage] for stage in (2, 3, 5, 6))


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
    known = [weights[program] for program in SAME_AT_WORLD_2 if weights.get(program)]
    if len(known) < 2:
        return None
    most = Counter(known).most_common(1)[0][0]
    return "the others", most


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
    groups: dict[tuple[int, str, int], dict[str, Repetition]] = {}
    for row in results.of_kind("check"):
        setup = row.key.setup
        for run in row.repetitions:
            group = groups.setdefault((run.pair[0], setup.recipe, setup.world), {})
            group[setup.program] = run
    found = []
    for (_, recipe, world), runs in groups.items():
        weights = {program: "" if run.error else run.label.get("weights_sha256", "")
                   for program, run in runs.items()}
        weights = {program: "" if value == "unknown" else value
                   for program, value in weights.items()}
        found += [Check(recipe, program, world, weights[program],
                        verdict_of(program, world, run, weights)) for program, run in runs.items()]
    return sorted(found, key=lambda check: (check.recipe, check.world, rung(check.program)))


def worst(verdicts: list[Verdict]) -> Verdict:
    for state in (WRONG, FAILED, EQUAL):
        found = [verdict for verdict in verdicts if verdict.state == state]
        if found:
            reasons = dict.fromkeys(one.reason for one in found if one.reason)
            return Verdict(state, "; ".join(reasons))
    return verdicts[0] if verdicts else Verdict(NOT_CHECKED, "no check was run")


def verdicts(results: Results) -> dict[tuple[str, str], Verdict]:
    """By recipe and program: the worst of its checks, and of how many test images it saw."""
    every: dict[tuple[str, str], list[Verdict]] = {}
    for check in checks(results):
        every.setdefault((check.recipe, check.program), []).append(check.verdict)
    for row in results.of_kind("full", "curve"):
        score = row.score()
        if score and score[1] != TEST_IMAGES:
            reason = f"it saw {score[1]:.0f} of {TEST_IMAGES} test images"
            place = (row.key.setup.recipe, row.key.setup.program)
            every.setdefault(place, []).append(Verdict(WRONG, reason))
    return {place: worst(found) for place, found in every.items()}


def verdict_for(results: Results, recipe: str, program: str) -> Verdict:
    found = verdicts(results).get((recipe, program))
    if found:
        return found
    reason = "weights are compared among the C++ stages" if is_twin(program) else "no check was run"
    return Verdict(NOT_CHECKED, reason)
