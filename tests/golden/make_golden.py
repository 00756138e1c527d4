#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of tests/golden: what PyTorch, transformers and Accelerate compute.

    .venv/bin/python tests/golden/make_golden.py            into tests/golden
    .venv/bin/python tests/golden/make_golden.py --out DIR  elsewhere, to compare

Needs the packages of requirements-test.txt. Uses one thread and PyTorch's kernels without
vector instructions, so that the same versions write the same bytes on every x86-64 CPU;
models.safetensors alone may differ in its last bits, because oneDNN picks its own kernels.
"""

from __future__ import annotations

import os

os.environ["ATEN_CPU_CAPABILITY"] = "default"  # read when torch is imported

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "peers"))  # behind this folder: both have a trainer.py

import accelerate_shards  # noqa: E402
import accelerate_zero_grad  # noqa: E402
import common  # noqa: E402
import trainer  # noqa: E402
import trainer_hooks  # noqa: E402
import trainer_optimizers  # noqa: E402

INF = float("inf")
NAN = float("nan")
TORCH_VERSION = torch.__version__.split("+")[0]
Tensors = dict[str, Tensor]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """One line an entry of `cases`, so that a changed case is one changed line."""
    cases = ",\n    ".join(json.dumps(case) for case in content.pop("cases"))
    head = json.dumps(content, indent=2).rstrip("}").rstrip()
    path.write_text(f'{head},\n  "cases": [\n    {cases}\n  ]\n}}\n', encoding="utf-8")


def write_tensors(path: Path, tensors: Tensors, **metadata: str) -> None:
    """As safetensors writes them, but with the metadata in name order: equal runs, equal files."""
    raw = save(tensors, {"torch": TORCH_VERSION, **metadata})
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
    path.write_bytes(raw[:8] + text + raw[8 + size :])


# --- samplers ---------------------------------------------------------------------------


def sampler_case(n: int, seed: int, epoch: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator)
    return {
        "n": n,
        "seed": seed,
        "epoch": epoch,
        "first": order[:5].tolist(),
        "last": order[-5:].tolist(),
        "sha256": hashlib.sha256(common.tensor_bytes(order)).hexdigest(),
    }


def samplers(path: Path) -> None:
    cases = [
        sampler_case(n, seed, epoch)
        for n in (1, 2, 10, 1000, 60000)
        for seed in (0, 42, 2**31)
        for epoch in (0, 1, 5)
    ]
    write_json(path / "samplers.json", {"torch": TORCH_VERSION, "cases": cases})


LISTED = 100  # up to this many samples, the indices themselves are recorded


def distributed_case(n: int, world_size: int, **options: Any) -> dict[str, Any]:
    epoch = options.pop("epoch")
    ranks = []
    for rank in range(world_size):
        sampler = DistributedSampler(range(n), num_replicas=world_size, rank=rank, **options)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
    case = {"n": n, "world_size": world_size, "epoch": epoch, **options}
    if n <= LISTED:
        return {**case, "indices": ranks}
    digests = [hashlib.sha256(common.tensor_bytes(torch.tensor(rank))) for rank in ranks]
    return {
        **case,
        "counts": [len(rank) for rank in ranks],
        "sha256": [digest.hexdigest() for digest in digests],
    }


def distributed_samplers(path: Path) -> None:
    shapes = [(n, world_size) for n in (1, 2, 5, 10, LISTED) for world_size in (1, 2, 3, 7)]
    cases = [
        distributed_case(*shape, shuffle=shuffle, seed=42, drop_last=drop_last, epoch=epoch)
        for shape in [*shapes, (10000, 7)]
        for drop_last in (False, True)
        for shuffle, epoch in ((False, 1), (True, 0), (True, 1), (True, 2))
    ]
    cases += [
        distributed_case(10, 3, shuffle=True, seed=seed, drop_last=False, epoch=1)
        for seed in (0, 2**31)
    ]
    write_json(path / "distributed_samplers.json", {"torch": TORCH_VERSION, "cases": cases})


def shards(path: Path) -> None:
    versions = {"torch": TORCH_VERSION, "accelerate": accelerate.__version__}
    content = {**versions, **accelerate_shards.HEAD, "cases": accelerate_shards.cases()}
    write_json(path / "accelerate_shards.json", content)


def zero_grad_orders(path: Path) -> None:
    versions = {"torch": TORCH_VERSION, "accelerate": accelerate.__version__}
    content = {**versions, "cases": accelerate_zero_grad.cases()}
    write_json(path / "accelerate_zero_grad.json", content)


def trainer_runs(path: Path) -> None:
    trainer.write(path / "trainer.json")


def trainer_cases(path: Path) -> None:
    versions = {"torch": TORCH_VERSION, "transformers": transformers.__version__}
    content = {**versions, **trainer_optimizers.HEAD, "cases": trainer_optimizers.cases()}
    write_json(path / "trainer_optimizers.json", content)


def trainer_calls(path: Path) -> None:
    versions = {"torch": TORCH_VERSION, "transformers": transformers.__version__}
    write_json(path / "trainer_hooks.json", {**versions, **trainer_hooks.content()})


# --- learning rates ---------------------------------------------------------------------

STEPS = 40  # the length of every schedule
AFTER_END = 5  # and how many steps past its end are recorded


def schedule_case(name: str, base_lr: float, **options: Any) -> dict[str, Any]:
    """lr[k] is the rate in force after k calls of scheduler.step()."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=base_lr)
    factory = getattr(transformers, name, None) or getattr(torch.optim.lr_scheduler, name)
    scheduler = factory(optimizer, **options)
    rates = []
    for _ in range(STEPS + AFTER_END):
        rates.append(scheduler.get_last_lr()[0].hex())
        optimizer.step()
        scheduler.step()
    return {
        "schedule": name,
        "base_lr": base_lr.hex(),
        "options": options,
        "lr": rates[:STEPS],
        "after_end": rates[STEPS:],
    }


