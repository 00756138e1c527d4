# SPDX-License-Identifier: Apache-2.0
"""Stage 5: checkpoints and resume, its files, modes and flags.

Precedence and refusals are tested in tests/accelerate/ and tests/mnist/, a crash at every call of a
checkpoint in accelerator_full_test.py, equality with other stages and with Python in tests/equality/.
"""
from __future__ import annotations

import atexit
import csv
import functools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import launch  # noqa: E402
from tests.support.resume import (Training, checkpoints_in, hidden_in,  # noqa: E402
                                  require_all_whole, require_same_end)
from tests.support.ways import (CONFIG, STAGE5, Run, Way, alone, distance,  # noqa: E402
                                ignore_accelerate_configuration, require_equal_weights, small,
                                spawned, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-accelerator-"))
atexit.register(shutil.rmtree, FOLDER)
ignore_accelerate_configuration(FOLDER)

WAYS = {
    "bare": lambda: alone(STAGE5),
    "--nprocs 2": lambda: spawned(program=STAGE5),
    "--nprocs 3": lambda: spawned(3, program=STAGE5),
}

# The last batch has one image: on two ranks, one of them has none of it.
tiny = functools.partial(small, recipe="convnet", epochs=1, limit_train=97, limit_test=50)


@functools.cache
def trained(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


class AcceleratorTest(unittest.TestCase):
    def expect_equal(self, a: Run, b: Run) -> None:
        require_equal_weights(a, b)
        for field in ("steps", "seen", "correct"):
            self.assertEqual(a.result[field], b.result[field], field)

    def refused(self, texts: tuple[str, ...], *flags: object, code: int = 2) -> None:
        """Started bare, it ends with one line on the standard error and has trained nothing."""
        done = launch(*alone(STAGE5).command, *flags, cwd=FOLDER)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (code, "", 1), done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def file(self, text: str, name: str = "file.yaml") -> Path:
        path = Path(tempfile.mkdtemp(dir=FOLDER)) / name
        path.write_text(text)
        return path

    def config(self, **changes: str) -> Path:
        lines = [f"{key}: {changes.pop(key, value.strip())}" for key, value in
                 (line.split(":", 1) for line in CONFIG.read_text().splitlines())]
        return self.file("\n".join(lines) + "\n", "my_config.yaml")


class Settings(AcceleratorTest):
    def test_the_file_of_accelerate_starts_its_processes_and_the_command_line_wins(self) -> None:
        run = train(alone(STAGE5), *tiny(), "--config_file", CONFIG, "--mixed_precision", "no",
                    parent=FOLDER)
        self.assertEqual((run.result["world_size"], run.result["precision"]), (2, "fp32"))
        self.assertIn("by spawn", run.header["launch"])

    def test_a_file_for_other_engines_or_several_machines_is_refused(self) -> None:
        path = self.config(deepspeed_config="{zero_stage: 2}")
        self.refused((f"{path}:2: deepspeed_config: ", "zero_stage"), "--config-file", path)
        path = self.config(num_machines="2")
        self.refused((f"{path}: num_machines is 2; hint: ", "accelerate launch --no_python"),
                     "--config-file", path)

    def test_the_variables_of_accelerate_launch(self) -> None:
        way = Way((STAGE5,), {"ACCELERATE_USE_CPU": "yes", "ACCELERATE_MIXED_PRECISION": "bf16",
                              "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": 4})
        run = train(way, *tiny("--gradient-accumulation-steps", 2, batch_size=8), parent=FOLDER)
        self.assertEqual((run.header["device"], run.result["precision"]), ("cpu", "bf16"))
        self.assertNotIn("no GPU found", run.done.stderr)  # the stage does not search for one
        self.assertEqual(run.result["steps"], 4)
        self.assertIn("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 takes precedence", run.done.stderr)


class Hparams(AcceleratorTest):
    def test_its_values_count_and_the_command_line_wins(self) -> None:
        path = self.file("recipe: convnet\nepochs: 2\nbatch_size: 16\nlr: 1e-2\nlimit_train: 48\n"
                         "even-batches: false\n", "hparams.yaml")
        run = train(alone(STAGE5), "--limit-test", 20, "-b", 24, "--hparams", path, "--threads", 1,
                    parent=FOLDER)
        self.assertEqual([run.header[key] for key in ("recipe", "epochs", "batch_size", "lr")],
                         ["convnet", 2, 24, 1e-2])
        self.assertEqual((run.header["train_size"], run.result["steps"]), (48, 4))
        self.assertEqual(run.header["options"]["--even-batches"], "false")

    def test_an_unknown_name_is_refused_with_the_nearest(self) -> None:
        path = self.file("epochs: 2\nquitet: true\n")
        self.refused((f"{path}: quitet: ", "did you mean --quiet?"), "--hparams", path)

    def test_a_bad_value_names_file_and_key(self) -> None:
        for line, flag in (("limit_train: -1", "--limit-train"), ("quiet: perhaps", "quiet")):
            with self.subTest(line):
                path = self.file(f"epochs: 2\n{line}\n")
                self.refused((f"{path}: ", flag), "--hparams", path)


def basicnet(*flags: object, **changes: object) -> tuple[object, ...]:
    """13 batches an epoch, the last with 8 samples."""
    return small(*flags, **{"batch_size": 16, "limit_train": 200, "limit_test": 50} | changes)


class Resume(AcceleratorTest):
    """Stopped at a random point, then --resume: the weights of a run that was never stopped.

    More points and modes are in accelerator_full_test.py, more signals in tests/faults/.
    """

    def test_two_processes_killed_that_accumulate_dispatched_batches(self) -> None:
        flags = basicnet("--gradient-accumulation-steps", 3, "--dispatch-batches",
                         epochs=3, loader_mode="per-process")
        training = Training(2, flags, ("--checkpointing-steps", 2))
        expected = training.uninterrupted(FOLDER)
        attempt = training.attempt(FOLDER)
        chance = random.Random(5)
        step = chance.randint(3, 8)
        done = attempt.stop(step, signal.SIGKILL, chance)
        print(f"stopped after step {step}, exit code {done.code}", flush=True)
        require_all_whole(attempt.project)
        require_same_end(attempt.resumed(), expected)
        self.assertEqual(hidden_in(attempt.project), [])

    def test_without_a_checkpoint(self) -> None:
        self.refused((": expected a checkpoint, got none; hint: name the folder",),
                     "--project-dir", FOLDER / "nothing", "--quiet", "--resume", code=3)
        self.refused(("--resume: expected --project-dir FOLDER",), "--resume")


@functools.cache
def finished() -> Path:
    """The project of a run with two checkpoints, those of its last steps."""
    attempt = Training(1, tiny(), ("--checkpointing-steps", 1, "--total-limit", 2)).attempt(FOLDER)
    done = attempt.run()
    if done.code != 0:
        raise AssertionError(done.stderr)
    return attempt.project


class Checkpoints(AcceleratorTest):
    def copy(self) -> Path:
        project = Path(tempfile.mkdtemp(dir=FOLDER)) / "project"
        shutil.copytree(finished(), project, symlinks=True)
        return project

    def test_total_limit_keeps_that_many(self) -> None:
        self.assertEqual([path.name for path in checkpoints_in(finished())],
                         ["checkpoint_2", "checkpoint_3"])
        self.assertEqual((finished() / "checkpoints" / "latest").readlink(), Path("checkpoint_3"))
        require_all_whole(finished())

    def test_an_older_one_can_be_named(self) -> None:
        project = self.copy()
        old, _ = checkpoints_in(project)
        run = train(alone(STAGE5), *tiny(), "--resume-from-checkpoint", old, parent=FOLDER)
        self.assertIn(f"resumed from {old}", run.done.stderr)
        self.expect_equal(run, trained("bare", *tiny()))

    def test_a_flipped_bit_is_noticed_and_an_older_one_proposed(self) -> None:
        project = self.copy()
        old, new = checkpoints_in(project)
        path = new / "optimizer.safetensors"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        done = launch(*alone(STAGE5).command, *tiny("--project-dir", project, "--resume", "--quiet"),
                      cwd=FOLDER)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (3, "", 1), done.stderr)
        self.assertIn(f"{path}: expected ", done.stderr)
        self.assertIn(f"hint: {old} is whole: resume from that one", done.stderr)


# Runs "$@" on a disk of its own with checkpoints, then with $THEN. Says how each ends.
ON_A_SMALL_DISK = """
mkdir -p "$DISK" && mount -t tmpfs -o "size=$SIZE" tmpfs "$DISK" || exit 77
"$@" --checkpointing-steps 1; echo "training ended with $?"
echo left: $(ls -A "$DISK/checkpoints")
"$@" $THEN; echo "resume ended with $?"
echo left: $(ls -A "$DISK/checkpoints")
"""


class FullDisk(AcceleratorTest):
    """A checkpoint of two processes has 128 KiB and two more files of a page."""

    def test_the_old_checkpoint_stays(self) -> None:
        allowed = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"],
                                 capture_output=True, text=True, timeout=20, check=False)
        if allowed.returncode != 0:
            self.skipTest(f"a disk of its own takes a user namespace: {allowed.stderr}")
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = launch("unshare", "--user", "--map-root-user", "--mount", "bash", "-c",
                      ON_A_SMALL_DISK, "bash", *WAYS["--nprocs 2"]().command,
                      *tiny("--project-dir", folder / "disk"), cwd=folder, environment={
                          "DISK": folder / "disk", "SIZE": "220k", "THEN":
                          f"--resume --metrics {folder / 'a.jsonl'}"})
        if done.code == 77:
            self.skipTest(f"a small disk cannot be mounted: {done.stderr}")
        shown = [line for line in done.lines if "ended with" in line or "left" in line]
        left = "left: checkpoint_0 latest"
        self.assertEqual(shown, ["training ended with 1", left, "resume ended with 0", left],
                         done.stderr)
        self.assertIn("No space left on device", done.stderr)
        self.assertIn("/.checkpoint_1.partial/", done.stderr)
        self.assertEqual(Run(Way(()), (), folder, done).result["weights_sha256"],
                         trained("--nprocs 2", *tiny()).result["weights_sha256"])


