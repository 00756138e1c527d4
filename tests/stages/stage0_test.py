# SPDX-License-Identifier: Apache-2.0
"""Stage 0 as a user meets it: what it prints, writes, refuses, and with which exit code."""
from __future__ import annotations

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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import (BIN, DATA, ROOT, records, result_record, run,  # noqa: E402
                                    shown_on_terminal)

STAGE = "stage0_single_gpu"
SMALL = ("--limit-train", 640, "--limit-test", 500, "--threads", 1)
IMAGES = "t10k-images-idx3-ubyte.gz"
LABELS = "t10k-labels-idx1-ubyte.gz"


class StageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ladder-stage0-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def train(self, *flags: object):
        done = run(STAGE, *SMALL, *flags, cwd=self.folder)
        self.assertEqual(done.code, 0, done.stderr)
        return done

    def weights(self, *flags: object) -> str:
        metrics = self.folder / "metrics.jsonl"
        self.train("--metrics", metrics, "--quiet", *flags)
        return result_record(metrics)["weights_sha256"]

    def refused(self, code: int, text: str, *flags: object) -> None:
        """Expects the exit code and one line on the standard error, and nothing else."""
        done = run(STAGE, *flags, cwd=self.folder)
        self.assertEqual(done.code, code, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.errors), 1, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        self.assertEqual(list(self.folder.glob("*.tmp.*")), [])


class Output(StageTest):
    def test_basicnet_ends_with_accuracy_and_time(self) -> None:
        lines = self.train().lines
        self.assertEqual(len(lines), 2, lines)
        self.assertRegex(lines[0], r"^Accuracy: \d+\.\d\d$")
        self.assertRegex(lines[1], r"^time elapsed: \d+\.\d\d seconds$")

    def test_convnet_prints_the_lines_of_its_tutorial(self) -> None:
        lines = self.train("--recipe", "convnet", "--epochs", 2).lines
        self.assertEqual(lines[:3], ["begin training of epoch 1/2", "begin training of epoch 2/2",
                                     "begin testing"])
        self.assertRegex(lines[3], r"^Accuracy is \d+\.\d\d%$")
        self.assertRegex(lines[4], r"^time elapsed: \d+\.\d\d seconds$")
        self.assertEqual(len(lines), 5)

    def test_a_file_gets_a_progress_line_for_each_tenth(self) -> None:
        progress = [line for line in self.train().errors if line.startswith("epoch 1/1")]
        self.assertEqual(len(progress), 10, progress)
        self.assertRegex(progress[-1], r"10/10 .*loss \d+\.\d+ .*samples/s")

    def test_a_terminal_gets_a_bar_on_one_line(self) -> None:
        shown = shown_on_terminal(BIN / STAGE, *SMALL)
        drawn = shown.split("\r")
        self.assertTrue(any("10/10" in text and "eta" in text.lower() for text in drawn), shown)
        self.assertEqual(shown.count("epoch 1/1 "), shown.count("\repoch 1/1 "))

    def test_quiet_leaves_only_the_results(self) -> None:
        done = self.train("--quiet")
        self.assertEqual(done.stderr, "")
        self.assertEqual(len(done.lines), 2)

    def test_help_names_every_common_flag(self) -> None:
        text = run(STAGE, "--help").stdout
        for flag in ("--recipe", "--epochs", "--batch-size", "--eval-batch-size", "--lr",
                     "--data-root", "--limit-train", "--limit-test", "--device", "--gpu",
                     "--threads", "--seed", "--math", "--save", "--load", "--metrics",
                     "--fingerprint", "--quiet", "--augment", "--num-workers", "--pin-memory"):
            self.assertIn(flag, text)

    def test_version_names_every_library(self) -> None:
        done = run(STAGE, "--version")
        self.assertEqual(done.code, 0)
        for library in ("ladder", "libtorch       2.11.0", "onednn", "openssl", "fmt",
                        "nlohmann-json", "zlib", "cli11"):
            self.assertIn(library, done.stdout)


