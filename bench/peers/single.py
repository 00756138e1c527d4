#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of stage 0: one process, one device, plain PyTorch.

    .venv/bin/python bench/peers/single.py                    BasicNet, one epoch
    .venv/bin/python bench/peers/single.py --recipe convnet   the BatchNorm network, three

With --threads 1 its final weights equal, bit for bit, those of
`stage0_single_gpu --math reference --threads 1`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from common import (
    EpochSampler,
    Record,
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
from torch import nn
from torch.utils.data import DataLoader


@dataclass
class Data:
    train: DataLoader
    sampler: EpochSampler  # of `train`
    test: DataLoader


def make_data(options: argparse.Namespace) -> Data:
    train, test = make_datasets(options)
    sampler = EpochSampler(len(train), options.seed)
    return Data(
        make_loader(train, batch_size=options.batch_size, sampler=sampler),
        sampler,
        make_loader(test, batch_size=options.eval_batch_size),
    )


def make_model(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(options.seed)
    return make_network(options)


def train_epoch(
    model: nn.Module,
    network: nn.Module,
    data: Data,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    record: Record,
) -> None:
    """`model` is `network`, or wraps it."""
    model.train()
    for images, labels in data.train:
        loss = record.recipe.loss(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        record.step(network, loss, len(labels))
        optimizer.zero_grad()
        if record.enough:
            break


def run(
    options: argparse.Namespace,
    stage: str = "peer_single",
    wrap: Callable[[nn.Module], nn.Module] = lambda network: network,
    train: Callable[..., None] = train_epoch,
    **more: float,
) -> None:
    """`more` are further numbers for the result, by name."""
    device = choose_device(options)
    record = Record(stage, options, device=device)
    data = make_data(options)
    network = make_model(options).to(device)
    model = wrap(network)
    optimizer = make_optimizer(options, network)
    for epoch in record.epochs():
        data.sampler.set_epoch(epoch - 1)
        train(model, network, data, optimizer, device, record)
    test = None
    if not options.steps:
        record.begin_testing()
        test = evaluate(model, data.test, record.recipe.loss, device=device)
    record.finish(network, test, **more)
    save_weights(network, options.save)


def main() -> None:
    options = parse_options(make_parser("The Python twin of stage 0: one process, one device."))
    torch.set_num_threads(options.threads)
    run(options)


if __name__ == "__main__":
    main()
