# SPDX-License-Identifier: Apache-2.0
"""Whole epochs of all seven stages: the accuracy of stage 0, and the losses of transformers."""
from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.parity import parity_test  # noqa: E402
from tests.support.ways import STAGE6, alone, require_equal_weights, train  # noqa: E402

FULL = {"basicnet": ("--quiet", "--threads", 1),
        "convnet": ("--quiet", "--threads", 1, "--recipe", "convnet", "--epochs", 1)}
SECONDS = 1200


class Full(unittest.TestCase):
    def result(self, world: int, stage: str, recipe: str) -> parity_test.Run:
        run = train(parity_test.STAGES[world][stage](), *FULL[recipe],
                    parent=parity_test.FOLDER, seconds=SECONDS)
        print(f"{recipe}, {stage} on {world}: {run.result['accuracy']:.2f}", flush=True)
        return run

    def test_every_stage_is_as_accurate_as_stage_zero(self) -> None:
        for recipe in FULL:
            expected = self.result(1, "stage 0", recipe)
            for world, stages in parity_test.STAGES.items():
                for stage in stages:
                    if (world, stage) == (1, "stage 0"):
                        continue
                    with self.subTest(recipe=recipe, stage=stage, world=world):
                        run = self.result(world, stage, recipe)
                        self.assertEqual(run.result["seen"], 10000)
                        if world == 1:
                            require_equal_weights(run, expected)
                        self.assertLessEqual(
                            abs(run.result["accuracy"] - expected.result["accuracy"]), 0.3)

    def test_the_defaults_of_transformers_give_its_losses(self) -> None:
        """0.74 to 0.92 and 0.23 to 0.30: three seeds of the real Trainer, with room."""
        run = train(alone(STAGE6), "--profile", "hf-defaults", parent=parity_test.FOLDER,
                    seconds=SECONDS)
        lines = run.done.stdout.splitlines()
        row = next(line.split() for line in lines if line.split()[:1] == ["1"])
        self.assertIn("  Total optimization steps = 938", run.done.stderr.splitlines())
        self.assertTrue(0.74 <= float(row[1]) <= 0.92, row)
        self.assertTrue(0.23 <= float(row[2]) <= 0.30, row)


if __name__ == "__main__":
    unittest.main()
