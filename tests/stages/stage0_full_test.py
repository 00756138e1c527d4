# SPDX-License-Identifier: Apache-2.0
"""Whole epochs of stage 0: the accuracies that PyTorch itself reaches."""
from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import result_record, run  # noqa: E402


def train(*flags: object) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "a.jsonl"
        done = run("stage0_single_gpu", "--metrics", metrics, "--quiet", *flags)
        assert done.code == 0, done.stderr
        result = result_record(metrics)
        print(flags, f"accuracy {result['accuracy']:.2f}, {result['total_seconds']:.1f} s")
        return result


class Accuracy(unittest.TestCase):
    def test_basicnet_reaches_98_percent_in_one_epoch(self) -> None:
        result = train()
        self.assertGreaterEqual(result["accuracy"], 98.0)  # PyTorch: 98.3 to 98.5
        self.assertEqual((result["steps"], result["seen"]), (938, 10000))

    def test_convnet_lands_where_pytorch_does(self) -> None:
        for seed in range(3):  # PyTorch: 92.1, 92.0, 92.8
            result = train("--recipe", "convnet", "--seed", seed)
            self.assertGreaterEqual(result["accuracy"], 91.0, seed)
            self.assertLessEqual(result["accuracy"], 93.2, seed)
            self.assertEqual((result["steps"], result["seen"]), (5625, 10000))


if __name__ == "__main__":
    unittest.main()
