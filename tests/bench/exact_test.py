# SPDX-License-Identifier: Apache-2.0
"""exact.py: price and accuracy of exact sums."""
from __future__ import annotations

import re

import exact
import pytest
import sample_results as made
import table
from results import Results

ROWS = made.exact_sums()["benchmarks"]


@pytest.fixture
def results() -> Results:
    return made.results(*ROWS)


def test_a_step_stands_beside_the_one_with_sums_in_float(results: Results) -> None:
    rows = exact.price_table(results).rows
    assert [row[:2] for row in rows] == [
        [ranks, sums] for ranks in ("1 x 1", "2 x 1")
        for sums in ("fast", "exact, micro-batch 8", "exact, micro-batch 16",
                     "exact, micro-batch 32")]
    # 6 s of 200 steps are 30 ms; of repetitions that jitter, the median is 1.01 of that.
    assert rows[0][2:] == ["30.3 [29.4, 39.0]", "1"]
    assert rows[1][2].startswith("39.4 [") and rows[1][3].startswith("1.30 [")


def test_a_row_that_failed_or_has_no_counterpart_says_so() -> None:
    alone = made.results(*(one for one in ROWS if "micro_batch:8" in one["name"]))
    assert "time / fast [95 %]" not in exact.price_table(alone).header
    failed = made.results(*(one | {"error_occurred": True, "error_message": "no memory"}
                            for one in ROWS))
    assert {row[2] for row in exact.price_table(failed).rows} == {"failed: no memory"}
    assert exact.seeds_table(failed).rows == []


def test_accuracies_are_compared_seed_by_seed(results: Results) -> None:
    seeds = exact.seeds_table(results)
    assert seeds.header == ("seed", "fast", "exact, micro-batch 16", "difference, points")
    assert seeds.rows[0] == ["1", "98.41", "98.43", "+0.02"]
    assert [row[0] for row in seeds.rows] == ["1", "2", "3", "mean"]
    assert seeds.rows[3] == ["mean", "98.42", "98.42", "+0.00 [-0.05, +0.05]"]


def test_a_seed_with_one_of_the_two_is_left_out() -> None:
    rows = [one for one in ROWS if not ("seed:2" in one["name"] and "micro_batch" in one["name"])]
    assert [row[0] for row in exact.seeds_table(made.results(*rows)).rows] == ["1", "3", "mean"]


def test_other_tables_do_not_have_these_rows(results: Results) -> None:
    assert re.findall("^## (.*)$", table.markdown_text(results), re.MULTILINE) == [
        "The price of exact sums", "Accuracy of exact sums", "Environment",
        "Limits of these numbers"]
