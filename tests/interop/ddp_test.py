# SPDX-License-Identifier: Apache-2.0
"""Stages 2 and 3 in reference math and PyTorch's DistributedDataParallel: equal bit for bit.

Compared are all ranks in every step (samples, loss, averaged gradients, weights, and BatchNorm's
buffers, which each rank moves its own way) and what is left at the end. The last batch
of an epoch has one sample: with --batch-mode global, one rank has it and the others none.
"""
from __future__ import annotations

import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, TORCHRUN, Result, records  # noqa: E402
from tests.support.twins import CPP, PEERS, TWIN, TwinTest, twin  # noqa: E402

EPOCHS = 2
BATCHES = {"basicnet": 10, "convnet": 12}  # whole ones in an epoch
BATCH = {"basicnet": 64, "convnet": 32}
SEEN = 65  # images of the test: on two ranks, convnet has a batch more on one
OWN = {"stage", "train_seconds", "total_seconds", "first_step_at", "warm_up_seconds",
       "samples_per_second", "peak_rss_bytes"}


def train_size(recipe: str) -> int:
    return BATCHES[recipe] * BATCH[recipe] + 1


def flags(recipe: str, seen: int) -> list[object]:
    return ["--recipe", recipe, "--epochs", EPOCHS, "--limit-train", train_size(recipe),
            "--limit-test", seen]


class SameAsPython(TwinTest):
    def compare(self, recipe: str, ranks: int, mode: str, steps: int, seen: int) -> None:
        """Sums of three and more round by their order, and Python's is that of Gloo."""
        backend = [] if ranks == 2 else ["--backend", "gloo"]
        self.run_both([BIN / "stage2_ddp_spawn", "--nprocs", ranks, *backend],
                      twin("ddp.py", "--nprocs", ranks),
                      [*flags(recipe, seen), "--batch-mode", mode])
        self.expect_equal(EPOCHS * steps, seen, ranks)

    def compare_global(self, recipe: str, ranks: int, seen: int = SEEN) -> None:
        self.compare(recipe, ranks, "global", BATCHES[recipe] + 1, seen)

    def compare_per_device(self, recipe: str, ranks: int) -> None:
        steps = -(-train_size(recipe) // (ranks * BATCH[recipe]))
        self.compare(recipe, ranks, "per-device", steps, SEEN)

    def test_basicnet_on_two_ranks(self) -> None:
        self.compare_global("basicnet", 2)

    def test_convnet_on_two_ranks(self) -> None:
        self.compare_global("convnet", 2)

    def test_convnet_on_three_ranks_one_without_an_image_to_test(self) -> None:
        self.compare_global("convnet", 3, seen=2)

    def test_basicnet_per_device_on_two_ranks(self) -> None:
        self.compare_per_device("basicnet", 2)

    def test_convnet_per_device_on_three_ranks(self) -> None:
        self.compare_per_device("convnet", 3)


class UnderTorchrun(TwinTest):
    def lines(self, result: Result) -> list[str]:
        return re.sub(r"elapsed: \d+\.\d\d s", "elapsed: T s", result.stdout).splitlines()

    def compared(self, name: str) -> tuple[list[dict], dict]:
        """The epochs and the result, without the program's name and what differs on each run."""
        _, *epochs, result = records(self.folder / f"{name}.jsonl")
        kept = ("record", "epoch", "steps", "samples", "train_loss")
        return ([{key: epoch[key] for key in kept} for epoch in epochs],
                {key: None if key in OWN else value for key, value in result.items()})

    def test_a_user_cannot_tell_them_apart(self) -> None:
        torchrun = [TORCHRUN, "--standalone", "--nproc-per-node", 2]
        ours, theirs = self.run_both(
            [*torchrun, "--no-python", BIN / "stage3_ddp_torchrun"], [*torchrun, PEERS / "ddp.py"],
            flags("convnet", SEEN))
        self.assertEqual(len(self.lines(ours)), EPOCHS + 3, ours.stdout)
        self.assertEqual(self.lines(ours), self.lines(theirs))
        self.assertEqual(self.compared(CPP), self.compared(TWIN))
        self.expect_equal(EPOCHS * (BATCHES["convnet"] + 1), SEEN, ranks=2)


if __name__ == "__main__":
    unittest.main()
