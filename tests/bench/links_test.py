# SPDX-License-Identifier: Apache-2.0
"""bench/links and bench/scale.py: the model, its fit, tables and pictures, and a real run."""
from __future__ import annotations

import json
import os
import signal
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import link_model
import links as runner
import pytest
import sample_links as made
import scale
from link_model import Link, fit, predicted
from pytest import approx
from results import ResultsError
from tests.support.network import ip, two_nodes
from tests.support.programs import BIN, ROOT, Launched, launch, poll_until

LINK = Link(0.001, 1e9)  # 1 ms and 8 Gbit/s
SECONDS = 60


def test_a_fit_divides_each_square_by_its_time() -> None:
    assert fit({0: 1.0, 1: 2.0, 2: 4.0}) == approx((6 / 13, 13 / 18))  # 12 / 13 + 18 / 13 B


@pytest.mark.parametrize("times, reason", [
    ({4: 0.1}, "expected two sizes or more, got 1"),
    ({4: 0.1, 1000: 0.1}, "expected larger ones to take longer")])
def test_a_fit_needs_two_sizes_and_times_that_grow(times: dict, reason: str) -> None:
    with pytest.raises(ResultsError, match=reason):
        fit(times)


# In milliseconds. golden/links.txt has steps that compute longer than their messages take.
@pytest.mark.parametrize("name, low, high", [
    ("plain", 9, 13), ("bf16", 6.5, 10.5), ("accumulation", 5.25, 6.25)])
def test_a_step_lies_between_its_messages_of_6_and_3_ms_and_the_sum(name, low, high) -> None:
    found = predicted(name, LINK, 0.004, [4_000_000, 1_000_000])
    assert (1000 * found.low, 1000 * found.high) == approx((low, high))


def test_the_slowest_of_some_draws() -> None:
    record = made.record()
    assert scale.expected_maximum([1.0, 2.0], 1) == approx(1.5)
    assert scale.expected_maximum([1.0, 2.0], 3) == approx(1 / 8 + 2 * 7 / 8)
    record["samples"]["seconds"] = [0.01, 0.03]
    costs = scale.Costs(record)
    assert costs.slowest(1, 1) == approx(1.0)
    assert costs.slowest(2, 1) == approx(0.5 / 4 + 1.5 * 3 / 4)
    assert costs.slowest(2, 4) < costs.slowest(2, 1)  # of four steps together


@pytest.mark.parametrize("error, words, good", [
    (unittest.SkipTest("no tc here"), "not run: no tc here", True),
    (runner.Failed("rank 1: x"), "failed: rank 1: x", False),
    (ResultsError("no fit"), "failed: no fit", False)])
def test_a_cable_that_cannot_be_made_is_not_run(error, words, good, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise error

    record: dict[str, Any] = {"links": {}, "traces": {}}
    monkeypatch.setattr(runner, "measure_cable", fail)
    assert runner.measure_cables(record, ["1gbit"], runner.TRIAL) == good
    assert record["links"]["1gbit"] == {"not_run": words}


def namespaces_of(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"ladder-{pid}-*")]


def ranks_in(pid: int) -> list[int]:
    """The processes of build/bin/links that `pid` has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [child for child in map(int, children.read_text().split())
                if os.readlink(f"/proc/{child}/exe") == str((BIN / "links").resolve())]
    except OSError:  # ended meanwhile
        return []


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Launched]:
    """Needs root: two nodes, a cable of 1 Gbit/s, few steps."""
    with two_nodes():  # or it is skipped
        pass
    with Launched(sys.executable, runner.__file__, "-o", tmp_path / "links.json", "--trial",
                  "--rates", "1gbit") as launched:
        yield launched
        launched.kill_all()
        for name in namespaces_of(launched.process.pid):
            ip("netns", "delete", name)


def test_a_trial_leaves_a_record_and_nothing_else(trial: Launched, tmp_path: Path) -> None:
    done = trial.finish(SECONDS)
    assert done.code == 0, done.stderr
    assert namespaces_of(trial.process.pid) == []
    record = json.loads((tmp_path / "links.json").read_text())
    section = record["links"]["1gbit"]
    assert section["variants"]["plain"]["messages"] == [4_724_264, 75_264]
    [sent, _] = section["variants"]["plain"]["sent_bytes"]
    assert sent == approx(4_799_528, rel=0.05)
    assert link_model.link_of(section).beta < 1.3 * 1e9 / 8  # the kernel limits it
    assert set(record["traces"]) == {"plain", "one-bucket", "no-overlap"}
    assert len(scale.scale_tables(record)) == 2


def test_scale_as_a_program() -> None:
    path = str(ROOT / "bench/results/two-cores.links.json")
    done = launch(sys.executable, str(ROOT / "bench/scale.py"), path)
    assert (done.code, done.stderr) == (0, "") and done.stdout.count("\n\n") == 2, done


def test_a_signal_leaves_no_rank_and_no_namespace(trial: Launched, tmp_path: Path) -> None:
    pid = trial.process.pid
    assert poll_until(lambda: len(namespaces_of(pid)) == 2 and len(ranks_in(pid)) == 2, SECONDS)
    trial.process.send_signal(signal.SIGTERM)
    assert trial.finish(SECONDS).code == 128 + signal.SIGTERM
    assert (namespaces_of(pid), ranks_in(pid)) == ([], [])
    assert not (tmp_path / "links.json").exists()