class Accumulation(AcceleratorTest):
    def test_it_equals_the_large_batch(self) -> None:
        """Four batches of 16 are one of 64, within rounding: dropout draws the same masks. The last
        window has two and a half batches."""
        flags = functools.partial(small, limit_train=232, limit_test=50, epochs=2)
        whole = trained("--nprocs 2", *flags(batch_size=64))
        parts = trained("--nprocs 2",
                        *flags("--gradient-accumulation-steps", 4, batch_size=16))
        self.assertEqual((whole.result["steps"], parts.result["steps"]), (8, 8))
        apart = distance(parts, whole)
        print(f"accumulated: {apart:.1e}")
        self.assertLessEqual(apart, 1e-4)


class ZeroRedundancy(AcceleratorTest):
    def test_it_changes_no_weight_with_precision_and_accumulation(self) -> None:
        for flags in ((), ("--mixed-precision", "bf16", "--gradient-accumulation-steps", 2)):
            with self.subTest(flags=flags):
                run = small(*flags, limit_train=200, limit_test=50)
                self.expect_equal(trained("--nprocs 2", *run, "--zero-redundancy"),
                                  trained("--nprocs 2", *run))

    def test_other_numbers_of_ranks_divide_a_checkpoint_again(self) -> None:
        """Three ranks, then two, then one that divides nothing."""
        flags = small("--sums", "exact", limit_train=200, limit_test=50)
        project = Path(tempfile.mkdtemp(dir=FOLDER))
        saves = (*flags, "--project-dir", project, "--checkpointing-steps", 1)
        runs = [train(spawned(3, program=STAGE5), *saves, "--zero-redundancy", parent=FOLDER)]
        first, second = checkpoints_in(project)[:2]
        runs.append(train(spawned(2, program=STAGE5), *flags, "--zero-redundancy", "--resume",
                          first, parent=FOLDER))
        runs.append(train(alone(STAGE5), *flags, "--resume", second, parent=FOLDER))
        for run in runs:
            self.expect_equal(run, trained("bare", *flags))


