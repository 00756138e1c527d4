# SPDX-License-Identifier: Apache-2.0
"""Lightning and JAX in bench/peers train as PyTorch does: their times compare with the stages'."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.programs import launch, temporary_folder
from tests.support.twins import Ended, trained, twin
from tests.support.ways import compare_fingerprints

RECIPE = ("--recipe", "convnet", "--epochs", 2, "--limit-train", 5 * 32 + 1, "--limit-test", 65)
FOLDER = temporary_folder("opponents")


@pytest.mark.parametrize("ranks, recipe", [(1, "basicnet"), (2, "convnet")])
@pytest.mark.parametrize("script", ["fabric.py", "lightning_trainer.py"])
def test_lightning_equals_distributed_data_parallel_bit_by_bit(script: str, ranks: int,
                                                               recipe: str) -> None:
    """Whose weights equal those of stages 5 and 6. The last batch leaves one rank without an image,
    and basicnet has dropout."""
    flags = (*RECIPE, "--recipe", recipe, "--nprocs", ranks)
    ours, ddp = trained(twin(script, *flags), twin("ddp.py", *flags), parent=FOLDER)
    for name in ("weights_sha256", "steps", "train_loss", "correct", "seen"):
        assert ours.result[name] == ddp.result[name], name
    assert "no difference in" in compare_fingerprints(ours.stem, ddp.stem)


def test_jax_takes_the_steps_of_pytorch(tmp_path: Path) -> None:
    """In another order of sums, on convnet, which has no dropout."""
    runs = []
    for script in ("jax_jit.py", "single.py"):  # JAX takes no --fingerprint
        stem = tmp_path / script.removesuffix(".py")
        done = launch(*twin(script, *RECIPE), "--threads", 1, "--metrics", f"{stem}.jsonl",
                      "--save", f"{stem}.safetensors")
        assert done.code == 0, done.stderr
        runs.append(Ended(stem, done))
    jax, single = runs
    for name in ("steps", "correct", "seen"):
        assert jax.result[name] == single.result[name], name
    for name in ("train_loss", "eval_loss"):
        assert jax.result[name] == pytest.approx(single.result[name], rel=0, abs=1e-5)
    tensors = jax.tensors
    assert list(tensors) == list(single.tensors)
    for name, expected in single.tensors.items():
        if "num_batches" not in name:  # JAX counts none
            torch.testing.assert_close(tensors[name], expected, rtol=1e-5, atol=1e-6,
                                       msg=lambda text, name=name: f"{name}: {text}")
