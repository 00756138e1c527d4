# SPDX-License-Identifier: Apache-2.0
"""Stage 6: what it prints and writes, its profiles, and resume.

Flags are tested in tests/mnist/command_line_test.cpp, numbers, banners and schedules in
tests/trainer/, resume after a kill in tests/faults/, equality with other stages and with Python in
tests/equality/.
"""
from __future__ import annotations

import functools
import json
import os
import re
import shutil
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import load_file

from tests.support.programs import (Result, launch, require_refused, result_record,
                                    shown_on_terminal, temporary_folder)
from tests.support.ways import CPU, STAGE6, Run, alone, small, train

FOLDER = temporary_folder("trainer")
NONE = ("--profile", "none", "--output-dir", "out")
tiny = functools.partial(small, recipe="convnet", epochs=1, limit_train=97, limit_test=50)


@functools.cache
def trained(*flags: object) -> Run:
    return train(alone(STAGE6), *tiny(*flags), parent=FOLDER)


def start(folder: Path, *flags: object, code: int = 0) -> Result:
    done = launch(STAGE6, *CPU, *flags, cwd=folder)
    assert done.code == code, done.stderr
    return done


def test_parity_prints_the_results_of_the_other_stages() -> None:
    done = trained("--quiet").done
    assert re.fullmatch(r"Accuracy is \d+\.\d\d%\ntime elapsed: \d+\.\d\d seconds\n", done.stdout)
    assert done.stderr == ""


def test_logs_table_and_files(tmp_path: Path) -> None:
    """Of the ten steps of the tutorial, saved after each five."""
    done = start(tmp_path, "--profile", "hf-defaults", "--threads", 1, "--limit-train", 640,
                 "--limit-test", 100, "--logging-steps", 5, "--save-steps", 5, "--report-to",
                 "jsonl")
    banner = [line for line in done.errors if line.startswith(("  ", "*****"))][:7]
    assert banner == [
        "***** Running training *****", "  Num examples = 640", "  Num Epochs = 1",
        "  Instantaneous batch size per device = 64",
        "  Total train batch size (w. parallel, distributed & accumulation) = 64",
        "  Gradient Accumulation steps = 1", "  Total optimization steps = 10"]
    assert re.match(r"{'loss': '[\d.]+', 'grad_norm': '[\d.]+', 'learning_rate': '3e-05', "
                    r"'epoch': '0.5'}\n", done.stdout)
    assert re.search("^Epoch  Training Loss  Validation Loss  Accuracy\n"
                     r" +1 +\d\.\d{6} +\d\.\d{6}  \d\.\d{6}$", done.stdout, re.MULTILINE)
    out = tmp_path / "basic-trainer"
    assert sorted(path.name for path in out.iterdir()) == [
        "all_results.json", "checkpoint-10", "checkpoint-5", "eval_results.json", "runs",
        "train_results.json"]
    assert sorted(path.name for path in (out / "checkpoint-10").iterdir()) == [
        "manifest.json", "model.safetensors", "optimizer.safetensors",
        "random_states_0.safetensors", "run_record.json", "sampler.json", "scheduler.json",
        "trainer_state.json", "training_args.json"]
    state = json.loads((out / "checkpoint-10" / "trainer_state.json").read_text())
    assert (state["global_step"], state["max_steps"]) == (10, 10)
    assert state["log_history"][0]["learning_rate"] == 5e-5 * 0.6
    assert {"eval_accuracy", "train_loss"} < set(json.loads((out / "all_results.json").read_text()))


def test_on_a_terminal_the_bar_makes_room_for_other_lines() -> None:
    flags = small("--profile", "none", "--recipe", "convnet", "--save-strategy", "no",
                  "--eval-strategy", "steps", "--eval-steps", 4, "--logging-steps", 3)
    shown = shown_on_terminal(STAGE6, *CPU, *flags, stdout=True, cwd=FOLDER)
    # What a line shows at last: what stands behind the last return to its beginning.
    lines = [line.rstrip("\r").split("\r")[-1]
             for line in shown.replace("\x1b[K", "").split("\n")]
    for begin in ("***** Running Evaluation *****", "{'loss'", "{'eval_loss'", "Step  "):
        assert any(line.startswith(begin) for line in lines), (begin, lines)
    assert [line for line in lines if re.search(r"samples/s.*(\*\*\*|{')", line)] == []


def test_a_prediction_shows_its_metrics(tmp_path: Path) -> None:
    done = start(tmp_path, *tiny("--do-predict", "--no-do-train", "--no-do-eval",
                                 "--output-dir", "out"))
    assert re.match(r"{'test_loss': '[\d.]+', .*'test_accuracy': ", done.stdout)
    assert "test_accuracy" in (tmp_path / "out" / "test_results.json").read_text()


def test_without_an_accuracy_there_is_no_result(tmp_path: Path) -> None:
    done = start(tmp_path, *tiny("--prediction-loss-only", "--output-dir", "out"))
    assert "no result is recorded" in done.stderr
    assert "eval_accuracy" not in (tmp_path / "out" / "eval_results.json").read_text()


