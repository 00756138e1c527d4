# SPDX-License-Identifier: Apache-2.0
"""All seven stages, both recipes: one process, equal bits; two, equal but for rounding."""
from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.ways import (STAGE0, STAGE1, STAGE4, STAGE5, STAGE6, Run, alone,  # noqa: E402
                                distance, require_equal_weights, small, spawned, torchrun, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-parity-"))
atexit.register(shutil.rmtree, FOLDER)

STAGES = {
    1: {
        "stage 0": lambda: alone(STAGE0),
        "stage 1": lambda: alone(STAGE1, "--device-ids", "cpu"),
        "stage 2": lambda: spawned(1),
        "stage 3": lambda: torchrun(1),
        "stage 4": lambda: spawned(1, "--precision", "fp32", program=STAGE4),
        "stage 5": lambda: alone(STAGE5),
        "stage 6": lambda: alone(STAGE6),
    },
    2: {
        "stage 1": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
        "stage 2": spawned,
        "stage 3": torchrun,
        "stage 4": lambda: spawned(2, "--precision", "fp32", "--no-sync-bn", program=STAGE4),
        "stage 5": lambda: spawned(program=STAGE5),
        "stage 6": lambda: spawned(program=STAGE6),
    },
}
# The last batch is short, and on two processes one of them has less of it, or nothing. Limits of
# the weights' distance: numerics of AdamW amplify last bits, so they get more room than SGD's.
# ConvNet's BatchNorm is local: from two processes on it sees other batches, on purpose.
RECIPES = {
    "basicnet": (small(limit_train=161, limit_test=500), 2e-3),
    "convnet": (small(recipe="convnet", limit_train=161, limit_test=500, epochs=2), None),
}
POINTS = 3.0  # of the accuracy on 500 images, of which one is 0.2


@functools.cache
def trained(world: int, stage: str, recipe: str) -> Run:
    return train(STAGES[world][stage](), *RECIPES[recipe][0], parent=FOLDER)


class Parity(unittest.TestCase):
    def test_one_process_gives_equal_bits(self) -> None:
        for recipe in RECIPES:
            expected = trained(1, "stage 0", recipe)
            for stage in STAGES[1]:
                with self.subTest(recipe=recipe, stage=stage):
                    run = trained(1, stage, recipe)
                    require_equal_weights(run, expected)
                    for field in ("steps", "seen", "correct"):
                        self.assertEqual(run.result[field], expected.result[field], field)
                    # Stage 6 adds up means of batches, the others sums.
                    self.assertAlmostEqual(run.result["eval_loss"], expected.result["eval_loss"],
                                           delta=1e-6)

    def test_two_processes_come_close_to_one(self) -> None:
        for recipe, (_, limit) in RECIPES.items():
            expected = trained(1, "stage 0", recipe)
            for stage in STAGES[2]:
                with self.subTest(recipe=recipe, stage=stage):
                    run = trained(2, stage, recipe)
                    self.assertEqual((run.result["steps"], run.result["seen"]),
                                     (expected.result["steps"], 500))
                    self.assertLessEqual(
                        abs(run.result["accuracy"] - expected.result["accuracy"]), POINTS)
                    if limit is not None:
                        self.assertLessEqual(distance(run, expected), limit)

    def test_two_processes_give_equal_bits_from_stage_to_stage(self) -> None:
        for recipe in RECIPES:
            expected = trained(2, "stage 2", recipe)
            for stage in ("stage 3", "stage 4", "stage 5", "stage 6"):
                with self.subTest(recipe=recipe, stage=stage):
                    require_equal_weights(trained(2, stage, recipe), expected)


if __name__ == "__main__":
    unittest.main()
