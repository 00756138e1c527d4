#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of beyond/fully_sharded: fully_shard of torch.distributed.fsdp.

    .venv/bin/python bench/peers/fully_sharded.py --nprocs 2

Each layer is a unit, and the network with what is left. With --threads 1 and two processes its
weights equal, bit for bit, those of ddp.py and of `fully_sharded --math reference --threads 1`. With
more, fully_shard divides the sum of the gradients, and DistributedDataParallel sums quotients: last
bits differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import SimpleNamespace

import torch
import torch.distributed as dist
from common import (
    RECIPES,
    Record,
    World,
    choose_device,
    make_network,
    make_parser,
    parse_options,
    save_weights,
)
from ddp import evaluate_together, launch, make_data, train_epoch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def make_optimizer(options: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    fused = options.recipe != "convnet"  # DTensor has no fused SGD
    return RECIPES[options.recipe].optimizer(model.parameters(), lr=options.lr, fused=fused)


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Those with parameters; of a list, its elements."""
    children = list(getattr(network, "layers", None) or network.children())
    return [child for child in children if list(child.parameters())]


class Sharded(nn.Module):
    """A network divided over the ranks, for the loop of ddp.py."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.network = network
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for module in (*layers_of(network), network):
            fully_shard(module, mesh=mesh)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    @property
    def module(self) -> Sharded:
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Of the whole network, gathered from all ranks."""
        return {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                for name, tensor in self.network.state_dict().items()}

    def named_parameters(self) -> Iterator[tuple[str, SimpleNamespace]]:
        """With whole gradients."""
        for name, parameter in self.network.named_parameters():
            yield name, SimpleNamespace(grad=parameter.grad.full_tensor())


def run(options: argparse.Namespace) -> None:
    world = World(dist.get_rank(), dist.get_world_size())
    device = choose_device(options)
    record = Record("peer_fully_sharded", options, world, device)
    data = make_data(options, world)
    scaler = GradScaler(device.type, enabled=False)
    torch.manual_seed(options.seed)
    model = Sharded(make_network(options).to(device), device)
    optimizer = make_optimizer(options, model.network)
    for epoch in record.epochs():
        data.sampler.set_epoch(epoch - 1)
        train_epoch(model, data, optimizer, scaler, device, record)
    network = make_network(options).to(device)  # each rank tests the whole network, as it has other
    network.load_state_dict(model.state_dict())  # numbers of batches
    test = None
    if not options.steps:
        record.begin_testing()
        test = evaluate_together(network, data, device, record)
    record.finish(network, test)
    if world.rank == 0:
        save_weights(network, options.save)


def main() -> None:
    parser = make_parser("The Python twin of beyond/fully_sharded: fully_shard.")
    parser.set_defaults(threads=1, batch_mode="global", load=None)
    parser.add_argument("--nprocs", type=int, default=2,
                        help="processes to start, where no launcher did; default: %(default)s")
    launch(run, parse_options(parser))


if __name__ == "__main__":
    main()