def test_a_file_of_arguments(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("per_device_train_batch_size: 16\nnum_train_epochs: 2\n"
                    "evaluation_strategy: epoch\nlimit_train_batches: 0.5\n")
    run = train(alone(STAGE6), "--profile", "none", "--args-file", path, "--threads", 1,
                "--limit-train", 64, "--limit-test", 20, "--num_train_epochs", 1,
                "--save_strategy", "no", parent=tmp_path)
    assert (run.result["steps"], run.result["epochs"]) == (2, 1)
    assert re.search("evaluation_strategy.*eval_strategy", run.done.stderr)


@pytest.mark.parametrize("code, text, flags", [
    (3, "train_dataset: ", ("--limit-train", 10, "-b", 32, "--dataloader-drop-last")),
    (3, "checkpoint to resume from", (*NONE, "--resume"))])
def test_refused_before_training(tmp_path: Path, code: int, text: str,
                                 flags: tuple[object, ...]) -> None:
    require_refused(start(tmp_path, "--quiet", *flags, code=code), code, text)


def test_fast_dev_run_takes_one_batch_and_saves_nothing(tmp_path: Path) -> None:
    done = start(tmp_path, "--profile", "hf-defaults", "--fast-dev-run", "--max-steps", 9,
                 "--threads", 1)
    assert "  Total optimization steps = 1" in done.errors
    assert list(tmp_path.glob("*/checkpoint-*")) == []


def test_speed_counts_what_was_trained(tmp_path: Path) -> None:
    done = start(tmp_path, *small("--profile", "hf-defaults", "--limit-train-batches", 2))
    assert "  Total optimization steps = 2" in done.errors
    results = json.loads((tmp_path / "basic-trainer" / "train_results.json").read_text())
    a_step = results["train_samples_per_second"] / results["train_steps_per_second"]
    assert a_step == pytest.approx(64, abs=1)  # both are rounded to three digits


def test_bf16_smoothing_clipping_and_accumulation_have_an_effect() -> None:
    flags = ((), ("--bf16",), ("--label-smoothing-factor", 0.1), ("--max-grad-norm", 0),
             ("--gradient-accumulation-steps", 2))
    weights = [trained("--profile", "none", "--save-strategy", "no", *some).result["weights_sha256"]
               for some in flags]
    assert [some for some, one in zip(flags, weights) if weights.count(one) > 1] == []


def test_a_resume_in_an_epoch_ends_with_the_weights_of_a_run_that_was_never_stopped(
        tmp_path: Path) -> None:
    """More ranks are in tests/faults."""
    way = alone(STAGE6)
    flags = small(*NONE, "--recipe", "convnet", "--save-steps", 4, "--lr-scheduler-type", "cosine",
                  "--batch-size", 16, "--gradient-accumulation-steps", 3, "--math", "reference",
                  epochs=3, limit_train=200, limit_test=50)
    whole = train(way, *flags, parent=tmp_path)
    for folder in (whole.folder / "out").glob("checkpoint-*"):
        if folder.name != "checkpoint-8":
            shutil.rmtree(folder)
    again = launch(*way.command, *flags, "--resume", "--metrics", "b.jsonl", cwd=whole.folder)
    assert again.code == 0, again.stderr
    assert "  Continuing training from global step 8" in again.errors
    result = result_record(whole.folder / "b.jsonl")
    for field in ("weights_sha256", "steps", "correct"):
        assert result[field] == whole.result[field], field


def test_resume_with_other_arguments(tmp_path: Path) -> None:
    flags = tiny(*NONE, "--save-steps", 5, "--batch-size", 8)
    ten = (*flags, "--max-steps", 10)
    start(tmp_path, *ten, "--logging-strategy", "no", "--logging-steps", 0)
    five = ("--resume", "out/checkpoint-5", "--save-strategy", "no")
    more = start(tmp_path, *ten, *five, "--logging-steps", 2, "--max-grad-norm", 0,
                 "--lr-scheduler-type", "cosine", "--weight-decay", 0.25)
    for text in ("logging_steps is 0", 'lr_scheduler_type is "linear"',
                 "weight_decay 0.0 from the checkpoint, not 0.25 as requested"):
        assert text in more.stderr
    require_refused(start(tmp_path, *ten, *five, "--gradient-accumulation-steps", 2, "--quiet",
                          code=3), 3, "gradient_accumulation_steps")
    over = start(tmp_path, *flags, "--resume", "--max-steps", 7, "--save-strategy", "no",
                 "--metrics", "over.jsonl")
    assert "training 11" not in over.stderr
    assert result_record(tmp_path / "over.jsonl")["steps"] == 10
    (tmp_path / "out" / "checkpoint-10" / "optimizer.safetensors").unlink()
    damaged = start(tmp_path, *ten, "--resume", code=3)
    assert "optimizer.safetensors" in damaged.stderr
    assert "save_only_model" not in damaged.stderr


def test_resume_from_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    flags = tiny(*NONE[:3], os.fsdecode(b"out\xff"), "--save-steps", 1)
    for more in ((), ("--resume",)):
        start(tmp_path, *flags, *more)


def test_a_checkpoint_of_the_model_alone_is_refused(tmp_path: Path) -> None:
    flags = ("--quiet", *tiny(*NONE, "--save-only-model"))
    start(tmp_path, *flags)
    assert "save_only_model" in start(tmp_path, *flags, "--resume", code=3).stderr


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    done = start(tmp_path, *small(
        *NONE, "--recipe", "convnet", "--eval-strategy", "epoch", "--save-strategy", "epoch",
        "--load-best-model-at-end", "--metric-for-best-model", "accuracy", "--save-total-limit", 1,
        "--lr", 0.3, "--save", "end.safetensors", epochs=4, limit_train=200, limit_test=100))
    best = re.search(r"Loading best model from (\S+) ", done.stderr)[1]
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == [Path(best).name]
    ours, theirs = (load_file(tmp_path / path) for path in
                    (Path(best) / "model.safetensors", "end.safetensors"))
    assert sorted(ours) == sorted(theirs)
    assert [name for name in theirs if not numpy.array_equal(ours[name], theirs[name])] == []
