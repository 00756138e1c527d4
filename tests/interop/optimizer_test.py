# SPDX-License-Identifier: Apache-2.0
"""Saved states of optimizers, schedulers and generators go from C++ to Python and back.

Of a run of ten steps, Python takes four, C++ three, and Python the last ones: there and at the end
it has the weights and states of a run of Python alone, bit for bit. Both take the same gradients
from a file.
"""
from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["ATEN_CPU_CAPABILITY"] = "default"  # before torch: the layouts differ, see state_helper

import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, StepLR  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import run  # noqa: E402
from tests.support.twins import PEERS  # noqa: E402

sys.path.insert(0, str(PEERS))
from common import ConvNet  # noqa: E402

STEPS = 10
TO_CPP, TO_PYTHON = 4, 7  # steps taken when the language changes
Make = tuple[Callable[[nn.Module], Optimizer], Callable[[Optimizer], LRScheduler]]


def groups(kind: type[Optimizer], lr: float,
           **options: Any) -> Callable[[nn.Module], Optimizer]:
    """Biases at half the rate and without weight decay."""
    def make(model: nn.Module) -> Optimizer:
        weights = [p for name, p in model.named_parameters() if not name.endswith("bias")]
        biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
        second = {"params": biases, "lr": lr / 2, "weight_decay": 0.0}
        return kind([{"params": weights}, second], lr=lr, fused=True, **options)
    return make


