#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of stage 5: Hugging Face Accelerate on the CPU.

    .venv/bin/python bench/peers/accelerated.py                           one process
    .venv/bin/python bench/peers/accelerated.py --nprocs 2                two, started by spawn
    .venv/bin/torchrun --standalone --nproc-per-node 2 bench/peers/accelerated.py
    .venv/bin/accelerate launch --multi_gpu --num_processes 2 bench/peers/accelerated.py

With --threads 1 its final weights equal, bit for bit, those of `stage5_accelerator --math reference
--threads 1` with as many processes, and with --mixed-precision bf16 those of stage 5 in bf16.

Stage 5 divides each batch over the ranks, and so does this.
Accelerate has no such mode. Its own dividing, split_batches, repeats samples to fill up the last
batch. But it deals the batches of a batch sampler to the ranks in turn, whatever their sizes: here
these are parts, as many a batch as there are ranks.

Tested are --eval-batch-size images on all ranks together. A last round that is not whole is filled
up with repetitions, which gather_for_metrics takes out again: each image counts once. Those of
stage 5 lie in smaller batches then, and the last bits of the evaluation's loss may differ.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from common import (
    EpochSampler,
    Mnist,
    Record,
    World,
    choose_device,
    evaluate,
    make_datasets,
    make_loader,
    make_optimizer,
    make_parser,
    parse_options,
    save_weights,
)
from ddp import Part, PartSampler, collate, global_parts, launch
from single import make_model
from torch import nn
from torch.utils.data import DataLoader


@dataclass
class Data:
    train: DataLoader
    parts: list[Part]  # one a batch of `train`, when it is prepared
    test: DataLoader


def divide(
    dataset: Mnist, options: argparse.Namespace, world: World, collate_fn: Callable = collate
) -> tuple[DataLoader, list[Part]]:
    """A loader for Accelerate to prepare, and the parts that this rank gets of it.

    Its batches are the parts of all ranks: rank 0's of the first batch, rank 1's, ..., rank 0's of
    the second. Prepared, it gives each rank its own.
    """
    every = [global_parts(len(dataset), options.batch_size, World(rank, world.size))
             for rank in range(world.size)]
    batches = PartSampler(EpochSampler(len(dataset), options.seed),
                          [part for batch in zip(*every, strict=True) for part in batch])
    return make_loader(dataset, batch_sampler=batches, collate_fn=collate_fn), every[world.rank]


def eval_part(options: argparse.Namespace, world: World) -> int:
    """Images of a batch of the evaluation on each rank."""
    return -(-options.eval_batch_size // world.size)


def make_data(options: argparse.Namespace, world: World) -> Data:
    train, test = make_datasets(options)
    loader, parts = divide(train, options, world)
    return Data(loader, parts, make_loader(test, batch_size=eval_part(options, world)))


def train_epoch(
    accelerator: Accelerator,
    model: nn.Module,
    network: nn.Module,
    data: Data,
    optimizer: AcceleratedOptimizer,
    record: Record,
) -> None:
    """`model` is `network`, prepared."""
    model.train()
    for (images, labels), part in zip(data.train, data.parts, strict=True):
        # The wrapper divides by the number of ranks: what remains is the gradient of the mean over
        # the batch of all ranks, however unequal their parts are.
        loss_sum = record.recipe.loss(model(images), labels, reduction="sum")
        loss = loss_sum * record.world.size / part.global_size
        accelerator.backward(loss)
        optimizer.step()
        record.step(network, loss, part.global_size, part.positions)
        optimizer.zero_grad()
        if record.enough:
            break


def run(options: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=choose_device(options).type == "cpu", mixed_precision=options.mixed_precision)
    options.precision = accelerator.mixed_precision.replace("no", "fp32")
    world = World(accelerator.process_index, accelerator.num_processes)
    record = Record("peer_accelerated", options, world, accelerator.device)
    data = make_data(options, world)
    network = make_model(options)
    model, optimizer, data.train, data.test = accelerator.prepare(
        network, make_optimizer(options, network), data.train, data.test
    )
    for epoch in record.epochs():
        data.train.set_epoch(epoch - 1)
        train_epoch(accelerator, model, network, data, optimizer, record)
    test = None
    if not options.steps:
        record.begin_testing()
        test = evaluate(
            model, data.test, record.recipe.loss, accelerator.gather_for_metrics, accelerator.device
        )
    record.finish(network, test)
    if accelerator.is_main_process:
        save_weights(network, options.save)


def add_nprocs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nprocs", type=int, default=1,
                        help="processes to start, where no launcher did; default: %(default)s")


def begin(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Calls `run` in one process, or in each of several."""
    if "RANK" in os.environ or options.nprocs > 1:
        launch(run, options)
    else:
        # With several GPUs the Trainer would wrap the network in DataParallel.
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
        torch.set_num_threads(options.threads)
        run(options)


def main() -> None:
    parser = make_parser("The Python twin of stage 5: Accelerate.")
    parser.set_defaults(threads=1)  # a rank, as torchrun has it
    parser.add_argument("--mixed-precision", choices=["no", "bf16"],
                        help="default: as `accelerate launch` says, else no")
    add_nprocs(parser)
    begin(run, parse_options(parser))


if __name__ == "__main__":
    main()
