# SPDX-License-Identifier: Apache-2.0
"""When the Trainer of transformers calls what a program may replace: trainer_hooks.json.

A tiny classifier: sample n is x = [n, 0, 0, 1], `labels` n % 3, `parity` n % 2; its weights are
[0, 1, 2] for n, else 0, its biases [0, 0.5, 0]. trainer_hooks.json holds:

  cases      name, arguments, samples [training, evaluation], calls as in trainer.json;
             `parts`: what the Trainer is given besides: compute_metrics, preprocess (the argmax as
             preprocess_logits_for_metrics), optimizers (SGD with rate 0.5, StepLR(2, 0.5));
             and what came out
               sequence   hooks and events in the order of their calls, a text per group.
                          create_optimizer and create_scheduler only where they make one: the
                          package calls them also for one that it was given
               collated   calls of data_collator
               rates      logged learning rates
             and if nothing is trained
               seen       per call of compute_metrics: predictions and label_ids, as lists
               predicted  per call of predict: the same
               losses     per call of evaluate and predict: the loss, or null
  callbacks  operations "method class" before a training, the callbacks that they popped and those
             that the training calls, as "class number": the operation that added it
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import trainer as runs

Case = dict[str, Any]

HOOKS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader", "training_step",
         "prediction_step", "log", "floating_point_ops")
GROUPS = ("get_", "on_epoch_", "on_step_begin", "on_train_end")


class Classifier(runs.Classifier):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.linear.weight.zero_()[:, 0] = torch.arange(3)
            self.linear.bias.copy_(torch.tensor([0.0, 0.5, 0.0]))

    def forward(self, x: Tensor, labels: Tensor | None = None,
                parity: Tensor | None = None) -> Tensor:
        return self.linear(x)


def numbers(value: Any) -> Any:
    """Arrays, and tuples of them, as lists."""
    return [numbers(item) for item in value] if isinstance(value, tuple) else value.tolist()


class HookTrainer(Trainer):
    """Notes each hook, then calls the package's own."""

    def __init__(self, case: Case, **options: Any) -> None:
        self.calls: list[str] = []
        self.result: Case = {"collated": 0, "rates": [], "seen": [], "predicted": [], "losses": []}
        parts = case["parts"]
        model = Classifier()
        optimizers = (None, None)
        if "optimizers" in parts:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            optimizers = (optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        super().__init__(
            model=model,
            args=TrainingArguments(**{**runs.QUIET, **runs.COMMON, **case["arguments"]}),
            data_collator=self.collate,
            train_dataset=runs.samples(case["samples"][0]),
            eval_dataset=runs.samples(case["samples"][1]),
            compute_metrics=self.metrics if "compute_metrics" in parts else None,
            preprocess_logits_for_metrics=self.preprocess if "preprocess" in parts else None,
            optimizers=optimizers,
            callbacks=[EventRecorder(self.calls)],
        )

    def collate(self, batch: list[tuple[list[float], int]]) -> dict[str, Tensor]:
        self.result["collated"] += 1
        inputs = runs.collate(batch)
        return {**inputs, "parity": inputs["x"][:, 0].long() % 2}

    def metrics(self, prediction: Any) -> dict[str, float]:
        self.calls.append("compute_metrics")
        self.result["seen"].append([numbers(item) for item in prediction])
        return {}

    def preprocess(self, logits: Tensor, labels: Any) -> Tensor:
        self.calls.append("preprocess_logits_for_metrics")
        return logits.argmax(-1)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.calls.append("create_optimizer")
        return super().create_optimizer(model)

    def create_scheduler(self, *args: Any, **options: Any) -> Any:
        if self.lr_scheduler is None:
            self.calls.append("create_scheduler")
        return super().create_scheduler(*args, **options)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor],
                     return_outputs: bool = False,
                     num_items_in_batch: Tensor | int | None = None) -> Any:
        self.calls.append("compute_loss")
        logits = model(inputs["x"])
        loss = nn.functional.cross_entropy(logits, inputs["labels"])
        return (loss, {"logits": logits}) if return_outputs else loss


class EventRecorder(TrainerCallback):
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls


def noted(base: type, name: str) -> Any:
    """The method of the base, which notes its call."""
    def method(self: Any, *args: Any, **options: Any) -> Any:
        self.calls.append(name)
        return getattr(base, name)(self, *args, **options)

    return method


for name in HOOKS:
    setattr(HookTrainer, name, noted(Trainer, name))
for name in runs.EVENTS:
    setattr(EventRecorder, name, noted(TrainerCallback, name))