def further_schedules(base_lr: float) -> list[dict[str, Any]]:
    """(warm-up, length): with and without, short, ending early, all warm-up, more than all."""
    shapes = [(0, STEPS), (5, STEPS), (1, 7), (0, 1), (13, 33), (9, 9), (12, 8)]
    wanted: list[tuple[str, dict[str, Any]]] = []
    for warmup, length in shapes:
        steps = {"num_warmup_steps": warmup, "num_training_steps": length}
        wanted.append(("get_linear_schedule_with_warmup", steps))
        for cycles in (1.0, 2.7):
            wanted.append(("get_cosine_schedule_with_warmup", steps | {"num_cycles": cycles}))
        for cycles in (1, 3):
            wanted.append(("get_cosine_with_hard_restarts_schedule_with_warmup",
                           steps | {"num_cycles": cycles}))
        if warmup != length:  # that divides by zero
            for decay in ({}, {"lr_end": 1e-6, "power": 0.7}, {"lr_end": 0.0, "power": 2}):
                wanted.append(("get_polynomial_decay_schedule_with_warmup", steps | decay))
        wanted.append(("get_constant_schedule_with_warmup", {"num_warmup_steps": warmup}))
        for scale in ({}, {"timescale": 70}):
            wanted.append(("get_inverse_sqrt_schedule", {"num_warmup_steps": warmup} | scale))
    return [schedule_case(name, base_lr, **options) for name, options in wanted]


PLATEAU_METRICS = 48  # evaluations of each case
PLATEAU_LRS = (1e-1, 3e-3)  # of two parameter groups
PLATEAUS: list[dict[str, Any]] = [
    {},
    {"patience": 2},
    {"patience": 0, "factor": 0.5, "min_lr": 1e-3},
    {"patience": 1, "cooldown": 3, "factor": 0.3},
    {"patience": 1, "cooldown": 1, "threshold": 0.1},
    {"patience": 2, "threshold": 0.05, "threshold_mode": "abs"},
    {"mode": "max", "patience": 1, "factor": 0.7},
    {"mode": "max", "patience": 0, "threshold": 0.02, "threshold_mode": "abs", "cooldown": 2},
    {"patience": 0, "factor": 0.9, "eps": 1e-3},
]


def plateau_metrics(mode: str) -> list[float]:
    """Better at first, then level, with numbers that are none among them."""
    noise = torch.randn(PLATEAU_METRICS, dtype=torch.float64)
    level = torch.arange(PLATEAU_METRICS, dtype=torch.float64).clamp(max=15)
    metrics = ((0.1 * noise - level / 10) * (-1 if mode == "max" else 1)).tolist()
    metrics[20], metrics[25] = NAN, INF if mode == "min" else -INF
    return metrics


