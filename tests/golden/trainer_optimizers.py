# SPDX-License-Identifier: Apache-2.0
"""Which optimizer and schedule the Trainer of transformers makes: trainer_optimizers.json.

Every case comes out of a real Trainer: of its create_optimizer, or of its create_scheduler for a
run of STEPS steps.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import common

STEPS = 60
LEARNING_RATE = 3e-4
OPTIONS = {
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adagrad": ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
}


class Odd(nn.Module):
    """Names that are like those of normalisation layers, and layers that are one."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("scale", "my_norm", "frozen"):
            self.register_parameter(name, nn.Parameter(torch.ones(1), name != "frozen"))
        for name in ("norm", "normal", "pre_norm", "RMSNorm_1", "LayerNorms", "biased",
                     "groupnorm"):
            self.add_module(name, nn.Linear(2, 2))
        self.plain = nn.LayerNorm(2)
        self.block = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm2d(2))
        self.block.add_module("norm", nn.Linear(2, 2, bias=False))
        self.block.add_module("norm1", nn.Linear(2, 2, bias=False))
        self.tied = self.normal


MODELS = {"basicnet": common.BasicNet, "convnet": common.ConvNet, "odd": Odd}


def trainer(model: str, **options: Any) -> Trainer:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, use_cpu=True, report_to="none",
                                      learning_rate=LEARNING_RATE, **options)
        return Trainer(MODELS[model](), arguments, eval_dataset=[])


def optimizer_case(model: str, **options: Any) -> dict[str, Any]:
    made = trainer(model, **options)
    optimizer = made.create_optimizer()
    kind = type(optimizer).__name__
    names = {parameter: name for name, parameter in made.model.named_parameters()}
    groups = [{key: group[key] for key in OPTIONS[kind]}
              | {"params": [names[parameter] for parameter in group["params"]]}
              for group in optimizer.param_groups]
    return {"model": model, "arguments": options, "optimizer": kind, "groups": groups}


def scheduler_case(name: str, kwargs: dict[str, Any], warmup_steps: float) -> dict[str, Any]:
    """lr[k] is in force after k steps; a plateau takes the metric 1 / (1 + k) up to k = 20."""
    options = {"lr_scheduler_type": name, "warmup_steps": warmup_steps}
    made = trainer("convnet", lr_scheduler_kwargs=kwargs, eval_strategy="epoch", **options)
    made.create_optimizer()
    scheduler = made.create_scheduler(STEPS)
    rates = []
    for step in range(STEPS + 1):
        rates.append(made.optimizer.param_groups[0]["lr"].hex())
        made.optimizer.step()
        scheduler.step(*([1 / (1 + min(step, 20))] if name == "reduce_lr_on_plateau" else []))
    return {"arguments": {**options, "lr_scheduler_kwargs": kwargs}, "lr": rates}


SCHEDULES: dict[str, list[dict[str, Any]]] = {
    "linear": [{}],
    "cosine": [{}, {"num_cycles": 1.5}],
    "cosine_with_restarts": [{}, {"num_cycles": 3}],
    "polynomial": [{}, {"lr_end": 1e-5, "power": 2.0}],
    "constant": [{}],
    "constant_with_warmup": [{}],
    "inverse_sqrt": [{}, {"timescale": 30}],
    "reduce_lr_on_plateau": [
        {},
        {"mode": "max", "factor": 0.5, "patience": 1, "threshold": 0.01, "threshold_mode": "abs",
         "cooldown": 2, "min_lr": 1e-5, "eps": 1e-7},
    ],
}


def content() -> dict[str, Any]:
    cases = [optimizer_case(model, weight_decay=0.1) for model in MODELS]
    cases += [optimizer_case("basicnet", optim=optim, weight_decay=0.1)
              for optim in ("adamw_torch_fused", "sgd", "adagrad", "rmsprop")]
    cases.append(optimizer_case("basicnet", optim="adamw_torch", adam_beta1=0.8, adam_beta2=0.95,
                                adam_epsilon=1e-6))
    cases += [scheduler_case(name, kwargs, warmup) for name, all_kwargs in SCHEDULES.items()
              for kwargs in all_kwargs for warmup in (0, 7, 0.12)]
    return {"training_steps": STEPS, "learning_rate": LEARNING_RATE.hex(), "cases": cases}
