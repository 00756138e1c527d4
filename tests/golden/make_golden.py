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

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))
import tests.support.reference  # noqa: E402, F401, I001 before torch

import accelerate
import common
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

import accelerate_shards
import accelerate_zero_grad
import trainer
import trainer_hooks
import trainer_optimizers

INF = float("inf")
NAN = float("nan")
Case = dict[str, Any]
Tensors = dict[str, Tensor]


def write_json(path: Path, content: Case) -> None:
    """One line an entry of `cases`, so that a changed case is one changed line."""
    cases = ",\n    ".join(json.dumps(case) for case in content.pop("cases"))
    head = json.dumps(content, indent=2).rstrip("}").rstrip()
    path.write_text(f'{head},\n  "cases": [\n    {cases}\n  ]\n}}\n', encoding="utf-8")


def write_tensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    """As safetensors writes them, but with the metadata in name order: equal runs, equal files."""
    raw = save(tensors, metadata)
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
    path.write_bytes(raw[:8] + text + raw[8 + size :])


def numbered(name: str, tensors: list[Tensor]) -> Tensors:
    """Copies of them: name0, name1, ..."""
    return {f"{name}{i}": tensor.detach().clone() for i, tensor in enumerate(tensors)}


def sha256_of(indices: Tensor) -> str:
    return hashlib.sha256(common.tensor_bytes(indices)).hexdigest()


# --- samplers ---------------------------------------------------------------------------


def sampler_case(n: int, seed: int, epoch: int) -> Case:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch))
    return {"n": n, "seed": seed, "epoch": epoch, "first": order[:5].tolist(),
            "last": order[-5:].tolist(), "sha256": sha256_of(order)}


def samplers() -> list[Case]:
    return [sampler_case(n, seed, epoch) for n in (1, 2, 10, 1000, 60000)
            for seed in (0, 42, 2**31) for epoch in (0, 1, 5)]


LISTED = 100  # up to this many samples, the indices themselves are recorded


def distributed_case(n: int, world_size: int, epoch: int, **options: Any) -> Case:
    ranks = []
    for rank in range(world_size):
        sampler = DistributedSampler(range(n), num_replicas=world_size, rank=rank, **options)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
    case = {"n": n, "world_size": world_size, "epoch": epoch, **options}
    if n <= LISTED:
        return {**case, "indices": ranks}
    return {**case, "counts": [len(rank) for rank in ranks],
            "sha256": [sha256_of(torch.tensor(rank)) for rank in ranks]}


def distributed_samplers() -> list[Case]:
    shapes = [(n, world_size) for n in (1, 2, 5, 10, LISTED) for world_size in (1, 2, 3, 7)]
    cases = [distributed_case(*shape, epoch, shuffle=shuffle, seed=42, drop_last=drop_last)
             for shape in [*shapes, (10000, 7)] for drop_last in (False, True)
             for shuffle, epoch in ((False, 1), (True, 0), (True, 1), (True, 2))]
    return cases + [distributed_case(10, 3, 1, shuffle=True, seed=seed, drop_last=False)
                    for seed in (0, 2**31)]


# --- learning rates ---------------------------------------------------------------------

STEPS = 40  # the length of every schedule
AFTER_END = 5  # and how many steps past its end are recorded


