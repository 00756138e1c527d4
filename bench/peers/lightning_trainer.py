#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Trainer of PyTorch Lightning beside stage 6.

    .venv/bin/python bench/peers/lightning_trainer.py --nprocs 2     it starts the second process

Set for speed: no logger, no checkpoints, no progress bar. With --threads 1 the final weights equal,
bit for bit, those of `stage6_trainer --math reference --threads 1` with as many processes. Exit
code 77 if Lightning is missing.
"""

from __future__ import annotations

import argparse

import torch
from common import Evaluation, Record, World, choose_device, make_optimizer, save_weights
from ddp import Part, make_data, share_buffers
from fabric import places, start  # ends the program if Lightning is missing
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from single import make_model
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class Classifier(LightningModule):
    def __init__(self, options: argparse.Namespace, network: nn.Module, parts: list[Part],
                 record: Record) -> None:
        super().__init__()
        self.options = options
        self.network = network
        self.parts = parts
        self.record = record
        self.counts = [0, 0, 0.0]  # correct, seen, sum of losses

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return make_optimizer(self.options, self.network)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        images, labels = batch
        loss_sum = self.record.recipe.loss(self.network(images), labels, reduction="sum")
        return loss_sum * self.record.world.size / self.parts[index].global_size

    def on_test_start(self) -> None:
        if self.record.world.size > 1:  # rank 0's, as DistributedDataParallel does in training
            share_buffers(self.network)

    def test_step(self, batch: Batch, _: int) -> None:
        images, labels = batch
        output = self.network(images)
        hits = (output.argmax(dim=1) == labels).sum()
        loss_sum = self.record.recipe.loss(output, labels, reduction="sum")
        found = (hits.item(), len(labels), loss_sum.item())
        self.counts = [old + new for old, new in zip(self.counts, found)]


class RecordCallback(Callback):
    def __init__(self, record: Record) -> None:
        self.record = record

    def on_train_epoch_start(self, *_: object) -> None:
        self.record.begin_epoch(len(self.record.done) + 1)

    def on_train_batch_end(self, _: Trainer, module: Classifier, outputs: dict[str, Tensor],
                           __: Batch, index: int) -> None:
        part = module.parts[index]
        self.record.step(module.network, outputs["loss"], part.global_size, part.positions)

    def on_train_epoch_end(self, *_: object) -> None:
        self.record.end_epoch()


def make_trainer(options: argparse.Namespace) -> Trainer:
    return Trainer(
        **places(options, DDPStrategy),
        max_epochs=options.epochs,
        max_steps=options.steps or -1,
        use_distributed_sampler=False,  # the loader's divides the batches
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def run(options: argparse.Namespace) -> None:
    trainer = make_trainer(options)
    world = World(trainer.global_rank, trainer.world_size)
    record = Record("peer_lightning", options, world, choose_device(options))
    data = make_data(options, world)
    module = Classifier(options, make_model(options), data.parts, record)
    trainer.callbacks.append(RecordCallback(record))
    trainer.fit(module, data.train)
    test = None
    if not options.steps:
        record.begin_testing()
        trainer.test(module, data.test, verbose=False)
        test = Evaluation(*map(world.sum, module.counts))
    record.finish(module.network, test)
    if trainer.is_global_zero:
        save_weights(module.network, options.save)


if __name__ == "__main__":
    start("The Trainer of PyTorch Lightning beside stage 6.", run)
