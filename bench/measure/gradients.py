# SPDX-License-Identifier: Apache-2.0
"""Counts the magnitudes of the gradients of BasicNet, by powers of two.

    .venv/bin/python bench/measure/gradients.py bench/results/NAME.gradients.json

Trains 50 steps in float32 on one thread of the CPU, with the network, data and optimizer of the
Python twins. After each backward it counts two groups of gradients: those of all parameters, and
those of the outputs of convolutions and linear layers. Autocast would compute both in 16 bits. A
scale that is a power of two multiplies each float32 gradient exactly, so one count serves for all
scales. Takes ten seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

BENCH = Path(__file__).resolve().parents[1]
sys.path += [str(BENCH / "peers"), str(BENCH / "records")]
from common import DATA_ROOT, RECIPES, EpochSampler, Mnist, make_loader  # noqa: E402
from record import new_record, run_program, write_record  # noqa: E402
from rows import described  # noqa: E402

RECIPE = "basicnet"
SEED = 42
STEPS = 50
PARAMETERS, ACTIVATIONS = "parameters", "activations"  # outputs of layers that have parameters


@dataclass
class Counts:
    """Of gradients: how many are 0, and how many others are in [2^e, 2^(e + 1)), by e."""

    zeros: int = 0
    bins: Counter[int] = field(default_factory=Counter)

    def add(self, gradient: Tensor) -> None:
        values = gradient.detach().numpy().ravel()
        values = values[values != 0]
        self.zeros += gradient.numel() - values.size
        _, powers = numpy.frexp(values)  # of fractions from 1/2 up to 1
        exponents, counts = numpy.unique(powers - 1, return_counts=True)
        self.bins.update(dict(zip(exponents.tolist(), counts.tolist(), strict=True)))

    def record(self) -> dict[str, Any]:
        return {"zeros": self.zeros, "bins": {str(e): self.bins[e] for e in sorted(self.bins)}}


def count_outputs(model: nn.Module, counts: Counts) -> None:
    """From now on each backward counts the gradients of the outputs of layers with parameters."""

    def watch(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        output.register_hook(counts.add)

    for layer in model.children():
        if list(layer.parameters()):
            layer.register_forward_hook(watch)


def measured(steps: int = STEPS) -> dict[str, Any]:
    torch.manual_seed(SEED)
    machine = described()  # with the load before
    recipe = RECIPES[RECIPE]
    model = recipe.model(1)
    optimizer = recipe.optimizer(model.parameters(), lr=recipe.lr, fused=True)
    images = Mnist(DATA_ROOT, True, recipe.normalize, recipe.batch_size * steps)
    loader = make_loader(images, batch_size=recipe.batch_size,
                         sampler=EpochSampler(len(images), SEED))
    counts = {PARAMETERS: Counts(), ACTIVATIONS: Counts()}
    count_outputs(model, counts[ACTIVATIONS])
    for batch, labels in loader:
        recipe.loss(model(batch), labels).backward()
        for parameter in model.parameters():
            counts[PARAMETERS].add(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    return machine | {"recipe": RECIPE, "batch": recipe.batch_size, "steps": steps,
                      "seed": SEED, "torch": torch.__version__,
                      "counts": {name: one.record() for name, one in counts.items()}}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Counts the magnitudes of gradients.")
    parser.add_argument("record", type=new_record, metavar="NAME.gradients.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums in the same order on every machine
    write_record(options.record, measured())
    return 0


if __name__ == "__main__":
    run_program(main)
