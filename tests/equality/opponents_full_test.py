# SPDX-License-Identifier: Apache-2.0
"""Lightning and JAX in bench/peers train as PyTorch does, so their times compare with the stages'."""
from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import launch, result_record  # noqa: E402
from tests.support.twins import trained, twin  # noqa: E402
from tests.support.ways import compare_fingerprints  # noqa: E402

RECIPE = ("--recipe", "convnet", "--epochs", 2, "--limit-train", 5 * 32 + 1, "--limit-test", 65)


class Opponents(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ladder-opponents-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_lightning_equals_distributed_data_parallel_bit_by_bit(self) -> None:
        """Whose weights equal those of stages 5 and 6. The last batch leaves one rank without an
        image, and basicnet has dropout."""
        for script in ("fabric.py", "lightning_trainer.py"):
            for ranks, recipe in ((1, "basicnet"), (2, "convnet")):
                with self.subTest(script=script, ranks=ranks):
                    flags = (*RECIPE, "--recipe", recipe, "--nprocs", ranks)
                    ours, ddp = trained(twin(script, *flags), twin("ddp.py", *flags),
                                        parent=self.folder)
                    for name in ("weights_sha256", "steps", "train_loss", "correct", "seen"):
                        self.assertEqual(ours.result[name], ddp.result[name], name)
                    self.assertIn("no difference in", compare_fingerprints(ours.stem, ddp.stem))

    def test_jax_takes_the_steps_of_pytorch(self) -> None:
        """In another order of sums, on convnet, which has no dropout."""
        results, tensors = [], []
        for script in ("jax_jit.py", "single.py"):
            stem = self.folder / script
            done = launch(*twin(script, *RECIPE), "--threads", 1, "--metrics", f"{stem}.jsonl",
                          "--save", f"{stem}.safetensors")
            self.assertEqual(done.code, 0, done.stderr)
            results.append(result_record(Path(f"{stem}.jsonl")))
            tensors.append(load_file(f"{stem}.safetensors"))
        self.assertEqual(*([one[name] for name in ("steps", "correct", "seen")] for one in results))
        for name in ("train_loss", "eval_loss"):
            self.assertAlmostEqual(results[0][name], results[1][name], delta=1e-5)
        self.assertEqual(*map(list, tensors))
        for name, expected in tensors[1].items():
            if "num_batches" not in name:  # JAX counts none
                torch.testing.assert_close(tensors[0][name], expected, rtol=1e-5, atol=1e-6,
                                           msg=lambda text, name=name: f"{name}: {text}")


if __name__ == "__main__":
    unittest.main()
