# SPDX-License-Identifier: Apache-2.0
"""Intervals: what a number of this report may be off by.

A time is the median of its repetitions; its interval comes from drawing as many repetitions
again, with replacement, many times. A ratio is that of two medians, and for its interval both are
drawn, each on its own. The draws are seeded: a file gives the same report always. An accuracy over
seeds is a mean, with the interval of Student's t.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

SEED = 20_260
DRAWS = 10_000
Z95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


# The same of Student's t, for so many degrees of freedom; a series gives those of more.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Interval(NamedTuple):
    low: float
    high: float


class Estimate(NamedTuple):
    """A value with its 95 % interval, which a single measurement does not have."""

    value: float
    interval: Interval | None = None

    def text(self, write: Callable[[float], str]) -> str:
        if self.interval is None:
            return f"{write(self.value)} (one run)"
        return f"{write(self.value)} [{write(self.interval.low)}, {write(self.interval.high)}]"


def middle(values: Sequence[float]) -> Interval:
    """Where the middle 95 % of the values lie."""
    ordered = sorted(values)
    tail = round(0.025 * len(ordered))
    return Interval(ordered[tail], ordered[-tail - 1])


def drawn(values: tuple[float, ...], draw: Callable[..., list[float]]) -> list[float]:
    """The medians of DRAWS draws of as many values."""
    return [median(draw(values, k=len(values))) for _ in range(DRAWS)]


@functools.cache
def bootstrap(values: tuple[float, ...]) -> Interval:
    """Where 95 % of the medians of as many draws lie."""
    return middle(drawn(values, random.Random(SEED).choices))


@functools.cache
def bootstrap_ratio(first: tuple[float, ...], second: tuple[float, ...]) -> Interval:
    """Where 95 % of the ratios lie when each row is drawn without regard to the other."""
    draw = random.Random(SEED).choices
    return middle([one / other for one, other in zip(drawn(first, draw), drawn(second, draw))])


def median_of(values: Sequence[float]) -> Estimate | None:
    """The median and its bootstrap interval; None of nothing."""
    if not values:
        return None
    return Estimate(median(values), bootstrap(tuple(values)) if len(values) > 1 else None)


def ratio_of(first: Sequence[float], second: Sequence[float]) -> Estimate | None:
    """The ratio of the two medians; None of nothing. A single measurement gives no interval."""
    second = [value for value in second if value > 0]
    if not first or not second:
        return None
    several = min(len(first), len(second)) > 1
    return Estimate(median(first) / median(second),
                    bootstrap_ratio(tuple(first), tuple(second)) if several else None)


def student(freedom: int) -> float:
    """95 % of Student's t with so many degrees of freedom lie within this distance of 0."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    return Z95 + (Z95**3 + Z95) / (4 * freedom) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (
        96 * freedom**2)


def mean_of(values: Sequence[float]) -> Estimate | None:
    """The mean with its t interval, n - 1 degrees of freedom; None of nothing."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0])
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(fmean(values), Interval(fmean(values) - half, fmean(values) + half))


def wilson(correct: float, seen: float) -> Interval:
    """Wilson's 95 % interval of the share correct / seen, in percent."""
    share = correct / seen
    scale = 1 + Z95**2 / seen
    centre = (share + Z95**2 / (2 * seen)) / scale
    half = Z95 * math.sqrt(share * (1 - share) / seen + Z95**2 / (4 * seen**2)) / scale
    return Interval(100 * max(0.0, centre - half), 100 * min(1.0, centre + half))


def within_noise(first: tuple[float, float], second: tuple[float, float]) -> bool:
    """Whether two accuracies, each (correct, seen), differ by less than such tests do by chance."""
    shares = [correct / seen for correct, seen in (first, second)]
    spread = sum(share * (1 - share) / seen for share, (_, seen) in zip(shares, (first, second)))
    return abs(shares[0] - shares[1]) <= Z95 * math.sqrt(spread)
