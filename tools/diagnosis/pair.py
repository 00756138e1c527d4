# SPDX-License-Identifier: Apache-2.0
"""The two runs, as the hypotheses see them.

A hypothesis is a function of a pair that returns a finding, or why it is excluded.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .runs import Run
from .vectors import Record, Vector, apart, fit, near, norm, sketch_of, vector


@dataclass
class Pair:
    a: Run
    b: Run
    steps: list[int]
    excluded: list[str] = field(default_factory=list)
    # The first step that more than rounding is needed for; 0 = none. And all distances so far.
    beyond: int = 0
    distances: list[tuple[int, float, float]] = field(default_factory=list)
    unjudged: int = 0  # the step from which on the weights have grown too far apart; 0 = none

    @cached_property
    def rounding_unit(self) -> float:
        """Products of numbers in 16 bits add up."""
        low = {one for run in (self.a, self.b) for record in run.records.values()
               for one in (record.get("precision"), *record.get("dtypes", []))}
        return 2.0**-15 if low & {"bf16", "fp16", "bfloat16", "float16"} else 2.0**-24

    def names(self, kind: str, step: int) -> list[str]:
        """The tensors that some rank of each run has."""
        sides = [{name for record in run.at(step) for name in record["sketches"].get(kind, {})}
                 for run in (self.a, self.b)]
        return sorted(sides[0] & sides[1])

    def whole(self, run: Run, kind: str, step: int, names: list[str]) -> Vector:
        """Each tensor on the first rank that has it: the ranks of a pipeline have some each."""
        return [x for name in names for x in next(
            filter(None, (sketch_of(record, kind, name) for record in run.at(step))), [])]

    def distance(self, kind: str, step: int) -> float:
        names = self.names(kind, step)
        return max(apart(self.whole(self.a, kind, step, names),
                         self.whole(self.b, kind, step, names)),
                   0.0) if names else 0.0

    def samples(self, run: Run, step: int, kinds: tuple = ("samples", "rows")) -> list[list[Any]]:
        """Of each rank: numbers if both runs have them, else hashes of rows; empty without any."""
        for kind in kinds:
            if all(record.get(kind) is not None for both in (self.a, self.b)
                   for record in both.at(step)):
                parts = [[str(one) for one in record[kind]] for record in run.at(step)]
                return parts[:1] if is_pipeline(run, step) else parts
        return []


def is_pipeline(run: Run, step: int) -> bool:
    """Each rank has tensors of its own, and the samples of all."""
    names = [set(record["weights"]) for record in run.at(step)]
    return len(names) > 1 and any(names) and sum(map(len, names)) == len(set().union(*names))


def precisions(pair: Pair) -> list[str]:
    """What A and B compute in, such as "bf16" or "fp32 with float64 parameters"."""
    return [" and ".join(sorted({record.get("precision", "fp32") + "".join(
        f" with {dtype} parameters" for dtype in record.get("dtypes", []) if dtype != "float32")
        for record in run.records.values()})) for run in (pair.a, pair.b)]


def samples_per_step(pair: Pair) -> int:
    return max(sum(map(len, pair.samples(pair.b, pair.steps[0]))), 1)


def steps_before(pair: Pair, step: int) -> int:
    """Since the weights that both runs begin with."""
    origins = [s for run in (pair.a, pair.b) for s, _ in run.starts if s < pair.steps[0]]
    return step - 1 - max(origins, default=pair.steps[0] - 1)


def least_bound(pair: Pair) -> float:
    """That of the first step: sqrt(n) roundings of n terms."""
    return 32 * pair.rounding_unit * math.sqrt(max(samples_per_step(pair), 64))


def bound(pair: Pair, step: int) -> float:
    """The relative distance of gradients or weights that rounding explains: that of the first step,
    and its growth by a fifth per step, up to a half. Distances that were small so far do not jump
    to more than a hundred times of them."""
    least = least_bound(pair)
    grown = least * 1.2 ** min(steps_before(pair, step), 200)
    if measured := [one for one in pair.distances if one[0] < step]:
        so_far = max(max(one[1:]) for one in measured)
        grown = min(grown, max(least, 100 * so_far) * 1.2 ** min(step - measured[-1][0] - 1, 200))
    return min(grown, 0.5)


def allowed(pair: Pair, step: int) -> float:
    """The bound for the gradients as a whole. In 16 bits, weights that differ in a last bit round
    all activations anew, so from the second step on gradients differ as they do from float32."""
    is_short = pair.rounding_unit > 2.0**-24 and steps_before(pair, step) > 0
    return max(bound(pair, step), 0.1) if is_short else bound(pair, step)


def explained(pair: Pair, step: int, gradients: float) -> tuple[float, float]:
    """The distances of gradients and weights that the step before explains as well. A ReLU or a
    maximum that flips gives a sample another gradient, and the weights follow."""
    first = allowed(pair, step)
    if not steps_before(pair, step):
        return first, first
    before = pair.distances[-1][2] if pair.distances else first
    flipped = min(0.5, max(100 * before, 6 / samples_per_step(pair))) if before else first
    old = pair.b.before(step)
    names = pair.names("weights", step)
    moved_by = apart(vector(old[0], "weights", names),
                     vector(pair.b.at(step)[0], "weights", names)) if old else 1.0
    return max(first, flipped), max(first, 1.5 * before + moved_by * min(1.0, 10 * gradients))


def disagreeing(run: Run, kind: str, step: int) -> set[str]:
    """The tensors that differ between the ranks that have them."""
    hashes: dict[str, set[str]] = {}
    for record in run.at(step):
        for name, text in record[kind].items():
            hashes.setdefault(name, set()).add(text)
    return {name for name, texts in hashes.items() if len(texts) > 1}


def only_in_a(pair: Pair, kind: str, step: int) -> set[str]:
    """Those that differ between the ranks of A, and not between those of B."""
    return disagreeing(pair.a, kind, step) - disagreeing(pair.b, kind, step)


def values_per_rank(pair: Pair, value: Callable[[Record], Any]) -> Iterator[tuple[int, list[Any]]]:
    """Steps in which a value of the records differs between the ranks of A, with these values, and
    not between those of B."""
    for step in pair.steps:
        of_a, of_b = ([value(record) for record in run.at(step)] for run in (pair.a, pair.b))
        if any(one != of_a[0] for one in of_a) and all(one == of_b[0] for one in of_b):
            yield step, of_a


def moved(run: Run, step: int) -> bool:
    return any(old["weights"] != new["weights"] for old, new in zip(run.before(step), run.at(step)))


def skipped(run: Run, step: int) -> bool:
    """Whether a GradScaler skips the step: gradients are not finite, and no weight moves."""
    return bool(run.before(step)) and not moved(run, step) and not all(
        math.isfinite(x) for r in run.at(step) for one in r["sketches"]["gradients"].values()
        for x in one)


def measure(pair: Pair, step: int, largest: float) -> tuple[float, float, float]:
    """Distances of gradients and weights, and the largest gradient so far: gradients shrink, and
    the last bits of earlier ones do not."""
    weights, gradients = pair.distance("weights", step), 0.0
    if skipped(pair.a, step) and skipped(pair.b, step):
        return 0.0, weights, largest
    if not disagreeing(pair.a, "gradients", step):  # else the weights decide, as with ZeRO
        size = norm(pair.whole(pair.b, "gradients", step, pair.names("gradients", step)))
        largest = max(largest, size if math.isfinite(size) else 0.0)
        share = size / largest if largest and math.isfinite(size) else 1.0
        gradients = pair.distance("gradients", step) * share
    return gradients, weights, largest


@dataclass
class Finding:
    kind: str
    sentence: str
    evidence: list[str]
    step: int = 0  # where it begins; 0 = at the first one


Answer = Finding | str


def flat(lists: list[list[Any]]) -> list[Any]:
    return [one for part in lists for one in part]


def mean_loss(run: Run, step: int) -> float:
    """Mean over the ranks of the losses of their backward passes; NaN if they are not recorded."""
    records = run.at(step)
    found = [one for r in records for one in r.get("losses") or [r.get("loss_value")]]
    if not all(isinstance(one, (int, float)) for one in found):
        return math.nan
    return sum(found) / run.world() / scale_of(run, step)


def has_effect(pair: Pair, step: int) -> bool:
    """Whether the gradients differ by more than rounding; yes if none are recorded."""
    return not pair.names("gradients", step) or (
        pair.distance("gradients", step) > allowed(pair, step))


def gradient_norms(records: list[Record], names: Iterable[str]) -> list[float]:
    """Of the tensors that have a gradient."""
    return [sketch[0] for record in records for name in names
            if (sketch := record["sketches"].get("gradients", {}).get(name))]


def locals_of(run: Run, step: int, names: list[str]) -> list[Vector]:
    """The gradients of the ranks before they are averaged; empty if they are not recorded. A rank
    that does not use a parameter has none of it, and counts as zero."""
    own = [record["sketches"].get("local", {}) for record in run.at(step)]
    width = max((len(sketch) for sketches in own for sketch in sketches.values()), default=0)
    if not all(own) or not all(any(name in sketches for sketches in own) for name in names):
        return []
    return [[x for name in names for x in sketches.get(name, [0.0] * width)] for sketches in own]


def numbers(factors: list[float]) -> str:
    return ", ".join(f"{factor:.3g}" for factor in factors)


def scale_of(run: Run, step: int) -> float:
    """Of the loss."""
    return run.at(step)[0].get("scale") or 1.0


def backward_passes(run: Run, step: int) -> int:
    """Of the first rank; 0 if they are not recorded."""
    return len(run.at(step)[0].get("losses", []))


def windows_of(pair: Pair, step: int) -> list[int]:
    """Backward passes of A and B."""
    return [backward_passes(run, step) for run in (pair.a, pair.b)]


def over_mean(gradient: Vector, own: list[Vector], scale: float) -> float:
    """A gradient over the mean of those of the ranks: 1, if nothing but averaging happened to it;
    less, if it is clipped. NaN if it is no multiple of the mean."""
    factors, rest = fit(gradient, own) if own else ([], math.inf)
    if rest > 0.02 or not all(near(f, factors[0]) for f in factors):
        return math.nan
    return factors[0] * len(own) * scale


def factor_of_mean(pair: Pair, run: Run, step: int) -> float:
    names = pair.names("gradients", step)
    return over_mean(pair.whole(run, "gradients", step, names), locals_of(run, step, names),
                     scale_of(run, step))


def are_samples(pair: Pair, step: int) -> bool:
    """Whether the rows that differ are samples: yes for numbers of samples, and if B's gradient is
    none that A's have, up to a factor. Those of positions differ without it."""
    if pair.samples(pair.a, step, ("samples",)):
        return True
    names = pair.names("gradients", step)
    of_b, own = pair.whole(pair.b, "gradients", step, names), locals_of(pair.a, step, names)
    factors, rest = fit(of_b, own) if own else ([], math.inf)
    alike = rest < bound(pair, step) and all(near(f, factors[0], 0.001) for f in factors)
    return has_effect(pair, step) and not alike


def averages_right(pair: Pair, step: int) -> bool:
    return near(factor_of_mean(pair, pair.a, step), 1)


def count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
