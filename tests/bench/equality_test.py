# SPDX-License-Identifier: Apache-2.0
"""equality.py: verdicts on weights, on tested images, and on accuracies; more are in golden/."""
from __future__ import annotations

import pytest
import sample_results as made
from equality import Verdict, verdict_for
from tables import accuracy_table

OTHER = "c" * 64
STAGE3 = "stage3_ddp_torchrun"


def verdict(program: str, *rows: made.Entry, recipe: str = "basicnet",
            weights: dict[tuple[str, int], str] | None = None) -> Verdict:
    results = made.results(*made.checks("basicnet", weights), *rows)
    return verdict_for(results, recipe, program)


def test_without_stage_0_nothing_is_known() -> None:
    results = made.results(made.failed("check", "basicnet", made.STAGES[0], 1, 1),
                           *made.checks("basicnet")[1:7])
    assert verdict_for(results, "basicnet", made.STAGES[0]).state == "failed"
    assert verdict_for(results, "basicnet", made.STAGES[1]).state == "not checked"


@pytest.mark.parametrize("kind, more", [("full", ""), ("curve", "/epochs:1")])
@pytest.mark.parametrize("seen, words", [(9999, "9999 of 10000"), (0, "saw 0 of 10000"),
                                         (None, "saw an unknown number of")])
def test_a_whole_run_tests_every_image(kind, more, seen, words) -> None:
    row = made.full("basicnet", "python_single", 9, 1, 2, 0, kind=kind, more=more, seen=seen or 0)
    if seen is None:
        del row["seen"]
    found = verdict("python_single", row)
    assert found.state == "WRONG" and words in found.reason


@pytest.mark.parametrize("program, correct, base, recipe, state", [
    ("stage4_ddp_amp", 9000, 9155, "convnet", "WRONG"),
    ("python_ddp_amp", 9000, 9155, "convnet", "WRONG"),
    ("stage4_ddp_amp", 9056, 9155, "convnet", "yes"),  # 0.99 points
    ("stage4_ddp_amp", 9999, 9155, "convnet", "yes"),
    # At 50 %, tests of 10,000 images differ by 1.39 points by chance.
    ("stage4_ddp_amp", 4890, 5000, "convnet", "yes"),
    ("stage4_ddp_amp", 4850, 5000, "convnet", "WRONG"),
    ("stage4_ddp_amp", 8741, 9155, "convnet-ddp-practice", "not checked")])
def test_an_accuracy_well_below_that_of_stage_0_is_wrong(program, correct, base, recipe,
                                                         state) -> None:
    results = made.results(
        *made.checks("convnet"), made.full("convnet", made.STAGES[0], 9, 1, 2, base),
        made.full(recipe, made.STAGES[0], 9, 1, 2, 9999, precision="bf16"),
        made.full(recipe, program, 9, 2, 1, correct, precision="bf16"))
    assert verdict_for(results, recipe, program).state == state


def test_rows_on_two_need_a_check_on_two() -> None:
    first = made.checks("basicnet")[:7]
    two = made.slices("basicnet", STAGE3, 5.0, 2, 1)
    lone = made.entry("check", "basicnet", STAGE3, 2, real_time=0.4,
                      label="weights_sha256=" + made.AT_WORLD_2)
    for rows, state in (([], "yes"), (two, "not checked"), ([lone], "not checked")):
        assert verdict_for(made.results(*first, *rows), "basicnet", STAGE3).state == state
    assert verdict(STAGE3, *two).state == "yes"


def test_whole_runs_of_equal_weights_share_a_row() -> None:
    """Stage 4 has other weights for the second seed; Python's are another language."""
    hashes = {2: "ab", 3: "ab", 4: "ac", 5: "ab"}
    rows = [made.full("basicnet", program, 9, 2, 1, 9840 + seed, more=f"/seed:{seed}",
                      precision="bf16" if place == 4 else "fp32",
                      label=f"device=cpu weights_sha256={hashes[place][seed - 1] * 64}")
            for place in hashes for program in (made.STAGES[place], made.TWINS[place])
            for seed in (1, 2)]
    table = accuracy_table(made.results(*rows))
    ddp = "python_ddp_spawn, python_ddp_torchrun, python_accelerate"
    assert [row[:4] for row in table.rows] == [
        ["stage2, stage3, stage5 (for 1 of 2 seeds also stage4)", "basicnet", "2 x 1", "fp32"],
        [f"{ddp} (for 1 of 2 seeds also python_ddp_amp)", "basicnet", "2 x 1", "fp32"],
        ["stage4 (for 1 of 2 seeds also stage2, stage3, stage5)", "basicnet", "2 x 1", "bf16"],
        [f"python_ddp_amp (for 1 of 2 seeds also {ddp})", "basicnet", "2 x 1", "bf16"]]
    assert table.programs == [program for place in (2, 4)
                              for program in (made.STAGES[place], made.TWINS[place])]
