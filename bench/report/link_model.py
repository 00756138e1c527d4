# SPDX-License-Identifier: Apache-2.0
"""What a step costs two ranks on a link: the α-β model, and the record of bench/links/links.py.

An all-reduce of B bytes takes N ranks 2 (N - 1) α + 2 (N - 1) / N · B / β: Gloo's ring. α and β of
a link are fitted to all-reduces of several sizes between two ranks on it.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from intervals import Estimate, Interval, median_of
from results import ResultsError

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s",
         "unlimited": "unlimited"}
SHARED_MEMORY = "shared memory"
ACCUMULATION = 4  # backwards per all-reduce, as in bench/links/variants.cpp
TOLERANCE = 0.1  # the model counts as wrong where a measurement is further outside


class Variant(NamedTuple):
    """A way to average gradients, as the model sees it."""

    words: str
    compute: str = "compute"  # the variant that computes the same and sends nothing
    share: float = 1.0  # of the bytes of the gradients
    overlap: bool = True  # do messages travel while backward runs?


VARIANTS = {
    "plain": Variant("plain"),
    "bf16": Variant("bf16 compression", share=0.5),
    "fp16": Variant("fp16 compression", share=0.5),
    "accumulation": Variant("accumulation 4", compute="compute-accumulation"),
    "one-bucket": Variant("one bucket", overlap=False),
    "no-overlap": Variant("all-reduce per parameter", overlap=False),
    "convnet": Variant("convnet, plain", compute="convnet-compute"),
}


class Link(NamedTuple):
    alpha: float  # seconds per message
    beta: float  # bytes per second

    def all_reduce(self, ranks: int, size: float) -> float:
        """Seconds for `size` bytes."""
        return 2 * (ranks - 1) * (self.alpha + size / self.beta / ranks)


class Prediction(Interval):
    """Seconds between which a step lies."""

    def deviation(self, seconds: float) -> float:
        """How far outside a time lies, as a share of the nearer bound: 0 inside, < 0 below."""
        if seconds < self.low:
            return seconds / self.low - 1
        return max(0.0, seconds / self.high - 1)


def fit(times: Mapping[int, float]) -> Link:
    """α and β from seconds by bytes of all-reduces between two ranks, 2 α + B / β: least squares,
    each square divided by its time: neither the shortest nor the longest decide alone."""
    if len(times) < 2:
        raise ResultsError(f"all-reduces: expected two sizes or more, got {len(times)}")
    weights = {size: 1 / time for size, time in times.items()}
    size_mean = sum(weights[size] * size for size in times) / sum(weights.values())
    time_mean = len(times) / sum(weights.values())  # a weight times its time is 1
    slope = (sum(size - size_mean for size in times)
             / sum(weights[size] * (size - size_mean) ** 2 for size in times))
    if slope <= 0:
        found = ", ".join(f"{size} bytes: {time:.6f} s" for size, time in times.items())
        raise ResultsError(f"all-reduces: expected larger ones to take longer, got {found}")
    return Link(max(0.0, (time_mean - slope * size_mean) / 2), 1 / slope)


def predicted(name: str, link: Link, compute: float, messages: Sequence[int],
              overlap: bool = True) -> Prediction:
    """A step of two ranks, per backward. `compute`: seconds per backward of the same loop without
    a link; `messages`: bytes of gradients per all-reduce; `overlap`: False for a backend that
    blocks."""
    variant = VARIANTS[name]
    total = sum(link.all_reduce(2, size * variant.share) for size in messages)
    backwards = ACCUMULATION if name == "accumulation" else 1
    high = compute + total / backwards
    if not (variant.overlap and overlap):
        return Prediction(high, high)
    return Prediction(compute + max(0.0, total - compute) / backwards, high)


class Measured(NamedTuple):
    """A variant on a link, times in seconds per backward."""

    link: str
    name: str
    time: Estimate
    compute: float
    sent: float  # bytes per backward
    prediction: Prediction

    @property
    def deviation(self) -> float:
        return self.prediction.deviation(self.time.value)


def sections(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was measured on each link, by its name in words; with "not_run",
    which begins with "not run:" or "failed:", where it was not."""
    found = {words: record["links"][rate] for rate, words in RATES.items()
             if rate in record["links"]}
    return found | {SHARED_MEMORY: record["shared_memory"]}


def link_of(section: Mapping[str, Any]) -> Link:
    return fit({int(size): median(times) for size, times in section["all_reduce"].items()})


def fitted(record: Mapping[str, Any]) -> dict[str, Link]:
    """The links that were measured, shared memory among them."""
    return {words: link_of(section) for words, section in sections(record).items()
            if "not_run" not in section}


def cables(record: Mapping[str, Any]) -> dict[str, Link]:
    """The links between machines that were measured."""
    return {words: link for words, link in fitted(record).items() if words != SHARED_MEMORY}


def measurements(record: Mapping[str, Any]) -> list[Measured]:
    """The variants of each link, with their predictions."""
    found = []
    for words, link in fitted(record).items():
        rows = sections(record)[words]["variants"]
        for name in filter(rows.__contains__, VARIANTS):
            compute = median(rows[VARIANTS[name].compute]["seconds"])
            found.append(Measured(
                words, name, median_of(rows[name]["seconds"]), compute,
                median(rows[name]["sent_bytes"]),
                predicted(name, link, compute, rows[name]["messages"], words != SHARED_MEMORY)))
    return found


def compute_times(record: Mapping[str, Any], recipe: str) -> dict[int, float]:
    """Seconds of a step by its images, of a rank that sends nothing."""
    return {int(key.split("/")[1]): median(times) for key, times in record["images"].items()
            if key.startswith(f"{recipe}/")}


def length_of(spans: Sequence[Sequence[Any]]) -> float:
    """Milliseconds of a traced step, whose spans are [lane, begin, length, bytes]."""
    return max(begin + length for _, begin, length, _ in spans)
