# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.sh with the real programs, on the CPU: the flags fit, and the records suffice."""
from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, ROOT, launch  # noqa: E402
from tests.support.ways import PIPELINE, ZERO_REDUNDANCY  # noqa: E402

SCRIPT = ROOT / "tools" / "gpu_check.sh"
STAGES = (*sorted(BIN.glob("stage[0-9]_*")), ZERO_REDUNDANCY, PIPELINE)
TESTS = ("comm_test", "device_test", "kernels_test")  # of the many; each takes a second


class GpuCheckTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "bin").mkdir()
        for program in (*STAGES, BIN / "suite", *(BIN / name for name in TESTS)):
            (self.folder / "bin" / program.name).symlink_to(program)
        self.out = self.folder / "out"

    def test_every_check_is_well_on_the_cpu(self) -> None:
        done = launch(SCRIPT, "--bin", self.folder / "bin", "--out", self.out, "--device", "cpu",
                      "--limit-train", 320, "--limit-test", 200, "--deadline", 120)
        self.assertEqual(done.code, 0, done.stdout + done.stderr)
        verdicts = [line.split()[:2] for line in done.stdout.split("\n\n")[0].splitlines()]
        self.assertEqual([name for verdict, name in verdicts if verdict != "ok"],
                         ["memcheck_fp32", "memcheck_fp16", "twins"])
        self.assertEqual(len(verdicts), 43)
        for name in ("stage2_one", "stage3_torchrun", "syncbn_one", "exact_shared", "exact_all",
                     "first_epoch", "resumed"):
            self.assertRegex(done.stdout, rf"ok +{name} .*weights of (stage0|convnet|exact|unint)")
        result = json.loads((self.out / "stage4_fp16.jsonl").read_text().splitlines()[-1])
        self.assertEqual((result["precision"], result["steps"]), ("fp16", 5))
        self.assertGreater(result["loss_scale"], 0)

    def test_without_a_gpu_it_is_skipped(self) -> None:
        done = launch(SCRIPT, "--bin", self.folder / "bin", "--out", self.out,
                      environment={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.code, 77, done.stdout + done.stderr)
        self.assertIn("skipped: no GPU", done.stdout)
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    unittest.main()
