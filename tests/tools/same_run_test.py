# SPDX-License-Identifier: Apache-2.0
"""tools/same_run on small files made here: reading, and the first difference."""
from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.in_process import Start
from tests.support.programs import ROOT

sys.path.insert(0, str(ROOT / "tools"))
TOOL = SimpleNamespace(**runpy.run_path(str(ROOT / "tools/same_run")))
Record = dict[str, Any]
Compare = Callable[[Any, Any], tuple[int, str]]
COMPARED = ("compared: positions in the order of the ranks, sum of losses, gradients and weights "
            "of all ranks")


def record(step: int, rank: int = 0, **changes: object) -> Record:
    """A change names a tensor as weights__conv1."""
    found: Record = {
        "step": step, "epoch": 1, "rank": rank, "positions": "aaaa1", "loss": "bbbb1",
        "loss_value": 0.5, "gradients": {"conv2": "cccc1", "conv1": "cccc2"},
        "weights": {"conv2": "dddd1", "conv1": "dddd2"}}
    for name, value in changes.items():
        kind, _, tensor = name.partition("__")
        if tensor:
            found[kind][tensor] = value
        else:
            found[kind] = value
    return found


def exact_run(world: int, steps: int = 2, **changes: object) -> list[list[Record]]:
    """The records of each rank: four micro-batches, dealt as ShardedBatchSampler does."""
    run = []
    for rank in range(world):
        count, more = divmod(4, world)
        begin = rank * count + min(rank, more)
        own = range(begin, begin + count + (rank < more))
        exact = {"positions": f"aaaa{own}", "loss": f"bbbb{own}", "world_size": world,
                 "loss_value": sum((2.0**31 + k) * 2.0**-32 for k in own), "micro_batch": 16,
                 "positions_of_micro_batches": [f"eeee{k}" for k in own]} | changes
        run.append([record(step, rank, **exact) for step in range(1, steps + 1)])
    return run


@pytest.fixture(name="compare")
def compare_fixture(tmp_path: Path, start: Start) -> Compare:
    """Compares two sides: lines of one file as text, records of one file, those of each rank, or
    files that are there."""
    def written(name: str, side: Any) -> Path:
        if isinstance(side, Path):
            return side
        texts = {f"{name}.jsonl": side}
        if side and isinstance(side[0], list):
            texts = {f"{name}.rank{run[0]['rank']}.jsonl": run for run in side if run}
        for file, records in texts.items():
            lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
            (tmp_path / file).write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / (name if len(texts) > 1 else next(iter(texts)))

    def compare(a: Any, b: Any) -> tuple[int, str]:
        code, out, err = start(TOOL, written("a", a), "--against", written("b", b))
        return code, (out + err).strip()

    return compare


ONE = [record(1)]
# In the order of the record, by the names of changes.
ENTRIES = {"positions": "positions", "loss": "loss", "gradients__conv2": "gradient of conv2",
           "gradients__conv1": "gradient of conv1", "weights__conv2": "weight of conv2",
           "weights__conv1": "weight of conv1"}
MEANS = [f"norm{number}.running_mean" for number in reversed(range(9))]
RANKS = [[record(1, rank), record(2, rank)] for rank in range(3)]


@pytest.mark.parametrize("a, b, code, line", [
    (RANKS, RANKS, 0, "no difference in 6 records of 3 ranks"),
    ([record(s) for s in range(1, 61)],) * 2 + (0, "no difference in 60 records of 1 rank"),
    ([record(16), record(17)], [record(16), record(17, gradients__conv2="9999")], 1,
     "step 17, rank 0, gradient of conv2: cccc1 in A, 9999 in B"),
    ([record(9), record(2)], [record(9, positions="9"), record(2, weights__conv1="9")], 1,
     "step 2, rank 0, weight of conv1: "),  # the earliest, whatever the order of the lines
    (ONE, [record(1, loss="9999", loss_value=0.75)], 1,
     "step 1, rank 0, loss: bbbb1 (0.5) in A, 9999 (0.75) in B"),
    (ONE, [record(1, loss_value=0.500001)], 0, "no difference"),
    # A cause on one rank comes before its effect on all.
    ([ONE, [record(1, 1)]], [[record(1, gradients__conv2="8888")],
                             [record(1, 1, gradients__conv2="8888", positions="9999")]], 1,
     "step 1, rank 1, positions: "),
    (ONE, [record(1, weights={"conv2": "dddd1"})], 1,
     "step 1, rank 0, weight of conv1: dddd2 in A, nothing in B"),
    ([record(1, weights=dict.fromkeys(MEANS, "a"))], [record(1, weights=dict.fromkeys(MEANS, "b"))],
     1, f"step 1, rank 0, buffer of {MEANS[0]}: a in A, b in B"),
    ([record(s) for s in (1, 2, 3)], [record(s) for s in (1, 2)], 0,
     "no difference in 2 records of 1 rank; A has 1 more step"),
    ([record(s) for s in (2, 4, 6)], [record(s) for s in (3, 6)], 0,
     "no difference in 1 record of 1 rank"),
    ([record(2)], [record(3)], 2, "same_run: no step is in both runs"),
    (ONE, [record(1, 1)], 2, "same_run: A has ranks [0], B has ranks [1]")])
