# SPDX-License-Identifier: Apache-2.0
"""Stage 5 at length: stops at many points, a crash at every call, all modes of the loaders."""
from __future__ import annotations

import atexit
import random
import shutil
import signal
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import launch  # noqa: E402
from tests.support.resume import (Training, calls_of, crash_and_go_on, faulty_disk,  # noqa: E402
                                  hidden_in, require_all_whole, require_same_end)
from tests.support.ways import STAGE5, small, spawned, train  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-accelerator-full-"))
atexit.register(shutil.rmtree, FOLDER)

POINTS = 20


def basicnet(*flags: object, **changes: object) -> tuple[object, ...]:
    """13 batches an epoch, the last with 8 samples."""
    return small(*flags, **{"batch_size": 16, "limit_train": 200, "limit_test": 50, "epochs": 2}
                 | changes)


class Resume(unittest.TestCase):
    """Stopped at random points, once or twice, then --resume."""

    def stop_often(self, training: Training, last: int, first: int = 4) -> None:
        """At steps from `first`, by which there is a checkpoint, to `last`."""
        expected = training.uninterrupted(FOLDER)
        chance = random.Random(f"{training}")
        for point in range(POINTS):
            step = chance.randint(first, last)
            with self.subTest(f"point {point}, step {step}"):
                attempt = training.attempt(FOLDER)
                number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                done = attempt.stop(step, number, chance)
                print(f"stopped after step {step}, exit code {done.code}", flush=True)
                require_all_whole(attempt.project)
                require_same_end(attempt.resumed(), expected)
                self.assertEqual(hidden_in(attempt.project), [])

    def test_one_process(self) -> None:
        self.stop_often(Training(1, basicnet()), 25)

    def test_two_processes(self) -> None:
        self.stop_often(Training(2, basicnet()), 25)

    def test_two_processes_in_the_reference_kernels_with_shifted_images(self) -> None:
        flags = basicnet("--math", "reference", "--augment", "shift", "--num-workers", 1)
        self.stop_often(Training(2, flags, ("--checkpointing-steps", 3, "--total-limit", 1)), 25)

    def test_accumulation(self) -> None:
        flags = basicnet("--gradient-accumulation-steps", 3, epochs=3)
        self.stop_often(Training(1, flags, ("--checkpointing-steps", 2)), 14)

    def test_dispatched_whole_batches(self) -> None:
        flags = basicnet("--dispatch-batches", loader_mode="per-process", epochs=4)
        self.stop_often(Training(2, flags), 27)

    def test_a_checkpoint_per_epoch(self) -> None:
        flags = small(recipe="convnet", epochs=5, limit_train=65, limit_test=50, batch_size=16)
        self.stop_often(Training(2, flags, ("--checkpointing-steps", "epoch")), 24, first=7)

    def test_bf16(self) -> None:
        flags = small("--mixed-precision", "bf16", recipe="convnet", epochs=2, limit_train=200,
                      limit_test=50, batch_size=16)
        self.stop_often(Training(2, flags), 25)


    def test_a_learning_rate_that_drops_after_30_epochs(self) -> None:
        flags = small(recipe="convnet", scheduler="step", epochs=34, lr=0.1, batch_size=16,
                      limit_train=32, limit_test=50)
        self.stop_often(Training(1, flags), 63, first=57)


class Crash(unittest.TestCase):
    """Killed at every write, fsync and rename of three checkpoints, the removal of old ones too."""

    SAVING = ("--checkpointing-steps", 1, "--total-limit", 1)
    FLAGS = small(recipe="convnet", epochs=1, limit_train=96, limit_test=32)

    def crash_everywhere(self, training: Training, rank: int, stride: int = 1) -> None:
        expected = training.uninterrupted(FOLDER)
        calls = calls_of(training.attempt(FOLDER), rank)
        kinds = {call.split()[0] for call in calls}
        self.assertLessEqual({"write", "fsync", "rename"}, kinds)
        print(f"{len(calls)} calls: {', '.join(sorted(kinds))}", flush=True)
        for at in range(1, len(calls) + 1, stride):
            with self.subTest(calls[at - 1], at=at):
                attempt = training.attempt(FOLDER)
                crash_and_go_on(attempt, expected, at, rank)
                shutil.rmtree(attempt.folder)

    def test_one_process(self) -> None:
        self.crash_everywhere(Training(1, self.FLAGS, self.SAVING), 0)

    def test_the_first_of_two(self) -> None:
        self.crash_everywhere(Training(2, self.FLAGS, self.SAVING), 0, stride=7)

    def test_the_second_of_two(self) -> None:
        self.crash_everywhere(Training(2, self.FLAGS, self.SAVING), 1)


class Errors(unittest.TestCase):
    """The disk refuses a call, and all writes from then on, instead."""

    def test_the_run_ends_with_a_message_and_goes_on_later(self) -> None:
        training = Training(2, Crash.FLAGS, ("--checkpointing-steps", 1))
        expected = training.uninterrupted(FOLDER)
        calls = calls_of(training.attempt(FOLDER))
        first = next(at for at, call in enumerate(calls, 1) if "/.checkpoint_1" in call)
        last = next(at for at, call in enumerate(calls, 1) if "/.checkpoint_2" in call)
        for at in range(first, last, 3):
            with self.subTest(calls[at - 1], at=at):
                attempt = training.attempt(FOLDER)
                environment = faulty_disk(at, log=attempt.folder / "calls", error=28)
                done = launch(*attempt.command, cwd=attempt.folder, environment=environment,
                              seconds=60)
                self.assertEqual(done.code, 1, done)
                self.assertIn("No space left on device", done.stderr)
                require_all_whole(attempt.project)
                require_same_end(attempt.resumed(), expected)
                self.assertEqual(hidden_in(attempt.project), [])
                shutil.rmtree(attempt.folder)


class LoaderModes(unittest.TestCase):
    def test_every_test_image_is_seen_once(self) -> None:
        modes = (("global", "--even-batches"), ("per-process", "--even-batches"),
                 ("per-process", "--no-even-batches"), ("split-batches", "--even-batches"),
                 ("split-batches", "--no-even-batches"))
        for world, test in ((2, 64), (2, 75), (3, 75)):
            for mode, even in modes:
                with self.subTest(f"{world} processes, {test} images, {mode} {even}"):
                    flags = small(even, recipe="convnet", limit_train=48, limit_test=test,
                                  batch_size=24, eval_batch_size=24, loader_mode=mode)
                    run = train(spawned(world, program=STAGE5), *flags, parent=FOLDER)
                    self.assertEqual(run.result["seen"], test)


if __name__ == "__main__":
    unittest.main()
