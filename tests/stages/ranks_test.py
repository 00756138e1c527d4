# SPDX-License-Identifier: Apache-2.0
"""Output, files, checkpoints and traces of two ranks, and the flags for several ranks alone."""
from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.support.programs import BIN, records, run, temporary_folder
from tests.support.ways import (CPU, STAGE0, STAGE1, STAGE4, Run, Way, alone, by_hand, distance,
                                small, spawned, train)

FOLDER = temporary_folder("ranks")
WAYS = {
    "stage 0": lambda: alone(STAGE0),
    "stage 1": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
    "stage 2": spawned,
    "stage 2, 1 rank": lambda: spawned(1),
    "stage 2, 3 ranks": lambda: spawned(3),
    "stage 3": by_hand,
    "stage 4": lambda: spawned(2, "--precision", "fp32", program=STAGE4),
}


@functools.cache
def trained(way: str, *flags: object, **changes: object) -> Run:
    return train(WAYS[way](), *small(*flags, **changes), parent=FOLDER)


def plain() -> Run:
    return trained("stage 2")


def marked() -> Run:
    """In shared memory, with all that looks at a run."""
    return trained("stage 2", fingerprint=1, trace="trace.json", check_replicas=2)


def over_sockets() -> Run:
    return trained("stage 2", backend="gloo", trace="trace.json")


def convnet_on_three() -> Run:
    return trained("stage 2, 3 ranks", recipe="convnet", limit_train=320, epochs=2, fingerprint=1)


# Without a shelf a network computes with LibTorch's operations, and ranks send over Gloo. After ten
# steps the weights are near those of the kernels: 1e-3 of their norm.
def test_lessons_train_linked_with_the_spine_alone() -> None:
    def on_spine(program: str) -> Path:
        return BIN / f"{program}_on_spine"

    one = train(alone(on_spine("stage0_single_gpu")), *small(), parent=FOLDER)
    assert distance(one, trained("stage 0")) < 1e-3
    two = train(spawned(program=on_spine("stage2_ddp_spawn")), *small(), parent=FOLDER)
    assert distance(two, plain()) < 1e-3
    assert two.header["backend"] == "gloo"
    replicas = Way((on_spine("stage1_data_parallel"), "--device-ids", "cpu,cpu"))
    ranks = [spawned(program=on_spine(program))
             for program in ("stage4_ddp_amp", "zero_redundancy", "pipeline", "fully_sharded")]
    for way in (replicas, *ranks):
        train(way, *small(limit_train=128), parent=FOLDER)
    refused = run(on_spine("stage2_ddp_spawn"), "--sums", "exact", *CPU)
    assert refused.code == 2 and "link ladder::exact for exact sums" in refused.stderr


@pytest.mark.parametrize("way, launcher", [("stage 2", "spawn"), ("stage 3", "env"),
                                           ("stage 4", "spawn")])
def test_only_rank_zero_prints_and_records(way: str, launcher: str) -> None:
    run = trained(way)
    assert re.fullmatch(r"Accuracy: \d+\.\d\d\ntime elapsed: \d+\.\d\d seconds\n", run.done.stdout)
    assert [record["record"] for record in run.records] == ["run", "epoch", "result"]
    assert [run.header[key] for key in ("rank", "world_size", "backend")] == [0, 2, "shm"]
    assert run.done.stderr.count("epoch 1/1 10/10") == 1
    assert re.search(rf"rank 0 of 2, .* by {launcher} .*backend shm", run.done.stderr)
    assert {path.name for path in run.folder.iterdir()} == {"a.jsonl", "a.safetensors"}


def test_convnet_prints_the_lines_of_its_tutorial_once() -> None:
    lines = convnet_on_three().done.lines
    assert lines[:3] == ["begin training of epoch 1/2", "begin training of epoch 2/2",
                         "begin testing"]
    assert len(lines) == 5, lines


@pytest.mark.parametrize("run", [marked, convnet_on_three])
def test_all_ranks_hold_the_same_weights_after_each_step(run: Callable[[], Run]) -> None:
    result = run().result
    ranks = [records(run().folder / f"a.rank{rank}.jsonl") for rank in range(result["world_size"])]
    assert {len(marks) for marks in ranks} == {result["steps"]}
    for marks in zip(*ranks):
        first, step = marks[0], marks[0]["step"]
        for rank, mark in enumerate(marks):
            assert (mark["rank"], mark["step"]) == (rank, step)
            assert mark["gradients"] == first["gradients"], step
            # Running statistics are those of the own images until the next forward.
            for name, digest in first["weights"].items():
                assert "running" in name or mark["weights"][name] == digest, (step, rank, name)
        assert len({mark["positions"] for mark in marks}) == len(marks)


