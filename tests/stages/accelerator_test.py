# SPDX-License-Identifier: Apache-2.0
"""Stage 5: checkpoints and resume, its files, modes and flags.

Precedence and refusals are tested in tests/accelerate/ and tests/mnist/, a crash at every call of a
checkpoint in tests/checkpoint/, equality with other stages and with Python in tests/equality/.
"""
from __future__ import annotations

import csv
import functools
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import FULL, launch, records, require_refused, temporary_folder
from tests.support.resume import (Training, checkpoints_in, hidden_in, require_all_whole,
                                  require_same_end)
from tests.support.ways import (CONFIG, STAGE5, Run, Way, alone, ignore_accelerate_configuration,
                                require_equal_weights, small, spawned, train)

FOLDER = temporary_folder("accelerator")
ignore_accelerate_configuration(FOLDER)

# The last batch has one image: on two ranks, one of them has none of it.
tiny = functools.partial(small, recipe="convnet", epochs=1, limit_train=97, limit_test=50)


def way_of(ranks: int) -> Way:
    return spawned(ranks, program=STAGE5) if ranks > 1 else alone(STAGE5)


@functools.cache
def trained(ranks: int, *flags: object) -> Run:
    return train(way_of(ranks), *flags, parent=FOLDER)


def require_equal(a: Run, b: Run) -> None:
    require_equal_weights(a, b)
    for field in ("steps", "seen", "correct"):
        assert a.result[field] == b.result[field], field


def test_the_file_of_accelerate_starts_its_processes_and_the_command_line_wins() -> None:
    run = train(alone(STAGE5), *tiny(), "--config_file", CONFIG, "--mixed_precision", "no",
                parent=FOLDER)
    assert (run.result["world_size"], run.result["precision"]) == (2, "fp32")
    assert "by spawn" in run.header["launch"]


def test_a_file_for_several_machines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my_config.yaml"
    path.write_text(CONFIG.read_text().replace("num_machines: 1", "num_machines: 2"))
    done = launch(*alone(STAGE5).command, "--config-file", path, cwd=tmp_path)
    require_refused(done, 2, f"{path}: num_machines is 2; hint: ", "accelerate launch --no_python")


def test_the_variables_of_accelerate_launch() -> None:
    way = Way((STAGE5,), {"ACCELERATE_USE_CPU": "yes", "ACCELERATE_MIXED_PRECISION": "bf16",
                          "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": 4})
    run = train(way, *tiny("--gradient-accumulation-steps", 2, batch_size=8), parent=FOLDER)
    assert (run.header["device"], run.result["precision"]) == ("cpu", "bf16")
    assert "no GPU found" not in run.done.stderr  # the stage does not search for one
    assert run.result["steps"] == 4
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 takes precedence" in run.done.stderr


def test_the_values_of_a_hparams_file_count_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "hparams.yaml"
    path.write_text("recipe: convnet\nepochs: 2\nbatch_size: 16\nlr: 1e-2\nlimit_train: 48\n"
                    "even-batches: false\n")
    run = train(alone(STAGE5), "--limit-test", 20, "-b", 24, "--hparams", path, "--threads", 1,
                parent=FOLDER)
    assert [run.header[key] for key in ("recipe", "epochs", "batch_size", "lr")] == [
        "convnet", 2, 24, 1e-2]
    assert (run.header["train_size"], run.result["steps"]) == (48, 4)
    assert run.header["options"]["--even-batches"] == "false"


@pytest.mark.parametrize("line, texts", [
    ("quitet: true", (": quitet: ", "did you mean --quiet?")),
    ("limit_train: -1", (": ", "--limit-train")), ("quiet: perhaps", (": ", "quiet")),
    ("precision: bf16\nmixed-precision: 'no'", (": mixed-precision: sets --mixed-precision again",))])
def test_a_bad_line_of_a_hparams_file_is_refused_with_file_and_key(
        tmp_path: Path, line: str, texts: tuple[str, ...]) -> None:
    path = tmp_path / "hparams.yaml"
    path.write_text(f"epochs: 2\n{line}\n")
    done = launch(*alone(STAGE5).command, "--hparams", path, cwd=tmp_path)
    require_refused(done, 2, f"{path}{texts[0]}", *texts[1:])


