# SPDX-License-Identifier: Apache-2.0
"""Every demonstration of build/bin/traps: effect, guard, time, and its block in docs/traps.md.

Computed numbers are compared exactly. Measured ones have wide bounds, because last digits depend on
the CPU's vector kernels. The page is compared with the output as tools/docs_walk.py does.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf
from pathlib import Path

import docs_walk
import pytest

from tests.support.programs import BIN, FULL, ROOT, Launched, run
from tests.support.ways import compare_fingerprints

WAITING = ("fork-after-threads", "test-on-rank-0")  # for seconds, and without computing
LONG = ("padded-evaluation",)  # evaluates the whole test set three times
PAGE = "docs/traps.md"
SIX_RATES, SEVEN_RANKS = "rates of epochs 1 to 6", "images per rank"


class Part(str):
    """Of a value."""


Wanted = str | tuple[float, float]  # the value, a part of it, or the bounds of its number

# What the mistake and the guard of a demonstration show, by label.
SHOWN: dict[str, tuple[dict[str, Wanted], dict[str, Wanted]]] = {
    "raw-model-forward": (
        {"steps": "100", "distance between ranks": (0.01, inf)},
        {"distance between ranks": "0", "error without the wrapper": Part("as on rank 0, got ")}),
    "no-sampler": (
        {"images read": "6400 of 3200", "same weights as one rank": "yes",
         "world size of the loader": "1"},
        {"images read": "3200 of 3200", "world size of the loader": "2"}),
    "accuracy-divided": (
        {}, {"images seen": "2000",
             "error": Part("expected 2000 samples, each counted once, got 1000")}),
    "padded-evaluation": (
        {"images counted": "10003", "counted with drop_last": "9996"},
        {"images counted": "10000", "error": Part("got 10003"),
         "error with drop_last": Part("got 9996")}),
    "test-on-rank-0": (
        {"waited, seconds": (2.5, 8)},
        {"error": Part("all_reduce on rank 0 of 2"), "images seen, both ranks": "1000"}),
    "divide-before-wait": (
        {"elements wrong": "1179648 of 1179648"},
        {"elements wrong with wait()": "0 of 1179648",
         "elements wrong, all_reduce": "0 of 1179648"}),
    "no-set-epoch": (
        {"images at equal positions": "60000 of 60000"},
        {"images at equal positions": (0, 19), "prepared loader advances": "yes"}),
    "batch-64-by-7": (
        {SEVEN_RANKS: "9 9 9 9 9 9 9", "images per step": "63", "steps per epoch": "953"},
        {SEVEN_RANKS: "10 9 9 9 9 9 9", "images per step": "64", "steps per epoch": "938"}),
    "scheduler-too-fast": (
        {"steps per step() call": "2", SIX_RATES: "0.1 0.01 0.001 0.0001 1e-05 1e-06"},
        {"steps per step() call": "1", SIX_RATES: "0.1 0.1 0.01 0.01 0.001 0.001"}),
    "scheduler-on-rank-0": (
        {"rates in epoch 3": "0.0005 0.05", "distance between ranks": (1e-4, inf)},
        {"rates in epoch 3": "0.0005 0.0005", "distance between ranks": "0",
         "error": Part("replicas: expected fc.bias")}),
    "plain-backward": (
        {"times too large": (3.99, 4.01)},
        {"error with --debug": Part("replace loss.backward()")}),
    "per-device-batch": (
        {"per device: steps": "100"},
        {"global: steps": "200", "global: learning rate": "0.001", "scaled: steps": "100",
         "scaled: learning rate": "0.002"}),
    "same-noise": (
        {"equal shifts on both ranks": "3200 of 3200"},
        {"equal shifts on both ranks": (64, 256),  # a 25th is 128
         "equal shifts, same image": "10 of 10"}),
    "module-prefix": (
        {"first name in the file": "module.conv1.bias", "tensors found by name": "0 of 8"},
        {"first name in the file": "conv1.bias", "tensors found by name": "8 of 8"}),
    "sync-bn-after-wrap": (
        {"gradient's distance": (0.01, inf)},
        {"gradient's distance": (0, 1e-5), "layers converted": "2",
         "error": Part("the model is wrapped already")}),
    "unscale-twice": (
        {"times too small": (0.99 * 65536, 1.01 * 65536)}, {"error": Part("unscale_ twice")}),
    "fork-after-threads": (
        {"threads before the fork": (2, inf),
         "child process computes": "no: killed after 3 seconds"},
        {"error": Part("threads, of which a rank would have one")}),
    "mean-of-means": (
        {"gradient of 2 + 1 images": (0.01, inf)},
        {"gradient of 2 + 1 images": (0, 1e-5),
         "error of an empty mean": Part("expected a finite loss, got")}),
    "nproc-per-nodes": (
        {"exit code": "2", "error of torchrun": Part("--nproc_per_nodes")},
        {"exit code, correct flag": "0", "error without a launcher": Part("torchrun"),
         "error of stage 2": Part("--nproc-per-nodes: no such option")}),
    "two-are-not-one": ({}, {}),
    "layer-forward": (
        {"one rank trains": "yes", "two ranks evaluate": "yes"},
        {"error, two ranks train": Part("parameters of layer0, which was not called"),
         "distance from DDP": "0"}),
    "tied-across-units": (
        {"distance between the two": (0.01, inf)},
        {"error": Part("two units share a parameter: first.weight and last.weight"),
         "one unit: from DDP": "0"}),
    "optimizer-before-shards": (
        {"steps": "10", "weights moved by": "0"},
        {"weights moved by": (0.001, inf), "distance from DDP": "0"}),
}

# What tools/same_run names, if the mistake changes a step. The others print the reason.
KINDS = {
    "no-set-epoch": "set-epoch", "mean-of-means": "mean-of-means",
    "raw-model-forward": "not-averaged", "no-sampler": "repeated-samples",
    "batch-64-by-7": "batch-remainder", "per-device-batch": "per-device-batch",
    "same-noise": "same-noise", "scheduler-on-rank-0": "schedule-per-rank",
    "divide-before-wait": "divided-early", "two-are-not-one": "rounding",
    "sync-bn-after-wrap": "batch-norm-per-rank", "unscale-twice": "unscaled-twice",
    "plain-backward": "accumulation", "scheduler-too-fast": "schedule-too-fast",
    "tied-across-units": "tied", "optimizer-before-shards": "not-trained"}

Values = dict[tuple[str, str], str]  # by side and label


def number(value: str) -> float:
    return float(re.match(r"[-+.\de]+", value)[0])


def is_shown(value: str, wanted: Wanted) -> bool:
    if isinstance(wanted, tuple):
        return wanted[0] <= number(value) <= wanted[1]
    return wanted in value if isinstance(wanted, Part) else wanted == value


@pytest.fixture(name="waiting", scope="module")
def start_those_that_wait() -> Iterator[dict[str, Launched]]:
    """In parallel with the others."""
    started = {name: Launched(BIN / "traps", name) for name in WAITING}
    yield started
    for one in started.values():
        one.kill_all()


def require_kind(name: str, records: Path) -> None:
    if name not in KINDS:
        assert not list(records.iterdir())
        return
    found = compare_fingerprints(records / "mistake", records / "guard").splitlines()
    assert found[-1].startswith(f"{KINDS[name]}: "), found
    assert found[-1].endswith(f"; see docs/traps.md#{name}"), found


@pytest.mark.parametrize("name", SHOWN)
def test_a_demonstration_shows_effect_and_guard_as_on_its_page(
        name: str, waiting: dict[str, Launched], tmp_path: Path) -> None:
    if name in LONG and not FULL:
        pytest.skip("with LADDER_FULL")
    with waiting.get(name) or Launched(
            BIN / "traps", name, environment={"LADDER_TRAP_RECORDS": tmp_path}) as started:
        done = started.finish()
    assert done.code == 0, done.stdout
    lines = [line for line in done.lines if not line.startswith("same_run: ")]
    assert (len(lines) == len(done.lines)) == (name in KINDS or name in waiting)
    [page] = docs_walk.pages_of(ROOT, [PAGE])
    [shown] = [command.shown for command in docs_walk.commands_of(page)
               if command.text == f"build/bin/traps {name}"]
    expected = docs_walk.comparable(docs_walk.trimmed(shown))
    # Where weights drift apart, the library warns after the title.
    printed = docs_walk.comparable([lines[0], *done.stderr.splitlines(), *lines[1:]])
    assert docs_walk.difference(expected, printed) is None, done.stdout + done.stderr
    require_kind(name, tmp_path)
    words = [re.split(r" {2,}", line, maxsplit=2) for line in lines[1:]]
    values = {(side, label): value for side, label, value in words}
    assert len(values) == len(words), "a label twice"
    for side, labels in zip(("mistake", "guard"), SHOWN[name]):
        for label, wanted in labels.items():
            assert is_shown(values[side, label], wanted), (side, label, values[side, label])
    if name in RELATIONS:
        RELATIONS[name](values)


# --- numbers that are compared with each other ---------------------------------------------------


def accuracies_add_up(values: Values) -> None:
    parts = [number(values["mistake", f"accuracy on rank {rank}"]) for rank in (0, 1)]
    whole = number(values["guard", "accuracy"])
    assert abs(sum(parts) - whole) <= 0.011  # three roundings
    assert max(parts) < 0.6 * whole


def a_global_batch_is_more_accurate(values: Values) -> None:
    wrong = number(values["mistake", "per device: accuracy"])
    for mode in ("global", "scaled"):
        assert number(values["guard", f"{mode}: accuracy"]) > wrong + 1


def the_mean_differs(values: Values) -> None:
    assert values["mistake", "loss of 1025 images"] != values["guard", "loss of 1025 images"]


def exact_sums_alone_give_equal_weights(values: Values) -> None:
    for side, number_of_weights, low, high in (("mistake", 3, 1e-8, 1e-1), ("guard", 1, 0, 0)):
        weights = {values[side, "weights of 1 rank"]}
        for count in (2, 3):
            digest, apart = values[side, f"weights of {count} ranks"].split(", distance ")
            weights.add(digest)
            assert low <= float(apart) <= high, (side, count)
        assert len(weights) == number_of_weights, side


RELATIONS = {"accuracy-divided": accuracies_add_up, "mean-of-means": the_mean_differs,
             "per-device-batch": a_global_batch_is_more_accurate,
             "two-are-not-one": exact_sums_alone_give_equal_weights}


# --- the list ------------------------------------------------------------------------------------


def sections() -> list[tuple[str, int]]:
    """The demonstrations on the page, each with the stage of the heading above it."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    found: list[tuple[str, int]] = []
    stage = -1
    for number, name in re.findall(r"^(?:## (?:Stage|Lesson) (\d)\b.*|### ([\w-]+))$", page, re.MULTILINE):
        if name:
            found.append((name, stage))
        else:
            stage = int(number)
    return found


