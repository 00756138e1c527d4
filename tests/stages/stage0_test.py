# SPDX-License-Identifier: Apache-2.0
"""Stage 0 from the command line: output, files, refusals and exit codes, one case of each kind.

The flags, the data files and the records have tests of their own in tests/mnist.
"""
from __future__ import annotations

import atexit
import functools
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import (DATA, ROOT, Launched, records, run,  # noqa: E402
                                    shown_on_terminal)
from tests.support.ways import STAGE0, Run, alone, endless, small, train  # noqa: E402

IMAGES = "t10k-images-idx3-ubyte"
LABELS = "t10k-labels-idx1-ubyte"
FOLDER = Path(tempfile.mkdtemp(prefix="ladder-stage0-"))
atexit.register(shutil.rmtree, FOLDER)


@functools.cache
def trained(*flags: object, **changes: object) -> Run:
    """Ten steps, unless the flags differ."""
    return train(alone(STAGE0), *small(*flags, **changes), parent=FOLDER)


def plain() -> Run:
    return trained(fingerprint=3)


class StageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=FOLDER))

    def refused(self, code: int, text: str, *flags: object) -> str:
        """Expects the exit code and one line on the standard error, and nothing else."""
        done = run(STAGE0, *flags, cwd=self.folder)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (code, "", 1), done.stderr)
        self.assertIn(text, done.stderr)
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        self.assertEqual(list(self.folder.glob("*.tmp.*")), [])
        return done.stderr


class Output(StageTest):
    def test_basicnet_ends_with_accuracy_and_time(self) -> None:
        lines = plain().done.lines
        self.assertEqual(len(lines), 2, lines)
        self.assertRegex(lines[0], r"^Accuracy: \d+\.\d\d$")
        self.assertRegex(lines[1], r"^time elapsed: \d+\.\d\d seconds$")

    def test_convnet_prints_the_lines_of_its_tutorial_and_saves_under_its_name(self) -> None:
        flags = small("--save", "--metrics", "a.jsonl", recipe="convnet", limit_train=320, epochs=2)
        done = run(STAGE0, *flags, cwd=self.folder)
        self.assertEqual(done.lines[:3], ["begin training of epoch 1/2",
                                          "begin training of epoch 2/2", "begin testing"])
        self.assertRegex(done.lines[3], r"^Accuracy is \d+\.\d\d%$")
        self.assertRegex(done.lines[4], r"^time elapsed: \d+\.\d\d seconds$")
        self.assertEqual(len(done.lines), 5)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["a.jsonl", "origin_checkpoint.safetensors"])
        self.assertEqual([record["record"] for record in records(self.folder / "a.jsonl")],
                         ["run", "epoch", "epoch", "result"])

    def test_a_file_gets_a_progress_line_for_each_tenth(self) -> None:
        progress = [line for line in plain().done.errors if line.startswith("epoch 1/1")]
        self.assertEqual(len(progress), 10, progress)
        self.assertRegex(progress[-1], r"10/10 .*loss \d+\.\d+ .*samples/s")

    def test_a_terminal_gets_a_bar_on_one_line(self) -> None:
        shown = shown_on_terminal(STAGE0, *small(batch_size=16, limit_train=160, limit_test=50))
        drawn = shown.split("\r")
        self.assertTrue(any("10/10" in text and "eta" in text.lower() for text in drawn), shown)
        self.assertEqual(shown.count("epoch 1/1 "), shown.count("\repoch 1/1 "))

    def test_quiet_leaves_only_the_results(self) -> None:
        done = trained("--quiet", augment="shift").done
        self.assertEqual(done.stderr, "")
        self.assertEqual(len(done.lines), 2)

    def test_help_and_versions_go_to_the_standard_output(self) -> None:
        for flag, texts in (("--help", ("--recipe", "--fingerprint")),
                            ("--version", ("ladder", "libtorch       2.11.0", "onednn", "openssl",
                                           "fmt", "nlohmann-json", "zlib", "cli11"))):
            done = run(STAGE0, flag)
            self.assertEqual((done.code, done.stderr), (0, ""))
            for text in texts:
                self.assertIn(text, done.stdout)