def test_equal_numbers_of_ranks(compare: Compare, a: Any, b: Any, code: int, line: str) -> None:
    found = compare(a, b)
    assert (found[0], found[1][:len(line)]) == (code, line)


def test_no_name_of_a_tensor_moves_the_cursor(compare: Compare) -> None:
    name = "weights__\x1b[2J"
    assert "weight of \\x1b[2J: 1 in A" in compare([record(1, **{name: "1"})], ONE)[1]


def test_within_a_step_the_order_of_the_record_counts(compare: Compare) -> None:
    for begin, entry in enumerate(ENTRIES.values()):
        changes = dict.fromkeys([*ENTRIES][begin:], "9999")
        assert f"rank 0, {entry}: " in compare(ONE, [record(1, **changes)])[1]


@pytest.mark.parametrize("line", [
    '{"record": "run"}', "not json", "[1]", '{"gradients": 3}', json.dumps(record(1, rank=None)),
    json.dumps(record(1) | {"step": [1]}), json.dumps(record(1) | {"rank": 10**9}),
    json.dumps(record(1) | {"sketches": {"weights": {"conv1": [1, 2]}}}), "[" * 100_000,
    json.dumps(record(1) | {"before": 3}), json.dumps(record(1) | {"rates": [None]}),
    json.dumps(record(1) | {"samples": 7}), None, Path("b")])
def test_another_kind_of_file_is_refused_with_its_line(compare: Compare, tmp_path: Path,
                                                       line: str | Path | None) -> None:
    os.mkfifo(tmp_path / "b.rank0.jsonl")  # a pipe is no file of a rank
    side, problem = [line], "b.jsonl:1: not a fingerprint record"
    if line is None:
        side, problem = [], "b.jsonl: no records"
    elif isinstance(line, Path):
        side, problem = tmp_path / line, "b: no such file"
    code, text = compare(ONE, side)
    assert code == 2 and problem in text


@pytest.mark.parametrize("world, steps, rest", [
    *((world, 2, "") for world in (2, 3, 4, 8)),
    (3, 4, "; B has 2 more steps, without a counterpart")])
def test_exact_runs_of_other_world_sizes_are_compared_as_wholes(
        compare: Compare, world: int, steps: int, rest: str) -> None:
    assert compare(exact_run(1), exact_run(world, steps)) == (
        0, f"no difference in 2 steps; 1 rank in A, {world} in B; {COMPARED}{rest}")


def change(run: list[list[Record]], rank: int, **changes: object) -> None:
    """In step 2."""
    run[rank][1] = run[rank][1] | changes


@pytest.mark.parametrize("entry, ranks, changes", [
    ("positions of micro-batch 4", [2], {"positions_of_micro_batches": ["9999"]}),
    ("sum of losses", [0], {"loss_value": 1.0}),
    ("gradient of conv2", [0, 1, 2], {"gradients": {"conv2": "9999", "conv1": "cccc2"}}),
    ("weight of conv1", [1], {"weights": {"conv2": "dddd1", "conv1": "9999"}})])
def test_what_differs_between_world_sizes(compare: Compare, entry: str, ranks: list[int],
                                          changes: Record) -> None:
    run = exact_run(3)
    for rank in ranks:
        change(run, rank, **changes)
    code, line = compare(exact_run(1), run)
    assert (code, line.split(": ")[0]) == (1, f"step 2, all ranks, {entry}")
    assert f"; 1 rank in A, 3 in B; {COMPARED}" in line
    if entry == "weight of conv1":
        assert "dddd2 in A, dddd2 on rank 0, 9999 on rank 1, dddd2 on rank 2 in B" in line


def test_the_sum_of_losses_is_not_rounded(compare: Compare) -> None:
    """2^-32 beside 1.0 is beyond float32, and the order of a float sum is not the ranks'."""
    run = exact_run(4)
    change(run, 3, loss_value=run[3][1]["loss_value"] + 2.0**-32)
    assert compare(exact_run(1), run)[1].startswith("step 2, all ranks, sum of losses: ")


def test_losses_that_are_not_finite_are_equal_to_each_other_alone(compare: Compare) -> None:
    a, b = exact_run(1), exact_run(2)
    change(a, 0, loss_value=None)
    assert "sum of losses: not finite in A, 2." in compare(a, b)[1]
    change(b, 1, loss_value=None)
    assert compare(a, b)[0] == 0


FAST = [[record(step, rank) for step in (1, 2)] for rank in (0, 1)]
OF_8 = exact_run(2, micro_batch=8)
TWO_OVER_FOUR = [[record(1, rank, world_size=2 if rank < 2 else 4)] for rank in range(4)]