# 13 batches an epoch, the last with 8 samples.
basicnet = functools.partial(small, batch_size=16, limit_train=200, limit_test=50, epochs=2)
convnet = functools.partial(basicnet, recipe="convnet")
full = pytest.mark.skipif(not FULL, reason="with LADDER_FULL")


# Stopped between the steps `first`, by which there is a checkpoint, and `last`, then --resume. More
# signals are in tests/faults/.
@pytest.mark.parametrize("points, training, first, last", [
    pytest.param(1, Training(2, basicnet("--gradient-accumulation-steps", 3, "--dispatch-batches",
                                         epochs=3, loader_mode="per-process"),
                             ("--checkpointing-steps", 2)), 3, 8, id="dispatched and accumulated"),
    *(pytest.param(20, *values, marks=full, id=name) for name, values in {
        "one process": (Training(1, basicnet()), 4, 25),
        "two processes": (Training(2, basicnet()), 4, 25),
        "reference kernels, shifted images": (
            Training(2, basicnet("--math", "reference", "--augment", "shift", "--num-workers", 1),
                     ("--checkpointing-steps", 3, "--total-limit", 1)), 4, 25),
        "accumulation": (Training(1, basicnet("--gradient-accumulation-steps", 3, epochs=3),
                                  ("--checkpointing-steps", 2)), 4, 14),
        "dispatched whole batches": (
            Training(2, basicnet("--dispatch-batches", loader_mode="per-process", epochs=4)),
            4, 27),
        "a checkpoint per epoch": (Training(2, convnet(epochs=5, limit_train=65),
                                            ("--checkpointing-steps", "epoch")), 7, 24),
        "bf16": (Training(2, convnet("--mixed-precision", "bf16")), 4, 25),
        "learning rate that drops after 30 epochs": (
            Training(1, convnet(scheduler="step", epochs=34, lr=0.1, limit_train=32)), 57, 63),
    }.items())])
def test_a_stopped_run_resumes_to_the_same_weights(points: int, training: Training, first: int,
                                                   last: int) -> None:
    expected = training.uninterrupted(FOLDER)
    chance = random.Random(f"{training}")
    for point in range(points):
        step = chance.randint(first, last)
        attempt = training.attempt(FOLDER)
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        done = attempt.stop(step, number, chance)
        print(f"point {point}: stopped after step {step}, exit code {done.code}", flush=True)
        require_all_whole(attempt.project)
        require_same_end(attempt.resumed(), expected)
        assert hidden_in(attempt.project) == []


def test_total_limit_keeps_that_many_and_an_older_one_can_be_named() -> None:
    attempt = Training(1, tiny(), ("--checkpointing-steps", 1, "--total-limit", 2)).attempt(FOLDER)
    done = attempt.run()
    assert done.code == 0, done.stderr
    old, new = checkpoints_in(attempt.project)
    assert (old.name, new.name) == ("checkpoint_2", "checkpoint_3")  # of the last two steps
    assert (new.parent / "latest").readlink() == Path("checkpoint_3")
    require_all_whole(attempt.project)
    run = train(alone(STAGE5), *tiny(), "--resume-from-checkpoint", old, parent=FOLDER)
    assert f"resumed from {old}" in run.done.stderr
    require_equal(run, trained(1, *tiny()))


# Runs "$@" on a disk of its own with checkpoints, then with $THEN. Prints how each ends.
ON_A_SMALL_DISK = """
mkdir -p "$DISK" && mount -t tmpfs -o "size=$SIZE" tmpfs "$DISK" || exit 77
"$@" --checkpointing-steps 1; echo "training ended with $?"
echo left: $(ls -A "$DISK/checkpoints")
"$@" $THEN; echo "resume ended with $?"
echo left: $(ls -A "$DISK/checkpoints")
"""