class Record(StageTest):
    def test_metrics_hold_a_header_epochs_and_a_result(self) -> None:
        header, _, result = plain().records
        self.assertEqual(header["options"]["--epochs"], "1")
        self.assertEqual(header["versions"]["libtorch"], "2.11.0")
        self.assertEqual(header["parameters"], 1199882)
        self.assertEqual(list(result), [
            "record", "stage", "recipe", "world_size", "precision", "device", "epochs", "steps",
            "accuracy", "correct", "seen", "train_loss", "eval_loss", "train_seconds",
            "total_seconds", "first_step_at", "warm_up_seconds", "samples_per_second",
            "peak_rss_bytes", "sent_bytes", "read_bytes", "weights_sha256", "misclassified"])
        self.assertEqual(len(result["misclassified"]), result["seen"] - result["correct"])
        self.assertEqual(result["sent_bytes"], 0)
        self.assertGreater(result["read_bytes"][0], 11_000_000)  # MNIST, compressed
        self.assertEqual((result["steps"], result["seen"], result["epochs"]), (10, 500, 1))
        self.assertAlmostEqual(result["accuracy"], result["correct"] / 5)
        self.assertEqual(plain().done.lines[0], f"Accuracy: {result['accuracy']:.2f}")
        self.assertGreater(result["peak_rss_bytes"], 100_000_000)

    def test_another_seed_ends_with_other_weights(self) -> None:
        self.assertNotEqual(trained(seed=2).result["weights_sha256"],
                            plain().result["weights_sha256"])

    def test_workers_change_nothing_and_augmentation_does(self) -> None:
        shifted = trained("--quiet", augment="shift").result["weights_sha256"]
        with_workers = trained("--pin-memory", augment="shift", num_workers=3)
        self.assertEqual(shifted, with_workers.result["weights_sha256"])
        self.assertNotEqual(shifted, plain().result["weights_sha256"])

    def test_every_third_step_has_a_fingerprint_beside_the_metrics(self) -> None:
        marks = records(plain().folder / "a.rank0.jsonl")
        self.assertEqual([mark["step"] for mark in marks], [3, 6, 9])
        self.assertEqual(list(marks[0]["gradients"]), [
            "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight", "fc1.bias",
            "fc2.weight", "fc2.bias"])

    def test_a_run_from_another_folder_finds_the_data(self) -> None:
        done = run(STAGE0, *small(epochs=0, limit_test=50), cwd=Path("/"))
        self.assertEqual(done.code, 0, done.stderr)


class Checkpoint(StageTest):
    def test_saved_weights_evaluate_to_the_same_result(self) -> None:
        evaluated = trained(epochs=0, load=plain().weights).result
        for field in ("weights_sha256", "correct", "eval_loss"):
            self.assertEqual(evaluated[field], plain().result[field])

    def test_loading_continues_training(self) -> None:
        first, second = plain().records[1], trained(load=plain().weights).records[1]
        self.assertLess(second["train_loss"], first["train_loss"] / 2)

    def test_a_checkpoint_of_another_network_is_refused(self) -> None:
        self.refused(3, "a tensor layer1.0.weight, got none", "--recipe", "convnet", "--quiet",
                     "--load", plain().weights)


class Data(StageTest):
    def put(self, name: str, position: int, value: int) -> None:
        """Makes `folder` a data set of which this file, not compressed, has another byte."""
        for path in DATA.glob("*.gz"):
            (self.folder / path.name).symlink_to(path)
        (self.folder / f"{name}.gz").unlink()
        content = bytearray(gzip.decompress((DATA / f"{name}.gz").read_bytes()))
        content[position] = value
        (self.folder / name).write_bytes(content)

    def test_a_damaged_file_is_refused_in_one_line(self) -> None:
        self.put(LABELS, position=8 + 7, value=12)
        line = self.refused(3, str(self.folder / LABELS), "--quiet", "--data-root", self.folder)
        for part in ("expected", "got 12", "7", "hint:"):
            self.assertIn(part, line)

    def test_another_set_in_the_same_format_is_accepted_as_unknown(self) -> None:
        self.put("train-images-idx3-ubyte", position=16, value=1)
        done = run(STAGE0, *small("--data-root", self.folder, limit_train=64, limit_test=50))
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("unknown set (sha256 of images", done.stderr)

    def test_another_test_set_is_named_too(self) -> None:
        self.put("t10k-images-idx3-ubyte", position=16, value=1)
        done = run(STAGE0, *small("--data-root", self.folder, limit_train=64, limit_test=50))
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("MNIST train, 60000 images, tested on unknown set (sha256 of images",
                      done.stderr)