def schedule_case(name: str, base_lr: float, **options: Any) -> Case:
    """lr[k] is the rate in force after k calls of scheduler.step()."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=base_lr)
    factory = getattr(transformers, name, None) or getattr(torch.optim.lr_scheduler, name)
    scheduler = factory(optimizer, **options)
    rates = []
    for _ in range(STEPS + AFTER_END):
        rates.append(scheduler.get_last_lr()[0].hex())
        optimizer.step()
        scheduler.step()
    return {"schedule": name, "base_lr": base_lr.hex(), "options": options, "lr": rates[:STEPS],
            "after_end": rates[STEPS:]}


def length_of(warmup: int, steps: int) -> dict[str, int]:
    return {"num_warmup_steps": warmup, "num_training_steps": steps}


def further_schedules(base_lr: float) -> list[Case]:
    """(warm-up, length): with and without, short, ending early, all warm-up, more than all."""
    shapes = [(0, STEPS), (5, STEPS), (1, 7), (0, 1), (13, 33), (9, 9), (12, 8)]
    cases = []
    for warmup, length in shapes:
        decays = [{}, {"lr_end": 1e-6, "power": 0.7}, {"lr_end": 0.0, "power": 2}]
        if warmup == length:  # polynomial decay divides by zero
            decays = []
        to_the_end = {"linear_schedule": [{}],
                      "cosine_schedule": [{"num_cycles": 1.0}, {"num_cycles": 2.7}],
                      "cosine_with_hard_restarts_schedule": [{"num_cycles": 1}, {"num_cycles": 3}],
                      "polynomial_decay_schedule": decays}
        cases += [schedule_case(f"get_{name}_with_warmup", base_lr, **length_of(warmup, length),
                                **more) for name, options in to_the_end.items() for more in options]
        for name, more in (("get_constant_schedule_with_warmup", {}),
                           ("get_inverse_sqrt_schedule", {}),
                           ("get_inverse_sqrt_schedule", {"timescale": 70})):
            cases.append(schedule_case(name, base_lr, num_warmup_steps=warmup, **more))
    return cases


def schedules() -> list[Case]:
    cases = []
    for base_lr in (1e-3, 5e-5):
        cases += [schedule_case("StepLR", base_lr, step_size=size, gamma=0.1) for size in (3, 30)]
        for warmup in (0, 5):
            length = length_of(warmup, STEPS)
            cases.append(schedule_case("get_linear_schedule_with_warmup", base_lr, **length))
            cases.append(schedule_case("get_cosine_schedule_with_warmup", base_lr, **length,
                                       num_cycles=0.5))
        cases.append(schedule_case("get_constant_schedule", base_lr))
    return cases + further_schedules(5e-5)


PLATEAU_METRICS = 48  # evaluations of each case
PLATEAU_LRS = (1e-1, 3e-3)  # of two parameter groups
PLATEAUS: list[Case] = [
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


def plateau_case(options: Case) -> Case:
    """lr[k][group], best[k] and so on after k calls of scheduler.step(metric)."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in PLATEAU_LRS]
    optimizer = torch.optim.SGD(groups)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    metrics = plateau_metrics(options.get("mode", "min"))
    case: Case = {"options": options, "metrics": [metric.hex() for metric in metrics], "lr": [],
                  "best": [], "num_bad_epochs": [], "cooldown_counter": []}
    for metric in (None, *metrics):
        if metric is not None:
            scheduler.step(metric)
        case["lr"].append([group["lr"].hex() for group in optimizer.param_groups])
        case["best"].append(float(scheduler.best).hex())
        for count in ("num_bad_epochs", "cooldown_counter"):
            case[count].append(getattr(scheduler, count))
    return case


def plateaus() -> list[Case]:
    return [plateau_case(options) for options in PLATEAUS]


# --- optimizers -------------------------------------------------------------------------

