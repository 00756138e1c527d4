#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of stages 2, 3 and 4: DistributedDataParallel over Gloo, plain PyTorch.

    .venv/bin/python bench/peers/ddp.py --nprocs 2                      started by spawn
    .venv/bin/torchrun --standalone --nproc-per-node 2 bench/peers/ddp.py    by torchrun
    .venv/bin/python bench/peers/ddp.py --precision bf16                mixed precision

With --threads 1 its final weights equal, bit for bit, those of
`stage2_ddp_spawn --math reference --threads 1` with as many processes, and with --precision
those of `stage4_ddp_amp --math reference --threads 1 --no-sync-bn`. It has no SyncBatchNorm:
PyTorch's refuses tensors on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import (
    EpochSampler,
    Evaluation,
    Record,
    World,
    choose_device,
    evaluate,
    make_datasets,
    make_loader,
    make_network,
    make_optimizer,
    make_parser,
    parse_options,
    save_weights,
)
from safetensors import safe_open
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Sampler, default_collate

HOST = "127.0.0.1"
TIMEOUT = timedelta(seconds=60)  # that a rank waits for the others
SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}
Run = Callable[[argparse.Namespace], None]  # what each rank does


@dataclass(frozen=True)
class Part:
    """What one rank reads of one batch."""

    positions: range  # of its samples in the order of the epoch
    global_size: int  # samples of the batch on all ranks


@dataclass
class Data:
    train: DataLoader
    parts: list[Part]  # one a batch of `train`
    sampler: EpochSampler | DistributedSampler  # of `train`
    test: DataLoader


class PartSampler(Sampler):
    """Batches for a DataLoader: of the order of `sampler`, this rank's parts."""

    def __init__(self, sampler: EpochSampler, parts: list[Part]) -> None:
        self.sampler = sampler
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        for part in self.parts:
            yield [order[position] for position in part.positions]


def slice_of(batch: range, world: World) -> range:
    """Slices follow each other; the first ranks take one sample more where it does not divide."""
    count, remainder = divmod(len(batch), world.size)
    begin = world.rank * count + min(world.rank, remainder)
    return batch[begin : begin + count + (world.rank < remainder)]


def global_parts(size: int, batch_size: int, world: World) -> list[Part]:
    """--batch-mode global: the ranks divide each batch."""
    samples = range(size)
    batches = [samples[first : first + batch_size] for first in range(0, size, batch_size)]
    return [Part(slice_of(batch, world), len(batch)) for batch in batches]


def per_device_parts(size: int, batch_size: int, world: World) -> list[Part]:
    """--batch-mode per-device: each rank has batches of its own, of DistributedSampler's samples.

    It fills the epoch up to a multiple of the ranks, so all of them have batches of one size.
    """
    mine = range(world.rank, size + -size % world.size, world.size)
    batches = [mine[first : first + batch_size] for first in range(0, len(mine), batch_size)]
    return [Part(batch, len(batch) * world.size) for batch in batches]


def collate(samples: list[tuple[Tensor, int]]) -> list[Tensor]:
    """A last batch with fewer samples than ranks leaves a rank without any."""
    if not samples:
        return [torch.empty(0, 1, 28, 28), torch.empty(0, dtype=torch.int64)]
    return default_collate(samples)


def make_data(options: argparse.Namespace, world: World) -> Data:
    train, test = make_datasets(options)
    test_part = range(world.rank, len(test), world.size)  # no image twice
    test_loader = make_loader(test, batch_size=options.eval_batch_size, sampler=test_part)
    if options.batch_mode == "per-device":
        sampler = DistributedSampler(train, world.size, world.rank, seed=options.seed)
        parts = per_device_parts(len(train), options.batch_size, world)
        loader = make_loader(train, batch_size=options.batch_size, sampler=sampler)
        return Data(loader, parts, sampler, test_loader)
    sampler = EpochSampler(len(train), options.seed)
    parts = global_parts(len(train), options.batch_size, world)
    batches = PartSampler(sampler, parts)
    loader = make_loader(train, batch_sampler=batches, collate_fn=collate)
    return Data(loader, parts, sampler, test_loader)


def load(path: Path, network: nn.Module, scaler: GradScaler) -> None:
    """Weights, and the state of the scaler if the file has one: of stage 4 or of this program."""
    with safe_open(path, framework="pt") as file:
        network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})
        state = (file.metadata() or {}).get("scaler")
    if state:
        scaler.load_state_dict(json.loads(state))


def make_model(
    options: argparse.Namespace, scaler: GradScaler, device: torch.device
) -> DistributedDataParallel:
    torch.manual_seed(options.seed)
    network = make_network(options).to(device)
    if options.load:
        load(options.load, network, scaler)
    if options.precision in SIXTEEN_BITS:
        # As if forward began with it: so it holds for the test, which leaves the wrapper out.
        autocast = torch.autocast(device.type, SIXTEEN_BITS[options.precision])
        network.forward = autocast(network.forward)
    return DistributedDataParallel(network)


