# SPDX-License-Identifier: Apache-2.0
"""exact.py: price and accuracy of exact sums."""
from __future__ import annotations

import exact
import sample_results as made

ROWS = made.exact_sums()["benchmarks"]


def test_a_row_that_failed_or_has_no_counterpart_says_so() -> None:
    alone = made.results(*(one for one in ROWS if "micro_batch:8" in one["name"]))
    assert "time / fast [95 %]" not in exact.price_table(alone).header
    failed = made.results(*(one | {"error_occurred": True, "error_message": "no memory"}
                            for one in ROWS))
    assert {row[2] for row in exact.price_table(failed).rows} == {"failed: no memory"}
    assert exact.seeds_table(failed).rows == []


def test_a_seed_with_one_of_the_two_is_left_out() -> None:
    rows = [one for one in ROWS if not ("seed:2" in one["name"] and "micro_batch" in one["name"])]
    assert [row[0] for row in exact.seeds_table(made.results(*rows)).rows] == ["1", "3", "mean"]