SIZES = (1, 17, 1000)
KEPT_STEPS = (1, 2, 10)
LAST_STEP = max(KEPT_STEPS)
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], Case]] = {
    "adamw_default": (torch.optim.AdamW, {"lr": 1e-3}),
    "adamw_no_decay": (torch.optim.AdamW, {"lr": 5e-5, "weight_decay": 0.0}),
    "adamw_betas": (torch.optim.AdamW, {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6,
                                        "weight_decay": 0.1}),
    "sgd_plain": (torch.optim.SGD, {"lr": 1e-4}),
    "sgd_decay": (torch.optim.SGD, {"lr": 1e-2, "weight_decay": 5e-4}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "sgd_dampening": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True,
                                       "weight_decay": 5e-4}),
    "adam_default": (torch.optim.Adam, {"lr": 1e-3}),
    "adam_decay": (torch.optim.Adam, {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6,
                                      "weight_decay": 0.1}),
    "adagrad_default": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adagrad_decay": (torch.optim.Adagrad, {"lr": 1e-1, "lr_decay": 0.03, "weight_decay": 5e-2,
                                            "initial_accumulator_value": 0.1, "eps": 1e-6}),
    "rmsprop_default": (torch.optim.RMSprop, {"lr": 1e-2}),
    "rmsprop_momentum": (torch.optim.RMSprop, {"lr": 1e-3, "alpha": 0.9, "momentum": 0.9}),
    "rmsprop_centered": (torch.optim.RMSprop, {"lr": 1e-2, "eps": 1e-6, "centered": True}),
    "rmsprop_all": (torch.optim.RMSprop, {"lr": 1e-3, "alpha": 0.9, "weight_decay": 5e-2,
                                          "momentum": 0.5, "centered": True}),
}
STATES = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum", "square_avg", "grad_avg")
GRAD_SCALE = 1000.0  # no power of two: dividing by it rounds
SKIPPED_STEPS = (3, 4, 8)  # steps whose gradients are said to be inf or NaN
GROUPED = ("adamw_betas", "sgd_nesterov", "adam_decay", "adagrad_decay", "rmsprop_all")
SECOND_GROUP = {"lr": 5e-3, "weight_decay": 0.02}  # the other options are those of the first


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


def optimized(name: str, initial: list[Tensor], gradients: list[Tensor], way: str = "") -> Tensors:
    """After KEPT_STEPS, and the state. `scaled`: gradients of a GradScaler; `groups`: the last
    parameter in a group of its own; both without what came before the last step."""
    kind, options = OPTIMIZERS[name]
    is_fused = kind is not torch.optim.RMSprop  # it has no fused kernel
    parameters = [nn.Parameter(tensor.clone()) for tensor in initial]
    groups = [{"params": parameters[:-1]}, {"params": parameters[-1:], **SECOND_GROUP}]
    optimizer = kind(groups if way == "groups" else parameters, **options,
                     **({"fused": True} if is_fused else {"foreach": False}))
    tensors: Tensors = {}
    for step in range(1, LAST_STEP + 1):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient[step - 1] * (GRAD_SCALE if way == "scaled" else 1.0)
        if way == "scaled":
            take = scaled_step if is_fused else scaled_plain_step
            take(optimizer, step in SKIPPED_STEPS)
        else:
            optimizer.step()
        if step == LAST_STEP or (step in KEPT_STEPS and not way):
            prefix = f"{name}.{way}.step{step}" if way else f"{name}.step{step}"
            tensors |= numbered(f"{prefix}.param", parameters)
    if not way:
        for key in STATES:
            states = [optimizer.state[parameter].get(key) for parameter in parameters]
            if states[0] is not None:
                tensors |= numbered(f"{prefix}.{key}", states)
    return tensors


def optimizers() -> tuple[Tensors, Case]:
    initial = [torch.randn(size) for size in SIZES]
    gradients = [torch.randn(LAST_STEP, size) for size in SIZES]
    tensors = numbered("initial", initial) | numbered("gradients", gradients)
    for name in OPTIMIZERS:
        for way in ("", "scaled", *["groups"] * (name in GROUPED)):
            tensors |= optimized(name, initial, gradients, way)
    return tensors, {name: options for name, (_, options) in OPTIMIZERS.items()} | {
        "scaling": {"grad_scale": GRAD_SCALE, "skipped_steps": SKIPPED_STEPS},
        "second_group": SECOND_GROUP}


# --- clipping ---------------------------------------------------------------------------

