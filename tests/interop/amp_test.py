# SPDX-License-Identifier: Apache-2.0
"""Stage 4 in reference math and PyTorch's DDP + autocast + GradScaler: equal bit for bit.

Compared are all ranks in every step (samples, loss, averaged gradients, weights and buffers),
what is left at the end, and the scaler. Without SyncBatchNorm, because PyTorch's refuses tensors
on the CPU. The last batch of an epoch has one sample: on two ranks, one has none.
"""
from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, result_record  # noqa: E402
from tests.support.twins import CPP, PEERS, TWIN, TwinTest, twin  # noqa: E402

sys.path.insert(0, str(PEERS))
from common import RECIPES, save_weights  # noqa: E402

BATCH = {"basicnet": 64, "convnet": 32}
SEEN = 65  # images of the test
STEPS = 30


class SameAsPython(TwinTest):
    def compare(self, recipe: str, precision: str, ranks: int, steps: int, *more: object) -> None:
        flags = ["--recipe", recipe, "--precision", precision, "--epochs", 1, "--limit-train",
                 (steps - 1) * BATCH[recipe] + 1, "--limit-test", SEEN, *more]
        self.run_both([BIN / "stage4_ddp_amp", "--nprocs", ranks, "--no-sync-bn"],
                      twin("ddp.py", "--nprocs", ranks), flags)
        self.expect_equal(steps, SEEN, ranks)


class Bf16(SameAsPython):
    def test_basicnet_on_one_rank(self) -> None:
        self.compare("basicnet", "bf16", 1, STEPS)

    def test_convnet_on_one_rank(self) -> None:
        self.compare("convnet", "bf16", 1, STEPS)

    def test_basicnet_on_two_ranks(self) -> None:
        self.compare("basicnet", "bf16", 2, STEPS)

    def test_convnet_on_two_ranks(self) -> None:
        self.compare("convnet", "bf16", 2, STEPS)


class Fp16(SameAsPython):
    """Both start from a file of Python, with a scale that is too large and soon grows again."""

    def start_from(self, recipe: str, scale: float) -> Path:
        torch.manual_seed(1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
        path = self.folder / "start.safetensors"
        save_weights(RECIPES[recipe].model(), path, {"scaler": json.dumps(scaler.state_dict())})
        return path

    def scaler_of(self, name: str) -> dict[str, Any]:
        with safe_open(self.folder / f"{name}.safetensors", framework="pt") as file:
            return json.loads(file.metadata()["scaler"])

    def compare_scaled(self, recipe: str, ranks: int, steps: int, scale: float) -> None:
        self.compare(recipe, "fp16", ranks, steps, "--load", self.start_from(recipe, scale))
        ours, theirs = (result_record(self.folder / f"{name}.jsonl") for name in (CPP, TWIN))
        print(f"{ours['skipped_steps']:.0f} of {steps} steps skipped, scale {scale:.0f} to "
              f"{ours['loss_scale']:.0f}")
        self.assertEqual(ours["loss_scale"], theirs["loss_scale"])
        self.assertEqual(self.scaler_of(CPP), self.scaler_of(TWIN))
        self.assertGreater(ours["skipped_steps"], 0)
        self.assertLess(ours["skipped_steps"], steps)

    def test_basicnet_on_one_rank(self) -> None:
        self.compare_scaled("basicnet", 1, 5, 2.0**19)

    def test_convnet_on_one_rank(self) -> None:
        self.compare_scaled("convnet", 1, 12, 2.0**20)

    def test_convnet_on_two_ranks(self) -> None:
        self.compare_scaled("convnet", 2, 12, 2.0**20)


if __name__ == "__main__":
    unittest.main()
