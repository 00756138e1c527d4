#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of beyond/pipeline: torch.distributed.pipelining.

    .venv/bin/python bench/peers/pipeline.py --nprocs 2
    .venv/bin/python bench/peers/pipeline.py --schedule gpipe --micro-batches 8

With --threads 1 its final weights equal, bit for bit, those of
`pipeline --math reference --threads 1` with as many processes and micro-batches.

PipelineStage of Python has fixed shapes, so a batch of another size has stages and a schedule of
its own, and the micro-batches of a batch must be equal. The test is not cut: each rank tests the
whole network.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import (
    RECIPES,
    BasicNet,
    ConvNet,
    Record,
    StackNet,
    World,
    choose_device,
    evaluate,
    make_network,
    make_optimizer,
    make_parser,
    network_sizes,
    parse_options,
    save_weights,
)
from ddp import launch
from single import make_data
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import DataLoader


class BasicNetStage(BasicNet):
    LAYERS = ("conv1", "conv2", "fc1", "fc2")

    def forward(self, x: Tensor) -> Tensor:
        if self.conv1:
            x = F.relu(self.conv1(x))
        if self.conv2:
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            x = torch.flatten(self.dropout1(x), 1)
        if self.fc1:
            x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x).float(), dim=1) if self.fc2 else x


class ConvNetStage(ConvNet):
    LAYERS = ("layer1", "layer2", "fc")

    def forward(self, x: Tensor) -> Tensor:
        for layer in filter(None, (self.layer1, self.layer2)):
            x = layer(x)
        return self.fc(x.flatten(1)).float() if self.fc else x


class StackNetStage(StackNet):
    @property
    def LAYERS(self) -> list[str]:
        names = [f"layers.{index}" for index in range(len(self.layers))]
        names[0] = f"input {names[0]}"
        names[-1] += " head"
        return names

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x.flatten(1)) if self.input else x
        for layer in filter(None, self.layers):
            x = layer(x)
        return F.log_softmax(self.head(x).float(), dim=1) if self.head else x


STAGES = {"basicnet": BasicNetStage, "convnet": ConvNetStage, "stack": StackNetStage}


def make_stage(options: argparse.Namespace, index: int, stages: int) -> nn.Module:
    """The network without the layers of other stages: an equal number each, in order."""
    network = STAGES[options.recipe](*network_sizes(options))
    layers = network.LAYERS
    for place, names in enumerate(layers):
        if len(layers) * index // stages <= place < len(layers) * (index + 1) // stages:
            continue
        for name in names.split():
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, None)
    return network


@dataclass
class Pipeline:
    """The stage of this rank, and a schedule for each size of a batch."""

    options: argparse.Namespace
    world: World
    device: torch.device
    module: nn.Module
    schedules: dict[int, ScheduleGPipe | Schedule1F1B] = field(default_factory=dict)

    def shapes(self, rows: int) -> tuple[Tensor, Tensor]:
        """Input and output of a micro-batch, without values. PipelineStage would find them by a
        forward, which draws dropout masks and moves BatchNorm's statistics."""
        x = y = torch.empty(rows, 1, 28, 28, device="meta")
        with torch.device("meta"), torch.no_grad():
            for index in range(self.world.rank + 1):
                x, y = y, make_stage(self.options, index, self.world.size)(y)
        return x, y

    def make_schedule(self, size: int) -> ScheduleGPipe | Schedule1F1B:
        rows = -(-size // self.options.micro_batches)
        if size % rows:
            raise SystemExit(f"a batch of {size}: expected micro-batches of equal size, got {rows} "
                             "and a smaller one; hint: choose another --limit-train")
        before, after = self.shapes(rows)
        stage = PipelineStage(self.module, self.world.rank, self.world.size, self.device,
                              input_args=before, output_args=after)
        # Python's 1F1B wants as many micro-batches as stages. Both add up gradients alike.
        alternates = self.options.schedule == "1f1b" and size // rows >= self.world.size
        loss = RECIPES[self.options.recipe].loss
        return (Schedule1F1B if alternates else ScheduleGPipe)(
            stage, size // rows, scale_grads=False,
            loss_fn=lambda output, targets: loss(output, targets, reduction="sum") / size)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forwards and backwards of a batch. Returns the loss, on every rank."""
        if len(labels) not in self.schedules:
            self.schedules[len(labels)] = self.make_schedule(len(labels))
        last, losses = self.world.size - 1, []
        inputs = (images,) if self.world.rank == 0 else ()
        target = labels if self.world.rank == last else None
        self.schedules[len(labels)].step(*inputs, target=target, losses=losses,
                                         return_outputs=False)
        total = torch.zeros((), device=self.device)
        for loss in losses:
            total += loss.detach()
        dist.broadcast(total, last)
        return total

    @torch.no_grad()
    def copy_weights_to(self, network: nn.Module) -> None:
        own = self.module.state_dict()
        for name, tensor in network.state_dict().items():
            owner = self.world.sum(self.world.rank if name in own else 0)
            if name in own:
                tensor.copy_(own[name])
            dist.broadcast(tensor, owner)


def train_epoch(
    model: Pipeline, loader: DataLoader, optimizer: torch.optim.Optimizer, record: Record
) -> None:
    model.module.train()
    for images, labels in loader:
        loss = model.step(images.to(model.device), labels.to(model.device))
        optimizer.step()
        record.step(model.module, loss, len(labels))
        optimizer.zero_grad()
        if record.enough:
            break


def run(options: argparse.Namespace) -> None:
    world = World(dist.get_rank(), dist.get_world_size())
    device = choose_device(options)
    record = Record("peer_pipeline", options, world, device)
    data = make_data(options)
    torch.manual_seed(options.seed)  # each rank draws the whole network, and keeps its layers
    module = make_stage(options, world.rank, world.size).to(device)
    model = Pipeline(options, world, device, module)
    optimizer = make_optimizer(options, module)
    for epoch in record.epochs():
        data.sampler.set_epoch(epoch - 1)
        train_epoch(model, data.train, optimizer, record)
    network = make_network(options).to(device)
    model.copy_weights_to(network)
    test = None
    if not options.steps:
        record.begin_testing()
        test = evaluate(network, data.test, record.recipe.loss, device=device)
    record.finish(network, test)
    if world.rank == 0:
        save_weights(network, options.save)


def main() -> None:
    parser = make_parser("The Python twin of beyond/pipeline: torch.distributed.pipelining.")
    parser.set_defaults(threads=1)
    parser.add_argument("--micro-batches", type=int, default=4,
                        help="per batch; default: %(default)s")
    parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b",
                        help="order of forwards and backwards; default: %(default)s")
    parser.add_argument("--nprocs", type=int, default=2,
                        help="processes to start, where no launcher did; default: %(default)s")
    launch(run, parse_options(parser))


if __name__ == "__main__":
    main()
