#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JAX beside stage 0: the same recipes, compiled by XLA for the CPU or a GPU.

    .venv/bin/python bench/peers/jax_jit.py

One function of jax.jit gathers a batch from images in memory and updates weights and optimizer
state in place. It is compiled in the first step of each batch size. On a CPU convolutions are
products with shifted images, which train faster there than XLA's own. Initial weights and the order
of an epoch are PyTorch's, dropout masks are JAX's. Exit code 77 if JAX is missing, or on a machine
with a GPU its part for CUDA, which `pip install 'jax[cuda13]'` adds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

import torch
from common import (
    Record,
    choose_device,
    evaluate,
    make_datasets,
    make_parser,
    parse_options,
    save_weights,
)
from single import make_model
from tuned import NOT_AVAILABLE, in_memory

try:
    import jax
    import jax.numpy as jnp
    import optax
    from jax import Array
except ImportError as missing:
    print(f"error: {missing}; hint: tools/setup.sh bench, Python 3.11 or later", file=sys.stderr)
    sys.exit(NOT_AVAILABLE)

Tree = dict[str, Array]  # by the names of state_dict
NHWC = (-1, 28, 28, 1)


def convolution(x: Array, weights: Tree, name: str, padding: int = 0) -> Array:
    """`x` is NHWC, the weight OIHW."""
    kernel = weights[f"{name}.weight"].transpose(2, 3, 1, 0)
    if jax.default_backend() != "cpu":
        whole = jax.lax.conv_general_dilated(x, kernel, (1, 1), [(padding, padding)] * 2,
                                             dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return whole + weights[f"{name}.bias"]
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    size, edge = len(kernel), x.shape[1] - len(kernel) + 1
    shifted = [x[:, i : i + edge, j : j + edge] for i in range(size) for j in range(size)]
    columns, bias = jnp.concatenate(shifted, -1), weights[f"{name}.bias"]
    return columns @ kernel.reshape(-1, len(bias)) + bias


def linear(x: Array, weights: Tree, name: str) -> Array:
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # channels first, as in PyTorch
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def max_pool(x: Array) -> Array:
    rows = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    kept = key is None or jax.random.bernoulli(key, 1 - rate, x.shape)
    return x if key is None else jnp.where(kept, x / (1 - rate), 0)


def batch_norm(x: Array, weights: Tree, name: str, training: bool) -> tuple[Array, Tree]:
    names = (f"{name}.running_mean", f"{name}.running_var")
    mean, var = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if training else map(weights.get, names)
    unbiased = var / (1 - x.shape[-1] / x.size)
    moved = {one: 0.9 * weights[one] + 0.1 * new for one, new in zip(names, (mean, unbiased))}
    scale = weights[f"{name}.weight"] * jax.lax.rsqrt(var + 1e-5)
    return (x - mean) * scale + weights[f"{name}.bias"], moved


def basicnet(weights: Tree, x: Array, key: Array | None) -> tuple[Array, Tree]:
    """In training there is a key. Returns logits and new buffers."""
    first, second = (None, None) if key is None else jax.random.split(key)
    for name in ("conv1", "conv2"):
        x = jax.nn.relu(convolution(x, weights, name))
    x = dropout(max_pool(x), 0.25, first)
    x = dropout(jax.nn.relu(linear(x, weights, "fc1")), 0.5, second)
    return linear(x, weights, "fc2"), {}


def convnet(weights: Tree, x: Array, key: Array | None) -> tuple[Array, Tree]:
    buffers: Tree = {}
    for layer in ("layer1", "layer2"):
        x = convolution(x, weights, f"{layer}.0", padding=2)
        x, moved = batch_norm(x, weights, f"{layer}.1", training=key is not None)
        x, buffers = max_pool(jax.nn.relu(x)), buffers | moved
    return linear(x, weights, "fc"), buffers


NETWORKS = {"basicnet": basicnet, "convnet": convnet}
OPTIMIZERS = {"basicnet": partial(optax.adamw, weight_decay=0.01), "convnet": optax.sgd}


def make_train(options: argparse.Namespace, optimizer: optax.GradientTransformation) -> Callable:
    @partial(jax.jit, donate_argnums=(0, 1))
    def train(weights: Tree, state: optax.OptState, images: Array, labels: Array, batch: Array,
              step: int) -> tuple[Tree, optax.OptState, Array]:
        def loss_of(weights: Tree) -> tuple[Array, Tree]:
            key = jax.random.fold_in(jax.random.key(options.seed), step)  # of dropout
            logits, buffers = NETWORKS[options.recipe](weights, images[batch], key)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels[batch])
            return losses.mean(), buffers

        (loss, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates) | buffers, state, loss

    return train


def on_cpu(array: Array) -> torch.Tensor:
    return torch.from_dlpack(array).cpu()


def run(options: argparse.Namespace) -> None:
    record = Record("peer_jax", options, device=choose_device(options))
    data, test_data = (in_memory(part, torch.device("cpu")) for part in make_datasets(options))
    arrays = jnp.array(data[0].reshape(NHWC)), jnp.array(data[1])
    network = make_model(options)
    optimizer = OPTIMIZERS[options.recipe](options.lr)
    train = make_train(options, optimizer)
    weights = {name: jnp.array(part) for name, part in network.state_dict().items()
               if "num_batches" not in name}
    state = optimizer.init(weights)
    for epoch in record.epochs():
        generator = torch.Generator().manual_seed(options.seed + epoch - 1)
        for batch in torch.randperm(len(data[1]), generator=generator).split(options.batch_size):
            weights, state, loss = train(weights, state, *arrays, batch.numpy(), record.steps)
            record.step(network, loss, len(batch))
            if record.enough:
                break
    predict = jax.jit(lambda *both: jax.nn.log_softmax(NETWORKS[options.recipe](*both, None)[0]))
    network.forward = lambda x: on_cpu(predict(weights, x.reshape(NHWC).numpy()))
    network.load_state_dict(jax.tree.map(on_cpu, weights), strict=False)
    test = None
    if not options.steps:
        record.begin_testing()
        batches = zip(*(part.split(options.eval_batch_size) for part in test_data))
        test = evaluate(network, batches, record.recipe.loss)
    record.finish(network, test)
    save_weights(network, options.save)


def main() -> None:
    options = parse_options(make_parser("JAX beside stage 0: one process, compiled by XLA."))
    # Read at the first array.
    os.environ |= {"NPROC": str(options.threads), "JAX_PLATFORMS": choose_device(options).type}
    try:
        jax.devices()
    except RuntimeError as failure:
        print(f"error: {failure}; hint: pip install 'jax[cuda13]', or --device cpu", file=sys.stderr)
        sys.exit(NOT_AVAILABLE)
    run(options)


if __name__ == "__main__":
    main()
