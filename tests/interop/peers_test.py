# SPDX-License-Identifier: Apache-2.0
"""Stages 1, 5 and 6 in reference math and their Python twins: DataParallel, Accelerate, Trainer.

Equal bit for bit are all ranks in every step (samples, loss, gradients, weights and buffers) and
what is left at the end. The last batch of an epoch has one sample: on two ranks, one has none.
"""
from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import TORCHRUN, free_port, launch, records, result_record  # noqa: E402
from tests.support.twins import (CPP, PEERS, SAME, TWIN, Command, TwinTest,  # noqa: E402
                                 twin)
from tests.support.ways import ACCELERATE, STAGE1, STAGE5, STAGE6  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-peers-"))
atexit.register(shutil.rmtree, FOLDER)
# A configuration of the user must not count.
os.environ["HF_HOME"] = str(FOLDER)
for variable in [name for name in os.environ if name.startswith("ACCELERATE_")]:
    del os.environ[variable]

EPOCHS = 2
BATCHES = 5  # whole ones in an epoch
STEPS = EPOCHS * (BATCHES + 1)
BATCH = {"basicnet": 64, "convnet": 32}
SEEN = 97  # images of the test: the last batch of convnet has one
BUT_EVAL_LOSS = tuple(field for field in SAME if field != "eval_loss")
BF16 = ("--mixed-precision", "bf16")


def flags(recipe: str) -> Command:
    return ["--recipe", recipe, "--epochs", EPOCHS, "--limit-train", BATCHES * BATCH[recipe] + 1,
            "--limit-test", SEEN]


def torchrun(script: str) -> Command:
    return [TORCHRUN, "--standalone", "--nproc-per-node", 2, PEERS / script]


def accelerate_launch(script: str, precision: str) -> Command:
    """With --cpu it would start one process; --multi_gpu needs no GPU."""
    return [ACCELERATE, "launch", "--multi_gpu", "--num_machines", 1, "--num_processes", 2,
            "--main_process_port", free_port(), "--mixed_precision", precision,
            "--dynamo_backend", "no", PEERS / script]


class PeersTest(TwinTest):
    def expect_equal_but_eval_loss(self, ranks: int) -> None:
        """The twin takes the test's last round with repeated images, in a batch of another size,
        or sums up all images at once: another rounding of the same numbers."""
        self.expect_equal(STEPS, SEEN, ranks, same=BUT_EVAL_LOSS)
        ours, theirs = (result["eval_loss"] for result in self.results())
        self.assertLess(abs(ours - theirs), 1e-6 * theirs, (ours, theirs))


class DataParallel(PeersTest):
    def compare(self, recipe: str) -> None:
        _, theirs = self.run_both([STAGE1, "--device-ids", "cpu"], twin("data_parallel.py"),
                                  flags(recipe))
        self.expect_equal(STEPS, SEEN)
        self.assertIn("DataParallel runs the module alone", theirs.stderr)
        _, result = self.results()
        self.assertEqual((result["stage"], result["replicas"]), ("peer_data_parallel", 1))
        self.finish(self.start("single", twin("single.py"), flags(recipe)))
        single = result_record(self.folder / "single.jsonl")
        self.assertEqual(single["weights_sha256"], result["weights_sha256"])

    def test_basicnet(self) -> None:
        self.compare("basicnet")

    def test_convnet(self) -> None:
        self.compare("convnet")


class Accelerated(PeersTest):
    def compare_one(self, recipe: str, *more: object) -> None:
        self.run_both([STAGE5], twin("accelerated.py"), [*flags(recipe), *more])
        self.expect_equal(STEPS, SEEN)

    def compare_two(self, recipe: str, python: Command, *cpp_flags: object) -> None:
        self.run_both([STAGE5, "--nprocs", 2, *cpp_flags], python, flags(recipe))
        self.expect_equal_but_eval_loss(ranks=2)

    def test_basicnet(self) -> None:
        self.compare_one("basicnet")

    def test_convnet(self) -> None:
        self.compare_one("convnet")

    def test_convnet_twice_as_wide(self) -> None:
        self.compare_one("convnet", "--width", 2)

    def test_basicnet_in_bf16(self) -> None:
        self.compare_one("basicnet", *BF16)
        self.assertEqual([result["precision"] for result in self.results()], ["bf16", "bf16"])

    def test_basicnet_on_two_ranks(self) -> None:
        self.compare_two("basicnet", twin("accelerated.py", "--nprocs", 2))

    def test_convnet_on_two_ranks(self) -> None:
        self.compare_two("convnet", torchrun("accelerated.py"))

    def test_convnet_in_bf16_under_accelerate_launch(self) -> None:
        self.compare_two("convnet", accelerate_launch("accelerated.py", "bf16"), *BF16)
        self.assertEqual([result["precision"] for result in self.results()], ["bf16", "bf16"])


