# SPDX-License-Identifier: Apache-2.0
"""bench/measure: step, gradients, updates, pipeline and scaling. Pages have their tables and pictures."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import divided
import measured
import pipeline
import pytest
import sample_links
import sample_results as made
import scaling
import step
import updates


def step_record() -> dict[str, Any]:
    """Of two made-up traces."""
    steps = {"reference": step.steps_of(made.trace()),
             "fast": step.steps_of(made.trace(
                 pool="torch::autograd::CppNode<ladder::(anonymous namespace)::ReluMaxPool>"))}
    return {"commit": "abc1234", "threads": 2, "machine": sample_links.record()["machine"],
            "length": {math: 10.0 for math in step.MATHS},
            "operations": {math: step.medians(steps[math]) for math in step.MATHS},
            "flame": {math: step.flame(steps[math][0]) for math in step.MATHS}}


@pytest.mark.parametrize("program", [divided, pipeline, scaling, step, updates])
def test_a_record_that_cannot_be_written_is_refused_before_it_is_measured(program, capsys) -> None:
    for path, hint in (("/dev", "/dev/NAME.json"), ("/none/a.json", "mkdir -p /none")):
        with pytest.raises(SystemExit, match="2"):
            program.main([path])
        assert capsys.readouterr().err.endswith(f"got {path}; hint: {hint}\n")


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


def test_the_accuracy_of_a_run_is_that_of_its_result(monkeypatch) -> None:
    program = ("import json, sys; words = dict(zip(sys.argv[1::2], sys.argv[2::2])); "
               "open(words['--metrics'], 'w').write('{}\\n' + json.dumps("
               "{'accuracy': 80 + int(words['--seed'])}))")
    monkeypatch.setitem(updates.PRACTICE, "twin", (sys.executable, "-c", program))
    assert [updates.accuracy_of("twin", seed) for seed in updates.SEEDS] == [81, 82, 83]


def test_a_box_computes_behind_its_last_receive() -> None:
    events = [{"ph": "X", "name": name, "ts": begin * 1e3, "dur": length * 1e3}
              for name, begin, length in (  # in milliseconds
                  ("pipeline.forward", 10, 8), ("c10d::recv_", 11, 0.1), ("aten::empty", 14, 0.1),
                  ("c10d::recv_", 15, 0.1), ("aten::linear", 16, 1), ("pipeline.backward", 20, 4),
                  ("aten::mm", 21, 3), ("c10d::recv_", 30, 1))]
    forward, backward = pipeline.boxes_of({"baseTimeNanoseconds": 5_000_000, "traceEvents": events})
    assert (forward.letter, forward.begin, forward.end, forward.waited) == ("F", 15, 23, 6)
    assert (backward.letter, backward.begin, backward.waited) == ("B", 25, 0)


def test_the_idle_share_is_of_the_step_of_all_ranks() -> None:
    """Two ranks, two micro-batches of one unit each, twice: the formula."""
    boxes = [[pipeline.Box(letter, begin, begin + 1, 0) for letter, begin in
              zip("FFBB", times, strict=True)] for times in ((0, 1, 4, 5), (1, 2, 3, 4))]
    later = [[pipeline.Box(box.letter, box.begin + 9, box.end + 9, 0) for box in own]
             for own in boxes]
    steps = pipeline.steps_of([one + other for one, other in zip(boxes, later, strict=True)], 2)
    assert len(steps) == 2 and steps[0] == steps[1]
    row = pipeline.row_of(steps)
    assert (row["ms"], row["computed_ms"]) == (6, [4, 4])
    assert row["idle"] == pytest.approx([1 / 3, 1 / 3], abs=1e-4)
    assert pipeline.share_if_equal(2, 2) == pytest.approx(1 / 3)
    assert (pipeline.least_share([4, 4]), pipeline.least_share([4, 2])) == (0, 0.25)


def test_a_unit_is_whole_from_its_gather_to_its_reshard() -> None:
    """Of the step of median length; a step ends where the next forward begins."""
    events = [("FullyShardedDataParallel.forward", 0, 1), ("all_gather layers.0", 0.1, 1),
              ("FullyShardedDataParallel.forward", 10, 9), ("all_gather layers.0", 11, 1),
              ("reshard layers.0", 13, 0.5), ("all_gather layers.0", 14, 1), ("aten::mm", 15, 1),
              ("reduce_scatter layers.0", 16, 2), ("reshard layers.0", 18, 0.5),
              ("FullyShardedDataParallel.forward", 20, 1), ("all_gather ", 21, 1),
              ("FullyShardedDataParallel.forward", 40, 1)]
    trace = {"traceEvents": [{"ph": "X", "name": name, "ts": begin * 1e3, "dur": length * 1e3}
                             for name, begin, length in events]}
    assert divided.units_of(trace) == [["layers.0", "whole", 1, 3.5], ["layers.0", "reduced", 6, 8],
                                       ["layers.0", "whole", 4, 8.5]]


def test_bytes_of_a_stack_are_predicted() -> None:
    assert divided.PARAMETERS == 4_408_074
    three = divided.predicted("zero3", 4)
    assert (three["weights"], three["state"], three["sent_per_step"]) == (
        4_408_074, 8_816_148, 39_672_666)
    row = {name: [4.2e6, 4.4e6] for name in measured.CONTENTS}
    rows = {f"{way}/4": row for way in measured.WAYS_TO_DIVIDE}
    lines = measured.divided_table({"rows": rows}).splitlines()
    assert lines[2] == ("| weights | 4.4 (17.6) | 4.4 (17.6) | 4.4 (4.4) | 4.4 (4.4) | 4.4 (4.4) |")
    assert lines[6] == "| peak of a step | 4.4 (71.2) | 4.4 (44.8) | 4.4 (33.6) | 4.4 (23.3) | 4.4 |"
    assert lines[7].startswith("| sent per step | 4.3 (26.4) | 4.3 (39.7) | 4.3 (26.4) |")


@pytest.mark.parametrize("cores, ranks", [(1, [1, 2, 3, 4]), (4, [1, 2, 3, 4]),
                                          (6, [1, 2, 3, 4, 6]), (16, [1, 2, 3, 4, 8, 16])])
def test_measures_four_processes_and_on_more_cores_up_to_their_number(
        cores: int, ranks: list[int]) -> None:
    assert scaling.ranks_of(cores) == ranks


def test_compares_with_processes_that_exchange_nothing() -> None:
    rows = {"basicnet/1": {"ms": [10.0], "apart_ms": [10.0], "sent_bytes_per_rank": 0},
            "basicnet/2": {"ms": [6.25], "apart_ms": [5.0], "waiting_ms": [0.2],
                           "exchange_ms": [0.9], "sent_bytes_per_rank": 4_800_000},
            "basicnet, bf16/1": {"ms": [8.0], "apart_ms": [8.0], "sent_bytes_per_rank": 0}}
    record = {"cores": 2, "rows": rows}
    assert measured.scaling_table(record).splitlines()[2:5] == [
        "| basicnet | 1 | 10.0 | 10.0 | 100 % |  |  | 1.00 | 0.00 |",
        "| basicnet | 2 | 6.2 | 5.0 | 80 % (≥ 95 %) | 0.20 | 0.90 | 1.60 | 4.80 |",
        "| basicnet, bf16 | 1 | 8.0 | 8.0 | 100 % |  |  | 1.00 | 0.00 |"]
    assert list(measured.rows_of(record, "basicnet")) == [1, 2]


def test_finds_the_collectives_of_a_trace_in_the_order_of_time() -> None:
    events = [{"ph": "X", "name": name, "ts": ts, "dur": 2.0}
              for name, ts in (("c10d::allreduce_", 9.0), ("aten::add", 1.0), ("c10d::barrier", 3.0))]
    assert scaling.collectives({"baseTimeNanoseconds": 1000, "traceEvents": events}) == [
        (4.0, 6.0), (10.0, 12.0)]


def test_shared_memory_from_python_stands_beside_gloo_and_the_stage() -> None:
    record = {"times": {"ladder": {"64": [0.02, 0.01], "4800000": [0.5]},
                        "gloo": {"64": [0.1, 0.2], "4800000": [2.5]}},
              "faults": {"rank 1 killed": {
                  "ladder": [[0.104, "all_reduce: rank 1 has ended; hint: start again"], None],
                  "gloo": [[0.02, "[pair.cc:1] Connection closed"], None]}},
              "twins": {"basicnet/DDP": {"gloo": [12.0, 11.0], "ladder": [9.5], "stage": [5.0]}}}
    assert measured.python_times_table(record).splitlines() == [
        "| all-reduce, ms | 64 B | 4.8 MB |", "| --- | ---: | ---: |", "| `ladder` | 0.010 | 0.50 |",
        "| Gloo | 0.10 | 2.5 |", "| Gloo ÷ `ladder` | 10.0 | 5.0 |"]
    assert measured.python_faults_table(record).splitlines()[2:] == [
        "| rank 1 killed | `ladder` | 0 | 0.10 | all_reduce: rank 1 has ended |",
        "| rank 1 killed | Gloo | 0 | 0.02 | Connection closed |"]
    assert measured.python_twins_table(record).splitlines()[2:] == [
        "| basicnet, DDP | 11.0 | 9.5 | 5.0 | 25 % |"]
