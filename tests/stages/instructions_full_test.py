#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The instructions of a training step, which tell a slower step from a busy machine.

    python3 tests/stages/instructions_full_test.py             compare with the committed figures
    python3 tests/stages/instructions_full_test.py --update    write tests/golden/instructions.json

A step costs what 12 of them take more than 4, by 8, at batch size 1 on one thread. At this size
nothing hides what the library adds to LibTorch's arithmetic. Valgrind's callgrind counts.
"""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from functools import lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, ROOT, cpu_has  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "instructions.json"
STAGES = ("stage0_single_gpu", "stage5_accelerator", "stage6_trainer")
SHORT, LONG = 4, 12
SECONDS = 600  # one program under callgrind takes one to two minutes

# The same kernels on all CPUs that have AVX2, and the widest that valgrind knows.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}


def instructions(stage: str, steps: int) -> int:
    """Of a whole run, from the start of the program to its end."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}",
                   BIN / stage, "--batch-size", "1", "--threads", "1", "--limit-train", str(steps),
                   "--limit-test", "1", "--save", f"{folder}/weights.safetensors", "--quiet"]
        done = subprocess.run(command, cwd=folder, env=os.environ | AVX2, capture_output=True,
                              text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{stage}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        return int(re.search(r"^(?:summary|totals): (\d+)", counts.read_text(), re.MULTILINE)[1])


@lru_cache(maxsize=None)
def per_step(stage: str) -> int:
    count = (instructions(stage, LONG) - instructions(stage, SHORT)) // (LONG - SHORT)
    print(f"{stage}: {count:,} instructions a step", flush=True)
    return count


@unittest.skipUnless(cpu_has("avx2"), "skipped: this CPU has no AVX2, whose kernels are counted")
class Instructions(unittest.TestCase):
    def test_a_step_takes_as_many_as_before(self) -> None:
        for stage, committed in json.loads(GOLDEN.read_text()).items():
            with self.subTest(stage):
                self.assertLessEqual(abs(per_step(stage) / committed - 1), 0.02,
                                     f"{committed:,} before; if that is meant: --update")

    def test_accelerator_and_trainer_add_3_percent_at_most(self) -> None:
        for stage in STAGES[1:]:
            with self.subTest(stage):
                self.assertLessEqual(per_step(stage) / per_step(STAGES[0]), 1.03)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        GOLDEN.write_text(json.dumps({stage: per_step(stage) for stage in STAGES}, indent=1) + "\n")
    else:
        unittest.main()
