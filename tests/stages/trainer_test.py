# SPDX-License-Identifier: Apache-2.0
"""Stage 6: what it prints and writes, its profiles, and resume.

Flags are tested in tests/mnist/command_line_test.cpp, numbers, banners and schedules in
tests/trainer/, resume after a kill in tests/faults/, equality with other stages and with Python in
tests/equality/.
"""
from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import numpy
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import (Result, launch, result_record,  # noqa: E402
                                    shown_on_terminal)
from tests.support.ways import CPU, STAGE6, Run, alone, small, train  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-trainer-"))
atexit.register(shutil.rmtree, FOLDER)

WAYS = {
    "bare": lambda: alone(STAGE6),
    "--num-processes 2": lambda: alone(STAGE6, "--num-processes", 2),
}
tiny = functools.partial(small, recipe="convnet", epochs=1, limit_train=97, limit_test=50)


@functools.cache
def trained(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


def start(*flags: object, cwd: Path | None = None) -> Result:
    return launch(STAGE6, *CPU, *flags, cwd=cwd or Path(tempfile.mkdtemp(dir=FOLDER)))


class Output(unittest.TestCase):
    def test_parity_prints_the_results_of_the_other_stages(self) -> None:
        done = trained("bare", *tiny("--quiet")).done
        self.assertRegex(done.stdout, r"\AAccuracy is \d+\.\d\d%\ntime elapsed: \d+\.\d\d seconds\n\Z")
        self.assertEqual(done.stderr, "")

    def test_logs_table_and_files(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = start("--profile", "hf-defaults", "--threads", 1, "--limit-train", 640,
                     "--limit-test", 100, "--logging-steps", 5, "--save-steps", 5, "--report-to",
                     "jsonl", cwd=folder)
        self.assertEqual(done.code, 0, done.stderr)
        banner = [line for line in done.errors if line.startswith(("  ", "*****"))][:7]
        self.assertEqual(banner, [
            "***** Running training *****", "  Num examples = 640", "  Num Epochs = 1",
            "  Instantaneous batch size per device = 64",
            "  Total train batch size (w. parallel, distributed & accumulation) = 64",
            "  Gradient Accumulation steps = 1", "  Total optimization steps = 10"])
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], r"^{'loss': '[\d.]+', 'grad_norm': '[\d.]+', "
                                   r"'learning_rate': '3e-05', 'epoch': '0.5'}$")
        table = next(i for i, line in enumerate(lines) if line.startswith("Epoch "))
        self.assertEqual(lines[table].split("  "),
                         ["Epoch", "Training Loss", "Validation Loss", "Accuracy"])
        self.assertRegex(lines[table + 1], r"^ +1 +\d\.\d{6} +\d\.\d{6}  \d\.\d{6}$")
        self.expect_files(folder / "basic-trainer")

    def expect_files(self, out: Path) -> None:
        """Of the ten steps of the tutorial, saved after each five."""
        self.assertEqual(sorted(path.name for path in out.iterdir()),
                         ["all_results.json", "checkpoint-10", "checkpoint-5", "eval_results.json",
                          "runs", "train_results.json"])
        self.assertEqual(sorted(path.name for path in (out / "checkpoint-10").iterdir()),
                         ["manifest.json", "model.safetensors", "optimizer.safetensors",
                          "random_states_0.safetensors", "run_record.json", "sampler.json",
                          "scheduler.json", "trainer_state.json", "training_args.json"])
        state = json.loads((out / "checkpoint-10" / "trainer_state.json").read_text())
        self.assertEqual((state["global_step"], state["max_steps"]), (10, 10))
        results = json.loads((out / "all_results.json").read_text())
        self.assertEqual(state["log_history"][0]["learning_rate"], 5e-5 * 0.6)
        self.assertIn("eval_accuracy", results)
        self.assertIn("train_loss", results)

    def test_on_a_terminal_the_bar_makes_room_for_other_lines(self) -> None:
        flags = small("--profile", "none", "--recipe", "convnet", "--save-strategy", "no",
                      "--eval-strategy", "steps", "--eval-steps", 4, "--logging-steps", 3)
        shown = shown_on_terminal(STAGE6, *CPU, *flags, stdout=True, cwd=FOLDER)
        # What a line shows at last: what stands behind the last return to its beginning.
        lines = [line.rstrip("\r").split("\r")[-1]
                 for line in shown.replace("\x1b[K", "").split("\n")]
        for begin in ("***** Running Evaluation *****", "{'loss'", "{'eval_loss'", "Step  "):
            self.assertTrue(any(line.startswith(begin) for line in lines), (begin, lines))
        for line in lines:
            self.assertIsNone(re.search(r"samples/s.*(\*\*\*|{')", line), line)

    def test_a_prediction_shows_its_metrics(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = start(*tiny("--do-predict", "--no-do-train", "--no-do-eval", "--output-dir", "out"),
                     cwd=folder)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertRegex(done.stdout, r"^{'test_loss': '[\d.]+', .*'test_accuracy': ")
        self.assertIn("test_accuracy",
                      json.loads((folder / "out" / "test_results.json").read_text()))

    def test_without_an_accuracy_there_is_no_result(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = start(*tiny("--prediction-loss-only", "--output-dir", "out"), cwd=folder)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("no result is recorded", done.stderr)
        self.assertNotIn("eval_accuracy",
                         json.loads((folder / "out" / "eval_results.json").read_text()))


class Arguments(unittest.TestCase):
    def test_a_file_of_arguments(self) -> None:
        path = FOLDER / "args.yaml"
        path.write_text("per_device_train_batch_size: 16\nnum_train_epochs: 2\n"
                        "evaluation_strategy: epoch\nlimit_train_batches: 0.5\n")
        run = train(alone(STAGE6), "--profile", "none", "--args-file", path, "--threads", 1,
                    "--limit-train", 64, "--limit-test", 20, "--num_train_epochs", 1,
                    "--save_strategy", "no", parent=FOLDER)
        self.assertEqual((run.result["steps"], run.result["epochs"]), (2, 1))
        self.assertRegex(run.done.stderr, "evaluation_strategy.*eval_strategy")

    def test_refused_before_training(self) -> None:
        for code, text, flags in (
                (2, "--deepspeed: belongs to transformers", ("--deepspeed", "x.json")),
                (3, "train_dataset: ", ("--limit-train", 10, "-b", 32, "--dataloader-drop-last")),
                (3, "checkpoint to resume from", ("--profile", "none", "--output-dir", "nowhere",
                                                  "--resume"))):
            with self.subTest(flags):
                done = start("--quiet", *flags)
                self.assertEqual((done.code, done.stdout), (code, ""), done.stderr)
                self.assertIn(text, done.stderr)

    def test_fast_dev_run_takes_one_batch_and_saves_nothing(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = start("--profile", "hf-defaults", "--fast-dev-run", "--max-steps", 9, "--threads", 1,
                     cwd=folder)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("  Total optimization steps = 1", done.stderr.splitlines())
        self.assertEqual(list(folder.glob("*/checkpoint-*")), [])

    def test_speed_counts_what_was_trained(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = start(*small("--profile", "hf-defaults", "--limit-train-batches", 2), cwd=folder)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("  Total optimization steps = 2", done.stderr.splitlines())
        results = json.loads((folder / "basic-trainer" / "train_results.json").read_text())
        a_step = results["train_samples_per_second"] / results["train_steps_per_second"]
        self.assertAlmostEqual(a_step, 64, delta=1)  # both are rounded to three digits

    def test_bf16_smoothing_clipping_and_accumulation_have_an_effect(self) -> None:
        plain = trained("bare", *tiny("--profile", "none", "--save-strategy", "no"))
        for flags in (("--bf16",), ("--label-smoothing-factor", 0.1), ("--max-grad-norm", 0),
                      ("--gradient-accumulation-steps", 2)):
            with self.subTest(flags):
                run = trained("bare", *tiny("--profile", "none", "--save-strategy", "no", *flags))
                self.assertNotEqual(run.result["weights_sha256"], plain.result["weights_sha256"])


class Resume(unittest.TestCase):
    def test_in_the_middle_of_an_epoch(self) -> None:
        """It ends with the weights of a run that was never stopped."""
        for way, more in (("bare", ("--gradient-accumulation-steps", 3, "--math", "reference")),
                          ("--num-processes 2", ())):
            with self.subTest(way=way, more=more):
                flags = small("--profile", "none", "--recipe", "convnet", "--save-steps", 4,
                              "--lr-scheduler-type", "cosine", "--batch-size", 16,
                              "--output-dir", "out", *more, epochs=3, limit_train=200, limit_test=50)
                whole = train(WAYS[way](), *flags, parent=FOLDER)
                for folder in (whole.folder / "out").glob("checkpoint-*"):
                    if folder.name != "checkpoint-8":
                        shutil.rmtree(folder)
                again = launch(*WAYS[way]().command, *flags, "--resume", "--metrics", "b.jsonl",
                               cwd=whole.folder)
                self.assertEqual(again.code, 0, again.stderr)
                self.assertIn("  Continuing training from global step 8", again.stderr.splitlines())
                result = result_record(whole.folder / "b.jsonl")
                for field in ("weights_sha256", "steps", "correct"):
                    self.assertEqual(result[field], whole.result[field], field)

    def test_with_other_arguments(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        flags = tiny("--profile", "none", "--output-dir", "out", "--save-steps", 5,
                     "--batch-size", 8)
        ten = (*flags, "--max-steps", 10)
        silent = ("--logging-strategy", "no", "--logging-steps", 0)
        self.assertEqual(start(*ten, *silent, cwd=folder).code, 0)
        five = ("--resume", "out/checkpoint-5", "--save-strategy", "no")
        more = start(*ten, *five, "--logging-steps", 2, "--max-grad-norm", 0,
                     "--lr-scheduler-type", "cosine", cwd=folder)
        self.assertEqual(more.code, 0, more.stderr)
        for text in ("logging_steps is 0", 'lr_scheduler_type is "linear"'):
            self.assertIn(text, more.stderr)
        refused = start(*ten, *five, "--gradient-accumulation-steps", 2, "--quiet", cwd=folder)
        self.assertEqual((refused.code, refused.stdout), (3, ""), refused.stderr)
        self.assertIn("gradient_accumulation_steps", refused.stderr)
        over = start(*flags, "--resume", "--max-steps", 7, "--save-strategy", "no", "--metrics",
                     "over.jsonl", cwd=folder)
        self.assertEqual(over.code, 0, over.stderr)
        self.assertNotIn("training 11", over.stderr)
        self.assertEqual(result_record(folder / "over.jsonl")["steps"], 10)
        (folder / "out" / "checkpoint-10" / "optimizer.safetensors").unlink()
        damaged = start(*ten, "--resume", cwd=folder)
        self.assertEqual(damaged.code, 3)
        self.assertIn("optimizer.safetensors", damaged.stderr)
        self.assertNotIn("save_only_model", damaged.stderr)

    def test_a_checkpoint_of_the_model_alone_is_refused(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        flags = ("--quiet", *tiny("--profile", "none", "--output-dir", "out", "--save-only-model"))
        self.assertEqual(start(*flags, cwd=folder).code, 0)
        done = start(*flags, "--resume", cwd=folder)
        self.assertEqual(done.code, 3)
        self.assertIn("save_only_model", done.stderr)

    def test_the_best_model_is_loaded_at_the_end(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = start(*small("--profile", "none", "--recipe", "convnet", "--output-dir", "out",
                            "--eval-strategy", "epoch", "--save-strategy", "epoch",
                            "--load-best-model-at-end", "--metric-for-best-model", "accuracy",
                            "--save-total-limit", 1, "--lr", 0.3, "--save", "end.safetensors",
                            epochs=4, limit_train=200, limit_test=100), cwd=folder)
        self.assertEqual(done.code, 0, done.stderr)
        best = re.search(r"Loading best model from (\S+) ", done.stderr)[1]
        self.assertEqual([path.name for path in (folder / "out").glob("checkpoint-*")],
                         [Path(best).name])
        ours, theirs = (load_file(folder / path) for path in
                        (Path(best) / "model.safetensors", "end.safetensors"))
        self.assertEqual(sorted(ours), sorted(theirs))
        for name, values in theirs.items():
            self.assertTrue(numpy.array_equal(ours[name], values), name)


if __name__ == "__main__":
    unittest.main()