class BadUsage(StageTest):
    def test_an_unknown_flag_names_the_nearest(self) -> None:
        self.refused(2, "did you mean --epochs?", "--epoch", "3")

    def test_a_flag_without_its_value(self) -> None:
        self.refused(2, "--help lists all flags", "--epochs")

    def test_a_gpu_that_is_not_there(self) -> None:
        if any(Path("/dev").glob("nvidia[0-9]*")):
            self.skipTest("skipped: this machine has a GPU")
        self.refused(2, "this machine has no GPU", "--gpu", "0,1")

    def test_an_output_file_is_checked_before_training(self) -> None:
        self.refused(2, "--save", "--save", "nowhere/a.safetensors")

    def test_a_run_that_fails_leaves_the_record_of_the_last_one(self) -> None:
        metrics = self.folder / "a.jsonl"
        metrics.write_text("of the last run\n")
        self.refused(3, "nowhere", "--metrics", metrics, "--data-root", "nowhere", "--quiet")
        self.assertEqual(metrics.read_text(), "of the last run\n")

    def test_a_line_break_in_a_value_stays_on_one_line(self) -> None:
        self.refused(2, "a?b", "--recipe", "a\nb")


    def test_fewer_threads_than_asked_for(self) -> None:
        """OpenMP's own variables decide; half of the work would be left undone."""
        with mock.patch.dict(os.environ, {"OMP_THREAD_LIMIT": "1"}):
            self.refused(2, "threads: expected OpenMP to start 2, it starts 1; hint: ask for 1 threads",
                         "--threads", 2, "--quiet")


class Failures(StageTest):
    def test_a_loss_that_is_not_finite_ends_the_run_and_saves_nothing(self) -> None:
        done = run(STAGE0, *small("--metrics", "a.jsonl", "--fingerprint", 1, "--save",
                                  "a.safetensors", lr=1e30), cwd=self.folder)
        self.assertEqual((done.code, done.stdout), (5, ""), done.stderr)
        found = re.search(r"error: epoch 1, step (\d): expected a finite loss, got -?(nan|inf)",
                          done.stderr)
        self.assertIsNotNone(found, done.stderr)
        # The bad step has its fingerprint.
        self.assertEqual(records(self.folder / "a.rank0.jsonl")[-1]["step"], int(found[1]))
        self.assertEqual(list(self.folder.glob("*.safetensors*")), [])

    def test_a_full_standard_output_costs_no_weights(self) -> None:
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [*map(str, (*alone(STAGE0).command, *small("--metrics", "a.jsonl", "--save",
                                                           "a.safetensors")))],
                cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("error: standard output: write: No space left", done.stderr)
        self.assertEqual(records(self.folder / "a.jsonl")[-1]["record"], "result")
        self.assertTrue((self.folder / "a.safetensors").exists())

    def test_the_weights_are_saved_before_the_result_is_recorded(self) -> None:
        """So that metrics which cannot be written, or a signal during the test, cost no weights."""
        done = run(STAGE0, *small("--metrics", "a.jsonl", "--save", "a.safetensors"),
                   cwd=self.folder)
        self.assertEqual(done.code, 0, done.stderr)
        saved, recorded = ((self.folder / name).stat().st_mtime_ns
                           for name in ("a.safetensors", "a.jsonl"))
        self.assertLess(saved, recorded)

    def test_control_c_ends_the_program_as_shells_expect(self) -> None:
        with Launched(*alone(STAGE0).command, *endless()) as started:
            started.wait_until_training(60)
            started.process.send_signal(signal.SIGINT)
            done = started.finish(60)
        self.assertEqual((done.code, done.stdout), (-signal.SIGINT, ""), done.stderr)
        self.assertRegex(done.stderr, r"SIGINT: stopped after step \d+; nothing saved")


class RunScript(StageTest):
    def test_an_unknown_stage_lists_the_known_ones(self) -> None:
        done = run(ROOT / "run", "stage9")
        self.assertEqual(done.code, 2)
        self.assertIn(STAGE0.name, done.stderr)


if __name__ == "__main__":
    unittest.main()
