# SPDX-License-Identifier: Apache-2.0
"""Whole epochs on two devices: as accurate as on one."""
from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.ways import STAGE0, STAGE1, alone, spawned, torchrun, train  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-ddp-full-"))
atexit.register(shutil.rmtree, FOLDER)

WAYS = {
    "stage 0": lambda: alone(STAGE0),
    "stage 1": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
    "stage 2": spawned,
    "stage 3": torchrun,
}


@functools.cache
def trained(stage: str) -> dict[str, Any]:
    run = train(WAYS[stage](), "--quiet", "--threads", 1, parent=FOLDER)
    print(f"{stage}: accuracy {run.result['accuracy']:.2f}, {run.result['total_seconds']:.1f} s")
    return run.result


class Accuracy(unittest.TestCase):
    def test_two_devices_reach_what_one_does(self) -> None:
        for stage in ("stage 1", "stage 2", "stage 3"):
            with self.subTest(stage):
                result = trained(stage)
                self.assertEqual((result["steps"], result["seen"]), (938, 10000))
                self.assertLessEqual(abs(result["accuracy"] - trained("stage 0")["accuracy"]), 0.3)

    def test_the_stages_on_two_devices_end_with_the_same_weights(self) -> None:
        hashes = {trained(stage)["weights_sha256"] for stage in ("stage 1", "stage 2", "stage 3")}
        self.assertEqual(len(hashes), 1, hashes)


if __name__ == "__main__":
    unittest.main()
