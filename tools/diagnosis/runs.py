# SPDX-License-Identifier: Apache-2.0
"""Reads recordings, and refuses pairs that cannot be compared."""
from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from .vectors import Record, apart, vector

NOTHING = ("nothing", "nothing")
MOST_BYTES, MOST_RANKS, WIDTH = 1 << 30, 1 << 16, 5  # WIDTH: norm and projections of a tensor
SAME_WEIGHTS = 2.0**-20  # a relative distance
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Unusable(Exception):
    """The two runs cannot be compared; the message has the reason and a hint."""


def files_of(name: str) -> list[Path]:
    """The file of that name, or the files NAME.rank0.jsonl, NAME.rank1.jsonl, ..."""
    path = Path(name)
    if path.is_file():
        return [path]
    files = [file for file in path.parent.glob("*.jsonl") if file.is_file()
             and re.fullmatch(re.escape(path.name) + r"\.rank\d+\.jsonl", file.name)]
    if not files:
        raise Unusable(f"{name}: no such file, and no {name}.rank0.jsonl either")
    return sorted(files)


def require(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)


def check_record(record: Record) -> Record:
    """Throws ValueError or TypeError unless the types are those of docs/formats.md."""
    require(isinstance(record, dict), "not an object")
    for name, most in (("step", 1 << 53), ("rank", MOST_RANKS)):
        value = record[name]
        require(type(value) is int and 0 <= value < most, f"{name}: {value!r:.40}")
    if "before" in record:
        require(isinstance(record["before"], dict), "before")
        record["before"] = check_record({"rank": record["rank"], "gradients": {}} | {
            name: record["before"][name] for name in ("step", "weights", "sketches")})
    for name in ("weights", "gradients"):
        require(all(isinstance(text, str) for text in record[name].values()), name)
    sketches = record.setdefault("sketches", {})
    for kind, tensors in sketches.items():
        for tensor, numbers in tensors.items():
            require(len(numbers) == WIDTH - (kind == "local"), f"sketch of {tensor:.40}")
            tensors[tensor] = [math.nan if x is None else float(x) for x in numbers]
    for name in ("samples", "rows", "losses", "rates", "collectives", "not_optimized"):
        require(isinstance(record.get(name, []), list), name)
    record["rates"] = [float(rate) for rate in record.get("rates", [])]
    return record


@dataclass
class Run:
    """Its records by step and rank. `starts` have the weights that it begins with."""

    name: str
    records: dict[tuple[int, int], Record] = field(default_factory=dict)
    starts: dict[tuple[int, int], Record] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_cut: bool = False  # a rank lacks its last record
    counted: int = 0  # records when `found`, the ranks, were found
    found: list[int] = field(default_factory=list)
    shift: int = 0  # its step 1 is step 1 + shift of its files

    def ranks(self) -> list[int]:
        if self.counted != len(self.records):
            self.counted, self.found = len(self.records), sorted({rank for _, rank in self.records})
        return self.found

    def world(self) -> int:
        return len(self.ranks())

    def at(self, step: int) -> list[Record]:
        return [self.records[step, rank] for rank in self.ranks()]

    def before(self, step: int) -> list[Record]:
        """The records with the weights before the step; empty if there are none."""
        found = [self.records.get((step - 1, r)) or self.starts.get((step - 1, r))
                 for r in self.ranks()]
        return [] if None in found else found

    def begin(self) -> list[Record]:
        """The records with its first weights; empty if there are none."""
        found = [self.starts.get((self.origin(), r)) for r in self.ranks()]
        return [] if None in found else found

    def origin(self) -> int:
        return min((step for step, _ in self.starts), default=-1)

    def worlds(self) -> set[int]:
        return {r["world_size"] for r in self.records.values() if "world_size" in r}


