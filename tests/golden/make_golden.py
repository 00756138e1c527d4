#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of tests/golden: what PyTorch and transformers compute.

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
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import common  # noqa: E402

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
}


def optimizer_case(name: str, initial: list[Tensor], gradients: list[Tensor]) -> Tensors:
    kind, options = OPTIMIZERS[name]
    parameters = [nn.Parameter(tensor.clone()) for tensor in initial]
    optimizer = kind(parameters, fused=True, **options)
    tensors: Tensors = {}
    for step in range(1, max(KEPT_STEPS) + 1):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient[step - 1].clone()
        optimizer.step()
        if step in KEPT_STEPS:
            for i, parameter in enumerate(parameters):
                tensors[f"{name}.step{step}.param{i}"] = parameter.detach().clone()
    for i, parameter in enumerate(parameters):
        for key in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            if optimizer.state[parameter].get(key) is not None:
                tensors[f"{name}.step{step}.{key}{i}"] = optimizer.state[parameter][key].clone()
    return tensors


def optimizers(path: Path) -> None:
    torch.manual_seed(0)
    initial = [torch.randn(size) for size in SIZES]
    gradients = [torch.randn(max(KEPT_STEPS), size) for size in SIZES]
    tensors = {f"initial{i}": tensor for i, tensor in enumerate(initial)}
    tensors |= {f"gradients{i}": tensor for i, tensor in enumerate(gradients)}
    for name in OPTIMIZERS:
        tensors |= optimizer_case(name, initial, gradients)
    options = {name: json.dumps(options) for name, (_, options) in OPTIMIZERS.items()}
    write_tensors(path / "optimizers.safetensors", tensors, **options)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "golden", help="folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    makers = (samplers, distributed_samplers, schedules, optimizers, models, loss_heads, batch_norm)
    for make in makers:
        make(out)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:7} {file}")


if __name__ == "__main__":
    main()
