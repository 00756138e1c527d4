# SPDX-License-Identifier: Apache-2.0
"""What the Trainer of transformers does and prints: the content of trainer.json.

The runs train a tiny classifier whose losses are scripted, so that nothing but the Trainer decides
what happens and no number depends on the CPU. Micro-batch k of a Trainer (from 0, in training) has
the loss `train_losses[k]`, else (k + 1) / 4; its gradient is 2 for the first bias, 0 for all else.
Batch j of evaluation i has the loss `eval_losses[i] + j`, by default 0.5 + j. Where there are
`scores`, compute_metrics gives {"score": scores[i]}. After the last entry, the last one again.
i counts the on_evaluate and on_predict events before. Sample n is x = [n, 0, 0, 1], label n % 3.

trainer.json holds:

  runs           name, arguments (besides `common_arguments`), samples [training, evaluation], the
                 scripts named above where set, and further
                   early_stopping  keyword arguments of an EarlyStoppingCallback before the recorder
                   changes         [{event, step, set: [flags]}]: what the recording callback sets;
                                   without a step at each such event
                   calls           [[method, keyword arguments]]; default: train
                   resumes         [name of a run, checkpoint]: that run came before, in the folder
                 and what came out
                   events          in order, "name step epoch flags", as the last of the user's
                                   callbacks sees them, before its own change. Name without on_;
                                   events that follow with the same step, epoch and flags share
                                   an entry: "name name step epoch flags". `step` stands for
                                   step_begin pre_optimizer_step optimizer_step.
                                   Flags: T should_training_stop, E should_epoch_stop,
                                   s should_save, e should_evaluate, l should_log; - if none
                   logs            log_history: "key=value ..." an entry. `eval_times` stands for
                                   eval_runtime, eval_samples_per_second, eval_steps_per_second,
                                   which stand in this order, in a resumed run's old entries apart
                   returned        with `calls`: the metrics of each call, as in logs
                   checkpoints     steps of the folders at the end, oldest first
                   best            if any: [best_metric, best_global_step, best_model_checkpoint]
                   batches         where asked for: the samples of each micro-batch
                   resume_lines    where it resumes: the last lines of its banner
  banners        samples, arguments, call, and the lines logged before the first step
  printed_logs   logs, and the line that PrinterCallback prints
  log_metrics    split, metrics, and the printed text
  save_metrics   calls [[split, metrics]] in order, and the files after them
  notebook_tables  runs as above: rows of the table as shown in a notebook; first row: columns
  trainer_states of a run: checkpoint, and its trainer_state.json as text; times are 0.0
  label_smoothing  factor, logits, labels (-100: ignored), and loss and gradient in float32

A float is a string, in hexadecimal; of an epoch in decimal, which reads back to the same float. An
integer is a number. `*` stands for what differs from run to run.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from io import StringIO
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn
from transformers import (EarlyStoppingCallback, PrinterCallback, Trainer, TrainerCallback,
                          TrainerControl, TrainerState, TrainingArguments)
from transformers.trainer_pt_utils import LabelSmoother, log_metrics, save_metrics

Case = dict[str, Any]

FOLDER = "out"  # output_dir, below a temporary folder
COMMON = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 6}
QUIET = {"output_dir": FOLDER, "report_to": "none", "use_cpu": True, "disable_tqdm": True,
         "remove_unused_columns": False}
FLAGS = {"should_training_stop": "T", "should_epoch_stop": "E", "should_save": "s",
         "should_evaluate": "e", "should_log": "l"}


def encoded(value: Any) -> Any:
    """Floats as their exact text, in dictionaries and lists too."""
    if isinstance(value, dict):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    return re.sub(r"\.?0*p", "p", value.hex()) if isinstance(value, float) else value


def line_of(entry: dict[str, Any]) -> str:
    """An entry of the history as text; of the three measures of speed, only where they begin."""
    words = []
    for key, value in entry.items():
        if key.endswith("_runtime"):
            words.append(key.replace("_runtime", "_times"))
        elif not key.endswith("_per_second"):
            exact = repr(float(value)) if key == "epoch" else encoded(value)
            words.append(f"{key}={'*' if key.endswith('_preparation_time') else exact}")
    return " ".join(words)


# --- the scripted run --------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        return self.linear(x)


def samples(count: int) -> list[tuple[list[float], int]]:
    return [([float(n), 0.0, 0.0, 1.0], n % 3) for n in range(count)]


def collate(batch: list[tuple[list[float], int]]) -> dict[str, Tensor]:
    x, labels = zip(*batch)
    return {"x": torch.tensor(x), "labels": torch.tensor(labels)}


def scripted(values: list[float], i: int) -> float:
    return values[min(i, len(values) - 1)]


class Recorder(TrainerCallback):
    """Writes every event down, and makes the changes of the script. The last of the callbacks."""

    def __init__(self, changes: list[Case]) -> None:
        self.changes = changes
        self.events: list[tuple[str, str]] = []  # name, state
        self.evaluations = 0

    def note(self, name: str, state: TrainerState, control: TrainerControl) -> TrainerControl:
        flags = "".join(letter for flag, letter in FLAGS.items() if getattr(control, flag))
        self.events.append((name, f"{state.global_step} {float(state.epoch)!r} {flags or '-'}"))
        self.evaluations += name in ("evaluate", "predict")
        for change in self.changes:
            at = change.get("step", state.global_step)
            if (change["event"], at) == (name, state.global_step):
                for flag in change["set"]:
                    setattr(control, flag, True)
        return control


def grouped(events: list[tuple[str, str]]) -> list[str]:
    groups = groupby(events, key=lambda event: event[1])
    lines = [" ".join([*(name for name, _ in group), state]) for state, group in groups]
    return [line.replace("step_begin pre_optimizer_step optimizer_step", "step") for line in lines]


def handler_of(event: str) -> Callable[..., TrainerControl]:
    def handler(self: Recorder, args: Any, state: TrainerState, control: TrainerControl,
                **_: Any) -> TrainerControl:
        return self.note(event.removeprefix("on_"), state, control)

    return handler


EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]
for event in EVENTS:
    setattr(Recorder, event, handler_of(event))


class ScriptedTrainer(Trainer):
    def __init__(self, case: Case, recorder: Recorder, **options: Any) -> None:
        self.case = case
        self.recorder = recorder
        self.batches: list[list[int]] = []  # of training
        self.eval_batches = [0, 0]  # the evaluation, its next batch
        super().__init__(**options)

    def train_loss(self, k: int) -> float:
        losses = self.case.get("train_losses", [])
        return losses[k] if k < len(losses) else (k + 1) / 4

    def eval_loss(self) -> float:
        i = self.recorder.evaluations
        j = self.eval_batches[1] if self.eval_batches[0] == i else 0
        self.eval_batches = [i, j + 1]
        return scripted(self.case.get("eval_losses", [0.5]), i) + j

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor],
                     return_outputs: bool = False,
                     num_items_in_batch: Tensor | None = None) -> Any:
        logits = model(inputs["x"])
        bias = self.model.linear.bias
        if model.training:
            value = self.train_loss(len(self.batches))
            self.batches.append([int(n) for n in inputs["x"][:, 0]])
        else:
            value = self.eval_loss()
        loss = value + 2 * (bias[0] - bias[0].detach()) + 0 * logits.sum()
        return (loss, {"logits": logits}) if return_outputs else loss


def make_trainer(case: Case, callbacks: list[TrainerCallback]) -> ScriptedTrainer:
    recorder = Recorder(case.get("changes", []))
    if "early_stopping" in case:
        callbacks = [*callbacks, EarlyStoppingCallback(**case["early_stopping"])]

    def compute_metrics(_: Any) -> dict[str, float]:
        return {"score": scripted(case["scores"], recorder.evaluations)}

    return ScriptedTrainer(
        case, recorder, model=Classifier(),
        args=TrainingArguments(**{**QUIET, **COMMON, **case["arguments"]}),
        data_collator=collate, train_dataset=samples(case["samples"][0]),
        eval_dataset=samples(case["samples"][1]) if case["samples"][1] else None,
        compute_metrics=compute_metrics if "scores" in case else None,
        callbacks=[*callbacks, recorder])


def call(trainer: Trainer, method: str, options: dict[str, Any]) -> dict[str, float]:
    if method == "predict":
        return trainer.predict(trainer.eval_dataset, **options).metrics
    result = getattr(trainer, method)(**options)
    return result.metrics if method == "train" else result


def checkpoints() -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in Path(FOLDER).glob("checkpoint-*"))


@contextmanager
def fresh_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(StringIO()):
        yield


@contextmanager
def captured_log() -> Iterator[list[str]]:
    """What the Trainer logs; nothing on the terminal."""
    lines: list[str] = []

    def keep(record: logging.LogRecord) -> None:
        if record.name == "transformers.trainer":
            lines.append(record.getMessage())

    handler = logging.Handler()
    handler.emit = keep
    transformers.logging.disable_default_handler()
    transformers.logging.add_handler(handler)
    transformers.logging.set_verbosity_info()
    try:
        yield lines
    finally:
        transformers.logging.set_verbosity_error()
        transformers.logging.remove_handler(handler)
        transformers.logging.enable_default_handler()


def banner_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("*****", "\n*****", "  "))]


def start(case: Case) -> tuple[ScriptedTrainer, list[dict[str, float]]]:
    """Runs the case in the current folder; what it resumes came before."""
    calls = case.get("calls", [["train", {}]])
    if "resumes" in case:
        earlier, checkpoint = case["resumes"]
        start(next(run for run in RUNS if run["name"] == earlier))
        path = f"{FOLDER}/checkpoint-{checkpoint}"
        calls = [["train", {"resume_from_checkpoint": path}]]
    torch.manual_seed(0)
    trainer = make_trainer(case, [])
    return trainer, [call(trainer, *each) for each in calls]


def run(case: Case) -> Case:
    shown = ["batches"] if case.get("batches") else []
    case = {key: value for key, value in case.items() if key not in shown}
    with fresh_folder(), captured_log() as lines:
        trainer, returned = start(case)
        state = trainer.state
        result = {**encoded(case), "arguments": case["arguments"],
                  "events": grouped(trainer.recorder.events),
                  "logs": [line_of(entry) for entry in state.log_history],
                  "checkpoints": checkpoints()}
    best = [state.best_metric, state.best_global_step, state.best_model_checkpoint]
    there = {"returned": "calls" in case, "best": any(best), "resume_lines": "resumes" in case}
    shown += [key for key, is_there in there.items() if is_there]
    resumed = [line for line in lines if line.startswith(("  Resum", "  Fast-for"))]
    extra = {"batches": trainer.batches, "resume_lines": resumed,
             "returned": [line_of(metrics) for metrics in returned], "best": encoded(best)}
    return {**result, **{key: extra[key] for key in shown}}


def case(name: str, train_samples: int, eval_samples: int, more: Case | None = None,
         **arguments: Any) -> Case:
    samples = [train_samples, eval_samples]
    return {"name": name, "arguments": arguments, "samples": samples, **(more or {})}


def change(event: str, *flags: str, step: int | None = None) -> Case:
    at = {} if step is None else {"step": step}
    return {"changes": [{"event": event, **at, "set": [f"should_{flag}" for flag in flags]}]}


BY_EPOCH = {"logging_strategy": "epoch", "eval_strategy": "epoch", "save_strategy": "epoch"}
BY_STEP = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
SCORE = {"load_best_model_at_end": True, "metric_for_best_model": "score"}
WITH_BATCHES = {"batches": True}
SMALL = (8, 4)  # two steps an epoch, and one batch of evaluation
ALL = ("save", "evaluate", "log")

RUNS: list[Case] = [
    case("steps", 20, 8, WITH_BATCHES, num_train_epochs=2, logging_steps=3, eval_strategy="steps",
         eval_steps=4, save_steps=4),
    case("nothing asked for", 20, 0, num_train_epochs=1, logging_strategy="no", save_strategy="no"),
    case("defaults", 8, 0, WITH_BATCHES),
    case("data seed", 8, 0, WITH_BATCHES, data_seed=7, num_train_epochs=2, save_strategy="no"),
    case("accumulation, short last window", 20, 8, WITH_BATCHES,
         num_train_epochs=2, gradient_accumulation_steps=3, logging_steps=3,
         logging_first_step=True, eval_strategy="epoch", save_steps=1),
    case("accumulation over more than an epoch", 20, 0, num_train_epochs=2,
         gradient_accumulation_steps=8, logging_steps=1),
    case("short last batch", 6, 0, WITH_BATCHES, num_train_epochs=1),
    case("short last batch dropped", 6, 0, WITH_BATCHES, num_train_epochs=2,
         dataloader_drop_last=True),
    case("max_steps wins", 20, 0, max_steps=7, num_train_epochs=1, logging_steps=5),
    case("one epoch and a half", 12, 4, num_train_epochs=1.5, **BY_EPOCH),
    case("epochs, best loss, one checkpoint kept", 4, 8, {"eval_losses": [0.5, 0.25, 0.75, 0.5]},
         num_train_epochs=4, load_best_model_at_end=True, save_total_limit=1, **BY_EPOCH),
    case("two checkpoints kept, the best old", 20, 4, {"scores": [1.0, 3.0, 2.0, 2.5, 2.0]},
         num_train_epochs=1, save_total_limit=2, **SCORE, **BY_STEP),
    case("one checkpoint kept, none best", 8, 0, num_train_epochs=1, save_steps=1,
         save_total_limit=1),
    case("only the best saved", 4, 4, {"scores": [0.5, 0.25, 0.75, 0.75]}, num_train_epochs=4,
         eval_strategy="epoch", save_strategy="best", metric_for_best_model="eval_score"),
    case("evaluation on start", 8, 8, {"eval_losses": [2.0, 1.0]}, num_train_epochs=1,
         eval_on_start=True, eval_strategy="steps", eval_steps=2, metric_for_best_model="loss"),
    case("evaluation delayed by steps", 20, 4, num_train_epochs=1, eval_delay=3,
         eval_strategy="steps", eval_steps=2),
    case("evaluation delayed by epochs", 4, 4, num_train_epochs=3, eval_delay=1.5,
         eval_strategy="epoch"),
    case("early stopping, patience 1", 4, 4, {"scores": [0.5, 0.75, 0.25, 1.0],
         "early_stopping": {"early_stopping_patience": 1}},
         num_train_epochs=4, **SCORE, **BY_EPOCH),
    case("early stopping, patience 2", 16, 4, {"scores": [0.5, 0.25, 0.75, 0.75, 0.5, 1.0],
         "early_stopping": {"early_stopping_patience": 2}}, num_train_epochs=2, **SCORE, **BY_STEP),
    case("early stopping, threshold", 16, 4, {"scores": [0.5, 0.625, 0.75],
         "early_stopping": {"early_stopping_patience": 2, "early_stopping_threshold": 0.25}},
         num_train_epochs=1, **SCORE, **BY_STEP),
    case("early stopping by loss", 16, 4, {"eval_losses": [0.5, 0.75], "early_stopping": {}},
         num_train_epochs=1, load_best_model_at_end=True, **BY_STEP),
    case("ratios", 20, 4, num_train_epochs=2, logging_steps=0.2, eval_strategy="steps",
         eval_steps=0.35, save_steps=0.25),
    case("eval_steps from logging_steps", 16, 4, num_train_epochs=1, logging_steps=2,
         eval_strategy="steps"),
    case("plateau", 4, 4, {"eval_losses": [0.5, 0.75, 1.0, 0.25]}, num_train_epochs=4,
         lr_scheduler_type="reduce_lr_on_plateau", logging_strategy="epoch", eval_strategy="epoch",
         lr_scheduler_kwargs={"factor": 0.5, "patience": 0}),
    case("NaN and inf not counted", 20, 0, {"train_losses": [1.0, 2.0, float("nan"), 4.0,
         float("inf")]}, num_train_epochs=1, logging_steps=2),
    case("NaN counted", 20, 0, {"train_losses": [1.0, 2.0, float("nan"), 4.0, 5.0]},
         num_train_epochs=1, logging_steps=2, logging_nan_inf_filter=False),
    case("no clipping", 4, 0, num_train_epochs=1, logging_steps=1, max_grad_norm=0.0),
    case("epoch stopped", *SMALL, change("step_end", "epoch_stop", step=1), num_train_epochs=2,
         **BY_EPOCH),
    case("training stopped", *SMALL, change("step_end", "training_stop", step=1),
         num_train_epochs=2, **BY_EPOCH),
    case("all asked for at a step", *SMALL, change("step_end", *ALL, step=1), num_train_epochs=1),
    case("all asked for at the end of an epoch", *SMALL, change("epoch_end", *ALL, step=2),
         num_train_epochs=2),
    case("all asked for when a step begins", *SMALL, change("step_begin", *ALL, step=1),
         num_train_epochs=1),
    case("all asked for within a window", 20, 4, change("substep_end", *ALL, step=1),
         num_train_epochs=1, gradient_accumulation_steps=2),
    case("training stopped within a window", 20, 4, change("substep_end", "training_stop", step=1),
         num_train_epochs=1, gradient_accumulation_steps=2, **BY_EPOCH),
    case("epoch stopped within a window", 20, 4, change("substep_end", "epoch_stop", step=1),
         num_train_epochs=2, gradient_accumulation_steps=2),
    case("training stopped before it begins", *SMALL, change("train_begin", "training_stop"),
         num_train_epochs=2),
    case("epoch stopped before it begins", *SMALL, change("epoch_begin", "epoch_stop"),
         num_train_epochs=2),
    case("saved after a log", *SMALL, change("log", "save", step=1), num_train_epochs=1,
         logging_steps=1),
    case("saved after an evaluation", *SMALL, change("evaluate", "save", step=1),
         num_train_epochs=1, eval_strategy="steps", eval_steps=1),
    case("saved after an evaluation that is not the best", *SMALL,
         {**change("evaluate", "save", step=2), "scores": [2.0, 1.0]}, num_train_epochs=1,
         eval_strategy="steps", eval_steps=1, save_strategy="best", metric_for_best_model="score"),
    case("evaluate and predict alone", 8, 8, {"scores": [0.5, 0.75, 1.0, 0.25],
         "calls": [["evaluate", {}], ["predict", {}], ["evaluate", {"metric_key_prefix": "valid"}],
                   ["predict", {"metric_key_prefix": "held_out"}]]}),
    case("evaluate and predict after training", 8, 8, {"scores": [0.5, 0.75],
         "calls": [["train", {}], ["evaluate", {}], ["predict", {}]]}, num_train_epochs=1),
    case("loss only", 8, 8, {"scores": [0.5], "calls": [["evaluate", {}], ["predict", {}]]},
         prediction_loss_only=True),
    case("trained twice", 8, 0, {"calls": [["train", {}], ["train", {}]], "batches": True},
         num_train_epochs=1, logging_steps=1),
    case("resumed in the middle", 20, 8, {"resumes": ["steps", 4], "batches": True},
         num_train_epochs=2, logging_steps=3, eval_strategy="steps", eval_steps=4, save_steps=4),
    case("resumed, data not skipped", 20, 0, {"resumes": ["steps", 4], "batches": True},
         num_train_epochs=2, ignore_data_skip=True, logging_steps=3, save_steps=4),
    case("resumed for more epochs, other steps", 20, 0, {"resumes": ["steps", 8]},
         num_train_epochs=3, logging_steps=2, save_strategy="no"),
    case("resumed at the end of an epoch", 4, 8, {"resumes": [
         "epochs, best loss, one checkpoint kept", 2], "eval_losses": [0.75, 0.5], "batches": True},
         num_train_epochs=3, load_best_model_at_end=True, **BY_EPOCH),
    case("resumed with accumulation", 20, 0, {"resumes": ["accumulation, short last window", 1],
         "batches": True}, num_train_epochs=1, gradient_accumulation_steps=3,
         logging_steps=3, save_steps=1),
    case("resumed when finished", 20, 8, {"resumes": ["steps", 10]},
         num_train_epochs=2, logging_steps=3, eval_strategy="steps", eval_steps=4, save_steps=4),
    case("resumed, callbacks fresh", 16, 4, {"resumes": ["early stopping, patience 2", 4],
         "scores": [0.5, 0.25], "early_stopping": {"early_stopping_patience": 2}},
         num_train_epochs=3, **SCORE, **BY_STEP),
    case("resumed, callbacks restored", 16, 4, {"resumes": ["early stopping, patience 2", 4],
         "scores": [0.5, 0.25], "early_stopping": {"early_stopping_patience": 5}},
         num_train_epochs=2, restore_callback_states_from_checkpoint=True, **SCORE, **BY_STEP),
]


# --- what is printed ---------------------------------------------------------------------


class Stop(Exception):
    """Ends a run where its banner is complete."""


class StopAtStart(TrainerCallback):
    def on_train_begin(self, *_: Any, **__: Any) -> None:
        raise Stop

    on_prediction_step = on_train_begin


def banner(method: str, train_samples: int, eval_samples: int = 0, **arguments: Any) -> Case:
    content = case("", train_samples, eval_samples, **arguments)
    with fresh_folder(), captured_log() as lines, suppress(Stop):
        call(make_trainer(content, [StopAtStart()]), method, {})
    del content["name"]
    return {**content, "call": method, "lines": banner_lines(lines)}


def banners() -> list[Case]:
    batch = {"per_device_train_batch_size": 64}
    big = {"per_device_eval_batch_size": 1000}
    return [
        banner("train", 60000, num_train_epochs=1, **batch),
        banner("train", 60000, num_train_epochs=1500, gradient_accumulation_steps=4, **batch),
        banner("train", 1234567, max_steps=1000000, per_device_train_batch_size=1024),
        banner("train", 20, num_train_epochs=1.5, gradient_accumulation_steps=8),
        banner("train", 20, max_steps=7, num_train_epochs=1),
        banner("evaluate", 4, 10000, **big),
        banner("predict", 4, 10000, **big),
    ]


RANK_0 = SimpleNamespace(is_world_process_zero=lambda: True, args=SimpleNamespace(output_dir="."))


def printed_by(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    out = StringIO()
    with redirect_stdout(out):
        function(*arguments, **options)
    return out.getvalue()


def printed_logs() -> list[Case]:
    nan, inf = float("nan"), float("inf")
    groups = [
        {"loss": 0.8757004, "grad_norm": 1.7320508, "learning_rate": 2.5e-05, "epoch": 1.0},
        {"eval_loss": 0.282633, "eval_runtime": 2.5, "eval_samples_per_second": 4000.123,
         "eval_steps_per_second": 62.5, "epoch": 3.0},
        {"train_runtime": 123.4567, "train_samples_per_second": 486.0, "train_loss": 0.5,
         "total_flos": 0.0, "epoch": 1.0},
        {"a": 0.0, "b": -0.0, "c": 1.0, "d": 100.0, "e": 1234.0, "f": 9999.5, "g": 12345.678,
         "h": 123456789.0, "i": 1e16, "j": 1e-4, "k": 1e-5, "l": 0.00012345, "m": 0.000012345},
        {"a": -1.5, "b": nan, "c": inf, "d": -inf, "e": 3, "f": -12345678, "g": 0.1, "h": 2 / 3,
         "i": 0.12345, "j": 0.99995, "k": 9.9995, "l": 1e-320, "m": 5e-324, "n": 1.7e308},
        {},
    ]
    return [{"logs": encoded(logs), "text": printed_by(
        PrinterCallback().on_log, None, TrainerState(), TrainerControl(), logs=dict(logs))}
        for logs in groups]


def metrics_texts() -> list[Case]:
    runtimes = (0.0, 0.999, 59.999, 3599.5, 86399.25, 86400.0, 200000.015, -1.25)
    groups = {
        "train": {"train_runtime": 83.4567, "train_samples_per_second": 718.942,
                  "train_steps_per_second": 11.239, "total_flos": 0.0, "train_loss": 0.60123456,
                  "epoch": 1.0},
        "eval": {"eval_loss": 0.282633, "eval_accuracy": 0.9166, "eval_runtime": 2.0,
                 "eval_samples_per_second": 5000.0, "eval_steps_per_second": 78.5, "epoch": 1.0},
        "memory": {"init_mem_cpu_alloc_delta": 1364197376, "init_mem_cpu_peaked_delta": 0,
                   "train_mem_cpu_alloc_delta": -1, "train_mem_gpu_alloc_delta": 726663167,
                   "total_flos": 1234567890123456.0, "before_init_mem_cpu": 5242880},
        "numbers": {"a": 0.00004, "b": 0.00005, "c": 0.00015, "d": 2.5, "e": 1e-10, "f": 1e16,
                    "g": 123456.78905, "h": float("nan"), "i": float("-inf"), "j": -0.00001,
                    "k": 7, "l": 2.00005, "m": 1e22, "n": 0.125},
        "runtimes": {f"{i}_runtime": seconds for i, seconds in enumerate(runtimes)},
        "one": {"x": 1},
    }
    return [{"split": split, "metrics": encoded(metrics),
             "text": printed_by(log_metrics, RANK_0, split, metrics)}
            for split, metrics in groups.items()]


def metrics_files() -> list[Case]:
    odd = {"b": float("nan"), "a": float("-inf"), "c": 1e-05, "d": 1e16, "e": 3, "f": 1e15}
    calls = [("train", {"train_loss": 0.60123456, "epoch": 1.0}),
             ("eval", {"eval_loss": 0.5, "eval_accuracy": 0.9166, "epoch": 2.0}),
             ("eval", {"eval_loss": 0.25}), ("test", odd)]
    with fresh_folder():
        for split, metrics in calls:
            save_metrics(RANK_0, split, metrics)
        files = {path.name: path.read_text() for path in sorted(Path().iterdir())}
    return [{"calls": encoded(calls), "files": files}]


# --- in a notebook -----------------------------------------------------------------------


@contextmanager
def notebook() -> Iterator[tuple[ModuleType, list[str]]]:
    """The package's notebook module, over an IPython that keeps what is displayed."""
    shown: list[str] = []

    def display(html: str, display_id: bool = False) -> SimpleNamespace:
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    stub = ModuleType("IPython.display")
    stub.HTML = str
    stub.display = display
    package = ModuleType("IPython")
    package.display = stub
    with mock.patch.dict(sys.modules, {"IPython": package, "IPython.display": stub}):
        from transformers.utils import notebook as module
    with mock.patch.object(module, "disp", stub):
        yield module, shown