class Record(StageTest):
    def test_metrics_hold_a_header_epochs_and_a_result(self) -> None:
        metrics = self.folder / "a.jsonl"
        printed = self.train("--metrics", metrics, "--epochs", 2).lines
        kinds = [record["record"] for record in records(metrics)]
        self.assertEqual(kinds, ["run", "epoch", "epoch", "result"])
        header, result = records(metrics)[0], result_record(metrics)
        self.assertEqual(header["options"]["--epochs"], "2")
        self.assertEqual(header["versions"]["libtorch"], "2.11.0")
        self.assertEqual(header["parameters"], 1199882)
        self.assertEqual(list(result)[1:], [
            "stage", "recipe", "world_size", "precision", "device", "epochs", "steps", "accuracy",
            "correct", "seen", "train_loss", "eval_loss", "train_seconds", "total_seconds",
            "first_step_at", "warm_up_seconds", "samples_per_second", "peak_rss_bytes", "weights_sha256"])
        self.assertEqual((result["steps"], result["seen"], result["epochs"]), (20, 500, 2))
        self.assertAlmostEqual(result["accuracy"], result["correct"] / 5)
        self.assertEqual(printed[0], f"Accuracy: {result['accuracy']:.2f}")
        self.assertGreater(result["peak_rss_bytes"], 100_000_000)

    def test_the_same_command_twice_ends_with_the_same_weights(self) -> None:
        for recipe in ("basicnet", "convnet"):
            for math in ("fast", "reference"):
                flags = ("--recipe", recipe, "--math", math)
                self.assertEqual(self.weights(*flags), self.weights(*flags), flags)

    def test_another_seed_ends_with_other_weights(self) -> None:
        self.assertNotEqual(self.weights("--seed", 1), self.weights("--seed", 2))

    def test_workers_change_nothing_and_augmentation_does(self) -> None:
        plain = self.weights()
        shifted = self.weights("--augment", "shift")
        self.assertEqual(plain, self.weights("--num-workers", 3, "--pin-memory"))
        self.assertNotEqual(plain, shifted)
        self.assertEqual(shifted, self.weights("--augment", "shift", "--num-workers", 2))

    def test_spellings_of_the_tutorials_mean_the_same(self) -> None:
        expected = self.weights("--batch-size", 32, "--epochs", 1)
        self.assertEqual(expected, self.weights("--batch_size", 32, "-e", 1))
        self.assertEqual(expected, self.weights("-b", 32, "--epochs=1"))

    def test_logits_head_trains_to_the_same_accuracy(self) -> None:
        def correct(head: str) -> int:
            metrics = self.folder / "head.jsonl"
            self.train("--head", head, "--metrics", metrics)
            return result_record(metrics)["correct"]

        self.assertEqual(correct("log-softmax"), correct("logits"))

    def test_a_fingerprint_of_each_kth_step_lies_beside_the_metrics(self) -> None:
        self.train("--metrics", self.folder / "a.jsonl", "--fingerprint", 3)
        marks = records(self.folder / "a.rank0.jsonl")
        self.assertEqual([mark["step"] for mark in marks], [3, 6, 9])
        self.assertEqual(list(marks[0]["gradients"]), [
            "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight", "fc1.bias",
            "fc2.weight", "fc2.bias"])

    def test_a_second_run_from_another_folder_finds_the_data(self) -> None:
        self.assertEqual(run(STAGE, *SMALL, cwd=Path("/")).code, 0)


class Checkpoint(StageTest):
    def test_saved_weights_evaluate_to_the_same_result(self) -> None:
        first, second = self.folder / "1.jsonl", self.folder / "2.jsonl"
        path = self.folder / "weights.safetensors"
        self.train("--save", path, "--metrics", first)
        self.train("--load", path, "--epochs", 0, "--metrics", second)
        for field in ("weights_sha256", "correct", "eval_loss"):
            self.assertEqual(result_record(first)[field], result_record(second)[field])

    def test_loading_continues_training(self) -> None:
        path = self.folder / "weights.safetensors"
        metrics = self.folder / "a.jsonl"
        self.train("--save", path, "--metrics", metrics)
        first = records(metrics)[1]["train_loss"]
        self.train("--load", path, "--metrics", metrics)
        self.assertLess(records(metrics)[1]["train_loss"], first / 2)

    def test_save_without_a_name_uses_that_of_the_tutorial(self) -> None:
        self.train("--save")
        self.train("--recipe", "convnet", "--save")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["mnist_cnn.safetensors", "origin_checkpoint.safetensors"])

    def test_a_checkpoint_of_another_network_is_refused(self) -> None:
        path = self.folder / "weights.safetensors"
        self.train("--save", path)
        self.refused(3, "a tensor fc.bias, got none", *SMALL, "--recipe", "convnet", "--load", path, "--quiet")

    def test_a_damaged_checkpoint_is_refused(self) -> None:
        path = self.folder / "weights.safetensors"
        self.train("--save", path)
        path.write_bytes(path.read_bytes()[:-1])
        self.refused(3, str(path), *SMALL, "--load", path, "--quiet")
        self.refused(3, "none.safetensors", *SMALL, "--load", "none.safetensors", "--quiet")