def wrapped() -> Path:
    """The weights of `plain()` under the names that PyTorch's wrappers give them."""
    path = FOLDER / "wrapped.safetensors"
    tensors = load_file(plain().weights)
    save_file({f"module.{name}": tensor for name, tensor in tensors.items()}, path)
    return path


@pytest.mark.parametrize("way, is_wrapped", [
    ("stage 0", False), ("stage 1", True), ("stage 2", True), ("stage 3", False),
    ("stage 4", False)])
def test_every_stage_evaluates_and_saves_what_two_ranks_saved(way: str, is_wrapped: bool) -> None:
    run = trained(way, "--quiet", epochs=0, load=wrapped() if is_wrapped else plain().weights)
    for field in ("weights_sha256", "correct", "seen"):
        assert run.result[field] == plain().result[field], field
    assert run.result["eval_loss"] == pytest.approx(plain().result["eval_loss"], abs=5e-7)
    assert run.done.stderr == ""  # quiet
    # Python reads the names of the network without a wrapper.
    assert set(load_file(run.weights)) == {f"{layer}.{kind}" for layer in (
        "conv1", "conv2", "fc1", "fc2") for kind in ("weight", "bias")}


# The all-reduces within a step: two are of gradients; in some steps another one checks for a signal
# to stop. That all losses are finite is checked after ten steps, or five of an epoch that has no
# more, when the trace has ended.

def events(path: Path) -> list[dict]:
    return [event for event in json.loads(path.read_text())["traceEvents"]
            if event.get("ph") == "X"]


@pytest.mark.parametrize("name", ["trace.json", "trace.rank1.json"])
def test_gradients_travel_while_backward_runs(name: str) -> None:
    seen = events(over_sockets().folder / name)
    # Steps carry no name. Each begins with the first convolution.
    starts = sorted(event["ts"] for event in seen if event["name"] == "ladder::first_conv2d")
    assert len(starts) == 5
    for begin, end in zip(starts, [*starts[1:], float("inf")]):
        step = [event for event in seen if begin <= event["ts"] < end]
        assert sum(event["name"] == "gloo:all_reduce" for event in step) in (2, 3)
        convolutions = [event["ts"] + event["dur"] for event in step if re.match(
            r"autograd::.*(FirstConv2d|ConvReluMaxPool)", event["name"])]
        assert len(convolutions) == 2
        begun = [event["ts"] for event in step if event["name"] == "c10d::allreduce_"]
        assert min(begun) < min(convolutions)


def test_in_shared_memory_nothing_travels() -> None:
    names = [event["name"] for event in events(marked().folder / "trace.json")]
    assert names.count("c10d::allreduce_") in range(10, 16)
    assert names.count("gloo:all_reduce") == 0


def test_sockets_fingerprints_traces_and_checks_of_replicas_change_nothing() -> None:
    assert over_sockets().header["backend"] == "gloo"
    assert len({run().result["weights_sha256"] for run in (plain, over_sockets, marked)}) == 1


def test_the_learning_rate_grows_with_the_ranks_on_request() -> None:
    per_device = {"batch_mode": "per-device", "limit_train": 128}
    run = trained("stage 2", scale_lr="linear", **per_device)
    assert run.header["lr"] == 2e-3
    given = trained("stage 2", lr=2e-3, **per_device)
    assert run.result["weights_sha256"] == given.result["weights_sha256"]


def test_a_schedule_lowers_the_learning_rate_after_thirty_epochs() -> None:
    tiny = functools.partial(trained, "stage 2, 1 rank", limit_train=8, batch_size=8, limit_test=8)
    before, after = tiny(epochs=30), tiny(epochs=31)
    scheduled = tiny(epochs=31, scheduler="step")
    # A step of AdamW is proportional to the learning rate.
    assert distance(after, before) > 0
    ratio = distance(scheduled, before) / distance(after, before)
    assert ratio == pytest.approx(0.1, abs=5e-4)