CLIP_NORMS = {  # max_norm, norm_type
    "two": (1.0, 2.0),
    "one": (3.7, 1.0),
    "half": (5.0, 0.5),
    "largest": (0.3, INF),
    "small_enough": (1e6, 2.0),
}
CLIP_VALUE = 0.7


def clipped(case: str, gradients: list[Tensor],
            clip: Callable[[list[Tensor]], Tensor | None]) -> Tensors:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient.clone()
    norm = clip(parameters)
    tensors = numbered(f"{case}.gradient", [parameter.grad for parameter in parameters])
    return tensors if norm is None else {**tensors, f"{case}.norm": norm}


def clip_grad() -> tuple[Tensors, Case]:
    gradients = [torch.randn(size) for size in SIZES]
    tensors = numbered("gradient", gradients)
    for name, options in CLIP_NORMS.items():
        tensors |= clipped(name, gradients, lambda p: nn.utils.clip_grad_norm_(p, *options))
    tensors |= clipped("value", gradients, lambda p: nn.utils.clip_grad_value_(p, CLIP_VALUE))
    for name, bad in (("inf", INF), ("nan", NAN)):
        worse = [*gradients[:-1], gradients[-1].clone()]
        worse[-1][3] = bad
        tensors |= clipped(name, worse, lambda p: nn.utils.clip_grad_norm_(p, 1.0))
    norms = {name: [str(number) for number in options] for name, options in CLIP_NORMS.items()}
    return tensors, {"norms": norms, "value": CLIP_VALUE}


# --- models -----------------------------------------------------------------------------


def model_case(name: str) -> tuple[Tensors, str]:
    recipe = common.RECIPES[name]
    torch.manual_seed(42)
    model = recipe.model().eval()
    root = common.DATA_ROOT if recipe.files else None
    data = common.Mnist(root, train=False, normalize=recipe.normalize, limit=8)
    images, labels = torch.utils.data.default_collate([data[i] for i in range(len(data))])
    output = model(images)
    loss = recipe.loss(output, labels)
    loss.backward()
    tensors = {"input": images, "labels": labels, "output": output.detach(), "loss": loss.detach()}
    for parameter_name, parameter in model.named_parameters():
        tensors[f"gradient_norm.{parameter_name}"] = parameter.grad.double().norm()
    prefixed = {f"{name}.{key}": tensor for key, tensor in tensors.items()}
    return prefixed, common.weights_sha256(model.state_dict())


def models() -> tuple[Tensors, Case]:
    cases = {name: model_case(name) for name in common.RECIPES}
    tensors = {key: tensor for case, _ in cases.values() for key, tensor in case.items()}
    formula = {f"formula.{split}_sha256": hashlib.sha256(b"".join(
        part.tobytes() for part in common.formula_files(split == "train"))).hexdigest()
        for split in ("train", "test")}
    return tensors, {"seed": 42, **formula, **{f"{name}.weights_sha256": digest
                                               for name, (_, digest) in cases.items()}}


# --- loss heads -------------------------------------------------------------------------


def loss_heads() -> tuple[Tensors, Case]:
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
    return tensors, {}


# --- BatchNorm --------------------------------------------------------------------------


def batch_norm_case(name: str, momentum: float | None, given: Tensors) -> Tensors:
    layer = nn.BatchNorm2d(3, momentum=momentum)
    layer.load_state_dict({key: given[key] for key in ("weight", "bias")}, strict=False)
    tensors: Tensors = {}
    for step in (1, 2, 3):
        layer.zero_grad()
        leaf = given[f"input{step}"].clone().requires_grad_()
        output = layer(leaf)
        output.backward(given["output_gradient"])
        if step == 2:
            continue
        values = {"output": output.detach(), "input_gradient": leaf.grad}
        values |= {key: value.clone() for key, value in layer.named_buffers()}
        values |= {f"{key}_gradient": value.grad for key, value in layer.named_parameters()}
        tensors |= {f"{name}.step{step}.{key}": value for key, value in values.items()}
    tensors[f"{name}.eval_output"] = layer.eval()(given["input1"]).detach()
    return tensors


