# SPDX-License-Identifier: Apache-2.0
"""intervals.py: medians, ratios, means and shares, each with its interval."""
from __future__ import annotations

import itertools
import math
from collections import Counter
from statistics import median
from unittest.mock import patch

import pytest
from intervals import bootstrap, mean_of, median_of, ratio_of, within_noise
from pytest import approx


@pytest.mark.parametrize("estimate, samples, expected", [
    # Of five values, three of five draws are the smallest in 5.8 % of all cases: it is the end.
    (median_of, [[5, 1, 4, 2, 3]], (3, (1, 5))),
    # Of nine, five of nine draws are among the lowest two in 3.0 %, the lowest in 0.1 %.
    (median_of, [[*range(1, 10)]], (5, (2, 8))),
    (median_of, [[2.5]], (2.5, None)), (median_of, [[]], None),
    (mean_of, [[5.0]], (5.0, None)), (mean_of, [[]], None),
    (ratio_of, [[1.0], [2.0, 2.0]], (0.5, None)), (ratio_of, [[1.0], []], None),
    (ratio_of, [[1.0], [0.0]], None),
    # What two tests of 10,000 images differ by is noise.
    (within_noise, [(9155, 10_000), (9100, 10_000)], True),
    (within_noise, [(9155, 10_000), (8921, 10_000)], False)])
def test_one_value_has_no_interval_and_many_that_of_all_draws(estimate, samples, expected) -> None:
    assert estimate(*samples) == expected


def test_the_same_values_give_the_same_interval() -> None:
    values = tuple(math.sqrt(prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
    with patch("intervals.DRAWS", 40):  # few enough that other draws give other ends
        assert bootstrap.__wrapped__(values) == bootstrap.__wrapped__(values)


def test_a_ratio_is_that_of_the_medians_in_whatever_order() -> None:
    first, second = [2.0, 3.0, 5.0, 7.0, 11.0], [23.0, 29.0, 31.0, 37.0, 41.0]
    drawn = [Counter(median(draw) for draw in itertools.product(values, repeat=5))
             for values in (first, second)]  # of all draws there are
    ratios = sorted((one / other, times * other_times) for one, times in drawn[0].items()
                    for other, other_times in drawn[1].items())
    sums = list(itertools.accumulate(times for _, times in ratios))
    ends = [next(ratio for (ratio, _), up_to in zip(ratios, sums) if up_to > share * sums[-1])
            for share in (0.025, 0.975)]
    for other in itertools.islice(itertools.permutations(second), 0, 120, 30):
        ratio = ratio_of(first, other)
        assert (ratio.value, list(ratio.interval)) == (approx(5 / 31), ends)