def rows_of(html: str) -> list[list[str]]:
    rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", part) for part in html.split("</tr>")]
    return [row for row in rows if row]


def notebook_table(content: Case) -> Case:
    with fresh_folder(), notebook() as (module, shown):
        trainer = make_trainer(content, [])
        trainer.pop_callback(PrinterCallback)
        trainer.add_callback(module.NotebookProgressCallback())
        for each in content.get("calls", [["train", {}]]):
            call(trainer, *each)
    tables = [rows_of(html) for html in shown if "<table" in html]
    return {**encoded(content), "arguments": content["arguments"], "rows": tables[-1]}


NOTEBOOKS: list[Case] = [
    case("epochs", 8, 8, {"eval_losses": [0.5, 0.25, 0.75]}, num_train_epochs=3, **BY_EPOCH),
    case("no training loss yet", 8, 8, {"eval_losses": [0.282633]}, num_train_epochs=2,
         eval_strategy="epoch", logging_steps=3),
    case("never a training loss", 8, 8, num_train_epochs=1, eval_strategy="epoch"),
    case("accuracy", 8, 8, {"scores": [0.9166, 1.0]}, num_train_epochs=2, **BY_EPOCH),
    case("steps", 20, 8, {"eval_losses": [2.0, 1.0, 1 / 3]}, num_train_epochs=1, logging_steps=3,
         eval_strategy="steps", eval_steps=2),
    case("no evaluation", 20, 0, num_train_epochs=1, logging_steps=2),
    case("evaluation on start", 8, 8, {"scores": [0.5, 0.75]}, num_train_epochs=1, logging_steps=1,
         eval_on_start=True, eval_strategy="steps", eval_steps=1),
    case("evaluated by hand after training", 8, 8, {"scores": [0.5, 0.75],
         "calls": [["train", {}], ["evaluate", {}]]}, num_train_epochs=1, **BY_EPOCH),
    case("evaluated alone", 8, 8, {"scores": [0.5], "calls": [["evaluate", {}]]},
         eval_strategy="epoch"),
    case("half an epoch more", 8, 8, num_train_epochs=1.5, **BY_EPOCH),
]


