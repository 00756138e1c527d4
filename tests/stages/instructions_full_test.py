#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The instructions of a training step, which tell a slower step from a busy machine.

    python3 tests/stages/instructions_full_test.py             compare with the committed figures
    python3 tests/stages/instructions_full_test.py --update    write tests/golden/instructions.json

At batch size 1 nothing hides what the library adds to LibTorch's arithmetic. bench/records/sentinel.py
counts.
"""
from __future__ import annotations

import json
import sys
import unittest
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench/records")]
import sentinel  # noqa: E402
from tests.support.programs import BIN, cpu_has  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "instructions.json"
STAGES = ("stage0_single_gpu", "stage5_accelerator", "stage6_trainer")


@lru_cache(maxsize=None)
def per_step(stage: str) -> int:
    count = sentinel.per_step(BIN / stage)
    print(f"{stage}: {count:,} instructions a step", flush=True)
    return count


@unittest.skipUnless(cpu_has("avx2"), "skipped: this CPU has no AVX2, whose kernels are counted")
class Instructions(unittest.TestCase):
    def test_a_step_takes_as_many_as_before(self) -> None:
        for stage, committed in json.loads(GOLDEN.read_text()).items():
            with self.subTest(stage):
                self.assertLessEqual(abs(per_step(stage) / committed - 1), 0.02,
                                     f"{committed:,} before; if that is meant: --update")

    def test_accelerator_and_trainer_add_1_percent_at_most(self) -> None:
        for stage in STAGES[1:]:
            with self.subTest(stage):
                self.assertLessEqual(per_step(stage) / per_step(STAGES[0]), 1.01)

    def test_a_step_graph_adds_a_thousandth_at_most_on_the_cpu(self) -> None:
        self.assertLessEqual(per_step("cuda_graph") / per_step(STAGES[0]), 1.001)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        GOLDEN.write_text(json.dumps({stage: per_step(stage) for stage in STAGES}, indent=1) + "\n")
    else:
        unittest.main()
