#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The strongest Python opponent of stage 0: the same recipes, tuned for speed.

    .venv/bin/python bench/peers/tuned.py
    .venv/bin/python bench/peers/tuned.py --precision bf16 --compile    autocast, torch.compile
    .venv/bin/python bench/peers/tuned.py --compile --cuda-graph        and the step in a CUDA graph

One process without a DataLoader: all images are tensors in memory, normalised once, and each batch
is gathered by index. Model and images are channels_last, the optimizer is fused. A GPU is used if
there is one. torch.compile needs a C++ compiler and Python's headers; exit code 77 if it fails, and
for a graph without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from common import (
    RECIPES,
    Mnist,
    Record,
    choose_device,
    evaluate,
    make_datasets,
    make_optimizer,
    make_parser,
    parse_options,
    save_weights,
)
from cuda_graph import StepGraph
from single import make_model
from torch import Tensor, nn

NOT_AVAILABLE = 77  # exit code: the suite reports the row as not run


def in_memory(data: Mnist, device: torch.device) -> tuple[Tensor, Tensor]:
    """The images, normalised, and their labels."""
    images = torch.from_numpy(data.images).unsqueeze(1).to(torch.float32).div_(255)
    if data.mean_std is not None:
        images.sub_(data.mean_std[0]).div_(data.mean_std[1])
    images = images.to(device, memory_format=torch.channels_last)
    return images, torch.from_numpy(data.labels).to(device)


def autocast(options: argparse.Namespace, device: torch.device) -> torch.autocast:
    # A graph would keep the weights that the capture has converted.
    return torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16",
                          cache_enabled=not options.cuda_graph)


def make_loss(
    options: argparse.Namespace, network: nn.Module, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """The mean loss of a batch. With --compile the first call compiles it."""

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with autocast(options, device):
            output = network(images)
        return RECIPES[options.recipe].loss(output, labels)

    return torch.compile(loss_of) if options.compile else loss_of


def run(options: argparse.Namespace) -> None:
    device = choose_device(options)
    if options.cuda_graph and device.type != "cuda":
        print("error: --cuda-graph: no GPU", file=sys.stderr)
        sys.exit(NOT_AVAILABLE)
    record = Record("peer_tuned", options, device=device)
    (images, labels), test_data = (in_memory(part, device) for part in make_datasets(options))
    network = make_model(options).to(device, memory_format=torch.channels_last)
    loss_of = make_loss(options, network, device)
    optimizer = make_optimizer(options, network)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(images[batch], labels[batch])
        loss.backward()
        optimizer.step()
        return loss

    if options.cuda_graph:
        step = StepGraph(step, optimizer, device)
    for epoch in record.epochs():
        network.train()
        generator = torch.Generator().manual_seed(options.seed + epoch - 1)
        order = torch.randperm(len(labels), generator=generator).to(device)
        for batch in order.split(options.batch_size):
            record.step(network, step(batch), len(batch))
            if record.enough:
                break
    test = None
    if not options.steps:
        record.begin_testing()
        batches = zip(*(part.split(options.eval_batch_size) for part in test_data))
        with autocast(options, device):
            test = evaluate(network, batches, record.recipe.loss, device=device)
    record.finish(network, test)
    save_weights(network, options.save)


def main() -> None:
    parser = make_parser("The strongest Python opponent of stage 0: one process, tuned for speed.")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32",
                        help="of convolutions and matrix products; default: %(default)s")
    parser.add_argument("--compile", action="store_true", help="torch.compile forward and loss")
    parser.add_argument("--cuda-graph", action="store_true",
                        help="on a GPU, replay the whole step as one CUDA graph")
    parser.add_argument("--tf32", action="store_true",
                        help="on a GPU, TensorFloat-32 in matrix products")
    options = parse_options(parser)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.set_num_threads(options.threads)
    try:
        run(options)
    except RuntimeError as failure:
        if not options.compile:
            raise
        print(f"error: torch.compile: {failure}", file=sys.stderr)
        sys.exit(NOT_AVAILABLE)


if __name__ == "__main__":
    main()