@pytest.mark.parametrize("a, b, problem", [
    (FAST, exact_run(3), "A has float sums, B has exact"), (exact_run(1), FAST, "B has float sums"),
    (exact_run(1), OF_8, "micro-batches of 16, B has exact sums over micro-batches of 8"),
    (exact_run(2), OF_8, "micro-batches of 16, B has exact sums over micro-batches of 8"),
    (FAST, OF_8, "A has float sums, B has exact sums over micro-batches of 8"),
    (exact_run(1), exact_run(3)[:2], "B has files of ranks [0, 1], of a world size of 3"),
    (exact_run(1), exact_run(3)[:1], "B has files of ranks [0], of a world size of 3"),
    (TWO_OVER_FOUR[:2], [[record(1, world_size=1)]], "different numbers of ranks"),
    (TWO_OVER_FOUR, TWO_OVER_FOUR, "got rank 0 of world size 2 and ranks [2, 3] of another")])
def test_runs_that_cannot_be_compared(compare: Compare, a: Any, b: Any, problem: str) -> None:
    code, line = compare(a, b)
    assert code == 2 and problem in line and "; hint: " in line


# --- kinds that no program of tests/same_run or traps has -----------------------------------------


def sketched(world: int, steps: int = 4) -> list[list[Record]]:
    """Ranks with four samples per step together, whose gradients are averaged and weights equal."""
    run = []
    for rank in range(world):
        own = range(rank * 4 // world, (rank + 1) * 4 // world)
        run.append([record(
            step, rank, world_size=world, samples=[4 * step + k for k in own], rates=[0.1],
            sketches={"local": {"conv1": [1.0 + rank, 2.0, 3.0, 4.0 - rank]},
                      "gradients": {"conv1": [5.0, *GRADIENT]},
                      "weights": {"conv1": [9.0, step, 2.0, 3.0, 4.0]}},
            gradients={"conv1": "cccc"}, weights={"conv1": f"dddd{step}"})
            for step in range(1, steps + 1)])
    return run


GRADIENT = [1.5, 2.0, 3.0, 3.5]  # the mean of those of two ranks
NAN = dict.fromkeys(["conv1"], [None] * 5)


def changed(world: int, rank: int, step: int, **changes: object) -> list[list[Record]]:
    run = sketched(world)
    run[rank][step - 1] |= changes
    return run


def whole_batches(short: int) -> list[list[Record]]:
    """Each rank of A takes the batch of all of B's, and has fewer samples in one step."""
    run = sketched(2)
    for step, rank in ((step, rank) for step in range(1, 5) for rank in range(2)):
        run[rank][step - 1]["samples"] = [100 * step + 10 * rank + k
                                          for k in range(2 if step == short else 4)]
    return run


def gradient_of(numbers: list[float], step: int = 2, **changes: object) -> list[list[Record]]:
    """`changes` are those of rank 1."""
    run = sketched(2)
    for rank in range(2):
        run[rank][step - 1]["sketches"]["gradients"] = {"conv1": [5.0, *numbers]}
        run[rank][step - 1] |= {"gradients": {"conv1": f"changed{numbers}"}, "scale": 1024.0}
    run[1][step - 1] |= changes
    return run


def each_batch_twice() -> list[list[Record]]:
    run = gradient_of([9.0, -7.0, 1.0, 0.0])
    for own in run:
        for step in (2, 4):
            own[step - 1]["samples"] = own[step - 2]["samples"]
    return run


def clipped_in_the_window() -> list[list[Record]]:
    run = gradient_of([9.0, -7.0, 1.0, 0.0])
    for step in (step for own in run for step in own):
        step["losses"] = [0.5, 0.5]
    return run


def averaged_until(last: int) -> list[list[Record]]:
    run = sketched(2)
    for step in (step for own in run for step in own[last:]):
        step["gradients"] = {"conv1": f"own{step['rank']}"}
        step["sketches"]["gradients"] = {"conv1": [5.0, *step["sketches"]["local"]["conv1"]]}
        step["weights"] = {"conv1": f"own{step['rank']}"}
    return run


def orders_per_rank() -> list[list[Record]]:
    """Rank 1 reads in steps 3 and 4 what rank 0 read in steps 1 and 2."""
    run = sketched(2)
    for own in run:
        for step in own[2:]:
            step["gradients"] = {"conv1": "others"}
            step["sketches"]["gradients"] = {"conv1": [5.0, 9.0, -7.0, 1.0, 0.0]}
    for at in (2, 3):
        run[1][at]["samples"] = run[0][at - 2]["samples"]
    return run


def later_from(step: int) -> list[list[Record]]:
    """Two batches of B's next epoch, then others."""
    run = sketched(2)
    for own in run:
        for at in (step, step + 1, step + 2):
            own[at - 1]["samples"] = [one + (8 if at < step + 2 else 90)
                                      for one in own[at - 1]["samples"]]
            own[at - 1]["gradients"] = {"conv1": "later"}
            own[at - 1]["sketches"]["gradients"] = {"conv1": [5.0, 9.0, -7.0, 1.0, 0.0]}
    return run


@pytest.mark.parametrize("a, kind, evidence", [
    (each_batch_twice(), "repeated-batches", "the same 4 samples are in steps 1 to 2 of A"),
    ([[step | {"dtypes": ["bfloat16"]} for step in own] for own in sketched(2)], "precision",
     "gradients 0.0e+00 from those of B"),
    (sketched(2), "rounding", "gradients 0.0e+00, weights 0.0e+00"),
    (changed(2, 1, 3, collectives=[["all_reduce", 8]]), "skipped-collective", "step 3: rank 0"),
    ([sketched(2)[0], sketched(2)[1][:3]], "uneven-steps", "[4, 3]"),
    (changed(2, 1, 4, samples=[18, 19, 16]), "padding", "1 of 17 samples"),
    ([[step | {"samples": step["samples"] * 2} for step in own] for own in sketched(2)],
     "accumulation-window", "step 1: 8 samples in A ([4, 4] on its ranks), 4 in B"),
    (gradient_of([9.0, -7.0, 1.0, 0.0], 4, samples=[18, 19, 4]), "padding", "5 samples in A"),
    (whole_batches(short=3), "per-device-batch", "step 1: 8 samples in A"),
    (gradient_of([9.0, -7.0, 1.0, 0.0], 4, samples=[98, 99]), "another-order",
     "2 of 16 samples of B are not in A"),
    (changed(2, 1, 4, samples=[98, 99]), "rounding", "gradients 0.0e+00"),
    (orders_per_rank(), "order-per-rank", "4 samples of A are read by several ranks"),
    (gradient_of([9.0, -7.0, 1.0, 0.0], 3, samples=[14]), "uneven-steps",
     "samples of A's ranks: [2, 1]"),
    (changed(2, 1, 4, rates=[0.2]), "schedule-per-rank", "step 4: [[0.1], [0.2]]"),
    (changed(2, 1, 1, weights={"conv1": "9999"}), "optimizer-per-rank", "1 tensor"),
    (changed(2, 1, 2, weights={"conv1": "9999"}), "changed-weights", "from B: 0.0e+00, 0.0e+00"),
    (clipped_in_the_window(), "accumulation-window", "its optimizer gets another of the norm 5"),
    (changed(2, 1, 2, gradients={"conv1": "9999"}, scale=65536.0), "scale-per-rank",
     "step 2: scales [None, 65536.0] on ranks [0, 1]"),
    (averaged_until(2), "no-sync", "A averages up to step 2 and not from step 3 on"),
    (gradient_of([1024 * x for x in GRADIENT]), "not-unscaled", "1024 times"),
    (gradient_of([0.5, 1.0, 1.5, 2.0]), "lost-gradient", "of A = 0.5, 0 times"),
    (gradient_of([9.0, -7.0, 1.0, 0.0]), "changed-gradient", "step 2: the mean of the ranks'"),
    (changed(2, 0, 2, sketches={"weights": NAN, "gradients": NAN}), "unknown", "gradients inf")])
def test_kinds(compare: Compare, a: Any, kind: str, evidence: str) -> None:
    code, text = compare(a, sketched(1))
    assert (code, text.splitlines()[-1].split(": ")[0]) == (int(kind != "rounding"), kind), text
    assert evidence in text


def with_rows(run: list[list[Record]], rows: Callable[[Record], list[str]]) -> list[list[Record]]:
    """Hashes of rows in the place of numbers of samples."""
    for step in (step for own in run for step in own):
        step["rows"] = rows(step)
        del step["samples"]
    return run


def test_other_values_on_one_rank(compare: Compare) -> None:
    other = [9.0, -7.0, 1.0, 0.0]
    a = gradient_of(other, 3)
    for own in a:
        own[2]["sketches"]["local"] = {"conv1": other}
    a = with_rows(a, lambda step: [
        f"{'flipped' if (step['step'], step['rank']) == (3, 1) else 'row'}{one}"
        for one in step["samples"]])
    b = with_rows(sketched(1), lambda step: [f"row{one}" for one in step["samples"]])
    _, text = compare(a, b)
    assert "other-samples: rank 1 of A reads none of the samples of B" in text, text


def test_a_batch_that_b_only_passes_forward(compare: Compare) -> None:
    a, b = gradient_of([9.0, -7.0, 1.0, 0.0], 3), sketched(1)
    for step in (step for own in (*a, *b) for step in own):
        step["losses"] = [0.5]
    b[0][2]["samples"] = [*b[0][2]["samples"], 80, 81, 82, 83]
    _, text = compare(a, b)
    assert "skipped-step: A steps with a batch that B only passes forward" in text, text


def test_samples_that_get_other_values_in_the_course_of_a_run(compare: Compare) -> None:
    other = [9.0, -7.0, 1.0, 0.0]
    a, b = gradient_of(other, 3), sketched(1)
    for own in a:
        own[2]["sketches"]["local"] = {"conv1": other}
    for run in (a, b):
        for step in (step for own in run for step in own):
            values = "changed" if run is a and step["step"] > 2 else "value"
            step["rows"] = [f"{values}{one % 8}" for one in step.pop("samples")]
    _, text = compare(a, b)
    assert "other-samples: the samples of A get other values in the course of the run" in text


@pytest.mark.parametrize("loss, window, clip, kind", [
    (0.5, 1, 1.0, "rounding: "),
    (0.502, 1, 1.0, "another-loss: A computes another loss of the same weights and samples: other "
                    "labels"),
    (0.502, 1, 0.5, "another-loss: A computes another loss of the same weights and samples: other "
                    "labels"),
    (0.502, 2, 1.0, "another-loss: A computes another loss of the same weights and samples: "
                    "means")])
def test_a_loss_tells_another_loss_from_a_flip(compare: Compare, loss: float, window: int,
                                               clip: float, kind: str) -> None:
    a, b = sketched(2), sketched(1)
    for own in (*a, *b):
        for step in own:
            step["losses"] = [0.5]
            if own is not b[0]:
                step["losses"] = [(loss if step["step"] == 3 else 0.5) / window] * window
            step["sketches"]["weights"]["conv1"][4] += 1e-6 * (own is b[0])  # a flip needs some
            if own is b[0]:
                step["sketches"]["local"] = {"conv1": GRADIENT}
            if own is not b[0] and step["step"] == 3:
                step["gradients"] = {"conv1": "near"}
                step["sketches"]["local"]["conv1"][0] += 0.1
                step["sketches"]["gradients"] = {"conv1": [5.0, *(clip * x for x in (
                    1.6, *GRADIENT[1:]))]}
    assert compare(a, b)[1].splitlines()[-1].startswith(kind), compare(a, b)[1]


def test_a_rank_that_does_not_use_a_parameter_has_a_gradient_of_zero(compare: Compare) -> None:
    a, b = gradient_of([1.0, 2.0, 3.0, 4.0], 1), sketched(1)
    for own in (*a, *b):
        for step in own:
            step |= {"random": f"{own is a[1]} {step['step']}", "scale": 1.0}
            step["gradients"]["norm"] = "cccc"
            step["sketches"]["gradients"]["norm"] = [2.0, 1.0, 1.0, 1.0, 1.0]
            step["sketches"]["local"]["norm"] = [1.0] * 4
            if own is b[0]:
                step["sketches"]["local"]["conv1"] = GRADIENT
    a[0][0]["sketches"]["local"]["conv1"] = [2.0, 4.0, 6.0, 8.0]
    del a[1][0]["sketches"]["local"]["conv1"]
    assert compare(a, b)[1].splitlines()[-1].startswith("other-noise"), compare(a, b)[1]


def test_a_gather_of_a_cut_gradient_is_named(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for own in a:
        own[1]["collectives"] = [["all_gather", 864]]
    b[0][1]["sketches"]["gradients"] = {"conv1": [12.0, 9.0, -7.0, 1.0, 0.0]}
    assert "detached: a part of the loss of A has no gradient" in compare(a, b)[1]


def test_buffers_that_a_forward_changes_on_each_rank_are_named(compare: Compare) -> None:
    a, b = gradient_of([9.0, -7.0, 1.0, 0.0]), sketched(1)
    for own in (*a, *b):
        for step in own:
            name, numbers = "norm.mean", [float(step["rank"] + step["step"] + len(own))] * 5
            step["weights"][name] = str(numbers if step["step"] > 1 else 0)
            step["sketches"]["weights"][name] = numbers if step["step"] > 1 else [0.0] * 5
    _, text = compare(a, b)
    assert "after step 2: norm.mean differ between the ranks, and from B" in text
    assert "buffers-per-rank: " in text


def test_ranks_that_have_gradients_of_different_parameters_are_named(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for rank, own in enumerate((*a, *b)):
        for step in own[1:]:
            of_rank = {f"head{k}": "cccc" for k in range(2) if rank == 2 or k == rank}
            numbers = [1.0 + rank, *map(float, range(4))]
            step["gradients"] |= of_rank
            step["sketches"]["gradients"] |= dict.fromkeys(of_rank, numbers)
            step["weights"] |= {f"head{k}": f"{rank} {k} {step['step']}" for k in range(2)}
            step["sketches"]["weights"] |= dict.fromkeys(("head0", "head1"), numbers)
    for step in (own[0] for own in (*a, *b)):
        step["weights"] |= dict.fromkeys(("head0", "head1"), "0")
        step["sketches"]["weights"] |= dict.fromkeys(("head0", "head1"), [0.0] * 5)
    _, text = compare(a, b)
    assert "gradients of [2, 2] parameters on its ranks" in text, text


def test_ranks_that_clip_by_norms_of_their_own(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for run, factors in ((a, (0.5, 0.8)), (b, (0.5,))):
        for own, factor in zip(run, factors):
            for step in own[1:]:
                step["gradients"] = {"conv1": f"times {factor}"}
                step["sketches"]["gradients"] = {"conv1": [5.0, *(factor * x for x in GRADIENT)]}
                step["sketches"]["weights"] = {"conv1": [9.0, 2.0 * len(run), 2.0, 3.0, 4.0]}
    for step in b[0]:
        step["sketches"]["local"] = {"conv1": GRADIENT}
    _, text = compare(a, b)
    assert "clipping: each rank of A clips by a norm of its own" in text
    assert "factors of the mean are 0.5, 0.8" in text


def test_a_limit_of_the_scaled_gradient_that_b_does_not_reach(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for step in (step for own in (*a, *b) for step in own):
        numbers = [x * (2.0**-13 if step["world_size"] == 2 else 1.0) for x in [0.5, *GRADIENT]]
        step |= {"scale": 4096.0, "gradients": {"conv1": str(numbers)}}
        step["sketches"]["gradients"] = {"conv1": numbers}
        step["sketches"]["local"] = {"conv1": [4096 * x for x in GRADIENT]}
    b[0][0]["sketches"]["gradients"]["conv1"][0] = 0.2
    _, text = compare(a, b)
    assert "clipped-before-unscale: " in text and "the limit is 0.25" in text, text


def test_batch_norm_of_each_batch_of_a_window(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    b[0][1]["sketches"]["gradients"] = {"conv1": [6.0, 9.0, -7.0, 1.0, 0.0]}
    for step in (step for own in (*a, *b) for step in own):
        passes = step["world_size"]
        step["losses"] = [0.5] * passes
        for kinds in (step["weights"], step["sketches"]["weights"]):
            kinds["norm.num_batches_tracked"] = [float(passes * step["step"])] * 5
        step["weights"]["norm.num_batches_tracked"] = str(passes * step["step"])
    _, text = compare(a, b)
    assert "step 2: forward passes in training mode: 2 in A, 1 in B" in text, text
    assert text.splitlines()[-1].startswith("batch-norm-per-batch: ")


def test_a_schedule_that_starts_again_after_a_resume(compare: Compare) -> None:
    a, b = sketched(2), sketched(1, 8)
    for step in (step for own in (*a, *b) for step in own):
        weights = [9.0, step["step"] + 4.0 * (step["world_size"] == 2), 2.0, 3.0, 4.0]
        step["sketches"]["weights"] = {"conv1": weights}
        step["rates"] = [step["step"] / 8]
        step["samples"] = []
    a[0][0]["rates"] = a[1][0]["rates"] = [5 / 8]  # of the optimizer's state
    for own, begin in ((a[0], 4.0), (a[1], 4.0), (b[0], 0.0)):
        own[0]["before"] = {"step": 0, "weights": {"conv1": "dddd0"},
                            "sketches": {"weights": {"conv1": [9.0, begin, 2.0, 3.0, 4.0]}}}
    _, text = compare(a, b)
    assert "step 2: learning rate [0.25] in A, [0.75] in B" in text, text
    assert text.splitlines()[-1].startswith("schedule-restarted: "), text


def test_batches_of_a_later_step_until_the_epoch_ends(compare: Compare) -> None:
    _, text = compare(later_from(2), sketched(1, 8))
    assert "steps 2 to 3 of A have the samples of steps 4 to 5 of B" in text, text
    assert "data-position: A reads the batches that B reads 2 steps later" in text


def test_batch_norm_in_training_mode_comes_before_what_it_leaves_untrained(
        compare: Compare) -> None:
    """A bias before BatchNorm has no gradient."""
    a, b = gradient_of([9.0, -7.0, 1.0, 0.0], 2), sketched(1)
    for own in (*a, *b):
        for step in own:
            for name, moves in (("norm.running_mean", own is not b[0]), ("bias", own is b[0])):
                number = float(step["step"] if moves else 1)
                step["weights"][name] = str(number)
                step["sketches"]["weights"][name] = [number] * 5
            step["gradients"]["bias"] = "cccc"
            step["sketches"]["gradients"]["bias"] = [1e-9] * 5
    _, text = compare(a, b)
    assert "running means rest in B, and not in A" in text, text


def test_samples_of_two_epochs_in_a_window_are_no_padding(compare: Compare) -> None:
    a, b = gradient_of([9.0, -7.0, 1.0, 0.0], 3), sketched(1)
    for own in (*a, *b):
        for step in own:
            step["losses"] = [0.5] * (2 if own is not b[0] and step["step"] == 3 else 1)
    for own, samples in zip(a, ([12, 13, 16], [14, 15, 12])):
        own[2]["samples"] = samples
    _, text = compare(a, b)
    assert "backward passes: 2 in A, 1 in B\naccumulation-window: " in text, text


def test_parameters_in_16_bits_are_no_other_ones(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for own, last in ((a[0], 4.01), (a[1], 4.01), (b[0], 4.0)):
        own[0]["before"] = {"step": 0, "weights": {"conv1": str(last)},
                            "sketches": {"weights": {"conv1": [9.0, 0.5, 2.0, 3.0, last]}}}
        own[0]["dtypes"] = ["float32" if own is b[0] else "bfloat16"]
    _, text = compare(a, b)
    assert text.splitlines()[-1] == "precision: A has parameters in bfloat16, B in float32", text


@pytest.mark.parametrize("passes, window, why", [
    (1, 1, "another momentum"), (2, 1, "activation checkpointing"), (2, 2, "another momentum")])
def test_statistics_tell_more_passes_from_another_momentum(compare: Compare, passes: int,
                                                           window: int, why: str) -> None:
    a, b = sketched(2), sketched(1)
    for run, mean, times in ((a, 0.5, passes), (b, 0.25, 1)):
        for step in (step for own in run for step in own):
            step["losses"] = [0.5] * (window if run is a else 1)
            count = float(times * step["step"])
            for name, numbers in (("running_mean", [mean * count] * 5),
                                  ("num_batches_tracked", [count] * 5)):
                step["weights"][f"norm.{name}"] = str(numbers)
                step["sketches"]["weights"][f"norm.{name}"] = numbers
    _, text = compare(a, b)
    assert text.splitlines()[-1].startswith("statistics: ") and why in text.splitlines()[-1]
    assert f"batches counted: {4 * passes} in A, 4 in B" in text


def test_a_limit_that_both_runs_have_hides_a_factor(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for step in (step for own in (*a, *b) for step in own):
        below = step["step"] > 2 and step["world_size"] == 1  # 4 of the limit 5; A's 8 becomes 5
        numbers = [x * (0.8 if below else 1.0) for x in [5.0, *GRADIENT]]
        step |= {"gradients": {"conv1": str(numbers)}, "losses": [0.5, 0.5]}
        step["sketches"]["gradients"] = {"conv1": numbers}
        factor = 0.8 if below else 1.6
        own = step["sketches"]["local"]["conv1"] if step["world_size"] == 2 else GRADIENT
        step["sketches"]["local"] = {"conv1": [factor * x for x in own]}
    _, text = compare(a, b)
    assert "accumulation: A does not divide the loss" in text and ": 2 times the grad" in text, text


@pytest.mark.parametrize("grow, code", [(1.0, 1), (1.2, 0)])
def test_what_has_not_grown_for_long_does_not_jump(compare: Compare, grow: float,
                                                   code: int) -> None:
    """The gradient of step 80 is a third off; distances before it are 1e-7, or grow."""
    a, b = sketched(2, 80), sketched(1, 80)
    for own in a:
        for step in own:
            off = 0.3 if step["step"] == 80 else 1e-7 * grow ** step["step"]
            numbers = [x + off * y for x, y in zip(GRADIENT, [2.0, -3.0, 3.0, -2.0])]
            step["sketches"]["gradients"] = {"conv1": [5.0, *numbers]}
            step["gradients"] = {"conv1": str(numbers)}
    found, text = compare(a, b)
    assert found == code, text


def test_a_step_that_b_alone_skips(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    b[0][1] |= {"gradients": {"conv1": "inf"}, "weights": b[0][0]["weights"]}
    b[0][1]["sketches"] |= {"gradients": NAN, "weights": b[0][0]["sketches"]["weights"]}
    assert "skipped-step: B skips the step, and A does not" in compare(a, b)[1]


def test_a_limit_that_b_never_reaches_explains_nothing(compare: Compare) -> None:
    """A's gradient has twice the norm of B's and is clipped to 1.5 times it."""
    a, b = sketched(2), sketched(1)
    for step in (step for own in (*a, *b) for step in own):
        clip = 1.5 if step["world_size"] == 2 else 1.0
        numbers = [clip * x for x in [5.0 + 0.01 * step["step"] * (clip == 1), *GRADIENT]]
        step |= {"gradients": {"conv1": str(numbers)}, "losses": [0.5, 0.5]}
        step["sketches"]["gradients"] = {"conv1": numbers}
        if step["world_size"] == 2:
            step["sketches"]["local"] = {
                "conv1": [2 * x for x in step["sketches"]["local"]["conv1"]]}
    assert "accumulation: A does not divide the loss" in compare(a, b)[1]


def test_parameters_in_16_bits_are_rounded_as_such(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for step in (step for own in (*a, *b) for step in own):
        step["dtypes"] = ["bfloat16"]
        off = 1.003 if step["world_size"] == 2 else 1.0
        step["sketches"]["gradients"] = {"conv1": [5.0, *(off * x for x in GRADIENT)]}
        step["gradients"] = {"conv1": str(off)}
    code, text = compare(a, b)
    assert code == 0 and "rounding" in text, text


@pytest.mark.parametrize("step, code", [(1, 1), (2, 0)])
def test_in_16_bits_other_weights_round_anew(compare: Compare, step: int, code: int) -> None:
    a, b = sketched(2), sketched(1)
    for own in (*a, *b):
        for one in own:
            one["precision"] = "bf16"
    found = [x + by for x, by in zip(GRADIENT, (0.1, -0.05, 0.05, -0.1))]
    for own in a:
        own[step - 1]["sketches"]["gradients"] = {"conv1": [5.0, *found]}
        own[step - 1]["gradients"] = {"conv1": "rounded"}
    found_code, text = compare(a, b)
    assert found_code == code, text


def test_numbers_of_16_bits_are_no_mean_of_means(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for step in (step for own in (*a, *b) for step in own):
        if step["world_size"] == 2:
            step["precision"] = "bf16"
        else:
            of_b = [0.534 * x + 0.462 * y for x, y in zip([1, 2, 3, 4], [2, 2, 3, 3])]
            step["sketches"]["gradients"] = {"conv1": [5.0, *of_b]}
            step["gradients"] = {"conv1": str(of_b)}
    _, text = compare(a, b)
    assert "precision: A computes in bf16, B in fp32" in text, text


def test_fp16_without_a_scaler_loses_small_gradients(compare: Compare) -> None:
    a, b = sketched(2), sketched(1)
    for step in (step for own in (*a, *b) for step in own):
        step |= {"precision": "fp16", "scale": 1024.0 if step["world_size"] == 1 else None}
        small = [0.001, *(1e-4 * x * (step["world_size"] == 1 or x < 3) for x in GRADIENT)]
        step["sketches"]["gradients"]["head"] = small
        step["gradients"] |= {"head": str(small)}
    _, text = compare(a, b)
    assert "precision: A computes in fp16 without the GradScaler" in text, text
    assert "the gradient of head is 8.8e-01" in text, text


@pytest.mark.parametrize("moves, line", [
    ("a", "also-trained: A changes parameters or buffers that have no gradient"),
    ("b", "not-trained: A leaves tensors as they are that B changes")])
def test_tensors_that_change_without_a_gradient_in_one_run(compare: Compare, moves: str,
                                                           line: str) -> None:
    runs = {"a": sketched(2), "b": sketched(1)}
    for name, run in runs.items():
        for step in (step for own in run for step in own):
            norm = 3.0 - 0.001 * step["step"] * (name == moves)
            step["weights"]["unused"] = f"unused{norm}"
            step["sketches"]["weights"]["unused"] = [norm] * 5
    _, text = compare(runs["a"], runs["b"])
    assert line in text and f"such as unused, changes in {moves.upper()} alone" in text, text


def test_averages_that_move_in_each_batch_of_a_window(compare: Compare) -> None:
    a, b = sketched(1), sketched(1)
    for run, passes in ((a, 4), (b, 1)):
        for step in run[0]:
            moved = 2.0 * (1 - 0.9 ** (passes * step["step"]))
            step |= {"losses": [0.5 + 0.1 * passes * (step["step"] == 2)] * passes}
            step["weights"]["center"] = f"center{moved}"
            step["sketches"]["weights"]["center"] = [moved] * 5
        run[0][1]["gradients"] = {"conv1": f"other{passes}"}
        own = [float(passes) ** k for k in range(4)]
        run[0][1]["sketches"] |= {"gradients": {"conv1": [5.0, *own]}, "local": {"conv1": own}}
    _, text = compare(a, b)
    assert "buffers-per-batch: A changes tensors that have no gradient" in text, text
    assert "backward passes: 4 in A, 1 in B" in text


def test_an_incomplete_last_line_is_ignored_with_a_note(compare: Compare, tmp_path: Path) -> None:
    code, _ = compare(ONE, [record(1), record(2)])
    text = (tmp_path / "b.jsonl").read_text()
    (tmp_path / "cut.jsonl").write_text(text[:-20])
    code, found = compare(ONE, tmp_path / "cut.jsonl")
    assert code == 0 and "cut.jsonl:2: ignored: the line is incomplete" in found
    compare(sketched(2), sketched(2))
    lines = (tmp_path / "a.rank1.jsonl").read_text()
    (tmp_path / "a.rank1.jsonl").write_text(lines[:-20])
    code, found = compare(tmp_path / "a", tmp_path / "b")
    assert code == 0 and "no difference in 6 records of 2 ranks" in found, found


@pytest.mark.parametrize("a, problem", [
    ([record(1), record(1)], "a.jsonl:2: step 1 of rank 0 is in the run already"),
    ([[step | {"sharded": True} for step in own] for own in sketched(2)],
     "the parameters of a run are divided among its ranks"),
    ([json.dumps(record(1) | {"sketches": {"weights": {"\x1b[2J": [1]}}})],
     "sketch of \\x1b[2J")])
def test_runs_that_cannot_be_compared_are_refused(compare: Compare, a: Any, problem: str) -> None:
    code, text = compare(a, sketched(1))
    assert code == 2 and problem in text, text


def test_a_file_that_is_no_text_is_refused_with_its_name(compare: Compare, tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\x7fELF\xff\xfe")
    code, text = compare(ONE, tmp_path / "binary.jsonl")
    assert code == 2 and "binary.jsonl:1: not a fingerprint record" in text, text


def test_damaged_records_are_refused_or_compared(compare: Compare) -> None:
    """Each value of a record in turn becomes another one."""
    values = [None, -1, "x", [], {}, 1e308, [[]], True, {"conv1": 1}]
    for name in sketched(2)[0][0]:
        for value in values:
            run = sketched(2)
            run[1][1][name] = value
            code, text = compare(run, sketched(1))
            assert code in (0, 1, 2) and text, (name, value)
            assert code != 2 or "hint: " in text or "no step is in both" in text, text
    for kind in ("local", "gradients", "weights"):
        for value in values:
            run = sketched(2)
            run[1][2]["sketches"][kind] = value
            assert compare(run, sketched(1))[0] in (0, 1, 2), (kind, value)
