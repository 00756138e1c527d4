# SPDX-License-Identifier: Apache-2.0
"""Intervals of the numbers in the report.

A time is the median of its repetitions; its interval comes from drawing as many repetitions
again, with replacement, many times. A ratio is that of two medians, and for its interval both are
drawn, each on its own. The draws are seeded: a file gives the same report always. An accuracy over
seeds is a mean, with the interval of Student's t.
"""

import functools
import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

SEED = 20_260
DRAWS = 10_000
Z95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


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


@functools.cache
def bootstrap(*rows: tuple[float, ...]) -> Interval:
    """Where 95 % of the medians of as many draws lie; of two rows, where the ratios lie when each
    row is drawn without regard to the other."""
    import numpy  # here and below: what measures needs no packages

    draw = numpy.random.RandomState([SEED]).random_sample
    medians = [numpy.median(numpy.asarray(row)[(draw((DRAWS, len(row))) * len(row)).astype(int)],
                            axis=1) for row in rows]
    found = numpy.sort(numpy.divide(*medians) if len(rows) == 2 else medians[0])
    tail = round(0.025 * DRAWS)
    return Interval(float(found[tail]), float(found[-tail - 1]))


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
                    bootstrap(tuple(first), tuple(second)) if several else None)


def inverse(estimate: Estimate | None, amount: float = 1.0) -> Estimate | None:
    """The amount over the estimate: of a ratio of times, how many times faster. None of nothing."""
    if estimate is None:
        return None
    bounds = estimate.interval and [amount / end for end in reversed(estimate.interval)]
    return Estimate(amount / estimate.value, bounds and Interval(*bounds))


def mean_of(values: Sequence[float]) -> Estimate | None:
    """The mean with its t interval, n - 1 degrees of freedom; None of nothing."""
    if len(values) < 2:
        return Estimate(values[0]) if values else None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Estimate(fmean(values), Interval(fmean(values) - half, fmean(values) + half))


def wilson(correct: float, seen: float) -> Interval:
    """Wilson's 95 % interval of the share correct / seen, in percent."""
    from scipy.stats import binomtest

    found = binomtest(round(correct), round(seen)).proportion_ci(method="wilson")
    return Interval(100 * float(found.low), 100 * float(found.high))


def within_noise(first: tuple[float, float], second: tuple[float, float]) -> bool:
    """Whether two accuracies, each (correct, seen), differ by less than such tests do by chance."""
    shares = [correct / seen for correct, seen in (first, second)]
    spread = sum(share * (1 - share) / seen for share, (_, seen) in zip(shares, (first, second)))
    return abs(shares[0] - shares[1]) <= Z95 * math.sqrt(spread)