def batch_norm() -> tuple[Tensors, Case]:
    shape = (4, 3, 5, 5)
    given = {f"input{step}": 2 * torch.randn(shape) + 1 for step in (1, 2, 3)}
    given |= {"weight": torch.rand(3) + 0.5, "bias": torch.randn(3)}
    given["output_gradient"] = torch.randn(shape)
    return (given | batch_norm_case("momentum_0.1", 0.1, given)
            | batch_norm_case("momentum_none", None, given)), {}


# --- GradScaler -------------------------------------------------------------------------

SCALER_SIZES = (3, 17)  # of the parameters
SCALER_STEPS = 60
SCALER_KEPT_STEPS = (1, 2, 3, 10, 30, 60)
FUSED_ADAMW = {"kind": "AdamW", "lr": 1e-2, "fused": True}
FUSED_MOMENTUM = {"kind": "SGD", "lr": 1e-2, "momentum": 0.9, "fused": True}
PLAIN_SGD = {"kind": "SGD", "lr": 1e-2, "foreach": False, "fused": False}
POWERS_OF_TWO = {"growth_interval": 5}
ODD_NUMBERS = {  # divisions by the scale round, and its product with a gradient too
    "init_scale": 1000.0, "growth_factor": 3.0, "backoff_factor": 0.3, "growth_interval": 4}
HUGE = 1e34  # finite, until it is multiplied by the scale


def scaler_run_of(optimizers: list[Case], scaler: Case, *bad: tuple[int, int, int, float],
                  **more: Any) -> Case:
    """`bad`: (step, loss, parameter, value), a target that makes gradients inf or NaN."""
    return {"optimizers": optimizers, "scaler": scaler, "bad": bad, **more}


CLIPPED_BAD = ((1, 0, 1, INF), (10, 0, 0, NAN), (40, 0, 0, HUGE))
# No run with momentum skips its first step: Python then leaves the momentum as it finds the memory.
SCALER_RUNS: dict[str, Case] = {
    "adamw": scaler_run_of([FUSED_ADAMW], POWERS_OF_TWO, (1, 0, 0, INF), (2, 0, 1, NAN),
                           (9, 0, 1, -INF), (30, 0, 0, HUGE), (31, 0, 1, INF)),
    "sgd_momentum": scaler_run_of([FUSED_MOMENTUM], ODD_NUMBERS, (2, 0, 0, NAN), (3, 0, 0, INF),
                                  (20, 0, 1, INF), (45, 0, 1, HUGE)),
    "sgd": scaler_run_of([PLAIN_SGD], ODD_NUMBERS, (1, 0, 1, NAN), (13, 0, 0, -INF),
                         (14, 0, 1, -INF), (33, 0, 0, HUGE)),
    "two_losses": scaler_run_of([FUSED_ADAMW], ODD_NUMBERS, (2, 0, 0, INF), (7, 1, 1, NAN),
                                (8, 1, 0, INF), (25, 0, 1, NAN), (25, 1, 1, INF), losses=2),
    "two_optimizers": scaler_run_of(  # a parameter each
        [FUSED_ADAMW, FUSED_MOMENTUM], POWERS_OF_TWO, (1, 0, 0, INF), (6, 0, 1, NAN),
        (7, 0, 0, INF), (21, 0, 0, NAN), (21, 0, 1, INF)),
    "clipped_adamw": scaler_run_of([FUSED_ADAMW], ODD_NUMBERS, *CLIPPED_BAD, clip=1.0),
    "clipped_sgd": scaler_run_of([PLAIN_SGD], ODD_NUMBERS, *CLIPPED_BAD, clip=1.0),
}


