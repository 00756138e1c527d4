# SPDX-License-Identifier: Apache-2.0
"""Whole epochs of stage 4: as accurate in 16 bits as in 32 and faster, and the tutorial's loss."""
from __future__ import annotations

import atexit
import functools
import shutil
import statistics
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import cpu_has  # noqa: E402
from tests.support.ways import STAGE0, STAGE4, alone, spawned, train  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-amp-full-"))
atexit.register(shutil.rmtree, FOLDER)

SECONDS = 900  # that a run may take, on a machine with other work too
PRACTICE = ("--profile", "ddp-practice")
BF16_CPU = ("avx512_bf16", "amx_bf16")


@functools.cache
def trained(stage: str, *flags: object) -> dict[str, Any]:
    way = alone(STAGE0) if stage == "stage 0" else spawned(program=STAGE4)
    result = train(way, "--quiet", "--threads", 1, *flags, parent=FOLDER, seconds=SECONDS).result
    print(f"{' '.join(map(str, (stage, *flags)))}: accuracy {result['accuracy']:.2f}, "
          f"{result['steps']} steps, {result['total_seconds']:.1f} s", flush=True)
    return result


class Precision(unittest.TestCase):
    def test_bf16_is_as_accurate_as_fp32(self) -> None:
        accuracy = trained("stage 4", "--precision", "bf16")["accuracy"]
        for other in (trained("stage 4", "--precision", "fp32"), trained("stage 0")):
            self.assertEqual((other["steps"], other["seen"]), (938, 10000))
            self.assertLessEqual(abs(accuracy - other["accuracy"]), 0.3)


class Practice(unittest.TestCase):
    """A batch for each device: half the updates, with the same learning rate."""

    def under_stage_zero(self, steps: int, *flags: object) -> float:
        """Of the run with the profile and `flags`: percentage points of accuracy below stage 0."""
        expected = trained("stage 0", "--recipe", "convnet")
        result = trained("stage 4", *PRACTICE, *flags)
        self.assertEqual((expected["steps"], result["steps"]), (5625, steps))
        self.assertEqual(result["seen"], 10000)
        return expected["accuracy"] - result["accuracy"]

    def test_the_run_of_the_tutorial_loses_accuracy(self) -> None:
        lost = self.under_stage_zero(2814)
        self.assertGreaterEqual(lost, 1.5)
        self.assertLessEqual(lost, 5.0)

    def test_the_same_global_batch_loses_none(self) -> None:
        self.assertLessEqual(abs(self.under_stage_zero(5625, "--batch-mode", "global")), 0.3)


class Speed(unittest.TestCase):
    PAIRS = 3

    def seconds(self, precision: str) -> float:
        """Of an epoch on one rank with two threads."""
        way = spawned(1, "--precision", precision, program=STAGE4)
        flags = ("--quiet", "--threads", 2, "--limit-test", 64)
        run = train(way, *flags, parent=FOLDER, seconds=SECONDS)
        return float(run.result["train_seconds"])

    def test_bf16_is_faster_where_the_cpu_computes_in_it(self) -> None:
        if not cpu_has(*BF16_CPU):
            self.skipTest(f"this CPU has none of {', '.join(BF16_CPU)}: bf16 is emulated")
        took: dict[str, list[float]] = {"fp32": [], "bf16": []}
        for pair in range(self.PAIRS):  # in turns, so that a slow minute of the machine hits both
            for precision in sorted(took, reverse=pair % 2 == 0):
                took[precision].append(self.seconds(precision))
        fp32, bf16 = (statistics.median(took[precision]) for precision in ("fp32", "bf16"))
        print(f"epochs: {took}; medians: fp32 {fp32:.1f} s, bf16 {bf16:.1f} s, "
              f"{fp32 / bf16:.2f} x faster", flush=True)
        self.assertGreaterEqual(fp32 / bf16, 1.6)


if __name__ == "__main__":
    unittest.main()
