# SPDX-License-Identifier: Apache-2.0
"""The first difference of two runs, by hashes alone."""
from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction

from .runs import NOTHING, Run
from .vectors import Record


def hashes_of(record: Record) -> dict[str, str]:
    """By name, in the order of the record."""
    found = {"positions": record["positions"]} if "positions" in record else {}
    if "rows" in record:
        rows = " ".join(map(str, record["rows"]))
        found["inputs"] = hashlib.sha256(rows.encode()).hexdigest()[:16]
    found |= {"loss": record["loss"]} if "loss" in record else {}
    for kind in ("gradient", "weight", "buffer"):
        found |= {f"{kind} of {tensor}": text
                  for tensor, text in record.get(f"{kind}s", {}).items()}
    return found


def entry_names(records: list[Record]) -> list[str]:
    """The entries of all records, each once; those that only one record has come last."""
    return list(dict.fromkeys(name for record in records for name in hashes_of(record)))


def of_each_rank(step: int, run: Run) -> dict:
    """Of a step: (entry, place) -> the text that is compared, and the one that is printed. Each
    entry on all ranks comes before the next one."""
    records = dict(zip(run.ranks(), run.at(step)))
    found = {}
    for entry in entry_names([*records.values()]):
        for rank, record in records.items():
            text = hashes_of(record).get(entry, "nothing")
            shown = f"{text} ({record.get('loss_value')})" if entry == "loss" else text
            found[entry, f"rank {rank}"] = text, shown
    return found


def of_all_ranks(step: int, run: Run) -> dict:
    """What does not depend on the number of ranks, of a run with exact sums."""
    records = run.at(step)
    positions = (text for record in records for text in record["positions_of_micro_batches"])
    found = {f"positions of micro-batch {number}": text
             for number, text in enumerate(positions, start=1)}
    losses = [record["loss_value"] for record in records]
    # Multiples of 2^-32: their sum needs no rounding, also as a float.
    finite = all(isinstance(loss, (int, float)) for loss in losses)
    found["sum of losses"] = str(float(sum(map(Fraction, losses)))) if finite else "not finite"
    for entry in (name for name in entry_names(records) if " of " in name):
        hashes = [hashes_of(record).get(entry, "nothing") for record in records]
        found[entry] = hashes[0] if len(set(hashes)) == 1 else ", ".join(
            f"{text} on rank {rank}" for rank, text in zip(run.ranks(), hashes))
    return {(entry, "all ranks"): (text, text) for entry, text in found.items()}


def first_difference(steps: list[int], a: Run, b: Run, view: Callable[[int, Run], dict]) -> str:
    """Empty if there is none. An entry that no record of one run has, such as the positions of a
    Python program, is not compared."""
    for step in steps:
        in_a, in_b = view(step, a), view(step, b)
        kinds = [{entry for entry, _ in side} for side in (in_a, in_b)]
        for entry, place in dict.fromkeys([*in_a, *in_b]):
            if " of " not in entry and not all(entry in side for side in kinds):
                continue
            sides = [side.get((entry, place), NOTHING) for side in (in_a, in_b)]
            if sides[0][0] != sides[1][0]:
                return f"step {step}, {place}, {entry}: {sides[0][1]} in A, {sides[1][1]} in B"
    return ""