def scaler_targets(run: Case) -> list[list[Tensor]]:
    """targets[loss][parameter] has a row for each step: its last value is the bad one."""
    targets = [[torch.randn(SCALER_STEPS, size) for size in SCALER_SIZES]
               for _ in range(run.get("losses", 1))]
    for step, loss, parameter, value in run["bad"]:
        targets[loss][parameter][step - 1, -1] = value
    return targets


def scaler_optimizers(run: Case, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    owned = [parameters] if len(run["optimizers"]) == 1 else [[one] for one in parameters]
    made = []
    for parts, options in zip(owned, run["optimizers"]):
        arguments = {key: value for key, value in options.items() if key != "kind"}
        made.append(getattr(torch.optim, options["kind"])(parts, **arguments))
    return made


def scaler_iteration(run: Case, scaler: torch.amp.GradScaler,
                     optimizers: list[torch.optim.Optimizer], parameters: list[nn.Parameter],
                     targets: list[list[Tensor]]) -> list[bool]:
    """One iteration; targets[loss][parameter]. Returns for each optimizer: was it skipped?"""
    losses = [sum(F.mse_loss(one, target, reduction="sum") for one, target in zip(parameters, row))
              for row in targets]
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
    tensors: Tensors = {}
    for loss, row in enumerate(targets):
        tensors |= numbered(f"{name}.targets{loss}.", row)
    states, skipped = [], []
    for step in range(1, SCALER_STEPS + 1):
        now = [[target[step - 1] for target in row] for row in targets]
        skipped.append(scaler_iteration(run, scaler, optimizers, parameters, now))
        states.append(scaler.state_dict())
        if step in SCALER_KEPT_STEPS:
            tensors |= numbered(f"{name}.step{step}.param", parameters)
    skipped_steps = {step for step, flags in enumerate(skipped, 1) if any(flags)}
    assert skipped_steps == {bad[0] for bad in run["bad"]}, name
    scales = [state["scale"] for state in states]
    tensors[f"{name}.scale"] = torch.tensor(scales, dtype=torch.float64)
    tensors[f"{name}.growth_tracker"] = torch.tensor([x["_growth_tracker"] for x in states])
    tensors[f"{name}.skipped"] = torch.tensor(skipped, dtype=torch.uint8)
    return tensors


def grad_scaler() -> tuple[Tensors, Case]:
    initial = [torch.randn(size) for size in SCALER_SIZES]
    tensors = numbered("initial", initial)
    for name in SCALER_RUNS:
        tensors |= scaler_run(name, initial)
    runs = {name: {key: run[key] for key in ("optimizers", "scaler", "clip") if key in run}
            for name, run in SCALER_RUNS.items()}
    return tensors, runs | {"state_dict": torch.amp.GradScaler("cpu").state_dict()}


# --- autocast ---------------------------------------------------------------------------


def operations_on(x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """x: [4, 4]. What is not x has float32, as weights have."""
    weight, bias, batch, single = torch.ones(4, 4), torch.ones(4), x[None], torch.ones(1, 4, 4)
    double, ones = weight.double(), torch.ones(1)
    images, labels = x.reshape(1, 1, 4, 4), torch.tensor([0, 1, 2, 3])
    norm = (torch.zeros(1), torch.ones(1), ones, ones)
    return {
        "linear": lambda: F.linear(x, weight, bias),
        "mm": lambda: torch.mm(x, weight),
        "matmul": lambda: torch.matmul(batch, weight),
        "bmm": lambda: torch.bmm(batch, single),
        "addmm": lambda: torch.addmm(bias, x, weight),
        "baddbmm": lambda: torch.baddbmm(batch, batch, single),
        "einsum": lambda: torch.einsum("ij,jk->ik", x, weight),
        "prelu": lambda: F.prelu(x, ones),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(batch, batch, batch),
        "mm_of_float64": lambda: torch.mm(double, double),
        "add_mixed": lambda: x + weight,
        "cat_mixed": lambda: torch.cat([x, weight]),
        "stack_mixed": lambda: torch.stack([x, weight]),
        "conv1d": lambda: F.conv1d(x[None], torch.ones(4, 4, 3)),
        "conv2d": lambda: F.conv2d(images, torch.ones(1, 1, 3, 3), ones),
        "conv_transpose2d": lambda: F.conv_transpose2d(images, torch.ones(1, 1, 3, 3)),
        "relu": lambda: F.relu(x),
        "gelu": lambda: F.gelu(x),
        "max_pool2d": lambda: F.max_pool2d(images, 2),
        "avg_pool2d": lambda: F.avg_pool2d(images, 2),
        "batch_norm": lambda: F.batch_norm(images, *norm, training=True),
        "batch_norm_eval": lambda: F.batch_norm(images, *norm, training=False),
        "layer_norm": lambda: F.layer_norm(x, (4,), bias, bias),
        "dropout": lambda: F.dropout(x, 0.5, training=True),
        "flatten": lambda: images.flatten(1),
        "softmax": lambda: F.softmax(x, dim=1),
        "log_softmax": lambda: F.log_softmax(x, dim=1),
        "nll_loss": lambda: F.nll_loss(x, labels),
        "cross_entropy": lambda: F.cross_entropy(x, labels),
        "mse_loss": lambda: F.mse_loss(x, weight),
        "l1_loss": lambda: F.l1_loss(x, weight),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(x, x),
        **{name: getattr(x, name) for name in ("sum", "mean", "prod", "exp", "norm")}}


def short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def autocast() -> list[Case]:
    """The dtype of each operation's output under autocast, for inputs of float32 and 16 bits."""
    cases = []
    for dtype in (torch.bfloat16, torch.float16):
        for given in (torch.float32, dtype):
            operations = operations_on(torch.full((4, 4), 0.5, dtype=given))
            with torch.autocast("cpu", dtype):
                outputs = {name: short_name(operation().dtype)
                           for name, operation in operations.items()}
            cases.append({"autocast": short_name(dtype), "input": short_name(given),
                          "outputs": outputs})
    return cases


Made = list[Case] | Case  # the cases, or all that is in the file

# The JSON files: the packages besides torch, and what makes the content.
CASES: dict[str, tuple[tuple[Any, ...], Callable[[], Made]]] = {
    "samplers": ((), samplers),
    "distributed_samplers": ((), distributed_samplers),
    "schedulers": ((transformers,), schedules),
    "reduce_lr_on_plateau": ((), plateaus),
    "autocast": ((), autocast),
    "accelerate_shards": ((accelerate,), accelerate_shards.content),
    "accelerate_zero_grad": ((accelerate,), accelerate_zero_grad.cases),
    "trainer_optimizers": ((transformers,), trainer_optimizers.content),
    "trainer_hooks": ((transformers,), trainer_hooks.content),
}
# The files of tensors: they and the metadata, of which what is no text is JSON.
TENSORS: dict[str, Callable[[], tuple[Tensors, Case]]] = {
    "optimizers": optimizers, "clip_grad": clip_grad, "models": models, "loss_heads": loss_heads,
    "batch_norm": batch_norm, "grad_scaler": grad_scaler}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name, (packages, make) in CASES.items():
        versions = {package.__name__: package.__version__.split("+")[0]
                    for package in (torch, *packages)}
        torch.manual_seed(0)
        made = make()
        content = made if isinstance(made, dict) else {"cases": made}
        write_json(out / f"{name}.json", {**versions, **content})
    for name, make in TENSORS.items():
        torch.manual_seed(0)
        tensors, metadata = make()
        texts = {key: value if isinstance(value, str) else json.dumps(value)
                 for key, value in metadata.items()}
        write_tensors(out / f"{name}.safetensors", tensors, {"torch": versions["torch"], **texts})
    trainer.write(out / "trainer.json")
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:7} {file}")


if __name__ == "__main__":
    main()
