#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of stage 6: the Trainer of transformers on the CPU.

    .venv/bin/python bench/peers/trainer.py                          as the other twins train
    .venv/bin/python bench/peers/trainer.py --profile hf-defaults    with the package's defaults
    .venv/bin/python bench/peers/trainer.py --nprocs 2               two processes, also by torchrun

Profile parity has the recipe's optimizer at a constant rate, no clipping, the order of an epoch
from (seed + epoch), and divides each batch over the ranks. With --threads 1 its final weights
equal, bit for bit, those of `stage6_trainer --math reference --threads 1` with as many processes.
The loss of the evaluation has other last bits: it comes from all predictions at once. (In the
Trainer's own, images that are repeated to fill up the last round count again.)

Profile hf-defaults has all from the package but a batch of 64 on each rank, one epoch, and an
evaluation after it. Its order and its dropout masks come from the global random stream: it takes
the steps of `stage6_trainer --profile hf-defaults`, with other numbers.

--steps is max_steps, which wins over the epochs. Nothing is written but what the flags say.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from accelerated import add_nprocs, begin, divide, eval_part
from common import (
    Evaluation,
    Record,
    World,
    choose_device,
    make_datasets,
    make_network,
    make_optimizer,
    make_parser,
    parse_options,
    recipe_defaults,
    save_weights,
)
from ddp import Part, collate, share_buffers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

HF_DEFAULTS = {"epochs": 1, "batch_size": 64, "eval_batch_size": 64, "lr": 5e-5}
Inputs = dict[str, Tensor]


def profile_defaults(options: argparse.Namespace) -> dict[str, int | float]:
    return HF_DEFAULTS if options.profile == "hf-defaults" else recipe_defaults(options)


def collate_inputs(samples: list[tuple[Tensor, int]]) -> Inputs:
    images, labels = collate(samples)
    return {"x": images, "labels": labels}


class RecordedTrainer(Trainer):
    """Keeps what the record needs of a step."""

    parts: Sequence[Part] = ()  # of an epoch, if known
    loss: Tensor  # of the last step, as Record.step wants it
    size: int  # samples of all ranks in it

    def __init__(self, options: argparse.Namespace, **more: object) -> None:
        super().__init__(**more)
        self.options = options

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Inputs,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Inputs]:
        """By a name: of outputs without one, the Trainer takes the first row for the loss."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss, {"outputs": outputs}) if return_outputs else loss

    def training_step(
        self, model: nn.Module, inputs: Inputs, num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        self.size = int(num_items_in_batch)
        self.loss = super().training_step(model, inputs, num_items_in_batch)
        return self.loss


class ParityTrainer(RecordedTrainer):
    """Trains, and prints, as the other twins do."""

    def __init__(self, options: argparse.Namespace, **more: object) -> None:
        super().__init__(options, **more)
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> DataLoader:
        world = World(self.args.process_index, self.args.world_size)
        loader, self.parts = divide(self.train_dataset, self.options, world, collate_inputs)
        return self.accelerator.prepare(loader)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        self.optimizer = make_optimizer(self.options, model or self.model)
        return self.optimizer


class RecordCallback(TrainerCallback):
    """Tells the record what happens."""

    def __init__(self, trainer: RecordedTrainer, record: Record) -> None:
        self.trainer = trainer
        self.record = record
        self.positions: Iterator[range] = iter(())

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        self.positions = iter([part.positions for part in self.trainer.parts])
        self.record.begin_epoch(len(self.record.done) + 1)

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        trainer = self.trainer
        self.record.step(trainer.model, trainer.loss, trainer.size, next(self.positions, None))

    def on_log(self, _: object, state: TrainerState, __: object, logs: dict[str, float],
               **___: object) -> None:
        if "loss" in logs:
            self.record.metrics.write("log", step=state.global_step, loss=float(logs["loss"]))

    def on_epoch_end(self, *_: object, **__: object) -> None:
        self.record.end_epoch()
        if self.record.world.size > 1:  # the evaluation goes without the wrapper, which would
            share_buffers(self.trainer.model)


def make_arguments(options: argparse.Namespace, world: World) -> TrainingArguments:
    parity = options.profile == "parity"
    changed = {
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_strategy": "no",
        "ddp_find_unused_parameters": False,
    }
    return TrainingArguments(
        output_dir=".",  # which it would make; it writes nothing there
        use_cpu=choose_device(options).type == "cpu",
        bf16=options.precision == "bf16",
        seed=options.seed,
        num_train_epochs=options.epochs,
        max_steps=options.steps or -1,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=eval_part(options, world if parity else World()),
        learning_rate=options.lr,
        eval_strategy="no" if parity or options.steps else "epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        label_names=["labels"],
        **(changed if parity else {}),
    )


def test_of(metrics: dict[str, float]) -> Evaluation:
    return Evaluation(*(metrics[f"eval_{name}"] for name in ("correct", "seen", "loss_sum")))


def make_trainer(options: argparse.Namespace, world: World, record: Record) -> RecordedTrainer:
    def loss(outputs: Tensor, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
        return record.recipe.loss(outputs, labels, reduction="sum") / num_items_in_batch

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        """Each image counts once, in what the Trainer gives."""
        output, labels = (torch.from_numpy(array)
                          for array in (prediction.predictions, prediction.label_ids))
        hits = output.argmax(dim=1) == labels
        return {
            "accuracy": hits.double().mean().item(),
            "correct": hits.sum().item(),
            "seen": len(hits),
            "loss_sum": record.recipe.loss(output, labels, reduction="sum").item(),
        }

    train, test = make_datasets(options)
    kind = ParityTrainer if options.profile == "parity" else RecordedTrainer
    trainer = kind(
        options,
        model_init=lambda: make_network(options),
        args=make_arguments(options, world),
        train_dataset=train,
        eval_dataset=test,
        data_collator=collate_inputs,
        compute_loss_func=loss,
        compute_metrics=metrics,
    )
    trainer.add_callback(RecordCallback(trainer, record))
    return trainer


def run(options: argparse.Namespace) -> None:
    ranks = dist.is_initialized()
    world = World(dist.get_rank(), dist.get_world_size()) if ranks else World()
    record = Record("peer_trainer", options, world, choose_device(options))
    trainer = make_trainer(options, world, record)
    trainer.train()
    test = None
    if not options.steps:
        record.begin_testing()
        test = test_of(trainer.evaluate())
    record.finish(trainer.model, test)
    if world.rank == 0:
        save_weights(trainer.model, options.save)


def main() -> None:
    parser = make_parser("The Python twin of stage 6: the Trainer of transformers.")
    parser.set_defaults(threads=1)  # a rank, as torchrun has it
    parser.add_argument("--profile", choices=["parity", "hf-defaults"], default="parity",
                        help="where the defaults are from: other twins, or transformers")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32",
                        help="of convolutions and matrix products; default: %(default)s")
    add_nprocs(parser)
    begin(run, parse_options(parser, profile_defaults))


if __name__ == "__main__":
    main()
