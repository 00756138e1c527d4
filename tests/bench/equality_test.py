# SPDX-License-Identifier: Apache-2.0
"""equality.py: verdicts on weights, on tested images, and on accuracies; more are in golden/."""
from __future__ import annotations

import pytest
import sample_results as made
from equality import verdict_for

STAGE3 = "stage3_ddp_torchrun"


@pytest.mark.parametrize("kind, more", [("full", ""), ("curve", "/epochs:1")])
@pytest.mark.parametrize("seen, words", [(9999, "9999 of 10000"), (0, "saw 0 of 10000"),
                                         (None, "saw an unknown number of")])
def test_a_whole_run_tests_every_image(kind, more, seen, words) -> None:
    row = made.full("basicnet", "python_single", 9, 1, 2, 0, kind=kind, more=more, seen=seen or 0)
    if seen is None:
        del row["seen"]
    found = verdict_for(made.results(row), "basicnet", "python_single")
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
    alone, on_two = made.checks("basicnet")[:7], made.checks("basicnet")[7:]
    two, lone = made.slices("basicnet", STAGE3, 5.0, 2, 1), on_two[2]
    for rows, state in (([], "yes"), (two, "not checked"), ([lone], "not checked"),
                        ([*on_two, *two], "yes")):
        assert verdict_for(made.results(*alone, *rows), "basicnet", STAGE3).state == state
