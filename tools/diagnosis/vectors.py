# SPDX-License-Identifier: Apache-2.0
"""Projections of tensors as vectors, and the arithmetic of them."""
from __future__ import annotations

import math
from collections.abc import Iterable

Record = dict  # one line
Vector = list  # projections of all tensors, in the order of their names


def sketch_of(record: Record, kind: str, name: str) -> list[float]:
    return record["sketches"].get(kind, {}).get(name, [])[kind != "local":]


def vector(record: Record, kind: str, names: Iterable[str]) -> Vector:
    return [x for name in names for x in sketch_of(record, kind, name)]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b))


def norm(a: Vector) -> float:
    return math.sqrt(dot(a, a))


def apart(a: Vector, b: Vector) -> float:
    """Estimates |a - b| / |b| of the tensors; infinite for other lengths, or a number that is not
    finite in one of them."""
    if len(a) != len(b):
        return math.inf
    a, b = zip(*pairs) if (pairs := [(x, y) for x, y in zip(a, b)
                                     if math.isfinite(x) or math.isfinite(y)]) else ((), ())
    size = norm(b)
    distance = norm([x - y for x, y in zip(a, b)])
    found = distance / size if size else math.inf if distance else 0.0
    return math.inf if math.isnan(found) else found


def mean(vectors: list[Vector]) -> Vector:
    return [math.fsum(column) / len(vectors) for column in zip(*vectors)]


def fit(target: Vector, basis: list[Vector]) -> tuple[list[float], float]:
    """Least squares: the factors, and the part of the target that they leave, relative to it."""
    count = len(basis)
    rows = [[dot(p, q) for q in basis] + [dot(p, target)] for p in basis]
    for i in range(count):
        pivot = max(range(i, count), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if not rows[i][i] or not math.isfinite(rows[i][i]):
            return [], math.inf
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for k in range(count):
            if k != i:
                rows[k] = [x - rows[k][i] * y for x, y in zip(rows[k], rows[i])]
    factors = [row[-1] for row in rows]
    rest = [t - math.fsum(f * p[i] for f, p in zip(factors, basis)) for i, t in enumerate(target)]
    return factors, norm(rest) / norm(target) if norm(target) else math.inf


def near(value: float, wanted: float, part: float = 0.02) -> bool:
    return abs(value - wanted) <= part * abs(wanted)
