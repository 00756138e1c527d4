# SPDX-License-Identifier: Apache-2.0
"""Records the steps of a PyTorch program for tools/same_run. Needs torch alone: copy this file.

    from record_run import record

    with record(model, optimizer, "runs/a"):  # the network, or what DDP or prepare() returned
        for images, labels in loader:         # the loop, unchanged
            ...

Each rank writes runs/a.rankR.jsonl, with a line per step of the optimizer: docs/formats.md has its
fields. Draws no random number and changes no tensor. every=10 records each tenth step. Samples are
known by hashes of the rows of the network's first tensor; samples(ids) of the recording, before the
forward, adds their numbers.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import re
from typing import Any

import torch
import torch.distributed as dist

PROJECTIONS, SHIFT, PART = 4, 101, 1 << 16
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
               "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "barrier")
WRAPPERS = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
Tensors = dict[str, torch.Tensor]


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Its strided form: this rank's part of a sharded one, pairs of a complex one."""
    tensor = tensor.detach()
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def digest(tensor: torch.Tensor, padded: bool = False) -> str:
    flat = dense(tensor).cpu().contiguous().reshape(-1)
    content = ctypes.string_at(flat.data_ptr(), flat.nbytes)
    return hashlib.sha256(content.rstrip(b"\0") if padded else content).hexdigest()[:16]


@functools.cache
def signs(begin: int) -> torch.Tensor:
    """+1 and -1 by a hash of the index."""
    value = (torch.arange(begin, begin + PART + PROJECTIONS * SHIFT) * 0x9E3779B1) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 0x45D9F3B) & 0xFFFFFFFF
    return ((((value >> 16) & 1) * 2) - 1).to(torch.int8)


def sketch(tensor: torch.Tensor) -> torch.Tensor:
    """Norm and projections, part by part: a large tensor is never copied as a whole."""
    flat, squares = dense(tensor).reshape(-1), torch.zeros((), dtype=torch.float64)
    found = torch.zeros(PROJECTIONS, dtype=torch.float64)
    for number, part in enumerate(flat.split(PART)):
        part = part.to("cpu", torch.float64)
        every = signs(number * PART)[:len(part) + PROJECTIONS * SHIFT].double()
        squares += part.dot(part)
        found += torch.stack([part.dot(every[k * SHIFT:k * SHIFT + len(part)])
                              for k in range(PROJECTIONS)])
    return torch.cat([squares.sqrt()[None], found])


def sketches(tensors: Tensors) -> dict[str, list[float]]:
    return {name: sketch(t).tolist() for name, t in tensors.items()}


def innermost(module: Any, name: str) -> Any:
    """What wrappers contain: they have no parameters and no other child."""
    while isinstance(inner := getattr(module, name, None),
                     (torch.nn.Module, torch.optim.Optimizer)):
        if isinstance(module, torch.nn.Module) and (
                len([*module.children()]) > 1 or [*module.parameters(recurse=False)]):
            break
        module = inner
    return module


def plain(model: torch.nn.Module, named: Any) -> Tensors:
    """Without the "module." of wrappers within the model and the "_orig_mod." of compiled parts."""
    inner = [f"{name}." for name, module in model.named_modules() if isinstance(module, WRAPPERS)]
    return {functools.reduce(lambda n, w: n.replace(f"{w}module.", w), inner, name).replace(
        "_orig_mod.", ""): tensor for name, tensor in named if isinstance(tensor, torch.Tensor)}


