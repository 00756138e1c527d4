# SPDX-License-Identifier: Apache-2.0
"""Records the steps of a PyTorch program for tools/same_run. Needs torch alone: copy this file.

    from record_run import record

    with record(model, optimizer, "runs/a"):    # what DDP or prepare() returned, or the network
        for images, labels in loader:           # the loop, unchanged
            ...

Each rank writes runs/a.rankR.jsonl, one line per step of the optimizer, with the fields of the
fingerprints in docs/formats.md. Nothing else changes: no number is drawn, no gradient is touched.
`every=10` records each tenth step. `scaler` is the GradScaler, if there is one. Samples are known
by a hash of each row of the first tensor that the network gets; record(...).samples(ids) before the
forward replaces it by numbers.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from typing import Any

import torch
import torch.distributed as dist

PROJECTIONS, SHIFT = 4, 101
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
               "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "barrier")


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@functools.lru_cache(maxsize=8)
def signs(count: int) -> torch.Tensor:
    """+1 and -1 by a hash of the index."""
    value = (torch.arange(count) * 0x9E3779B1) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 0x45D9F3B) & 0xFFFFFFFF
    return ((value >> 16) & 1).double() * 2 - 1


def projections(flat: torch.Tensor) -> torch.Tensor:
    count = flat.numel()
    every = signs(1 << (count + PROJECTIONS * SHIFT - 1).bit_length())
    return torch.stack([flat.dot(every[k * SHIFT:k * SHIFT + count]) for k in range(PROJECTIONS)])


def flat_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float64).reshape(-1)


def sketch(tensor: torch.Tensor) -> list[float]:
    flat = flat_double(tensor)
    return [flat.norm().item(), *projections(flat).tolist()]


def innermost(module: Any, name: str) -> Any:
    while isinstance(getattr(module, name, None), (torch.nn.Module, torch.optim.Optimizer)):
        module = getattr(module, name)
    return module


class record(contextlib.ExitStack):  # a function to its users
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer,
                 path: str | os.PathLike, every: int = 1, scaler: Any = None) -> None:
        super().__init__()
        self.wrapper, self.model, self.scaler = model, innermost(model, "module"), scaler
        self.optimizer, self.path, self.every = innermost(optimizer, "optimizer"), path, every
        self.step, self.epoch, self.scaled, self.local, self.window = 0, 1, 0, {}, {}
        self.ids: list[Any] | None = None

    def __enter__(self) -> record:
        grouped = dist.is_available() and dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        self.head = {"rank": rank, "world_size": world}
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        self.file = self.enter_context(open(f"{self.path}.rank{rank}.jsonl", "w"))
        hooks = [self.model.register_forward_pre_hook(self.forward, with_kwargs=True),
                 self.optimizer.register_step_pre_hook(self.gradients),
                 self.optimizer.register_step_post_hook(self.weights)]
        if self.wrapper is not self.model:
            hooks.append(self.wrapper.register_forward_pre_hook(
                lambda *_: self.count("wrapper_forwards")))
        hooks += [p.register_hook(functools.partial(self.backward, n))
                  for n, p in self.model.named_parameters() if p.requires_grad]
        for hook in hooks:
            self.callback(hook.remove)
        self.patch(torch.Tensor, "backward", lambda loss, *_, **__: self.extend(
            "losses", [loss.item()] if loss.numel() == 1 else []))
        if self.scaler is not None:
            self.patch(self.scaler, "step", lambda *_, **__: self.count("scaler_steps"))
        for name in COLLECTIVES if grouped else ():
            self.patch(dist, name, functools.partial(self.collective, name))
        self.write(self.head | self.state())
        return self

    def patch(self, owner: Any, name: str, before: Any) -> None:
        former = getattr(owner, name)

        @functools.wraps(former)
        def patched(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            return former(*args, **kwargs)

        setattr(owner, name, patched)
        self.callback(setattr, owner, name, former)

    def recorded(self) -> bool:  # the step in progress
        return (self.step + 1) % self.every == 0

    def count(self, name: str) -> None:
        self.window[name] = self.window.get(name, 0) + 1

    def extend(self, name: str, values: list[Any]) -> None:
        if self.recorded():
            self.window.setdefault(name, []).extend(values)

    def samples(self, ids: Any) -> None:
        self.extend("samples", torch.as_tensor(ids).tolist())

    def collective(self, name: str, *args: Any, **_: Any) -> None:
        tensors = [t for a in args for t in (a if isinstance(a, list) else [a])]
        self.extend("collectives", [[name, sum(t.numel() * t.element_size() for t in tensors
                                               if isinstance(t, torch.Tensor))]])

    def forward(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        inputs = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.dim()]
        if inputs and module.training and torch.is_grad_enabled() and self.recorded():
            self.extend("rows", [digest(tensor_bytes(row).rstrip(b"\0"))[:8] for row in inputs[0]])

    def backward(self, name: str, gradient: torch.Tensor) -> None:
        if self.recorded():
            self.local[name] = self.local.get(name, 0) + projections(flat_double(gradient))

    def gradients(self, *_: Any) -> None:
        if self.recorded():
            found = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
            own = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            self.window |= {
                "gradients": {n: digest(tensor_bytes(g)) for n, g in found.items()},
                "sketches": {"gradients": {n: sketch(g) for n, g in found.items()},
                             "local": {n: p.tolist() for n, p in self.local.items()}},
                "not_optimized": [n for n, p in self.model.named_parameters() if id(p) not in own],
                "rates": [float(group["lr"]) for group in self.optimizer.param_groups]}
        self.local = {}

    def state(self) -> dict[str, Any]:
        state = {n: t for n, t in sorted(self.model.state_dict().items())
                 if isinstance(t, torch.Tensor)}
        return {"step": self.step, "random": digest(tensor_bytes(torch.get_rng_state())),
                "weights": {n: digest(tensor_bytes(t)) for n, t in state.items()},
                "sketches": {"weights": {n: sketch(t) for n, t in state.items()}}}

    def weights(self, *_: Any) -> None:
        recorded = self.recorded()
        self.step += 1
        if recorded:
            found = self.window | self.head | self.state()
            found["sketches"] |= self.window.get("sketches", {})
            losses = found.get("losses")
            found |= {"loss_value": losses[-1]} if losses else {}
            if self.scaler is not None:
                found["scale"] = self.scaler.get_scale()
            self.write(found)
        self.window = {}

    def write(self, found: dict[str, Any]) -> None:
        finite = json.dumps(found).replace("NaN", "null").replace("-Infinity", "null")
        self.file.write(finite.replace("Infinity", "null") + "\n")
        self.file.flush()
