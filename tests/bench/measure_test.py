# SPDX-License-Identifier: Apache-2.0
"""bench/measure: step, gradients and updates. Pages have their tables and pictures."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sample_results as made
import step
import updates


def step_record() -> dict[str, Any]:
    """Of two made-up traces."""
    steps = {"reference": step.steps_of(made.trace()),
             "fast": step.steps_of(made.trace(
                 pool="torch::autograd::CppNode<ladder::(anonymous namespace)::ReluMaxPool>"))}
    return {"commit": "abc1234", "threads": 2, "length": {math: 10.0 for math in step.MATHS},
            "operations": {math: step.medians(steps[math]) for math in step.MATHS},
            "flame": {math: step.flame(steps[math][0]) for math in step.MATHS}}


# --- step -------------------------------------------------------------------------------


def test_a_step_is_what_lies_between_two_optimizers_on_their_thread() -> None:
    [first, second] = step.steps_of(made.trace())
    assert (first.length, second.length) == (10.0, 10.0)
    assert [box.name for box in first.boxes] == ["aten::conv2d", "wrapper", "aten::_fused_adamw_"]
    assert [box.name for box in first.boxes[0].calls] == ["aten::mkldnn_convolution"]


def test_the_time_of_an_operation_is_its_own() -> None:
    times = step_record()["operations"]["fast"]
    assert times == pytest.approx({"conv2d": 0.2, "mkldnn_convolution": 3.8, "_fused_adamw_": 1.0,
                                   "ReluMaxPool backward": 2.0, step.REST: 3.0})


def test_a_call_that_only_calls_another_one_is_shown_as_that() -> None:
    assert step_record()["flame"]["reference"] == [
        [0, "mkldnn_convolution", 0.1, 3.8], [0, "wrapper", 5.0, 2.5],
        [1, "max_pool2d_with_indices", 5.1, 2.0], [0, "_fused_adamw_", 9.0, 1.0]]


# --- gradients --------------------------------------------------------------------------


def test_counts_magnitudes_by_powers_of_two_and_zeros_apart() -> None:
    import gradients  # imports PyTorch, which takes seconds
    import torch

    counts = gradients.Counts()
    counts.add(torch.tensor([[0.0, -0.0, 1.0, -1.5], [2.0, 1.999, 2.0 ** -149, -0.75]]))
    counts.add(torch.tensor([3.0]))
    counts.add(torch.zeros(2))
    assert counts.record() == {"zeros": 4, "bins": {"-149": 1, "-1": 1, "0": 3, "1": 2}}
    outputs = gradients.Counts()
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())  # without parameters
    gradients.count_outputs(model, outputs)
    model(torch.ones(3, 1)).sum().backward()
    assert outputs.zeros + outputs.bins.total() == 3


# --- updates ----------------------------------------------------------------------------


def test_a_point_is_an_evaluation_and_the_last_one_counts_once() -> None:
    logs = [{"record": "run", "run": "a"},
            *({"record": "log", "step": at, "eval/accuracy": accuracy, "train/epoch": epoch}
              for at, accuracy, epoch in ((188, 0.5, 0.2), (938, 0.8394, 1.0), (938, 0.8394, 1.0))),
            {"record": "log", "step": 938, "train/train_loss": 0.5}]
    assert updates.points_of(list(map(json.dumps, logs))) == [[188, 12_000, 50.0],
                                                              [938, 60_000, 83.94]]


def test_evaluates_after_as_many_images_each_way() -> None:
    every = {way.batch: updates.command_of(way, Path("a")) for way in updates.WAYS.values()}
    assert {batch: words[words.index("--eval-steps") + 1] for batch, words in every.items()} == {
        32: "375", 64: "188"}