def read_file(run: Run, path: Path) -> None:
    if path.stat().st_size > MOST_BYTES:
        raise Unusable(f"{path}: expected at most {MOST_BYTES} bytes; hint: record fewer steps")
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        try:
            record = check_record(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if number == len(lines) > 1 and not text.endswith("\n"):
                run.is_cut = True
                run.notes.append(f"{path}:{number}: ignored: the line is incomplete, as after a "
                                 "kill")
                return
            raise Unusable(
                f"{path}:{number}: not a fingerprint record ({type(error).__name__}: {error}); "
                "hint: give the files of --fingerprint or record_run.py, named "
                "PATH.rank0.jsonl") from None
        if (record["step"], record["rank"]) in run.records:
            raise Unusable(f"{path}:{number}: step {record['step']} of rank {record['rank']} is in "
                           "the run already; hint: give the files of one run")
        run.records[record["step"], record["rank"]] = record
        if "before" in record:
            run.starts[record["before"]["step"], record["rank"]] = record["before"]


def read_run(name: str, paths: list[str]) -> Run:
    run = Run(name)
    for path in paths:
        for file in files_of(path):
            read_file(run, file)
    if not run.records:
        raise Unusable(f"{paths[0]}: no records; was the run shorter than K steps?")
    worlds = {r: run.records[s, r].get("world_size") for s, r in sorted(run.records)}
    first = min(worlds)
    if others := [rank for rank in sorted(worlds) if worlds[rank] != worlds[first]]:
        raise Unusable(
            f"{paths[0]}: expected files of one run, got rank {first} of world size "
            f"{worlds[first]} and ranks {others} of another; hint: they are left from a former "
            "run: rm " + " ".join(f"{paths[0]}.rank{rank}.jsonl" for rank in others))
    return run


def common_steps(a: Run, b: Run) -> list[int]:
    """The steps that every rank of both runs recorded."""
    steps = {step for step, _ in a.records.keys() | b.records.keys()}
    shared = [s for s in steps if all((s, r) in run.records for run in (a, b) for r in run.ranks())]
    if not shared:
        raise Unusable("no step is in both runs: give both the same --fingerprint K")
    return sorted(shared)


def micro_batches(run: Run) -> set[int]:
    return {record.get("micro_batch", 0) for record in run.records.values()}


def sums_of(run: Run) -> str:
    return " and ".join(f"exact sums over micro-batches of {size}" if size else "float sums"
                        for size in sorted(micro_batches(run)))


def has_sketches(run: Run) -> bool:
    return all("weights" in record["sketches"] for record in run.records.values())


def require_comparable(a: Run, b: Run) -> None:
    for run in (a, b):
        if run.worlds() and run.worlds() != {run.world()} and (
                a.ranks() != b.ranks() or a.worlds() != b.worlds()):
            raise Unusable(
                f"{run.name} has files of ranks {run.ranks()}, of a world size of "
                f"{' and '.join(map(str, sorted(run.worlds())))}; hint: give NAME up to "
                ".rankR.jsonl, beside which all ranks of one run have their files")
    if sums_of(a) != sums_of(b):
        raise Unusable(f"A has {sums_of(a)}, B has {sums_of(b)}, which give other weights; "
                       "hint: train both with the same --sums and --micro-batch")
    other = a.world() != b.world() or len(a.worlds() | b.worlds()) > 1
    if other and any(r.get("sharded") for run in (a, b) for r in run.records.values()):
        raise Unusable("the parameters of a run are divided among its ranks; hint: compare it with "
                       "a run of as many ranks")
    if other and 0 in micro_batches(a) and not (has_sketches(a) and has_sketches(b)):
        raise Unusable("A and B have different numbers of ranks, float sums, which depend on it, "
                       "and hashes alone; hint: record both again, or train with --sums exact")


def part_buffers(a: Run, b: Run) -> None:
    """Takes the buffers from the weights of all records: they change, and no run has a gradient."""
    records = [*a.records.values(), *b.records.values()]
    trained = {name for record in records
               for name in (*record["gradients"], *record.get("not_optimized", []))}
    texts: dict[tuple[int, str], set[str]] = {}
    for run in (a, b):
        for (_, rank), record in (*run.starts.items(), *run.records.items()):
            for name, text in record["weights"].items():
                texts.setdefault((id(run), rank, name), set()).add(text)
    moving = {name for (*_, name), found in texts.items() if len(found) > 1}
    buffers = {name for *_, name in texts if name.endswith(STATISTICS)}
    buffers |= moving - trained if trained else set()
    for record in (*records, *a.starts.values(), *b.starts.values()):
        for kinds in (record, record["sketches"]):
            weights = kinds.get("weights", {})
            kinds["buffers"] = {name: weights.pop(name) for name in [*weights] if name in buffers}


def weights_apart(one: Record, other: Record) -> float:
    names = [n for n in other["weights"] if n in one["weights"]]
    return apart(*(vector(side, "weights", names) for side in (one, other)))


def align(a: Run, b: Run) -> None:
    """Of a resumed run and a whole one: the whole one counts its steps from the weights with which
    the other begins."""
    for resumed, whole in ((a, b), (b, a)):
        rank, begin, origin = whole.ranks()[0], resumed.begin(), whole.begin()
        if not begin or not origin or weights_apart(begin[0], origin[0]) < SAME_WEIGHTS:
            continue
        first = begin[0]["step"] + 1
        found = next((step for step, r in sorted(whole.records) if r == rank and step >= first
                      and weights_apart(begin[0], whole.records[step, r]) < SAME_WEIGHTS), None)
        if found is None:
            continue
        shift = found - first + 1
        whole.records, whole.starts = ({(step - shift, r): one for (step, r), one in kept.items()}
                                       for kept in (whole.records, whole.starts))
        whole.shift = shift
        whole.notes.append(f"{resumed.name} begins with the weights of {whole.name} after step "
                           f"{found}: step {first} is step {found + 1} of {whole.name}")
        return