def plateau_case(options: dict[str, Any]) -> dict[str, Any]:
    """lr[k][group], best[k] and so on after k calls of scheduler.step(metric)."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in PLATEAU_LRS]
    optimizer = torch.optim.SGD(groups)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    metrics = plateau_metrics(options.get("mode", "min"))
    rates, best, bad, cooldown = [], [], [], []
    for metric in (None, *metrics):
        if metric is not None:
            scheduler.step(metric)
        rates.append([group["lr"].hex() for group in optimizer.param_groups])
        best.append(float(scheduler.best).hex())
        bad.append(scheduler.num_bad_epochs)
        cooldown.append(scheduler.cooldown_counter)
    texts = [metric.hex() for metric in metrics]
    return {"options": options, "metrics": texts, "lr": rates, "best": best,
            "num_bad_epochs": bad, "cooldown_counter": cooldown}


def plateaus(path: Path) -> None:
    torch.manual_seed(0)
    content = {"torch": TORCH_VERSION, "cases": [plateau_case(options) for options in PLATEAUS]}
    write_json(path / "reduce_lr_on_plateau.json", content)


def schedules(path: Path) -> None:
    cases = []
    for base_lr in (1e-3, 5e-5):
        for step_size in (3, 30):
            cases.append(schedule_case("StepLR", base_lr, step_size=step_size, gamma=0.1))
        for warmup in (0, 5):
            length = {"num_warmup_steps": warmup, "num_training_steps": STEPS}
            cases.append(schedule_case("get_linear_schedule_with_warmup", base_lr, **length))
            cases.append(
                schedule_case("get_cosine_schedule_with_warmup", base_lr, **length, num_cycles=0.5)
            )
        cases.append(schedule_case("get_constant_schedule", base_lr))
    cases += further_schedules(5e-5)
    versions = {"torch": TORCH_VERSION, "transformers": transformers.__version__}
    write_json(path / "schedulers.json", {**versions, "cases": cases})


# --- optimizers -------------------------------------------------------------------------

SIZES = (1, 17, 1000)
KEPT_STEPS = (1, 2, 10)
OPTIMIZERS = {
    "adamw_default": (torch.optim.AdamW, {"lr": 1e-3}),
    "adamw_no_decay": (torch.optim.AdamW, {"lr": 5e-5, "weight_decay": 0.0}),
    "adamw_betas": (
        torch.optim.AdamW,
        {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    ),
    "sgd_plain": (torch.optim.SGD, {"lr": 1e-4}),
    "sgd_decay": (torch.optim.SGD, {"lr": 1e-2, "weight_decay": 5e-4}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "sgd_dampening": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1}),
    "sgd_nesterov": (
        torch.optim.SGD,
        {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
    ),
    "adam_default": (torch.optim.Adam, {"lr": 1e-3}),
    "adam_decay": (
        torch.optim.Adam,
        {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    ),
    "adagrad_default": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adagrad_decay": (
        torch.optim.Adagrad,
        {
            "lr": 1e-1,
            "lr_decay": 0.03,
            "weight_decay": 5e-2,
            "initial_accumulator_value": 0.1,
            "eps": 1e-6,
        },
    ),
    "rmsprop_default": (torch.optim.RMSprop, {"lr": 1e-2}),
    "rmsprop_momentum": (torch.optim.RMSprop, {"lr": 1e-3, "alpha": 0.9, "momentum": 0.9}),
    "rmsprop_centered": (torch.optim.RMSprop, {"lr": 1e-2, "eps": 1e-6, "centered": True}),
    "rmsprop_all": (
        torch.optim.RMSprop,
        {"lr": 1e-3, "alpha": 0.9, "weight_decay": 5e-2, "momentum": 0.5, "centered": True},
    ),
}
STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum", "square_avg", "grad_avg")


def is_fused(name: str) -> bool:
    return OPTIMIZERS[name][0] is not torch.optim.RMSprop  # it has no fused kernel


def make_optimizer(name: str, parameters: list[Any]) -> torch.optim.Optimizer:
    kind, options = OPTIMIZERS[name]
    implementation = {"fused": True} if is_fused(name) else {"foreach": False}
    return kind(parameters, **implementation, **options)


def optimizer_case(name: str, initial: list[Tensor], gradients: list[Tensor]) -> Tensors:
    parameters = [nn.Parameter(tensor.clone()) for tensor in initial]
    optimizer = make_optimizer(name, parameters)
    tensors: Tensors = {}
    for step in range(1, max(KEPT_STEPS) + 1):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient[step - 1].clone()
        optimizer.step()
        if step in KEPT_STEPS:
            for i, parameter in enumerate(parameters):
                tensors[f"{name}.step{step}.param{i}"] = parameter.detach().clone()
    for i, parameter in enumerate(parameters):
        for key in STATES:
            if optimizer.state[parameter].get(key) is not None:
                tensors[f"{name}.step{step}.{key}{i}"] = optimizer.state[parameter][key].clone()
    return tensors


GRAD_SCALE = 1000.0  # no power of two: dividing by it rounds
SKIPPED_STEPS = (3, 4, 8)  # steps whose gradients are said to be inf or NaN


def scaled_step(optimizer: torch.optim.Optimizer, skipped: bool) -> None:
    """As GradScaler calls a fused optimizer: it hands over two attributes."""
    optimizer.grad_scale = torch.tensor(GRAD_SCALE)
    optimizer.found_inf = torch.tensor(float(skipped))
    optimizer.step()


def scaled_plain_step(optimizer: torch.optim.Optimizer, skipped: bool) -> None:
    """A GradScaler and an optimizer that is not fused."""
    scaler = torch.amp.GradScaler("cpu", init_scale=GRAD_SCALE)
    scaler.scale(torch.zeros(1))
    if skipped:
        optimizer.param_groups[0]["params"][0].grad.fill_(INF)
    scaler.step(optimizer)


def scaled_case(name: str, initial: list[Tensor], gradients: list[Tensor]) -> Tensors:
    parameters = [nn.Parameter(tensor.clone()) for tensor in initial]
    optimizer = make_optimizer(name, parameters)
    take = scaled_step if is_fused(name) else scaled_plain_step
    last = max(KEPT_STEPS)
    for step in range(1, last + 1):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient[step - 1] * GRAD_SCALE
        take(optimizer, step in SKIPPED_STEPS)
    return {
        f"{name}.scaled.step{last}.param{i}": parameter.detach()
        for i, parameter in enumerate(parameters)
    }


GROUPED = ("adamw_betas", "sgd_nesterov", "adam_decay", "adagrad_decay", "rmsprop_all")
SECOND_GROUP = {"lr": 5e-3, "weight_decay": 0.02}  # the other options are those of the first


def grouped_case(name: str, initial: list[Tensor], gradients: list[Tensor]) -> Tensors:
    """The last parameter in a group of its own."""
    parameters = [nn.Parameter(tensor.clone()) for tensor in initial]
    groups = [{"params": parameters[:-1]}, {"params": parameters[-1:], **SECOND_GROUP}]
    optimizer = make_optimizer(name, groups)
    last = max(KEPT_STEPS)
    for step in range(last):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient[step].clone()
        optimizer.step()
    return {
        f"{name}.groups.step{last}.param{i}": parameter.detach()
        for i, parameter in enumerate(parameters)
    }


def optimizers(path: Path) -> None:
    torch.manual_seed(0)
    initial = [torch.randn(size) for size in SIZES]
    gradients = [torch.randn(max(KEPT_STEPS), size) for size in SIZES]
    tensors = {f"initial{i}": tensor for i, tensor in enumerate(initial)}
    tensors |= {f"gradients{i}": tensor for i, tensor in enumerate(gradients)}
    for name in OPTIMIZERS:
        tensors |= optimizer_case(name, initial, gradients)
        tensors |= scaled_case(name, initial, gradients)
    for name in GROUPED:
        tensors |= grouped_case(name, initial, gradients)
    options = {name: json.dumps(options) for name, (_, options) in OPTIMIZERS.items()}
    scaling = json.dumps({"grad_scale": GRAD_SCALE, "skipped_steps": SKIPPED_STEPS})
    second = json.dumps(SECOND_GROUP)
    write_tensors(path / "optimizers.safetensors", tensors, scaling=scaling, second_group=second,
                  **options)


# --- clipping ---------------------------------------------------------------------------

CLIP_NORMS = {  # max_norm, norm_type
    "two": (1.0, 2.0),
    "one": (3.7, 1.0),
    "half": (5.0, 0.5),
    "largest": (0.3, INF),
    "small_enough": (1e6, 2.0),
}
CLIP_VALUE = 0.7


def clipped(gradients: list[Tensor], clip: Callable[[list[Tensor]], Tensor | None]) -> Tensors:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient.clone()
    norm = clip(parameters)
    tensors = {f"gradient{i}": parameter.grad for i, parameter in enumerate(parameters)}
    return tensors if norm is None else {**tensors, "norm": norm}


def clip_grad(path: Path) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(size) for size in SIZES]
    cases = {
        name: clipped(gradients, lambda p, o=options: nn.utils.clip_grad_norm_(p, *o))
        for name, options in CLIP_NORMS.items()
    }
    cases["value"] = clipped(gradients, lambda p: nn.utils.clip_grad_value_(p, CLIP_VALUE))
    for name, bad in (("inf", INF), ("nan", NAN)):
        worse = [*gradients[:-1], gradients[-1].clone()]
        worse[-1][3] = bad
        cases[name] = clipped(worse, lambda p: nn.utils.clip_grad_norm_(p, 1.0))
    tensors = {f"gradient{i}": gradient for i, gradient in enumerate(gradients)}
    for case, values in cases.items():
        tensors |= {f"{case}.{name}": tensor.clone() for name, tensor in values.items()}
    norms = json.dumps({name: [str(number) for number in o] for name, o in CLIP_NORMS.items()})
    write_tensors(path / "clip_grad.safetensors", tensors, norms=norms, value=str(CLIP_VALUE))


# --- models -----------------------------------------------------------------------------


def model_case(name: str) -> tuple[Tensors, str]:
    recipe = common.RECIPES[name]
    torch.manual_seed(42)
    model = recipe.model().eval()
    data = common.Mnist(common.DATA_ROOT, train=False, normalize=recipe.normalize, limit=8)
    images, labels = torch.utils.data.default_collate([data[i] for i in range(len(data))])
    output = model(images)
    loss = recipe.loss(output, labels)
    loss.backward()
    tensors = {"input": images, "labels": labels, "output": output.detach(), "loss": loss.detach()}
    for parameter_name, parameter in model.named_parameters():
        tensors[f"gradient_norm.{parameter_name}"] = parameter.grad.double().norm()
    prefixed = {f"{name}.{key}": tensor for key, tensor in tensors.items()}
    return prefixed, common.weights_sha256(model.state_dict())


def models(path: Path) -> None:
    tensors: Tensors = {}
    hashes = {}
    for name in common.RECIPES:
        case, hashes[f"{name}.weights_sha256"] = model_case(name)
        tensors |= case
    write_tensors(path / "models.safetensors", tensors, seed="42", **hashes)


# --- loss heads -------------------------------------------------------------------------


def loss_heads(path: Path) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(6, 10)
    labels = torch.tensor([0, 9, 3, 3, 5, 1])
    tensors = {"logits": logits, "labels": labels}
    heads = {
        "nll": lambda x: (F.log_softmax(x, dim=1), F.nll_loss),
        "cross_entropy": lambda x: (x, F.cross_entropy),
    }
    for name, head in heads.items():
        leaf = logits.clone().requires_grad_()
        output, loss_function = head(leaf)
        loss = loss_function(output, labels)
        loss.backward()
        tensors[f"{name}.output"] = output.detach().clone()
        tensors[f"{name}.loss"] = loss.detach()
        tensors[f"{name}.gradient"] = leaf.grad
    write_tensors(path / "loss_heads.safetensors", tensors)


# --- BatchNorm --------------------------------------------------------------------------


def batch_norm_case(name: str, momentum: float | None, given: Tensors) -> Tensors:
    layer = nn.BatchNorm2d(3, momentum=momentum)
    layer.weight.data.copy_(given["weight"])
    layer.bias.data.copy_(given["bias"])
    tensors: Tensors = {}
    for step in (1, 2, 3):
        layer.zero_grad()
        leaf = given[f"input{step}"].clone().requires_grad_()
        output = layer(leaf)
        output.backward(given["output_gradient"])
        if step == 2:
            continue
        values = {
            "output": output.detach(),
            "running_mean": layer.running_mean.clone(),
            "running_var": layer.running_var.clone(),
            "num_batches_tracked": layer.num_batches_tracked.clone(),
            "input_gradient": leaf.grad,
            "weight_gradient": layer.weight.grad.clone(),
            "bias_gradient": layer.bias.grad.clone(),
        }
        tensors |= {f"{name}.step{step}.{key}": value for key, value in values.items()}
    tensors[f"{name}.eval_output"] = layer.eval()(given["input1"]).detach()
    return tensors


def batch_norm(path: Path) -> None:
    torch.manual_seed(0)
    shape = (4, 3, 5, 5)
    given = {f"input{step}": 2 * torch.randn(shape) + 1 for step in (1, 2, 3)}
    given |= {"weight": torch.rand(3) + 0.5, "bias": torch.randn(3)}
    given["output_gradient"] = torch.randn(shape)
    tensors = dict(given)
    tensors |= batch_norm_case("momentum_0.1", 0.1, given)
    tensors |= batch_norm_case("momentum_none", None, given)
    write_tensors(path / "batch_norm.safetensors", tensors)


# --- GradScaler -------------------------------------------------------------------------

SCALER_SIZES = (3, 17)  # of the parameters
SCALER_STEPS = 60
SCALER_KEPT_STEPS = (1, 2, 3, 10, 30, 60)
FUSED_ADAMW = {"kind": "AdamW", "lr": 1e-2, "fused": True}
FUSED_MOMENTUM = {"kind": "SGD", "lr": 1e-2, "momentum": 0.9, "fused": True}
PLAIN_SGD = {"kind": "SGD", "lr": 1e-2, "foreach": False, "fused": False}
POWERS_OF_TWO = {"growth_interval": 5}
ODD_NUMBERS = {  # divisions by the scale round, and its product with a gradient too
    "init_scale": 1000.0,
    "growth_factor": 3.0,
    "backoff_factor": 0.3,
    "growth_interval": 4,
}
HUGE = 1e34  # finite, until it is multiplied by the scale

# `bad`: (step, loss, parameter, value), a target that makes gradients inf or NaN. No run with
# momentum skips its first step: Python then leaves the momentum as it finds the memory.
SCALER_RUNS: dict[str, dict[str, Any]] = {
    "adamw": {
        "optimizers": [FUSED_ADAMW],
        "scaler": POWERS_OF_TWO,
        "bad": [(1, 0, 0, INF), (2, 0, 1, NAN), (9, 0, 1, -INF), (30, 0, 0, HUGE), (31, 0, 1, INF)],
    },
    "sgd_momentum": {
        "optimizers": [FUSED_MOMENTUM],
        "scaler": ODD_NUMBERS,
        "bad": [(2, 0, 0, NAN), (3, 0, 0, INF), (20, 0, 1, INF), (45, 0, 1, HUGE)],
    },
    "sgd": {
        "optimizers": [PLAIN_SGD],
        "scaler": ODD_NUMBERS,
        "bad": [(1, 0, 1, NAN), (13, 0, 0, -INF), (14, 0, 1, -INF), (33, 0, 0, HUGE)],
    },
    "two_losses": {
        "optimizers": [FUSED_ADAMW],
        "scaler": ODD_NUMBERS,
        "losses": 2,
        "bad": [(2, 0, 0, INF), (7, 1, 1, NAN), (8, 1, 0, INF), (25, 0, 1, NAN), (25, 1, 1, INF)],
    },
    "two_optimizers": {  # a parameter each
        "optimizers": [FUSED_ADAMW, FUSED_MOMENTUM],
        "scaler": POWERS_OF_TWO,
        "bad": [(1, 0, 0, INF), (6, 0, 1, NAN), (7, 0, 0, INF), (21, 0, 0, NAN), (21, 0, 1, INF)],
    },
    "clipped_adamw": {
        "optimizers": [FUSED_ADAMW],
        "scaler": ODD_NUMBERS,
        "clip": 1.0,
        "bad": [(1, 0, 1, INF), (10, 0, 0, NAN), (40, 0, 0, HUGE)],
    },
    "clipped_sgd": {
        "optimizers": [PLAIN_SGD],
        "scaler": ODD_NUMBERS,
        "clip": 1.0,
        "bad": [(1, 0, 1, INF), (10, 0, 0, NAN), (40, 0, 0, HUGE)],
    },
}


def scaler_targets(run: dict[str, Any]) -> list[list[Tensor]]:
    """targets[loss][parameter] has a row for each step: its last value is the bad one."""
    targets = [
        [torch.randn(SCALER_STEPS, size) for size in SCALER_SIZES]
        for _ in range(run.get("losses", 1))
    ]
    for step, loss, parameter, value in run["bad"]:
        targets[loss][parameter][step - 1, -1] = value
    return targets


def scaler_optimizers(
    run: dict[str, Any], parameters: list[nn.Parameter]
) -> list[torch.optim.Optimizer]:
    owned = [parameters] if len(run["optimizers"]) == 1 else [[one] for one in parameters]
    made = []
    for parts, options in zip(owned, run["optimizers"]):
        arguments = {key: value for key, value in options.items() if key != "kind"}
        made.append(getattr(torch.optim, options["kind"])(parts, **arguments))
    return made


def scaler_iteration(
    run: dict[str, Any],
    scaler: torch.amp.GradScaler,
    optimizers: list[torch.optim.Optimizer],
    parameters: list[nn.Parameter],
    targets: list[list[Tensor]],
) -> list[bool]:
    """One iteration; targets[loss][parameter]. Returns for each optimizer: was it skipped?"""
    losses = [
        sum(F.mse_loss(one, target, reduction="sum") for one, target in zip(parameters, row))
        for row in targets
    ]
    for loss in scaler.scale(losses):
        loss.backward()
    before = [parameter.detach().clone() for parameter in parameters]
    for optimizer in optimizers:
        if "clip" in run:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, run["clip"])
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
    same = [torch.equal(old, new) for old, new in zip(before, parameters)]
    return same if len(optimizers) > 1 else [all(same)]


def scaler_run(name: str, initial: list[Tensor]) -> Tensors:
    run = SCALER_RUNS[name]
    parameters = [nn.Parameter(tensor.clone()) for tensor in initial]
    optimizers = scaler_optimizers(run, parameters)
    scaler = torch.amp.GradScaler("cpu", **run["scaler"])
    targets = scaler_targets(run)
    tensors = {
        f"{name}.targets{loss}.{i}": target
        for loss, row in enumerate(targets)
        for i, target in enumerate(row)
    }
    states, skipped = [], []
    for step in range(1, SCALER_STEPS + 1):
        now = [[target[step - 1] for target in row] for row in targets]
        skipped.append(scaler_iteration(run, scaler, optimizers, parameters, now))
        states.append(scaler.state_dict())
        if step in SCALER_KEPT_STEPS:
            for i, parameter in enumerate(parameters):
                tensors[f"{name}.step{step}.param{i}"] = parameter.detach().clone()
    skipped_steps = {step for step, flags in enumerate(skipped, 1) if any(flags)}
    assert skipped_steps == {bad[0] for bad in run["bad"]}, name
    scales = [state["scale"] for state in states]
    tensors[f"{name}.scale"] = torch.tensor(scales, dtype=torch.float64)
    tensors[f"{name}.growth_tracker"] = torch.tensor([x["_growth_tracker"] for x in states])
    tensors[f"{name}.skipped"] = torch.tensor(skipped, dtype=torch.uint8)
    return tensors


def grad_scaler(path: Path) -> None:
    torch.manual_seed(0)
    initial = [torch.randn(size) for size in SCALER_SIZES]
    tensors = {f"initial{i}": tensor for i, tensor in enumerate(initial)}
    for name in SCALER_RUNS:
        tensors |= scaler_run(name, initial)
    wanted = ("optimizers", "scaler", "clip")
    runs = {
        name: json.dumps({key: run[key] for key in wanted if key in run})
        for name, run in SCALER_RUNS.items()
    }
    state = torch.amp.GradScaler("cpu").state_dict()
    write_tensors(path / "grad_scaler.safetensors", tensors, state_dict=json.dumps(state), **runs)


# --- autocast ---------------------------------------------------------------------------

Operations = dict[str, Callable[[], Tensor]]


def matrix_operations(x: Tensor) -> Operations:
    """x: [4, 4]. What is not x has float32, as weights have."""
    weight, bias, batch, single = torch.ones(4, 4), torch.ones(4), x[None], torch.ones(1, 4, 4)
    double = weight.double()
    return {
        "linear": lambda: F.linear(x, weight, bias),
        "mm": lambda: torch.mm(x, weight),
        "matmul": lambda: torch.matmul(batch, weight),
        "bmm": lambda: torch.bmm(batch, single),
        "addmm": lambda: torch.addmm(bias, x, weight),
        "baddbmm": lambda: torch.baddbmm(batch, batch, single),
        "einsum": lambda: torch.einsum("ij,jk->ik", x, weight),
        "prelu": lambda: F.prelu(x, torch.ones(1)),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(batch, batch, batch),
        "mm_of_float64": lambda: torch.mm(double, double),
        "add_mixed": lambda: x + weight,
        "cat_mixed": lambda: torch.cat([x, weight]),
        "stack_mixed": lambda: torch.stack([x, weight]),
    }


def layer_operations(x: Tensor) -> Operations:
    images, ones = x.reshape(1, 1, 4, 4), torch.ones(1)
    norm = (torch.zeros(1), torch.ones(1), ones, ones)
    return {
        "conv1d": lambda: F.conv1d(x[None], torch.ones(4, 4, 3)),
        "conv2d": lambda: F.conv2d(images, torch.ones(1, 1, 3, 3), ones),
        "conv_transpose2d": lambda: F.conv_transpose2d(images, torch.ones(1, 1, 3, 3)),
        "relu": lambda: F.relu(x),
        "gelu": lambda: F.gelu(x),
        "max_pool2d": lambda: F.max_pool2d(images, 2),
        "avg_pool2d": lambda: F.avg_pool2d(images, 2),
        "batch_norm": lambda: F.batch_norm(images, *norm, training=True),
        "batch_norm_eval": lambda: F.batch_norm(images, *norm, training=False),
        "layer_norm": lambda: F.layer_norm(x, (4,), torch.ones(4), torch.ones(4)),
        "dropout": lambda: F.dropout(x, 0.5, training=True),
        "flatten": lambda: images.flatten(1),
    }


def loss_operations(x: Tensor) -> Operations:
    labels = torch.tensor([0, 1, 2, 3])
    return {
        "softmax": lambda: F.softmax(x, dim=1),
        "log_softmax": lambda: F.log_softmax(x, dim=1),
        "nll_loss": lambda: F.nll_loss(x, labels),
        "cross_entropy": lambda: F.cross_entropy(x, labels),
        "mse_loss": lambda: F.mse_loss(x, torch.ones(4, 4)),
        "l1_loss": lambda: F.l1_loss(x, torch.ones(4, 4)),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(x, x),
        "sum": lambda: x.sum(),
        "mean": lambda: x.mean(),
        "prod": lambda: x.prod(),
        "exp": lambda: x.exp(),
        "norm": lambda: x.norm(),
    }


def short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def autocast_dtypes(dtype: torch.dtype, input_dtype: torch.dtype) -> dict[str, str]:
    """The dtype of each operation's output under autocast, for an x of `input_dtype`."""
    x = torch.full((4, 4), 0.5, dtype=input_dtype)
    operations = matrix_operations(x) | layer_operations(x) | loss_operations(x)
    with torch.autocast("cpu", dtype):
        return {name: short_name(operation().dtype) for name, operation in operations.items()}


def autocast(path: Path) -> None:
    cases = [
        {
            "autocast": short_name(dtype),
            "input": short_name(given),
            "outputs": autocast_dtypes(dtype, given),
        }
        for dtype in (torch.bfloat16, torch.float16)
        for given in (torch.float32, dtype)
    ]
    write_json(path / "autocast.json", {"torch": TORCH_VERSION, "cases": cases})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "golden", help="folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    makers = (samplers, distributed_samplers, schedules, plateaus, optimizers, clip_grad, models)
    makers += (loss_heads, batch_norm, grad_scaler, autocast, shards, trainer_cases, trainer_runs)
    makers += (trainer_calls, zero_grad_orders)
    for make in makers:
        make(out)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:7} {file}")


if __name__ == "__main__":
    main()