class Trainer(PeersTest):
    def compare(self, recipe: str, ranks: int, python: Command, *more: object) -> None:
        self.run_both([STAGE6, "--nprocs", ranks], python, [*flags(recipe), *more])
        self.expect_equal_but_eval_loss(ranks)

    def test_basicnet(self) -> None:
        self.compare("basicnet", 1, twin("trainer.py"))

    def test_convnet(self) -> None:
        self.compare("convnet", 1, twin("trainer.py"))

    def test_convnet_twice_as_wide(self) -> None:
        self.compare("convnet", 1, twin("trainer.py"), "--width", 2)

    def test_basicnet_on_two_ranks(self) -> None:
        self.compare("basicnet", 2, twin("trainer.py", "--nprocs", 2))

    def test_convnet_on_two_ranks(self) -> None:
        self.compare("convnet", 2, torchrun("trainer.py"))


class TrainerDefaults(PeersTest):
    """Other random numbers, so other weights. The same steps, of as many samples."""

    def compare(self, recipe: str, ranks: int, steps: int, samples: int) -> None:
        profile = ("--profile", "hf-defaults")
        self.run_both([STAGE6, *profile, "--nprocs", ranks, "--output-dir", self.folder / "out"],
                      twin("trainer.py", *profile, "--nprocs", ranks),
                      ["--recipe", recipe, "--limit-train", 300, "--limit-test", SEEN])
        for name, result in zip((CPP, TWIN), self.results()):
            epoch, = (r for r in records(self.folder / f"{name}.jsonl") if r["record"] == "epoch")
            self.assertEqual((result["epochs"], result["steps"], result["seen"]),
                             (1, steps, SEEN), name)
            self.assertEqual((epoch["steps"], epoch["samples"]), (steps, samples), name)
        header, *_ = records(self.folder / f"{TWIN}.jsonl")
        self.assertEqual([header[name] for name in ("batch_size", "eval_batch_size", "lr")],
                         [64, 64, 5e-5])

    def test_one_process(self) -> None:
        self.compare("basicnet", 1, steps=5, samples=300)

    def test_two_ranks_take_64_each_and_repeat_some(self) -> None:
        self.compare("convnet", 2, steps=3, samples=3 * 128)


class Steps(unittest.TestCase):
    """--steps ends a run without a test, in the middle of the second epoch."""

    def expect_steps(self, script: str, *more: object) -> None:
        metrics = Path(tempfile.mkdtemp(dir=FOLDER)) / "a.jsonl"
        done = launch(*twin(script, *more), *flags("convnet"), "--threads", 1, "--steps", 8,
                      "--metrics", metrics, cwd=metrics.parent)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertEqual(os.listdir(metrics.parent), ["a.jsonl"])
        _, first, second, result = records(metrics)
        self.assertEqual([first["steps"], second["steps"], result["steps"]],
                         [BATCHES + 1, 8 - (BATCHES + 1), 8])
        self.assertEqual((result["seen"], result["accuracy"]), (None, None))
        self.assertNotIn("Accuracy", done.stdout)

    def test_data_parallel(self) -> None:
        self.expect_steps("data_parallel.py")

    def test_accelerated(self) -> None:
        self.expect_steps("accelerated.py", "--nprocs", 2)

    def test_trainer(self) -> None:
        self.expect_steps("trainer.py")

    def test_trainer_with_its_defaults(self) -> None:
        self.expect_steps("trainer.py", "--profile", "hf-defaults", "--nprocs", 2, "-b", 16)


if __name__ == "__main__":
    unittest.main()