def groups(calls: list[str]) -> list[str]:
    lines: list[str] = []
    for call in calls:
        if not lines or call.startswith(GROUPS):
            lines.append(call)
        else:
            lines[-1] += " " + call
    return lines


def run(case: Case) -> Case:
    with runs.fresh_folder(), runs.captured_log():
        trainer = HookTrainer(case)
        result = trainer.result
        for method in case["calls"]:
            if method == "train":
                trainer.train()
            elif method == "evaluate":
                result["losses"].append(trainer.evaluate().get("eval_loss"))
            else:
                output = trainer.predict(trainer.eval_dataset)
                result["losses"].append(output.metrics.get("test_loss"))
                result["predicted"].append([None if part is None else numbers(part) for part in
                                            (output.predictions, output.label_ids)])
        logs = trainer.state.log_history
        result["rates"] = [entry["learning_rate"] for entry in logs if "learning_rate" in entry]
    if "train" in case["calls"]:
        for key in ("seen", "predicted", "losses"):
            del result[key]
    return {**case, "sequence": groups(trainer.calls), **result}


def case(name: str, calls: list[str], parts: list[str], **arguments: Any) -> Case:
    return {"name": name, "arguments": arguments, "samples": [20, 8], "calls": calls,
            "parts": parts}


ALONE = ["evaluate", "predict"]
METRICS = ["compute_metrics", "preprocess"]

RUNS: list[Case] = [
    case("accumulation, evaluation, logs and checkpoints by steps", ["train", *ALONE], METRICS,
         num_train_epochs=2, gradient_accumulation_steps=2, logging_steps=2, save_steps=2,
         eval_strategy="steps", eval_steps=2, label_names=["labels"]),
    case("evaluation at the start and after each epoch", ["train"], ["compute_metrics"],
         num_train_epochs=2, eval_on_start=True, label_names=["labels"], **runs.BY_EPOCH),
    case("trained twice", ["train", "train"], [], num_train_epochs=1, save_strategy="no",
         logging_steps=2, label_names=["labels"]),
    case("optimizer and schedule given", ["train"], ["optimizers"], num_train_epochs=1,
         save_strategy="no", logging_steps=1, label_names=["labels"]),
    case("one label name", ALONE, METRICS, label_names=["labels"]),
    case("one label name of two tensors", ["predict"], METRICS, label_names=["parity"]),
    case("two label names", ALONE, METRICS, label_names=["labels", "parity"]),
    case("two label names in another order", ["predict"], METRICS,
         label_names=["parity", "labels"]),
    case("a label is missing", ALONE, METRICS, label_names=["labels", "absent"]),
    case("no label names", ALONE, METRICS, label_names=[]),
    case("no preprocessing", ["predict"], ["compute_metrics"], label_names=["labels"]),
    case("loss only", ALONE, METRICS, label_names=["labels"], prediction_loss_only=True),
    case("loss only, a label is missing", ["predict"], METRICS,
         label_names=["labels", "absent"], prediction_loss_only=True),
]


# --- callbacks -------------------------------------------------------------------------------


class First(TrainerCallback):
    def __init__(self, number: int, called: list[str]) -> None:
        self.text = f"{type(self).__name__.lower()} {number}"
        self.called = called

    def on_train_begin(self, *args: Any, **options: Any) -> None:
        self.called.append(self.text)


class Second(TrainerCallback):
    __init__ = First.__init__
    on_train_begin = First.on_train_begin


OPERATIONS = ["add first", "add second", "add first", "add second", "remove first", "pop second",
              "add first", "pop first", "pop first", "pop first", "add first"]


def callbacks() -> Case:
    classes = {"first": First, "second": Second}
    called: list[str] = []
    popped: list[str | None] = []
    with runs.fresh_folder(), runs.captured_log():
        trainer = HookTrainer(case("", [], [], num_train_epochs=1, save_strategy="no"))
        for number, operation in enumerate(OPERATIONS):
            method, name = operation.split()
            if method == "add":
                trainer.add_callback(classes[name](number, called))
            elif method == "remove":
                trainer.remove_callback(classes[name])
            else:
                callback = trainer.pop_callback(classes[name])
                popped.append(callback and callback.text)
        trainer.train()
    return {"operations": OPERATIONS, "popped": popped, "called": called}


def content() -> Case:
    return {"made_by": "tests/golden/trainer_hooks.py", "common_arguments": runs.COMMON,
            "callbacks": callbacks(), "cases": [run(each) for each in RUNS]}
