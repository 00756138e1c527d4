# SPDX-License-Identifier: Apache-2.0
"""How Accelerate divides batches over processes: the cases of accelerate_shards.json.

Every table comes out of the package's own loaders, walked to the end once for each rank. One
process is enough: a rank is told its number, and what rank 0 broadcasts is kept for the others.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import accelerate.data_loader as package
import torch
from torch.utils.data import DataLoader

SIZES = range(1, 41)  # samples of the data set
BATCH_SIZES = (1, 2, 3, 4, 8, 12)
WORLD_SIZES = (1, 2, 3, 4)
SHOWN = 10  # the table of this many samples is in the file, of the others a digest

Table = list[list[list[int]]]  # [rank][batch][sample]


def prepared_loader(n: int, rank: int, options: dict[str, Any]) -> DataLoader:
    """As Accelerator.prepare makes it on `rank`, its arguments apart."""
    plain = DataLoader(range(n), batch_size=options["batch_size"], drop_last=options["drop_last"],
                       shuffle=options.get("shuffle", False), collate_fn=torch.tensor)
    modes = {mode: options[mode] for mode in ("split_batches", "dispatch_batches", "even_batches")}
    cpu, world_size = torch.device("cpu"), options["world_size"]
    loader = package.prepare_data_loader(
        plain, device=cpu, num_processes=world_size, process_index=rank, put_on_device=True,
        use_seedable_sampler=True, data_seed=42, **modes)
    if options["dispatch_batches"]:
        loader.state = SimpleNamespace(process_index=rank, num_processes=world_size, device=cpu)
    return loader


@contextmanager
def broadcasts(rank: int, tape: list[Any]) -> Iterator[None]:
    """What rank 0 broadcasts goes onto the tape; the other ranks receive it from there."""
    played = iter(list(tape))

    def broadcast(value: Any, from_process: int = 0) -> Any:
        assert from_process == 0
        if rank == 0:
            tape.append(copy.deepcopy(value))
        return value if rank == 0 else copy.deepcopy(next(played))

    def broadcast_object_list(objects: list[Any], from_process: int = 0) -> list[Any]:
        objects[:] = broadcast(objects, from_process)
        return objects

    names = {"broadcast": broadcast, "broadcast_object_list": broadcast_object_list}
    with mock.patch.multiple(package, **names):
        yield
    assert rank == 0 or next(played, None) is None, f"rank {rank} left broadcasts behind"


def batches_of(loader: DataLoader) -> list[list[int]]:
    """The dispatcher raises for an epoch without a batch, which the other loaders give as such."""
    try:
        return [batch.tolist() for batch in loader]
    except ValueError as error:
        assert "does not contain any data" in str(error)
        return []


def walk(n: int, options: dict[str, Any], epoch: int = 0) -> tuple[Table, int]:
    """What each rank gets, and the loader's `remainder` (-1: nothing is to be cut off)."""
    table: Table = []
    tape: list[Any] = []
    remainders = set()
    for rank in range(options["world_size"]):
        loader = prepared_loader(n, rank, options)
        loader.set_epoch(epoch)
        with broadcasts(rank, tape):
            table.append(batches_of(loader))
        remainders.add(loader.remainder)
    assert len(remainders) == 1
    return table, remainders.pop()


def digest(table: Table) -> str:
    return hashlib.sha256(json.dumps(table, separators=(",", ":")).encode()).hexdigest()[:8]


def case_of_all_sizes(options: dict[str, Any]) -> dict[str, Any]:
    try:
        prepared_loader(10, 0, options)
    except ValueError:
        return {**options, "refused": True}
    walks = {n: walk(n, options) for n in SIZES}
    return {**options, "table": walks[SHOWN][0],
            "digests": " ".join(digest(table) for table, _ in walks.values()),
            "remainders": " ".join(str(remainder) for _, remainder in walks.values())}


def shuffled_case(options: dict[str, Any], epoch: int) -> dict[str, Any]:
    options = {**options, "shuffle": True}
    return {**options, "seed": 42, "epoch": epoch, "n": 23, "table": walk(23, options, epoch)[0]}


def all_options() -> Iterator[dict[str, Any]]:
    # The dispatcher knows no even_batches. It takes batches of one sample to split, and loses all
    # but the last of them: no case to follow.
    modes = [(False, True), (False, False), (True, True)]
    for (dispatch, even), split, drop_last in product(modes, (False, True), (False, True)):
        for batch_size, world_size in product(BATCH_SIZES, WORLD_SIZES):
            if dispatch and split and batch_size == 1 and world_size > 1:
                continue
            yield {"dispatch_batches": dispatch, "split_batches": split, "even_batches": even,
                   "drop_last": drop_last, "batch_size": batch_size, "world_size": world_size}


def content() -> dict[str, Any]:
    cases = [case_of_all_sizes(options) for options in all_options()]
    cases += [shuffled_case(options, epoch) for options in all_options() for epoch in (0, 1, 2)
              if options["batch_size"] == 4 and options["world_size"] in (1, 2)
              and options["even_batches"]]
    return {"first_n": SIZES.start, "shown_n": SHOWN, "cases": cases}
