#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of beyond/cuda_graph: the whole step in one torch.cuda.CUDAGraph.

    .venv/bin/python bench/peers/cuda_graph.py

On the CPU it calls the step: with --threads 1 its final weights equal, bit for bit, those of
single.py and of `cuda_graph --math reference --threads 1`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import Record, make_parser, parse_options
from single import Data, run
from torch import Tensor, nn

WARM_UP = 3  # steps before the capture, as in torch.cuda.make_graphed_callables


class StepGraph:
    """Calls `step`, which returns the loss, and from the fourth batch of the first size on replays it.

    The step is forward, backward and the step of the optimizer: its kernels, with the learning rate
    of the capture. On the CPU, and for a batch of another size, it is called.
    """

    def __init__(self, step: Callable[..., Tensor], optimizer: torch.optim.Optimizer,
                 device: torch.device) -> None:
        self.step, self.device = step, device
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.loss = torch.zeros((), device=device)
        self.left = WARM_UP
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
        for group in optimizer.param_groups:
            if device.type == "cuda" and "capturable" in group:
                group["capturable"] = True

    def __call__(self, *batch: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return self.step(*batch)
        if self.graph is None and self.left == 0:
            self.capture(batch)
        if self.graph is None or self.inputs[0].shape != batch[0].shape:
            return self.without_graph(batch)
        for ours, part in zip(self.inputs, batch):
            ours.copy_(part, non_blocking=True)
        self.graph.replay()
        return self.loss

    def without_graph(self, batch: tuple[Tensor, ...]) -> Tensor:
        """On another stream than the default one, which cannot be captured."""
        self.left -= self.left > 0
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self.step(*(part.to(self.device, non_blocking=True) for part in batch))
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def capture(self, batch: tuple[Tensor, ...]) -> None:
        self.inputs = [torch.empty_like(part, device=self.device) for part in batch]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.loss = self.step(*self.inputs).detach()


class CapturedSteps:
    """For single.py: train_epoch with the steps of one graph."""

    def __init__(self) -> None:
        self.graph: StepGraph | None = None

    def train_epoch(self, model: nn.Module, network: nn.Module, data: Data,
                    optimizer: torch.optim.Optimizer, device: torch.device,
                    record: Record) -> None:
        def step(images: Tensor, labels: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = record.recipe.loss(model(images), labels)
            loss.backward()
            optimizer.step()
            return loss

        self.graph = self.graph or StepGraph(step, optimizer, device)
        model.train()
        for images, labels in data.train:
            record.step(network, self.graph(images, labels), len(labels))
            if record.enough:
                break


def main() -> None:
    options = parse_options(make_parser("The Python twin of cuda_graph: one process, one device."))
    torch.set_num_threads(options.threads)
    run(options, "peer_cuda_graph", train=CapturedSteps().train_epoch)


if __name__ == "__main__":
    main()