def test_the_old_checkpoint_stays_on_a_full_disk(tmp_path: Path) -> None:
    """A checkpoint of two processes has 128 KiB and two more files of a page."""
    own = ("unshare", "--user", "--map-root-user", "--mount")
    allowed = subprocess.run([*own, "true"], capture_output=True, text=True, timeout=20,
                             check=False)
    if allowed.returncode != 0:
        pytest.skip(f"a disk of its own takes a user namespace: {allowed.stderr}")
    disk = tmp_path / "disk"
    done = launch(*own, "bash", "-c", ON_A_SMALL_DISK, "bash", *way_of(2).command,
                  *tiny("--project-dir", disk), cwd=tmp_path, environment={
                      "DISK": disk, "SIZE": "220k",
                      "THEN": f"--resume --metrics {tmp_path / 'a.jsonl'}"})
    if done.code == 77:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr}")
    left = "left: checkpoint_0 latest"
    assert [line for line in done.lines if "ended with" in line or "left" in line] == [
        "training ended with 1", left, "resume ended with 0", left], done.stderr
    assert "No space left on device" in done.stderr
    assert "/.checkpoint_1.partial/" in done.stderr
    assert Run(Way(()), (), tmp_path, done).result["weights_sha256"] == \
        trained(2, *tiny()).result["weights_sha256"]


def test_zero_redundancy_changes_no_weight_in_bf16_with_accumulation() -> None:
    flags = small("--mixed-precision", "bf16", "--gradient-accumulation-steps", 2, limit_train=200,
                  limit_test=50)
    require_equal(trained(2, *flags, "--zero-redundancy"), trained(2, *flags))


def test_other_numbers_of_ranks_divide_a_checkpoint_again(tmp_path: Path) -> None:
    """Three ranks, then two, then one that divides nothing."""
    flags = small("--sums", "exact", limit_train=200, limit_test=50)
    runs = [train(way_of(3), *flags, "--project-dir", tmp_path, "--checkpointing-steps", 1,
                  "--zero-redundancy", parent=FOLDER)]
    first, second = checkpoints_in(tmp_path)[:2]
    runs += [train(way_of(2), *flags, "--zero-redundancy", "--resume", first, parent=FOLDER),
             train(way_of(1), *flags, "--resume", second, parent=FOLDER)]
    for run in runs:
        require_equal(run, trained(1, *flags))


def test_dispatched_batches_train_the_same_with_less_memory() -> None:
    run, expected = trained(2, *tiny("--dispatch-batches")), trained(2, *tiny())
    require_equal(run, expected)
    saved = expected.result["peak_rss_bytes"] - run.result["peak_rss_bytes"]
    print(f"{saved / 1e6:.0f} MB less in both processes together")
    assert saved > 40e6  # the images of rank 1 have 55 MB


def test_all_trackers_have_the_numbers_of_the_record_and_go_on(tmp_path: Path) -> None:
    flags = ("--project-dir", tmp_path, "--log-with", "all", "--checkpointing-steps", "epoch")
    runs = [train(alone(STAGE5), *tiny(), *flags, parent=FOLDER),
            train(alone(STAGE5), *tiny(epochs=2), *flags, "--resume", parent=FOLDER)]
    expected = []
    for run, step in zip(runs, (4, 8)):  # each of one epoch
        epoch, = (record for record in run.records if record["record"] == "epoch")
        assert (epoch["steps"], run.result["steps"]) == (4, step)
        expected += [(step, "train_loss", epoch["train_loss"]),
                     (step, "accuracy", run.result["accuracy"])]
    folder = tmp_path / "convnet"
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        assert [(int(row["step"]), row["name"], float(row["value"]))
                for row in csv.DictReader(file)] == expected
    lines = records(folder / "metrics.jsonl")
    assert [line["record"] for line in lines] == ["run", "log", "log"] * 2
    assert [(line["step"], name, line[name]) for line in lines if line["record"] == "log"
            for name in line if name not in ("record", "step")] == expected
    assert "lr," in (folder / "config.csv").read_text()
    assert len(list(folder.glob("events.out.tfevents.*"))) == 2