def train_epoch(
    model: DistributedDataParallel,
    data: Data,
    optimizer: torch.optim.Optimizer,
    scaler: GradScaler,
    device: torch.device,
    record: Record,
) -> None:
    model.train()
    for (images, labels), part in zip(data.train, data.parts, strict=True):
        images, labels = images.to(device), labels.to(device)
        # DistributedDataParallel divides by the number of ranks: what remains is the gradient of
        # the mean over the batch of all ranks, however unequal their parts are.
        loss_sum = record.recipe.loss(model(images), labels, reduction="sum")
        loss = loss_sum * record.world.size / part.global_size
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        record.step(model.module, loss, part.global_size, part.positions)
        optimizer.zero_grad()
        if record.enough:
            break


def share_buffers(network: nn.Module) -> None:
    """All ranks get those of rank 0: a rank moves BatchNorm's by its own part of the batches."""
    for buffer in network.buffers():
        dist.broadcast(buffer, src=0)


def evaluate_together(
    network: nn.Module, data: Data, device: torch.device, record: Record
) -> Evaluation:
    """Each rank tests its part; the counts are added up.

    Without the wrapper: its first forward after training sends rank 0's buffers to all, and
    would wait for a rank that has no image to test. So they are sent here.
    """
    share_buffers(network)
    part = evaluate(network, data.test, record.recipe.loss, device=device)
    add = record.world.sum
    return Evaluation(add(part.correct), add(part.seen), add(part.loss_sum))


def run(options: argparse.Namespace) -> None:
    world = World(dist.get_rank(), dist.get_world_size())
    device = choose_device(options)
    record = Record("peer_ddp", options, world, device)
    data = make_data(options, world)
    scaler = GradScaler(device.type, enabled=options.precision == "fp16")  # else it does nothing
    model = make_model(options, scaler, device)
    optimizer = make_optimizer(options, model)
    for epoch in record.epochs():
        data.sampler.set_epoch(epoch - 1)
        train_epoch(model, data, optimizer, scaler, device, record)
    test = None
    if not options.steps:
        record.begin_testing()
        test = evaluate_together(model.module, data, device, record)
    scaled = scaler.is_enabled()
    record.finish(model.module, test, **({"loss_scale": scaler.get_scale()} if scaled else {}))
    if world.rank == 0:
        state = {"scaler": json.dumps(scaler.state_dict())} if scaled else None
        save_weights(model.module, options.save, state)


def start(run: Run, options: argparse.Namespace, **process_group: object) -> None:
    torch.set_num_threads(options.threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))  # else Accelerate sets threads
    # Tensors on a GPU go through NCCL, the counts of the record through Gloo.
    on_gpu = choose_device(options).type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT, **process_group)
    run(options)
    # The wrapper is part of a reference cycle and holds the group. A Gloo thread that is left when
    # Python ends sometimes aborts the process: it wants the interpreter's lock.
    gc.collect()
    dist.destroy_process_group()


def start_spawned(rank: int, run: Run, options: argparse.Namespace, port: int) -> None:
    # The signal that spawn has the kernel send when the parent ends. Programs that a shell started
    # in the background ignore it; Python's own handler waits for the end of a collective.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What torchrun sets, and Accelerate reads.
    ranks, world = ("RANK", "LOCAL_RANK"), ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
    os.environ |= dict.fromkeys(ranks, str(rank)) | dict.fromkeys(world, str(options.nprocs))
    store = dist.TCPStore(HOST, port, is_master=False, timeout=TIMEOUT)
    start(run, options, store=store, rank=rank, world_size=options.nprocs)


def spawn(run: Run, options: argparse.Namespace) -> None:
    # The ranks meet at this process, on a port that the system chose.
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    mp.spawn(start_spawned, (run, options, store.port), nprocs=options.nprocs)


def launch(run: Run, options: argparse.Namespace) -> None:
    """Calls `run` as a rank of the launcher that started this, else in processes of its own."""
    if "RANK" in os.environ:
        start(run, options)
    else:
        spawn(run, options)


def main() -> None:
    parser = make_parser("The Python twin of stages 2, 3 and 4: DistributedDataParallel.")
    parser.set_defaults(threads=1)  # a rank, as torchrun has it
    parser.add_argument("--batch-mode", choices=["global", "per-device"], default="global",
                        help="is --batch-size that of all ranks together, or of each?")
    parser.add_argument("--precision", choices=["fp32", *SIXTEEN_BITS], default="fp32",
                        help="of convolutions and matrix products; default: %(default)s")
    parser.add_argument("--load", type=Path, metavar="PATH", help="start from a file of --save")
    parser.add_argument("--nprocs", type=int, default=2,
                        help="processes to start, where no launcher did; default: %(default)s")
    launch(run, parse_options(parser))


if __name__ == "__main__":
    main()
