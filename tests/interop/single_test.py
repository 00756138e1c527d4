# SPDX-License-Identifier: Apache-2.0
"""Stage 0 in reference math and its Python twin take the same 60 steps, bit for bit."""
from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN, PYTHON, ROOT, SECONDS, result_record  # noqa: E402

sys.path.insert(0, str(ROOT / "bench" / "peers"))
from common import BasicNet, ConvNet  # noqa: E402

STEPS = 60
BATCH = {"basicnet": 64, "convnet": 32}


class SameAsPython(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ladder-interop-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, name: str, command: list[object], recipe: str) -> subprocess.Popen:
        flags = ["--recipe", recipe, "--epochs", 1, "--limit-train", STEPS * BATCH[recipe],
                 "--limit-test", 500, "--threads", 1, "--fingerprint", 1,
                 "--metrics", self.folder / f"{name}.jsonl",
                 "--save", self.folder / f"{name}.safetensors"]
        return subprocess.Popen([str(part) for part in [*command, *flags]],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def first_difference(self) -> str:
        done = subprocess.run([ROOT / "tools" / "first_difference",
                               self.folder / "cpp.rank0.jsonl", self.folder / "python.rank0.jsonl"],
                              capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.stdout + done.stderr

    def train_both(self, recipe: str) -> None:
        both = [self.start("cpp", [BIN / "stage0_single_gpu", "--math", "reference"], recipe),
                self.start("python", [PYTHON, ROOT / "bench" / "peers" / "single.py"], recipe)]
        for process in both:
            output, _ = process.communicate(timeout=SECONDS)
            self.assertEqual(process.returncode, 0, output)

    def compare(self, recipe: str) -> None:
        self.train_both(recipe)
        cpp = result_record(self.folder / "cpp.jsonl")
        python = result_record(self.folder / "python.jsonl")
        self.assertEqual(cpp["steps"], STEPS)
        for field in ("weights_sha256", "correct", "steps", "seen"):
            self.assertEqual(cpp[field], python[field], self.first_difference())
        self.assertIn(f"no difference in {STEPS} records", self.first_difference())
        ours = load_file(self.folder / "cpp.safetensors")
        theirs = load_file(self.folder / "python.safetensors")
        self.assertEqual(sorted(ours), sorted(theirs))
        for name, tensor in theirs.items():
            self.assertTrue(torch.equal(ours[name], tensor), name)

    def test_basicnet(self) -> None:
        self.compare("basicnet")

    def test_convnet(self) -> None:
        self.compare("convnet")

    def test_python_loads_our_checkpoint_into_its_own_network(self) -> None:
        for recipe, network in (("basicnet", BasicNet), ("convnet", ConvNet)):
            self.start("fast", [BIN / "stage0_single_gpu"], recipe).communicate(timeout=SECONDS)
            path = self.folder / "fast.safetensors"
            model = network()
            keys = model.load_state_dict(load_file(path), strict=True)
            self.assertEqual((keys.missing_keys, keys.unexpected_keys), ([], []))
            with safe_open(path, framework="pt") as file:
                self.assertEqual(file.metadata(), {"format": "pt"})


if __name__ == "__main__":
    unittest.main()
