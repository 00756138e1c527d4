# SPDX-License-Identifier: Apache-2.0
"""The trainings that gpu_checks_test.py runs, and the expected records."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

STAGE0, STAGE1, STAGE2 = "stage0_single_gpu", "stage1_data_parallel", "stage2_ddp_spawn"
STAGE3, STAGE4 = "stage3_ddp_torchrun", "stage4_ddp_amp"
STAGE5, STAGE6 = "stage5_accelerator", "stage6_trainer"
ZERO_REDUNDANCY, PIPELINE, FULLY_SHARDED = "zero_redundancy", "pipeline", "fully_sharded"
CUDA_GRAPH = "cuda_graph"

OF_SHARED = {"backend": "gloo", "world_size": 2}


@dataclass
class Setup:
    """The flags of tools/gpu_check.sh, and those of programs that follow from them."""

    key: ClassVar[pytest.StashKey[Setup]] = pytest.StashKey()
    bin: Path
    out: Path
    device: str
    gpus: int
    limit_train: int
    limit_test: int
    deadline: int

    def __post_init__(self) -> None:
        self.cuda = self.device == "cuda"
        self.backend = "nccl" if self.cuda else "gloo"
        self.half = "fp16" if self.cuda else "bf16"  # without a GPU, stages 5 and 6 refuse fp16
        if not self.cuda:
            self.gpus = 2  # two ranks try the commands
        self.whole = self.limit_train == 0 and self.limit_test == 0
        self.at = ["--device", self.device]
        self.shared = ["--backend", "gloo", "--nprocs", "2",  # two ranks can share a GPU over Gloo
                       "--device", "cuda:0" if self.cuda else "cpu"]
        self.one = ["--backend", self.backend, "--nprocs", "1", *self.at]
        self.of_one = {"backend": self.backend, "world_size": 1}
        self.all = ["--backend", self.backend, "--nprocs", str(self.gpus), *self.at]
        self.of_all = {"backend": self.backend, "world_size": self.gpus}


@dataclass(frozen=True)
class Training:
    """A run of a program, and the expected record."""

    name: str
    command: Sequence[str]
    same: str = ""  # the check that ends with the same weights
    repeats: str = ""  # a check, with NAME_again, that shows whether such weights repeat [same]
    near: str = ""  # the check that ends with about the same accuracy
    floor: bool = False  # is the accuracy that of a network that learned?
    scaler: bool = False  # numbers of the gradient scaler in its metrics
    epochs: int = 1
    ranks: int = 1  # that torchrun starts
    device: str = ""  # the first part of its device's name [--device]
    needs_gpu: bool = False  # would it be another check again, on the CPU?
    expected: dict[str, Any] = field(default_factory=dict)  # of the record


def trainings_of(setup: Setup) -> list[Training]:
    """What others are compared with comes first."""
    trainings = (of_fp32(setup) + of_16_bits(setup) + of_convnet(setup) + of_exact_sums(setup) +
                 of_accelerator(setup))
    if setup.gpus > 1:
        trainings += of_all_gpus(setup)
    return [training for training in trainings if setup.cuda or not training.needs_gpu]


def of_fp32(setup: Setup) -> list[Training]:
    replica = "0" if setup.cuda else "cpu"
    return [
        Training("stage0", [STAGE0, *setup.at], floor=True),
        Training("stage0_again", [STAGE0, *setup.at], same="stage0"),
        Training("stage0_pinned", [STAGE0, "--pin-memory", "--num-workers", "2", *setup.at],
                 same="stage0"),
        Training("cuda_graph", [CUDA_GRAPH, *setup.at], near="stage0"),
        Training("cuda_graph_again", [CUDA_GRAPH, *setup.at], same="cuda_graph", repeats="stage0"),
        Training("cuda_graph_pinned", [CUDA_GRAPH, "--pin-memory", "--num-workers", "2", *setup.at],
                 same="cuda_graph", repeats="stage0"),
        Training("stage1_one", [STAGE1, "--device-ids", replica], same="stage0"),
        Training("stage1_replicas", [STAGE1, "--device-ids", f"{replica},{replica}"],
                 near="stage0"),
        Training("stage1_cpu", [STAGE1, "--device-ids", f"{replica},cpu"], near="stage0",
                 needs_gpu=True),
        Training("stage1_all", [STAGE1, *setup.at], near="stage0"),
        Training("stage2_one", [STAGE2, *setup.one], same="stage0", expected=setup.of_one),
        Training("stage3_torchrun", [STAGE3, "--backend", setup.backend, *setup.at],
                 same="stage0", expected=setup.of_one),
        Training("stage2_shared", [STAGE2, *setup.shared], near="stage0",
                 expected=OF_SHARED),
        Training("zero_redundancy_shared", [ZERO_REDUNDANCY, *setup.shared],
                 same="stage2_shared", repeats="stage0", expected=OF_SHARED),
        Training("fully_sharded_shared", [FULLY_SHARDED, *setup.shared],
                 same="stage2_shared", repeats="stage0", expected=OF_SHARED),
        Training("pipeline_shared", [PIPELINE, *setup.shared], near="stage0",
                 expected=OF_SHARED),
    ]


def of_16_bits(setup: Setup) -> list[Training]:
    """On the CPU stage 4 is slow in fp16."""
    of_half = setup.of_one | {"precision": setup.half}
    return [
        Training("stage4_fp16", [STAGE4, "--precision", "fp16", *setup.one], near="stage0",
                 scaler=True, expected=setup.of_one | {"precision": "fp16"}),
        Training("stage4_bf16", [STAGE4, "--precision", "bf16", *setup.one], near="stage0",
                 expected=setup.of_one | {"precision": "bf16"}),
        Training(f"stage5_{setup.half}", [STAGE5, "--mixed-precision", setup.half, *setup.one],
                 near="stage0", scaler=setup.cuda, expected=of_half),
        Training(f"stage6_{setup.half}", [STAGE6, f"--{setup.half}", *setup.one],
                 near="stage0", scaler=setup.cuda, expected=of_half),
        Training("stage6_rmsprop", [STAGE6, "--profile", "none", "--optim", "rmsprop",
                                    "--save-strategy", "no", f"--{setup.half}", *setup.one],
                 scaler=setup.cuda, expected=of_half),
    ]


def of_convnet(setup: Setup) -> list[Training]:
    """BatchNorm, and SyncBatchNorm, the default of stage 4."""
    stage0 = [STAGE0, "--recipe", "convnet", *setup.at]
    stage4 = [STAGE4, "--recipe", "convnet", "--precision", "fp32"]
    return [
        Training("convnet", stage0),
        Training("convnet_again", stage0, same="convnet"),
        Training("syncbn_one", [*stage4, *setup.one], same="convnet", expected=setup.of_one),
        Training(f"convnet_{setup.half}",
                 [STAGE4, "--recipe", "convnet", "--precision", setup.half, *setup.one],
                 near="convnet", scaler=setup.cuda,
                 expected=setup.of_one | {"precision": setup.half}),
        Training("syncbn_shared", [*stage4, *setup.shared], near="convnet",
                 expected=OF_SHARED),
    ]


def of_exact_sums(setup: Setup) -> list[Training]:
    """The same weights for any number of ranks."""
    exact = [STAGE2, "--sums", "exact"]
    return [
        Training("exact", [*exact, *setup.one], near="stage0", expected=setup.of_one),
        Training("exact_again", [*exact, *setup.one], same="exact", expected=setup.of_one),
        Training("exact_shared", [*exact, *setup.shared], same="exact",
                 expected=OF_SHARED),
    ]


def of_accelerator(setup: Setup) -> list[Training]:
    """Accumulation, dispatched batches, and a resume: here, and on the CPU."""
    project = str(setup.out / "resume")
    stage5 = [STAGE5, *setup.one]
    saved = [*stage5, "--project-dir", project, "--checkpointing-steps", "epoch"]
    resume = ["--resume", f"{project}/checkpoints/checkpoint_0"]
    on_cpu = [STAGE5, "--device", "cpu", "--project-dir", project, *resume]
    return [
        Training("accumulate", [*stage5, "--gradient-accumulation-steps", "4"],
                 expected=setup.of_one),
        Training("dispatch", [STAGE5, "--dispatch-batches", *setup.shared], near="stage0",
                 expected=OF_SHARED),
        Training("uninterrupted", stage5, epochs=2, expected=setup.of_one),
        Training("first_epoch", saved, same="stage0", expected=setup.of_one),
        Training("resumed_on_cpu", on_cpu, epochs=2, near="uninterrupted", device="cpu"),
        Training("resumed", [*saved, *resume], epochs=2, same="uninterrupted",
                 repeats="stage0", expected=setup.of_one),
    ]


def of_all_gpus(setup: Setup) -> list[Training]:
    """One rank per GPU, by NCCL: stages 2 to 6, and DataParallel in another order."""
    in_half = setup.of_all | {"precision": setup.half}
    convnet = [STAGE4, "--recipe", "convnet", "--precision", "fp32"]
    return [
        Training("stage1_reversed", [STAGE1, "--device-ids", "1,0"], near="stage0",
                 needs_gpu=True),
        Training("stage2_all", [STAGE2, *setup.all], near="stage0", expected=setup.of_all),
        Training("fully_sharded_all", [FULLY_SHARDED, *setup.all], near="stage0",
                 expected=setup.of_all),
        Training("stage3_all", [STAGE3, "--backend", setup.backend, *setup.at],
                 ranks=setup.gpus, near="stage0", expected=setup.of_all),
        Training("stage4_all", [STAGE4, "--precision", setup.half, *setup.all], near="stage0",
                 scaler=setup.cuda, expected=in_half),
        Training("syncbn_all", [*convnet, *setup.all], near="convnet", expected=setup.of_all),
        Training("stage5_all", [STAGE5, "--mixed-precision", setup.half, *setup.all],
                 near="stage0", scaler=setup.cuda, expected=in_half),
        Training("stage6_all", [STAGE6, f"--{setup.half}", *setup.all], near="stage0",
                 scaler=setup.cuda, expected=in_half),
        Training("exact_all", [STAGE2, "--sums", "exact", *setup.all], same="exact",
                 expected=setup.of_all),
    ]
