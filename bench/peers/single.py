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
import time
from dataclasses import dataclass
from typing import Any

import torch
from common import (
    RECIPES,
    EpochSampler,
    Evaluation,
    Fingerprint,
    Metrics,
    Mnist,
    evaluate,
    make_loader,
    parse_options,
    peak_rss_bytes,
    save_weights,
    say,
    versions,
    weights_sha256,
)
from torch import nn
from torch.utils.data import DataLoader

STAGE = "peer_single"


@dataclass
class Data:
    train: DataLoader
    sampler: EpochSampler  # of `train`
    test: DataLoader


@dataclass
class Epoch:
    """What one epoch did."""

    steps: int
    samples: int
    train_loss: float  # mean over the samples
    seconds: float = 0.0


def make_data(options: argparse.Namespace) -> Data:
    normalize = RECIPES[options.recipe].normalize
    train = Mnist(options.data_root, True, normalize, options.limit_train)
    test = Mnist(options.data_root, False, normalize, options.limit_test)
    sampler = EpochSampler(len(train), options.seed)
    return Data(
        make_loader(train, options.batch_size, sampler),
        sampler,
        make_loader(test, options.eval_batch_size),
    )


def make_model(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(options.seed)
    return RECIPES[options.recipe].model()


def train_epoch(
    options: argparse.Namespace,
    epoch: int,
    first_step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    fingerprint: Fingerprint,
) -> Epoch:
    loss_function = RECIPES[options.recipe].loss
    model.train()
    step, seen, loss_sum = first_step, 0, 0.0
    for step, (images, labels) in enumerate(loader, start=first_step):
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
        positions = range(seen, seen + len(labels))  # in the order of the epoch
        fingerprint(step, epoch, positions, loss, model)
        optimizer.zero_grad()
        seen += len(labels)
        loss_sum += loss.item() * len(labels)
        if step == options.steps:
            break
    return Epoch(step - first_step + 1, seen, loss_sum / seen)


def train(
    options: argparse.Namespace, model: nn.Module, data: Data, metrics: Metrics
) -> list[Epoch]:
    recipe = RECIPES[options.recipe]
    optimizer = recipe.optimizer(model.parameters(), lr=options.lr, fused=True)
    fingerprint = Fingerprint(options.metrics, options.fingerprint)
    epochs: list[Epoch] = []
    steps = 0
    while len(epochs) < options.epochs and (steps < options.steps or not options.steps):
        epoch = len(epochs) + 1
        say(recipe.epoch_line.format(epoch, options.epochs))
        start = time.perf_counter()
        data.sampler.set_epoch(epoch - 1)
        done = train_epoch(options, epoch, steps + 1, model, optimizer, data.train, fingerprint)
        done.seconds = time.perf_counter() - start
        metrics.write("epoch", epoch=epoch, **vars(done))
        epochs.append(done)
        steps += done.steps
    return epochs


def result(
    options: argparse.Namespace, model: nn.Module, epochs: list[Epoch], test: Evaluation | None
) -> dict[str, Any]:
    seconds = sum(epoch.seconds for epoch in epochs)
    samples = sum(epoch.samples for epoch in epochs)
    return {
        "stage": STAGE,
        "recipe": options.recipe,
        "world_size": 1,
        "precision": "fp32",
        "device": "cpu",
        "epochs": options.epochs,
        "steps": sum(epoch.steps for epoch in epochs),
        "accuracy": test.accuracy if test else None,
        "correct": test.correct if test else None,
        "seen": test.seen if test else None,
        "train_loss": epochs[-1].train_loss if epochs else None,
        "eval_loss": test.loss if test else None,
        "train_seconds": seconds,
        "samples_per_second": samples / seconds if samples else 0.0,
        "peak_rss_bytes": peak_rss_bytes(),
        "weights_sha256": weights_sha256(model.state_dict()),
    }


def run(options: argparse.Namespace) -> None:
    start = time.perf_counter()
    recipe = RECIPES[options.recipe]
    metrics = Metrics(options.metrics)
    metrics.write("run", stage=STAGE, world_size=1, rank=0, device="cpu", **vars(options),
                  versions=versions())

    data = make_data(options)
    model = make_model(options)
    epochs = train(options, model, data, metrics)
    test = None
    if not options.steps:
        say(recipe.testing_line)
        test = evaluate(model, data.test, recipe.loss)
        say(recipe.accuracy_line.format(test.accuracy))
    total_seconds = time.perf_counter() - start
    say(f"time elapsed: {total_seconds:.2f} seconds")

    save_weights(model, options.save)
    values = result(options, model, epochs, test)
    metrics.write("result", **values, total_seconds=total_seconds)


def main() -> None:
    options = parse_options("The Python twin of stage 0: one process, one device.")
    torch.set_num_threads(options.threads)
    run(options)


if __name__ == "__main__":
    main()
