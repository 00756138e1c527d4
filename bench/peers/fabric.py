#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning Fabric beside stage 5.

    .venv/bin/python bench/peers/fabric.py --nprocs 2        Fabric starts the second process

Fabric starts the processes, or joins those of torchrun, and wraps model, optimizer and loader. With
--threads 1 the final weights equal, bit for bit, those of `stage5_accelerator --math reference
--threads 1` with as many processes. Exit code 77 if Lightning is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from accelerated import add_nprocs
from common import (
    Evaluation,
    Record,
    World,
    choose_device,
    evaluate,
    make_optimizer,
    make_parser,
    parse_options,
    save_weights,
)
from ddp import TIMEOUT, Data, make_data, share_buffers
from single import make_model
from torch import nn
from tuned import NOT_AVAILABLE

try:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy
except ImportError as missing:
    print(f"error: {missing}; hint: tools/setup.sh bench", file=sys.stderr)
    sys.exit(NOT_AVAILABLE)


def places(options: argparse.Namespace, strategy: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of Fabric and of the Trainer. One process has no DistributedDataParallel."""
    device = choose_device(options).type
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    ddp = strategy(process_group_backend=backend, timeout=TIMEOUT)
    return {"accelerator": device, "devices": options.nprocs,
            "strategy": ddp if options.nprocs > 1 else "auto"}


def train_epoch(fabric: Fabric, model: nn.Module, data: Data, optimizer: torch.optim.Optimizer,
                record: Record) -> None:
    model.train()
    for (images, labels), part in zip(data.train, data.parts, strict=True):
        loss_sum = record.recipe.loss(model(images), labels, reduction="sum")
        loss = loss_sum * record.world.size / part.global_size
        fabric.backward(loss)
        optimizer.step()
        record.step(model.module, loss, part.global_size, part.positions)
        optimizer.zero_grad()
        if record.enough:
            break


def evaluate_together(fabric: Fabric, network: nn.Module, data: Data, record: Record) -> Evaluation:
    """Without the wrapper, whose forward would wait for a rank that has no image to test."""
    if fabric.world_size > 1:
        share_buffers(network)
    part = evaluate(network, data.test, record.recipe.loss, device=fabric.device)
    return Evaluation(*map(record.world.sum, (part.correct, part.seen, part.loss_sum)))


def run(options: argparse.Namespace) -> None:
    fabric = Fabric(**places(options, DDPStrategy))
    fabric.launch()
    world = World(fabric.global_rank, fabric.world_size)
    record = Record("peer_fabric", options, world, fabric.device)
    data = make_data(options, world)
    network = make_model(options)
    model, optimizer = fabric.setup(network, make_optimizer(options, network))
    # Its sampler divides the batches. Fabric sets the epoch.
    data.train = fabric.setup_dataloaders(data.train, use_distributed_sampler=False)
    for _ in record.epochs():
        train_epoch(fabric, model, data, optimizer, record)
    test = None
    if not options.steps:
        record.begin_testing()
        test = evaluate_together(fabric, network, data, record)
    record.finish(network, test)
    if fabric.is_global_zero:
        save_weights(network, options.save)


def start(description: str, run: Callable[[argparse.Namespace], None]) -> None:
    parser = make_parser(description)
    parser.set_defaults(threads=1, batch_mode="global")  # threads per rank, as torchrun has it
    add_nprocs(parser)
    options = parse_options(parser)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))  # else Lightning sets threads
    torch.set_num_threads(options.threads)
    run(options)
    if dist.is_initialized():  # else its threads may abort the end of the program
        dist.destroy_process_group()


if __name__ == "__main__":
    start("Lightning Fabric beside stage 5.", run)
