# SPDX-License-Identifier: Apache-2.0
"""What a training step of each stage costs on a GPU: contracts, counted on tests/support/fake_cuda.

Every wait of the host and every copy of pageable memory stalls a real GPU; each operator launches at
least one kernel. The table has the present numbers; a change may lower them, and then lowers the
table too. The one wait of stage 6 in fp16 is for the end of the step before: did it overflow?
`FAKE_CUDA_STACKS=1` shows the places of waits and pageable copies.
"""
from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.fake_gpu import (Costs, costs_of, costs_per_step, gpu, gpu_ranks, in_precision,
                                    replicas, single)
from tests.support.programs import temporary_folder
from tests.support.ways import (CUDA_GRAPH, STAGE0, STAGE2, STAGE3, STAGE4, STAGE5, STAGE6, Way,
                                ignore_accelerate_configuration)

FOLDER = temporary_folder("costs")
ignore_accelerate_configuration(FOLDER)


class Numbers(NamedTuple):
    """Of one step of a rank."""

    operators: int
    syncs: int = 0  # waits for all that the device was given
    events: int = 0  # waits for an event, after which the device has more to do
    pageable: int = 0  # copies of pageable memory, from or to the device
    between: int = 0  # copies from one device to another

    @staticmethod
    def of(costs: Costs) -> Numbers:
        events = costs.syncs["event"]
        return Numbers(costs.kernels.total(), costs.syncs.total() - events, events, costs.pageable,
                       costs.copies["between_devices"])


class Row(NamedTuple):
    way: Way
    flags: tuple[object, ...]
    expected: Numbers  # of rank 0; the other ranks must wait and copy as often


CONVNET = ("--recipe", "convnet")


def amp(stage: Path, precision: str, *flags: object, ranks: int = 1, expected: Numbers) -> Row:
    way = single(stage) if ranks == 1 else gpu_ranks(stage, ranks)
    return Row(way, (*flags, *in_precision(stage, precision)), expected)


def trainer(*flags: object, expected: Numbers) -> Row:
    return Row(single(STAGE6), flags, expected)


# Recipe basicnet has counter-based dropout, convnet has none and BatchNorm instead.
ROWS = {
    "stage0 basicnet": Row(single(), (), Numbers(50)),
    "stage0 convnet": Row(single(), CONVNET, Numbers(38)),
    "stage0 basicnet, pinned": Row(single(), ("--pin-memory",), Numbers(43)),
    "stage0 basicnet, shifted": Row(single(), ("--augment", "shift"), Numbers(61)),
    "cuda_graph basicnet": Row(single(CUDA_GRAPH), (), Numbers(11)),
    "cuda_graph convnet": Row(single(CUDA_GRAPH), CONVNET, Numbers(11)),
    "cuda_graph basicnet, pinned": Row(single(CUDA_GRAPH), ("--pin-memory",), Numbers(2)),
    "stage1 basicnet on 0,1": Row(replicas("0,1"), (), Numbers(100, between=5)),
    "stage1 convnet on 0,1": Row(replicas("0,1"), CONVNET, Numbers(93, between=6)),
    "stage1 basicnet on 0,cpu": Row(replicas("0,cpu"), (), Numbers(61, syncs=5, pageable=5)),
    "stage2 basicnet on 2": Row(gpu_ranks(STAGE2), (), Numbers(62)),
    "stage2 convnet on 2": Row(gpu_ranks(STAGE2), CONVNET, Numbers(61)),
    "stage3 basicnet on 2": Row(gpu_ranks(STAGE3), (), Numbers(62)),
    "stage4 fp32": amp(STAGE4, "fp32", expected=Numbers(50)),
    "stage4 bf16": amp(STAGE4, "bf16", expected=Numbers(71)),
    "stage4 fp16": amp(STAGE4, "fp16", expected=Numbers(87)),
    "stage4 fp16 on 2": amp(STAGE4, "fp16", ranks=2, expected=Numbers(99)),
    "stage4 convnet fp32 on 2": amp(STAGE4, "fp32", *CONVNET, ranks=2, expected=Numbers(159)),
    "stage4 convnet fp16 on 2": amp(STAGE4, "fp16", *CONVNET, ranks=2, expected=Numbers(182)),
    "stage5 fp32": amp(STAGE5, "fp32", expected=Numbers(50)),
    "stage5 bf16": amp(STAGE5, "bf16", expected=Numbers(71)),
    "stage5 fp16": amp(STAGE5, "fp16", expected=Numbers(87)),
    "stage5 fp16 on 2": amp(STAGE5, "fp16", ranks=2, expected=Numbers(99)),
    "stage5 dispatched, on 2": Row(gpu_ranks(STAGE5), ("--dispatch-batches",), Numbers(64)),
    "stage6 fp32": amp(STAGE6, "fp32", expected=Numbers(59)),
    "stage6 bf16": amp(STAGE6, "bf16", expected=Numbers(80)),
    "stage6 fp16": amp(STAGE6, "fp16", expected=Numbers(96, events=1)),
    "stage6 fp16 on 2": amp(STAGE6, "fp16", ranks=2, expected=Numbers(108, events=1)),
    "stage6 fp32, graph": amp(STAGE6, "fp32", "--cuda-graph", expected=Numbers(29)),
    "stage6 convnet fp32": amp(STAGE6, "fp32", *CONVNET, expected=Numbers(47)),
    "stage6 hf-defaults": trainer("--profile", "hf-defaults", expected=Numbers(75)),
    "stage6 hf-defaults fp16": trainer("--profile", "hf-defaults", "--fp16", "true",
                                       expected=Numbers(114, events=1)),
    **{f"stage6 fp16, {optimizer}": trainer("--profile", "none", "--fp16", "true", "--optim",
                                            optimizer, expected=Numbers(operators, events=1))
       for optimizer, operators in (("sgd", 98), ("rmsprop", 186), ("adagrad", 114))},
}


@pytest.mark.parametrize("name", ROWS)
def test_costs_per_step(name: str) -> None:
    row = ROWS[name]
    costs, *others = costs_per_step(row.way, *row.flags, parent=FOLDER)
    seen = Numbers.of(costs)
    print(f"per training step: {seen}", flush=True)
    assert seen == row.expected, costs
    for other in others:
        assert Numbers.of(other)._replace(operators=seen.operators) == seen, other


@pytest.mark.parametrize("stage", [STAGE0, STAGE2, STAGE5, STAGE6], ids=lambda stage: stage.name)
def test_a_run_on_the_cpu_takes_nothing_from_the_gpu(stage: Path) -> None:
    assert costs_of(gpu(stage, "--device", "cpu"), "--pin-memory", "--limit-train", 32,
                    "--limit-test", 8, "--batch-size", 8, "--quiet", parent=FOLDER) == []


@pytest.mark.parametrize("way", [single(), replicas("0,1")])
def test_the_host_looks_at_the_loss_every_50_steps(way: Way) -> None:
    few, more = (costs_of(way, "--threads", 1, "--epochs", 1, "--batch-size", 2, "--limit-test", 2,
                          "--quiet", "--limit-train", 2 * steps, parent=FOLDER)[0]
                 for steps in (100, 150))
    # For the monitor's mean and the loss guard.
    assert dict(more.syncs - few.syncs) == {"copy.to_host.pageable.blocking": 1}