def one(kind: type[Optimizer], **options: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda model: kind(model.parameters(), **options)


def step_lr(optimizer: Optimizer) -> LRScheduler:
    return StepLR(optimizer, step_size=3, gamma=0.3)


def linear(optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, lambda step: step / 2 if step < 2 else (STEPS - step) / (STEPS - 2))


# The same as in tests/optim/state_helper.cpp.
WAYS: dict[str, Make] = {
    "adamw": (one(AdamW, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.05, fused=True),
              linear),
    "adamw_groups": (groups(AdamW, 0.02), step_lr),
    "adam": (groups(Adam, 0.02, weight_decay=0.1), linear),
    "adagrad": (groups(Adagrad, 0.1, lr_decay=0.1, weight_decay=0.1,
                       initial_accumulator_value=0.5), step_lr),
    "rmsprop": (one(RMSprop, lr=0.01, foreach=False), step_lr),
    "rmsprop_all": (one(RMSprop, lr=0.01, foreach=False, weight_decay=0.1, momentum=0.9,
                        centered=True), linear),
    "sgd": (one(SGD, lr=0.1, fused=True), step_lr),
    "momentum": (one(SGD, lr=0.1, fused=True, momentum=0.9, dampening=0.1, weight_decay=0.01),
                 step_lr),
    "nesterov": (one(SGD, lr=0.1, fused=True, momentum=0.9, nesterov=True), linear),
}
OPTIONS = {AdamW: ("lr", "betas", "eps", "weight_decay"),
           Adam: ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"),
           SGD: ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
           Adagrad: ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
           RMSprop: ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")}


def save_optimizer(optimizer: Optimizer, model: nn.Module, path: Path) -> None:
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [{key: group[key] for key in OPTIONS[type(optimizer)]}
              | {"params": [names[parameter] for parameter in group["params"]]}
              for group in optimizer.param_groups]
    tensors = {f"{names[parameter]}.{key}": value for parameter, state in optimizer.state.items()
               for key, value in state.items() if value is not None}
    save_file(tensors, path, {"groups": json.dumps(groups)})


def load_optimizer(optimizer: Optimizer, path: Path) -> None:
    """As docs/formats.md shows it."""
    with safe_open(path, "pt") as file:
        groups = json.loads(file.metadata()["groups"])
    state: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(path).items():
        parameter, key = name.rsplit(".", 1)
        state.setdefault(parameter, {})[key] = tensor
    names = [name for group in groups for name in group["params"]]
    own = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({
        "state": {i: state[name] for i, name in enumerate(names) if name in state},
        "param_groups": [{**mine, **group, "params": mine["params"]}
                         for mine, group in zip(own, groups, strict=True)],
    })


def save_scheduler(scheduler: LRScheduler, path: Path) -> None:
    state = scheduler.state_dict()
    path.write_text(json.dumps({"last_epoch": state["last_epoch"], "base_lrs": state["base_lrs"],
                                "last_lr": state["_last_lr"]}))


def load_scheduler(scheduler: LRScheduler, path: Path) -> None:
    """As docs/formats.md shows it."""
    state = json.loads(path.read_text())
    state["_last_lr"] = state.pop("last_lr")
    scheduler.load_state_dict({**scheduler.state_dict(), **state})


class States(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ladder-states-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.weights = self.folder / "weights.safetensors"
        self.optimizer = self.folder / "optimizer.safetensors"
        self.scheduler = self.folder / "scheduler.json"

    def helper(self, *arguments: object) -> None:
        done = run("state_helper", *arguments)
        self.assertEqual((done.code, done.stderr), (0, ""))

    def assert_same(self, got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        self.assertEqual(got.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertEqual(got[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(got[name], tensor), name)

    def begin(self) -> None:
        torch.manual_seed(3)
        model = ConvNet()
        save_file(model.state_dict(), self.weights)
        save_file({f"{step}.{name}": torch.randn_like(parameter) for step in range(STEPS)
                   for name, parameter in model.named_parameters()},
                  self.folder / "gradients.safetensors")

    def python(self, way: str, first: int, last: int) -> None:
        model = ConvNet()
        model.load_state_dict(load_file(self.weights))
        make_optimizer, make_scheduler = WAYS[way]
        optimizer = make_optimizer(model)
        scheduler = make_scheduler(optimizer)
        if first > 0:
            load_optimizer(optimizer, self.optimizer)
            load_scheduler(scheduler, self.scheduler)
        gradients = load_file(self.folder / "gradients.safetensors")
        for step in range(first, last):
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[f"{step}.{name}"]
            optimizer.step()
            scheduler.step()
        save_file(model.state_dict(), self.weights)
        save_optimizer(optimizer, model, self.optimizer)
        save_scheduler(scheduler, self.scheduler)

    def end(self) -> tuple[dict[str, Tensor], tuple[Any, ...]]:
        """All tensors, and the numbers beside them."""
        with safe_open(self.optimizer, "pt") as file:
            groups = json.loads(file.metadata()["groups"])
        return (load_file(self.weights) | load_file(self.optimizer),
                (groups, json.loads(self.scheduler.read_text())))

    def expect_end(self, expected: tuple[dict[str, Tensor], tuple[Any, ...]]) -> None:
        tensors, numbers = self.end()
        self.assert_same(tensors, expected[0])
        self.assertEqual(numbers, expected[1])

    def test_training_goes_on_in_the_other_language_bit_for_bit(self) -> None:
        for way in WAYS:
            with self.subTest(way):
                ends = {}
                for last in (STEPS, TO_PYTHON):
                    self.begin()
                    self.python(way, 0, last)
                    ends[last] = self.end()
                self.begin()
                self.python(way, 0, TO_CPP)
                self.helper("train", self.folder, way, TO_CPP, TO_PYTHON)
                self.expect_end(ends[TO_PYTHON])
                self.python(way, TO_PYTHON, STEPS)
                self.expect_end(ends[STEPS])

    def test_a_state_of_another_optimizer_is_refused(self) -> None:
        self.begin()
        self.python("momentum", 0, 1)
        done = run("state_helper", "train", self.folder, "adamw", 1, 2)
        self.assertEqual(done.code, 3)
        self.assertIn(f"{self.optimizer}: expected only params, lr, betas, eps, weight_decay in ",
                      done.stderr)


    def test_generators_go_on_from_each_others_state(self) -> None:
        def draw() -> dict[str, Tensor]:
            """As state_helper does."""
            values = (torch.randn(1), torch.rand(100), torch.randperm(50), torch.randn(64),
                      torch.randn(1))
            return {str(i): value for i, value in enumerate(values)}

        path = self.folder / "random.safetensors"
        torch.manual_seed(5)
        draw()
        save_file({"cpu": torch.get_rng_state()}, path)
        expected = draw()
        state = torch.get_rng_state()
        following = draw()
        self.helper("draw", self.folder)
        self.assert_same(load_file(self.folder / "drawn.safetensors"), expected)
        self.assert_same(load_file(path), {"cpu": state})
        torch.set_rng_state(load_file(path)["cpu"])
        self.assert_same(draw(), following)


if __name__ == "__main__":
    unittest.main()
