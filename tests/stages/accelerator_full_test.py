# SPDX-License-Identifier: Apache-2.0
"""Stage 5 at length: stops at many points, a crash at every call, all modes of the loaders."""
from __future__ import annotations

import functools
import itertools
import random
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.programs import launch, temporary_folder
from tests.support.resume import (Attempt, Training, calls_of, crash_and_go_on, faulty_disk,
                                  hidden_in, require_all_whole, require_same_end)
from tests.support.ways import STAGE5, Run, small, spawned, train

FOLDER = temporary_folder("accelerator-full")
POINTS = 20
# 13 batches an epoch, the last with 8 samples.
basicnet = functools.partial(small, batch_size=16, limit_train=200, limit_test=50, epochs=2)
convnet = functools.partial(basicnet, recipe="convnet")


def require_same_end_after_resume(attempt: Attempt, expected: Run) -> None:
    require_all_whole(attempt.project)
    require_same_end(attempt.resumed(), expected)
    assert hidden_in(attempt.project) == []


# Stopped between the steps `first`, by which there is a checkpoint, and `last`, then --resume.
@pytest.mark.parametrize("training, first, last", [
    (Training(1, basicnet()), 4, 25),
    (Training(2, basicnet()), 4, 25),
    (Training(2, basicnet("--math", "reference", "--augment", "shift", "--num-workers", 1),
              ("--checkpointing-steps", 3, "--total-limit", 1)), 4, 25),
    (Training(1, basicnet("--gradient-accumulation-steps", 3, epochs=3),
              ("--checkpointing-steps", 2)), 4, 14),
    (Training(2, basicnet("--dispatch-batches", loader_mode="per-process", epochs=4)), 4, 27),
    (Training(2, convnet(epochs=5, limit_train=65), ("--checkpointing-steps", "epoch")), 7, 24),
    (Training(2, convnet("--mixed-precision", "bf16")), 4, 25),
    # The learning rate drops after 30 epochs.
    (Training(1, convnet(scheduler="step", epochs=34, lr=0.1, limit_train=32)), 57, 63)],
    ids=["one process", "two processes", "reference kernels, shifted images", "accumulation",
         "dispatched whole batches", "a checkpoint per epoch", "bf16", "schedule"])
def test_a_stopped_run_resumes_to_the_same_weights(training: Training, first: int,
                                                   last: int) -> None:
    expected = training.uninterrupted(FOLDER)
    chance = random.Random(f"{training}")
    for point in range(POINTS):
        step = chance.randint(first, last)
        attempt = training.attempt(FOLDER)
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        done = attempt.stop(step, number, chance)
        print(f"point {point}: stopped after step {step}, exit code {done.code}", flush=True)
        require_same_end_after_resume(attempt, expected)


FLAGS = small(recipe="convnet", epochs=1, limit_train=96, limit_test=32)


@pytest.mark.parametrize("world, rank, stride", [(1, 0, 1), (2, 0, 7), (2, 1, 1)])
def test_a_kill_at_any_write_fsync_or_rename_of_three_checkpoints_loses_none(
        world: int, rank: int, stride: int) -> None:
    """And of the removal of old ones."""
    training = Training(world, FLAGS, ("--checkpointing-steps", 1, "--total-limit", 1))
    expected = training.uninterrupted(FOLDER)
    calls = calls_of(training.attempt(FOLDER), rank)
    kinds = {call.split()[0] for call in calls}
    assert {"write", "fsync", "rename"} <= kinds
    print(f"{len(calls)} calls: {', '.join(sorted(kinds))}", flush=True)
    for at in range(1, len(calls) + 1, stride):
        attempt = training.attempt(FOLDER)
        crash_and_go_on(attempt, expected, at, rank)
        shutil.rmtree(attempt.folder)


def test_a_disk_that_refuses_calls_ends_the_run_with_a_message_and_it_goes_on_later() -> None:
    """The disk refuses a call, and all writes from then on."""
    training = Training(2, FLAGS, ("--checkpointing-steps", 1))
    expected = training.uninterrupted(FOLDER)
    calls = calls_of(training.attempt(FOLDER))
    first, last = (next(at for at, call in enumerate(calls, 1) if f"/.checkpoint_{number}" in call)
                   for number in (1, 2))
    for at in range(first, last, 3):
        attempt = training.attempt(FOLDER)
        environment = faulty_disk(at, log=attempt.folder / "calls", error=28)
        done = launch(*attempt.command, cwd=attempt.folder, environment=environment, seconds=60)
        assert done.code == 1, (calls[at - 1], done)
        assert "No space left on device" in done.stderr
        require_same_end_after_resume(attempt, expected)
        shutil.rmtree(attempt.folder)


@pytest.mark.parametrize("size, loader", itertools.product(
    ((2, 64), (2, 75), (3, 75)),
    (("global", "--even-batches"), ("per-process", "--even-batches"),
     ("per-process", "--no-even-batches"), ("split-batches", "--even-batches"),
     ("split-batches", "--no-even-batches"))))
def test_every_test_image_is_seen_once(tmp_path: Path, size: tuple[int, int],
                                       loader: tuple[str, str]) -> None:
    (world, test), (mode, even) = size, loader
    flags = small(even, recipe="convnet", limit_train=48, limit_test=test, batch_size=24,
                  eval_batch_size=24, loader_mode=mode)
    run = train(spawned(world, program=STAGE5), *flags, parent=tmp_path)
    assert run.result["seen"] == test