class BadData(StageTest):
    """Each kind of damage: exit 3, one line with path, expected, got and hint, nothing else."""

    def setUp(self) -> None:
        super().setUp()
        for path in DATA.glob("*.gz"):
            shutil.copy(path, self.folder)

    def damaged(self, name: str, *parts: str) -> None:
        done = run(STAGE, "--quiet", "--data-root", self.folder)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (3, "", 1), done.stderr)
        for part in (str(self.folder / name), "expected", "got", "hint:", *parts):
            self.assertIn(part, done.stderr)

    def content(self, name: str) -> bytearray:
        return bytearray(gzip.decompress((self.folder / name).read_bytes()))

    def put(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(gzip.compress(content, 1))

    def test_missing_file(self) -> None:
        (self.folder / LABELS).unlink()
        self.damaged(LABELS.removesuffix(".gz"), "--data-root")

    def test_missing_folder(self) -> None:
        self.folder = self.folder / "nowhere"
        self.damaged("")

    def test_truncated_gzip(self) -> None:
        path = self.folder / IMAGES
        path.write_bytes(path.read_bytes()[:100000])
        self.damaged(IMAGES)

    def test_corrupted_gzip(self) -> None:
        path = self.folder / IMAGES
        content = bytearray(path.read_bytes())
        content[500000] ^= 0xFF
        path.write_bytes(content)
        self.damaged(IMAGES)

    def test_bytes_behind_the_gzip(self) -> None:
        path = self.folder / IMAGES
        path.write_bytes(path.read_bytes() + b"more")
        self.damaged(IMAGES)

    def test_truncated_images(self) -> None:
        self.put(IMAGES, self.content(IMAGES)[:-100])
        self.damaged(IMAGES, "7840016", "7839916")

    def test_bytes_behind_the_images(self) -> None:
        self.put(IMAGES, self.content(IMAGES) + b"more")
        self.damaged(IMAGES, "7840016", "7840020")

    def test_wrong_magic_number(self) -> None:
        self.put(IMAGES, b"\0\0\x08\x04" + self.content(IMAGES)[4:])
        self.damaged(IMAGES, "0x00000803")

    def test_label_out_of_range(self) -> None:
        content = self.content(LABELS)
        content[8 + 7] = 12
        self.put(LABELS, content)
        self.damaged(LABELS, "12", "7")

    def test_fewer_labels_than_images(self) -> None:
        content = self.content(LABELS)[:-1]
        content[4:8] = (9999).to_bytes(4, "big")
        self.put(LABELS, content)
        self.damaged(LABELS, "10000", "9999")

    def test_another_set_of_the_same_form_is_accepted_and_said_to_be_unknown(self) -> None:
        for name in ("train-images-idx3-ubyte.gz", IMAGES):
            content = self.content(name)
            content[16] ^= 1
            self.put(name, content)
        done = run(STAGE, "--data-root", self.folder, *SMALL)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("unknown", done.stderr)

    def test_plain_files_are_read_as_well(self) -> None:
        expected = self.weights("--data-root", self.folder)
        for path in list(self.folder.glob("*.gz")):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        self.assertEqual(expected, self.weights("--data-root", self.folder))


class BadUsage(StageTest):
    def test_unknown_flag_names_the_nearest(self) -> None:
        self.refused(2, "did you mean --epochs?", "--epoch", "3")
        self.refused(2, "did you mean --batch-size?", "--batchsize", "3")

    def test_unknown_value_names_the_nearest(self) -> None:
        self.refused(2, "did you mean convnet?", "--recipe", "convnets")
        self.refused(2, "did you mean reference?", "--math", "referense")

    def test_numbers_of_the_wrong_form_or_range(self) -> None:
        self.refused(2, "--epochs: expected a whole number, got 'three'", "--epochs", "three")
        self.refused(2, "--batch-size: expected a number >= 1, got 0", "--batch-size", "0")
        self.refused(2, "--lr: expected a number >= 0, got -1", "--lr", "-1")
        self.refused(2, "--threads", "--threads", "-2")
        self.refused(2, "60000", "--limit-train", "60001", "--quiet")

    def test_a_flag_without_its_value(self) -> None:
        self.refused(2, "--help lists all flags", "--epochs")

    def test_a_gpu_that_is_not_there(self) -> None:
        if any(Path("/dev").glob("nvidia[0-9]*")):
            self.skipTest("skipped: this machine has a GPU")
        self.refused(2, "this machine has no GPU", "--gpu", "0,1")
        self.refused(2, "--device cuda:1: this machine has no GPU", "--device", "cuda:1", "--quiet")

    def test_unknown_device(self) -> None:
        self.refused(2, "auto, cpu, cuda or cuda:N", "--device", "gpu", "--quiet")

    def test_output_files_are_checked_before_training(self) -> None:
        self.refused(2, "--save", "--save", "nowhere/a.safetensors")
        self.refused(2, "nowhere", "--metrics", "nowhere/a.jsonl")
        self.refused(2, "--metrics PATH.jsonl", "--fingerprint", "1")

    def test_a_device_is_never_replaced_by_a_checkpoint(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.refused(2, "not a folder or a device", "--save", pipe)
        self.assertTrue(pipe.is_fifo())

    def test_a_run_that_fails_leaves_the_record_of_the_last_one(self) -> None:
        metrics = self.folder / "a.jsonl"
        metrics.write_text("of the last run\n")
        self.refused(3, "nowhere", "--metrics", metrics, "--data-root", "nowhere", "--quiet")
        self.assertEqual(metrics.read_text(), "of the last run\n")

    def test_more_threads_than_help_anybody(self) -> None:
        self.refused(2, "threads: expected at most", "--threads", "100000")

    def test_a_line_break_in_a_value_stays_on_one_line(self) -> None:
        self.refused(2, "a?b", "--recipe", "a\nb")


class Failures(StageTest):
    def test_a_loss_that_is_not_finite_stops_the_run_and_saves_nothing(self) -> None:
        done = run(STAGE, *SMALL, "--lr", "1e30", "--save", "a.safetensors", cwd=self.folder)
        self.assertEqual(done.code, 5, done.stderr)
        self.assertTrue(re.search(r"error: epoch 1, step \d: expected a finite loss, got -?(nan|inf)",
                                  done.stderr), done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_full_disk_is_an_error_of_the_machine(self) -> None:
        done = run(STAGE, *SMALL, "--metrics", "/dev/full", "--quiet", cwd=self.folder)
        self.assertEqual(done.code, 1, done.stderr)
        self.assertIn("/dev/full", done.stderr)


    def test_output_that_cannot_be_written_is_an_error(self) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN / STAGE, *map(str, SMALL), "--quiet"], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)

    def test_the_bad_step_has_its_fingerprint(self) -> None:
        done = run(STAGE, *SMALL, "--lr", "inf", "--metrics", "a.jsonl", "--fingerprint", 1,
                   cwd=self.folder)
        self.assertEqual(done.code, 5, done.stderr)
        marks = records(self.folder / "a.rank0.jsonl")
        self.assertIn(f"step {marks[-1]['step']}:", done.stderr)

    def test_control_c_ends_the_program_as_shells_expect(self) -> None:
        child = subprocess.Popen([BIN / STAGE, "--threads", "1"], stderr=subprocess.PIPE, text=True)
        assert child.stderr is not None
        for line in child.stderr:  # wait until it trains
            if line.startswith("epoch 1/1"):
                break
        child.send_signal(signal.SIGINT)
        child.stderr.close()
        self.assertEqual(child.wait(timeout=60), -signal.SIGINT)


class RunScript(StageTest):
    def test_an_unknown_stage_lists_the_known_ones(self) -> None:
        done = run(ROOT / "run", "stage9")
        self.assertEqual(done.code, 2)
        self.assertIn(STAGE, done.stderr)


if __name__ == "__main__":
    unittest.main()