def test_every_demonstration_has_a_test_a_file_and_a_section_on_the_page() -> None:
    reasons = re.findall(r'Trap{"([\w-]+)"[^}]*", *\w+, *"', re.sub(
        r"\s+", " ", (ROOT / "traps/all_traps.cpp").read_text(encoding="utf-8")))
    assert sorted([*reasons, *KINDS]) == sorted(SHOWN)
    done = run("traps", "list")
    assert (done.code, done.stderr) == (0, "")
    listed = [(match[1], int(match[2])) for line in done.lines
              if (match := re.match(r"([\w-]+) +(?:stage|lesson) (\d) +\S", line))]
    assert [stage for _, stage in listed] == sorted(stage for _, stage in listed)
    assert {name for name, _ in listed} == SHOWN.keys() and len(listed) == 23
    files = {name.replace("-", "_") for name in SHOWN}
    assert {path.stem for path in ROOT.glob("traps/*.cpp")} == {
        *files, "main", "all_traps", "ranks", "report"}
    assert sections() == listed


@pytest.mark.parametrize("arguments, code, text", [
    (["no-samples"], 2, "did you mean no-sampler?"), ([], 2, "usage: traps list"),
    (["--help"], 0, "usage: traps list"), (["list", "more"], 2, "usage: traps list")])
def test_an_unknown_name_is_refused_and_no_name_prints_the_usage(arguments: list[str], code: int,
                                                                 text: str) -> None:
    done = run("traps", *arguments)
    assert done.code == code and text in done.stdout + done.stderr