# --- files and numbers -------------------------------------------------------------------


def trainer_state(name: str, checkpoint: int) -> Case:
    with fresh_folder(), captured_log():
        start(next(run for run in RUNS if run["name"] == name))
        text = Path(f"{FOLDER}/checkpoint-{checkpoint}/trainer_state.json").read_text()
    text = re.sub(r'(_runtime|_per_second|_preparation_time)": [0-9.e+-]+', r'\1": 0.0', text)
    return {"of": name, "checkpoint": checkpoint, "text": text}


def smoothed(factor: float, labels: list[int], scale: float) -> Case:
    values = torch.arange(len(labels) * 5, dtype=torch.float32).reshape(len(labels), 5)
    logits = ((values * 7 % 11 - 5) * scale).requires_grad_()
    loss = LabelSmoother(epsilon=factor)({"logits": logits}, torch.tensor(labels))
    loss.backward()
    return encoded({"factor": factor, "logits": logits.tolist(), "labels": labels,
                    "loss": loss.item(), "gradient": logits.grad.tolist()})


def content() -> dict[str, Any]:
    return {
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "common_arguments": COMMON,
        "runs": [run(each) for each in RUNS],
        "banners": banners(),
        "printed_logs": printed_logs(),
        "log_metrics": metrics_texts(),
        "save_metrics": metrics_files(),
        "notebook_tables": [notebook_table(each) for each in NOTEBOOKS],
        "trainer_states": [trainer_state("steps", 4),
                           trainer_state("early stopping, patience 1", 2)],
        "label_smoothing": [smoothed(0.1, [0, 3, 4], 0.25), smoothed(0.1, [2, -100, 1, 0], 1.5),
                            smoothed(0.25, [4], 20.0)],
    }


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def write(path: Path) -> None:
    """One line an entry, so that a changed entry is one changed line."""
    blocks = []
    for key, value in content().items():
        text = compact(value)
        if isinstance(value, list):
            text = "[\n    " + ",\n    ".join(map(compact, value)) + "\n  ]"
        blocks.append(f'  "{key}": {text}')
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")
