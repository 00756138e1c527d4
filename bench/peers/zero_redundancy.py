#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of beyond/zero_redundancy: ZeroRedundancyOptimizer of torch.distributed.optim.

    .venv/bin/python bench/peers/zero_redundancy.py --nprocs 2

With --threads 1 its final weights equal, bit for bit, those of ddp.py and those of
`zero_redundancy --math reference --threads 1` with as many processes. It gives whole parameters to
the ranks: of BasicNet, one rank has `fc1` and with it 98 % of the state.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from common import RECIPES, Record, World, choose_device, make_parser, parse_options, save_weights
from ddp import evaluate_together, launch, make_data, make_model, train_epoch
from torch import nn
from torch.amp import GradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer


def make_optimizer(options: argparse.Namespace, model: nn.Module) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(model.parameters(), RECIPES[options.recipe].optimizer,
                                   lr=options.lr, fused=True)


def state_bytes(optimizer: ZeroRedundancyOptimizer) -> int:
    """Of this rank."""
    return sum(tensor.nbytes for state in optimizer.optim.state.values()
               for tensor in state.values())


def run(options: argparse.Namespace) -> None:
    world = World(dist.get_rank(), dist.get_world_size())
    device = choose_device(options)
    record = Record("peer_zero_redundancy", options, world, device)
    data = make_data(options, world)
    scaler = GradScaler(device.type, enabled=False)
    model = make_model(options, scaler, device)
    optimizer = make_optimizer(options, model)
    for epoch in record.epochs():
        data.sampler.set_epoch(epoch - 1)
        train_epoch(model, data, optimizer, scaler, device, record)
    test = None
    if not options.steps:
        record.begin_testing()
        test = evaluate_together(model.module, data, device, record)
    record.finish(model.module, test, optimizer_state_bytes=state_bytes(optimizer))
    if world.rank == 0:
        save_weights(model.module, options.save)


def main() -> None:
    parser = make_parser("The Python twin of beyond/zero_redundancy: ZeroRedundancyOptimizer.")
    parser.set_defaults(threads=1, batch_mode="global", load=None)
    parser.add_argument("--nprocs", type=int, default=2,
                        help="processes to start, where no launcher did; default: %(default)s")
    launch(run, parse_options(parser))


if __name__ == "__main__":
    main()
