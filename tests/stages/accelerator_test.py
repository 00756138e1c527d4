# SPDX-License-Identifier: Apache-2.0
"""Stage 5: checkpoints and resume, its files, modes and flags."""
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
from tests.support.programs import Result, launch  # noqa: E402
from tests.support.resume import (Training, calls_of, checkpoints_in, crash_and_go_on,  # noqa: E402
                                  hidden_in, manifest_of, require_all_whole, require_same_end)
from tests.support.ways import (CONFIG, STAGE5, Run, Way, alone, distance,  # noqa: E402
                                ignore_accelerate_configuration, require_equal_weights, small,
                                spawned, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-accelerator-"))
atexit.register(shutil.rmtree, FOLDER)
ignore_accelerate_configuration(FOLDER)

WAYS = {
    "bare": lambda: alone(STAGE5),
    "--nprocs 1": lambda: spawned(1, program=STAGE5),
    "--nprocs 2": lambda: spawned(program=STAGE5),
    "--nprocs 3": lambda: spawned(3, program=STAGE5),
}

# The last batch has one image: on two ranks, one of them has none of it.
CONVNET = small(recipe="convnet", epochs=1, limit_train=161, limit_test=101)
tiny = functools.partial(small, recipe="convnet", epochs=1, limit_train=96, limit_test=50)


@functools.cache
def trained(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


class AcceleratorTest(unittest.TestCase):
    def expect_equal(self, a: Run, b: Run) -> None:
        require_equal_weights(a, b)
        for field in ("steps", "seen", "correct"):
            self.assertEqual(a.result[field], b.result[field], field)

    def start(self, way: Way, *flags: object, cwd: Path | None = None) -> Result:
        return launch(*way.command, *flags, cwd=cwd or FOLDER, environment=way.environment)

    def refused(self, texts: tuple[str, ...], *flags: object, code: int = 2,
                environment: dict[str, object] | None = None) -> None:
        """Started bare, it ends with one line on the standard error and has trained nothing."""
        done = self.start(Way(alone(STAGE5).command, environment or {}), *flags)
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


class ConfigFile(AcceleratorTest):
    """The file of `accelerate config`, read by the program itself."""

    def test_it_starts_the_processes_that_the_file_asks_for(self) -> None:
        run = train(alone(STAGE5), *CONVNET, "--config_file", CONFIG, parent=FOLDER)
        self.assertEqual((run.result["world_size"], run.result["precision"]), (2, "bf16"))
        self.assertIn("by spawn", run.header["launch"])
        self.expect_equal(run, trained("--nprocs 2", *CONVNET, "--mixed-precision", "bf16"))

    def test_the_command_line_wins(self) -> None:
        run = train(alone(STAGE5), *CONVNET, "--config_file", CONFIG, "--num_processes", 1,
                    "--mixed_precision", "no", parent=FOLDER)
        self.expect_equal(run, trained("bare", *CONVNET))

    def test_what_is_not_supported_is_named(self) -> None:
        path = self.config(deepspeed_config="{zero_stage: 2}")
        self.refused((f"{path}:2: deepspeed_config: ", "zero_stage"), "--config-file", path)
        path = self.config(mixed_precison="bf16")
        path.write_text(path.read_text() + "mixed_precison: bf16\n")
        self.refused((f"{path}:13: mixed_precison: ", "did you mean mixed_precision?"),
                     "--config-file", path)

    def test_several_machines_are_refused_with_what_starts_them(self) -> None:
        path = self.config(num_machines="2")
        self.refused((f"{path}: num_machines is 2; hint: ", "accelerate launch --no_python"),
                     "--config-file", path)

    def test_fp16_without_a_gpu_is_refused(self) -> None:
        self.refused(("fp16: it needs a GPU", "hint: use bf16"), "--mixed-precision", "fp16",
                     "--quiet")


class Environment(AcceleratorTest):
    """What `accelerate launch` sets, without it."""

    def train(self, *flags: object, device: tuple[object, ...] = ("--device", "cpu"),
              **variables: object) -> Run:
        return train(Way((STAGE5, *device), variables), *flags, parent=FOLDER)

    def test_mixed_precision(self) -> None:
        run = self.train(*CONVNET, ACCELERATE_MIXED_PRECISION="bf16")
        self.expect_equal(run, trained("--nprocs 1", *CONVNET, "--mixed-precision", "bf16"))

    def test_the_variable_of_the_accumulation_wins_over_the_flag(self) -> None:
        run = self.train(*tiny("--gradient-accumulation-steps", 2, batch_size=8),
                         ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4)
        self.assertEqual(run.result["steps"], 3)
        self.assertIn("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 takes precedence", run.done.stderr)

    def test_use_cpu(self) -> None:
        run = self.train(*tiny(), device=(), ACCELERATE_USE_CPU="yes")
        self.assertEqual(run.header["device"], "cpu")
        self.assertNotIn("no GPU found", run.done.stderr)  # nobody has looked for one

    def test_debug_mode_trains_the_same(self) -> None:
        run = train(Way(spawned(program=STAGE5).command, {"ACCELERATE_DEBUG_MODE": "true"}),
                    *CONVNET, parent=FOLDER)
        self.expect_equal(run, trained("--nprocs 2", *CONVNET))
        self.refused(("ACCELERATE_DEBUG_MODE: expected true or false, got 'perhaps'",),
                     environment={"ACCELERATE_DEBUG_MODE": "perhaps"})


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
        for line, flag in (("lr: quick", "--lr"), ("recipe: conv", "--recipe"),
                           ("limit_train: -1", "--limit-train"), ("quiet: perhaps", "quiet")):
            with self.subTest(line):
                path = self.file(f"epochs: 2\n{line}\n")
                self.refused((f"{path}: ", flag), "--hparams", path)


def basicnet(*flags: object, **changes: object) -> tuple[object, ...]:
    """13 batches an epoch, the last with 8 samples."""
    return small(*flags, **{"batch_size": 16, "limit_train": 200, "limit_test": 50} | changes)


class Resume(AcceleratorTest):
    """Stopped at a random point, then --resume: the weights of a run that was never stopped."""

    SEED = 5

    def stopped(self, training: Training, first: int, last: int,
                number: int = signal.SIGKILL) -> None:
        expected = training.uninterrupted(FOLDER)
        attempt = training.attempt(FOLDER)
        chance = random.Random(f"{self.SEED} {training}")
        step = chance.randint(first, last)
        done = attempt.stop(step, number, chance)
        print(f"stopped after step {step}, exit code {done.code}", flush=True)
        require_all_whole(attempt.project)
        require_same_end(attempt.resumed(), expected)
        self.assertEqual(hidden_in(attempt.project), [])

    def test_one_process_killed(self) -> None:
        self.stopped(Training(1, basicnet(epochs=2)), 4, 24)

    def test_two_processes_killed_that_accumulate_dispatched_batches(self) -> None:
        flags = basicnet("--gradient-accumulation-steps", 3, "--dispatch-batches",
                         epochs=3, loader_mode="per-process")
        self.stopped(Training(2, flags, ("--checkpointing-steps", 2)), 3, 8)

    def test_two_processes_killed_with_a_checkpoint_an_epoch(self) -> None:
        flags = small("--math", "reference", recipe="convnet", epochs=4, limit_train=97,
                      limit_test=50, batch_size=16)
        self.stopped(Training(2, flags, ("--checkpointing-steps", "epoch")), 8, 26)

    def test_control_c(self) -> None:
        self.stopped(Training(1, basicnet(epochs=2)), 4, 24, signal.SIGINT)

    def test_the_learning_rate_goes_on_too(self) -> None:
        """A tenth of it after 30 epochs; the stop is near that."""
        flags = small(recipe="convnet", scheduler="step", epochs=34, lr=0.1, batch_size=16,
                      limit_train=32, limit_test=50)
        self.stopped(Training(1, flags, ("--checkpointing-steps", 3)), 57, 63)

    def test_without_a_checkpoint(self) -> None:
        for flags in (("--resume",), ("--resume", FOLDER / "none")):
            self.refused((": expected a checkpoint, got none; hint: name the folder",),
                         "--project-dir", FOLDER / "nothing", "--quiet", *flags, code=3)
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

    def resume(self, project: Path, *more: object) -> Result:
        return self.start(alone(STAGE5), *tiny(), "--project-dir", project, "--resume", *more)

    def test_total_limit_keeps_that_many(self) -> None:
        self.assertEqual([path.name for path in checkpoints_in(finished())],
                         ["checkpoint_1", "checkpoint_2"])
        self.assertEqual((finished() / "checkpoints" / "latest").readlink(), Path("checkpoint_2"))
        require_all_whole(finished())

    def test_an_older_one_can_be_named(self) -> None:
        project = self.copy()
        old, new = checkpoints_in(project)
        shutil.rmtree(new)
        run = train(alone(STAGE5), *tiny(), "--resume-from-checkpoint", old, parent=FOLDER)
        self.assertIn(f"resumed from {old}", run.done.stderr)
        self.expect_equal(run, trained("bare", *tiny()))

    def expect_refused(self, project: Path, name: str) -> None:
        """It names the file and an older checkpoint, and nothing is trained."""
        old, new = checkpoints_in(project)
        done = self.resume(project, "--quiet")
        self.assertEqual((done.code, done.stdout, len(done.errors)), (3, "", 1), done.stderr)
        self.assertIn(f"{new / name}: expected ", done.stderr)
        self.assertIn(f"hint: {old} is whole: resume from that one", done.stderr)

    def test_a_flipped_bit_in_any_file_is_noticed(self) -> None:
        names = ["manifest.json", *manifest_of(checkpoints_in(finished())[-1])]
        self.assertEqual(len(names), 8, names)
        for name in names:
            with self.subTest(name):
                project = self.copy()
                path = checkpoints_in(project)[-1] / name
                content = bytearray(path.read_bytes())
                # A hash in the manifest may be changed so that it looks like one.
                content[4 if name == "manifest.json" else len(content) // 2] ^= 1
                path.write_bytes(content)
                self.expect_refused(project, name)

    def test_a_file_that_is_missing_or_cut_is_noticed(self) -> None:
        project = self.copy()
        (checkpoints_in(project)[-1] / "sampler.json").unlink()
        self.expect_refused(project, "sampler.json")
        project = self.copy()
        path = checkpoints_in(project)[-1] / "optimizer.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        self.expect_refused(project, "optimizer.safetensors")


class Crash(AcceleratorTest):
    """Killed in the middle of save_state. All its calls have their turn in the full tier."""

    TRAINING = Training(1, tiny(), ("--checkpointing-steps", 1, "--total-limit", 1))

    def test_at_some_calls_of_the_second_checkpoint(self) -> None:
        expected = self.TRAINING.uninterrupted(FOLDER)
        calls = calls_of(self.TRAINING.attempt(FOLDER))
        begin = next(number for number, call in enumerate(calls)
                     if call.startswith("mkdir") and call.endswith("/.checkpoint_1.partial"))
        wanted = ["write .checkpoint_1.partial/model.", "rename checkpoint_1", "rename latest",
                  "remove .checkpoint_0.removed/"]
        for text in wanted:
            kind, place = text.split()
            at = next(number for number, call in enumerate(calls, 1)
                      if number > begin and call.startswith(kind)
                      and f"/checkpoints/{place}" in call)
            with self.subTest(text):
                crash_and_go_on(self.TRAINING.attempt(FOLDER), expected, at)

    def test_before_there_is_any(self) -> None:
        expected = self.TRAINING.uninterrupted(FOLDER)
        crash_and_go_on(self.TRAINING.attempt(FOLDER), expected, 8)


# Runs "$@" on a disk of its own with checkpoints, then with $THEN. Says how each ends.
ON_A_SMALL_DISK = """
mkdir -p "$DISK" && mount -t tmpfs -o "size=$SIZE" tmpfs "$DISK" || exit 77
"$@" --checkpointing-steps 1; echo "training ended with $?"
echo left: $(ls -A "$DISK/checkpoints")
"$@" $THEN; echo "resume ended with $?"
echo left: $(ls -A "$DISK/checkpoints")
"""


class FullDisk(AcceleratorTest):
    def run_on_disk(self, world: int, folder: Path) -> Result:
        """A checkpoint has 128 KiB and one more file of a page a rank."""
        flags = tiny("--project-dir", folder / "disk")
        return launch("unshare", "--user", "--map-root-user", "--mount", "bash", "-c",
                      ON_A_SMALL_DISK, "bash", STAGE5, "--nprocs", world, "--device", "cpu", *flags,
                      cwd=folder, environment={
                          "DISK": folder / "disk", "SIZE": "220k", "THEN":
                          f"--resume --metrics {folder / 'a.jsonl'}"})

    def test_the_old_checkpoint_stays(self) -> None:
        allowed = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"],
                                 capture_output=True, text=True, timeout=20, check=False)
        if allowed.returncode != 0:
            self.skipTest(f"a disk of its own takes a user namespace: {allowed.stderr}")
        for world in (1, 2):
            with self.subTest(world):
                folder = Path(tempfile.mkdtemp(dir=FOLDER))
                done = self.run_on_disk(world, folder)
                if done.code == 77:
                    self.skipTest(f"a small disk cannot be mounted: {done.stderr}")
                said = [line for line in done.lines if "ended with" in line or "left" in line]
                left = "left: checkpoint_0 latest"
                self.assertEqual(said, ["training ended with 1", left, "resume ended with 0", left],
                                 done.stderr)
                self.assertIn("No space left on device", done.stderr)
                self.assertIn("/.checkpoint_1.partial/", done.stderr)
                run = Run(Way(()), (), folder, done)
                expected = trained("bare" if world == 1 else "--nprocs 2", *tiny())
                self.assertEqual(run.result["weights_sha256"], expected.result["weights_sha256"])


class Accumulation(AcceleratorTest):
    """Four batches of 16 are one of 64, within rounding: dropout draws the same masks."""

    def compare(self, way: str, images: int, steps: int) -> None:
        flags = functools.partial(small, limit_train=images, limit_test=50, epochs=2)
        whole = trained(way, *flags(batch_size=64))
        parts = trained(way, *flags("--gradient-accumulation-steps", 4, batch_size=16))
        self.assertEqual((whole.result["steps"], parts.result["steps"]), (steps, steps))
        apart = distance(parts, whole)
        print(f"{way}, {images} images: {apart:.1e}")
        self.assertLessEqual(apart, 1e-4)

    def test_it_equals_the_large_batch(self) -> None:
        """The last window has two and a half batches."""
        self.compare("--nprocs 1", 232, 8)
        self.compare("--nprocs 2", 232, 8)


class LoaderModes(AcceleratorTest):
    def test_every_test_image_is_seen_once(self) -> None:
        for world, test in ((2, 64), (2, 75), (3, 75)):
            for mode in ("global", "per-process", "split-batches"):
                for even in ("--even-batches", "--no-even-batches"):
                    if (mode, even) == ("global", "--no-even-batches"):
                        continue
                    with self.subTest(f"{world} processes, {test} images, {mode} {even}"):
                        flags = small(even, recipe="convnet", epochs=1, limit_train=48,
                                      limit_test=test, batch_size=24, eval_batch_size=24,
                                      loader_mode=mode)
                        run = trained(f"--nprocs {world}", *flags)
                        self.assertEqual(run.result["seen"], test)

    def test_a_batch_that_cannot_be_split_is_refused(self) -> None:
        done = self.start(spawned(3, program=STAGE5), *tiny(batch_size=64),
                          "--loader-mode", "split-batches")
        self.assertEqual((done.code, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, "cannot cut 64 samples into 3 equal parts; hint: .* global")

    def test_dispatched_batches_train_the_same_with_less_memory(self) -> None:
        run = trained("--nprocs 2", *CONVNET, "--dispatch-batches")
        expected = trained("--nprocs 2", *CONVNET)
        self.expect_equal(run, expected)
        saved = expected.result["peak_rss_bytes"] - run.result["peak_rss_bytes"]
        print(f"{saved / 1e6:.0f} MB less in both processes together")
        self.assertGreater(saved, 40e6)  # the images of rank 1 have 55 MB


class Trackers(AcceleratorTest):
    def logged(self, run: Run) -> list[tuple[int, str, float]]:
        """What the record of the run says."""
        epochs = [record for record in run.records if record["record"] == "epoch"]
        end = run.result["steps"]
        first = end - sum(record["steps"] for record in epochs)
        steps = [first + sum(record["steps"] for record in epochs[:count])
                 for count in range(1, len(epochs) + 1)]
        losses = [(step, "train_loss", record["train_loss"])
                  for step, record in zip(steps, epochs, strict=True)]
        return [*losses, (end, "accuracy", run.result["accuracy"])]

    def test_all_of_them_say_what_the_record_says_and_go_on(self) -> None:
        project = Path(tempfile.mkdtemp(dir=FOLDER))
        flags = ("--project-dir", project, "--log-with", "all", "--checkpointing-steps", "epoch")
        runs = [train(alone(STAGE5), *tiny(), *flags, parent=FOLDER),
                train(alone(STAGE5), *tiny(epochs=2), *flags, "--resume", parent=FOLDER)]
        expected = [row for run in runs for row in self.logged(run)]
        self.assertEqual([row[0] for row in expected], [3, 3, 6, 6])
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