class LoaderModes(AcceleratorTest):
    def test_every_test_image_is_seen_once(self) -> None:
        """All modes and sizes are in accelerator_full_test.py."""
        for mode, even in (("per-process", "--no-even-batches"),
                           ("split-batches", "--even-batches")):
            with self.subTest(f"{mode} {even}"):
                flags = small(even, recipe="convnet", epochs=1, limit_train=48, limit_test=75,
                              batch_size=24, eval_batch_size=24, loader_mode=mode)
                self.assertEqual(trained("--nprocs 3", *flags).result["seen"], 75)

    def test_dispatched_batches_train_the_same_with_less_memory(self) -> None:
        run = trained("--nprocs 2", *tiny("--dispatch-batches"))
        expected = trained("--nprocs 2", *tiny())
        self.expect_equal(run, expected)
        saved = expected.result["peak_rss_bytes"] - run.result["peak_rss_bytes"]
        print(f"{saved / 1e6:.0f} MB less in both processes together")
        self.assertGreater(saved, 40e6)  # the images of rank 1 have 55 MB


class Trackers(AcceleratorTest):
    def logged(self, run: Run) -> list[tuple[int, str, float]]:
        """As the record of the run has it."""
        epochs = [record for record in run.records if record["record"] == "epoch"]
        end = run.result["steps"]
        first = end - sum(record["steps"] for record in epochs)
        steps = [first + sum(record["steps"] for record in epochs[:count])
                 for count in range(1, len(epochs) + 1)]
        losses = [(step, "train_loss", record["train_loss"])
                  for step, record in zip(steps, epochs, strict=True)]
        return [*losses, (end, "accuracy", run.result["accuracy"])]

    def test_all_of_them_have_the_numbers_of_the_record_and_go_on(self) -> None:
        project = Path(tempfile.mkdtemp(dir=FOLDER))
        flags = ("--project-dir", project, "--log-with", "all", "--checkpointing-steps", "epoch")
        runs = [train(alone(STAGE5), *tiny(), *flags, parent=FOLDER),
                train(alone(STAGE5), *tiny(epochs=2), *flags, "--resume", parent=FOLDER)]
        expected = [row for run in runs for row in self.logged(run)]
        self.assertEqual([row[0] for row in expected], [4, 4, 8, 8])
        folder = project / "convnet"
        with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
            rows = [(int(row["step"]), row["name"], float(row["value"]))
                    for row in csv.DictReader(file)]
        self.assertEqual(rows, expected)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["record"] for line in lines], ["run", "log", "log"] * 2)
        logged = [(line["step"], name, line[name]) for line in lines if line["record"] == "log"
                  for name in line if name not in ("record", "step")]
        self.assertEqual(logged, expected)
        self.assertIn("lr,", (folder / "config.csv").read_text())
        self.assertEqual(len(list(folder.glob("events.out.tfevents.*"))), 2)


if __name__ == "__main__":
    unittest.main()