class record(contextlib.ExitStack):  # a function to its users
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer,
                 path: str | os.PathLike, every: int = 1) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every: expected a number of steps from 1, got {every}")
        self.wrapper, self.model, self.scaler = model, innermost(model, "module"), None
        self.optimizer, self.path, self.every = innermost(optimizer, "optimizer"), path, every
        self.step, self.local, self.window, self.pending = 0, {}, {}, {}

    def __enter__(self) -> record:
        grouped = dist.is_available() and dist.is_initialized()
        self.head = {"rank": dist.get_rank() if grouped else 0,
                     "world_size": dist.get_world_size() if grouped else 1}
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        self.parameters = plain(self.model, self.model.named_parameters())
        self.file = self.enter_context(open(f"{self.path}.rank{self.head['rank']}.jsonl", "w"))
        self.head["dtypes"] = sorted({str(p.dtype)[6:] for p in self.parameters.values()})
        self.head |= {"sharded": True} if any(hasattr(p, "to_local")
                                              for p in self.parameters.values()) else {}
        untraced = torch.compiler.disable
        hooks = [self.model.register_forward_pre_hook(untraced(self.forward), with_kwargs=True),
                 self.optimizer.register_step_pre_hook(self.before_step),
                 self.optimizer.register_step_post_hook(self.after_step)]
        hooks += [module.register_forward_pre_hook(untraced(self.leaf_forward))
                  for module in self.model.modules() if [*module.parameters(recurse=False)]][:1]
        if self.wrapper is not self.model:  # write() before it copies buffers
            hooks.append(self.wrapper.register_forward_pre_hook(untraced(self.wrapper_forward)))
        hooks += [p.register_hook(functools.partial(self.backward, name))
                  for name, p in self.parameters.items() if p.requires_grad]
        self.patch(torch.Tensor, "backward", self.loss)
        self.patch(torch.amp.GradScaler, "step", self.scaler_step)
        for name in COLLECTIVES if grouped else ():
            self.patch(dist, name, functools.partial(self.collective, name))
        for undo in (*(hook.remove for hook in hooks), self.write):
            self.callback(undo)
        self.before = {"before": {"step": 0} | self.state()}  # in the first record
        return self

    def patch(self, owner: Any, name: str, around: Any) -> None:
        former = getattr(owner, name)

        @functools.wraps(former)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return around(functools.partial(former, *args, **kwargs), *args, **kwargs)

        setattr(owner, name, patched)
        self.callback(setattr, owner, name, former)

    def recorded(self) -> bool:  # the step in progress
        return (self.step + 1) % self.every == 0

    def extend(self, name: str, values: list[Any]) -> None:
        if self.recorded():
            self.window.setdefault(name, []).extend(values)

    def samples(self, ids: Any) -> None:
        self.extend("samples", torch.as_tensor(ids).tolist())

    def loss(self, call: Any, loss: torch.Tensor, *_: Any, **__: Any) -> None:
        self.extend("losses", [loss.item()] if loss.numel() == 1 else [])
        call()

    def scaler_step(self, call: Any, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> Any:
        if innermost(optimizer, "optimizer") is not self.optimizer:
            return call()
        self.scaler, step = scaler, self.step
        found = call()
        if self.step == step:  # skipped
            self.before_step()
            self.after_step()
        return found

    def collective(self, name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = [t.numel() * t.element_size() for one in (*args, *kwargs.values())
                 for t in (one if isinstance(one, list) else [one]) if isinstance(t, torch.Tensor)]
        self.extend("collectives", [[name, sum(sizes)]])
        return call()

    def wrapper_forward(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self.write()
            self.extend("wrapper_forwards", [1])

    def forward(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():  # an evaluation, perhaps with averaged weights
            return
        self.write()
        inputs = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.dim()]
        if inputs and module.training and self.recorded():
            self.extend("rows", [digest(row, padded=True)[:8] for row in inputs[0]])

    def leaf_forward(self, leaf: torch.nn.Module, *_: Any) -> None:  # within accelerate's autocast
        kind = next(leaf.parameters()).device.type
        if torch.is_autocast_enabled(kind) and torch.is_grad_enabled():
            is_bf16 = torch.get_autocast_dtype(kind) == torch.bfloat16
            self.window["precision"] = "bf16" if is_bf16 else "fp16"

    def backward(self, name: str, gradient: torch.Tensor) -> None:
        if self.recorded():
            self.local[name] = self.local.get(name, 0) + sketch(gradient)[1:]

    def before_step(self, *_: Any) -> None:
        self.write()  # if no forward of the network was seen
        if self.recorded():
            found = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
            own = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            self.window |= {
                "gradients": {n: digest(g) for n, g in found.items()},
                "sketches": {"gradients": sketches(found),
                             "local": {n: p.tolist() for n, p in self.local.items()}},
                "not_optimized": [n for n, p in self.parameters.items() if id(p) not in own],
                "rates": [float(group["lr"]) for group in self.optimizer.param_groups]}
            if self.scaler is not None:
                self.window["scale"] = self.scaler.get_scale()
        self.local = {}

    def after_step(self, *_: Any) -> None:
        if self.recorded():
            self.pending = self.window | {"step": self.step + 1,
                                          "random": digest(torch.get_rng_state())}
            self.pending["loss_value"] = [None, *self.window.get("losses", [])][-1]
        self.step, self.window = self.step + 1, {}

    def write(self) -> None:
        """At the next training forward: what follows the optimizer's step belongs to the step."""
        if self.pending:
            state, own = self.state(), self.pending.pop("sketches")
            found = self.head | self.pending | state | self.before
            found["sketches"] = own | state["sketches"]
            line = re.sub(r"(?<=[\[ ])(NaN|-?Infinity)(?=[,\]}])", "null", json.dumps(found))
            self.file.write(line + "\n")
            self.file.flush()
            self.pending, self.before = {}, {}

    def state(self) -> dict[str, Any]:
        state = plain(self.model, sorted(self.model.state_dict().items()))
        return {"weights": {name: digest(t) for name, t in state.items()},
                "sketches": {"weights": sketches(state)}}
