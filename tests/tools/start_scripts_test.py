# SPDX-License-Identifier: Apache-2.0
"""scripts/ with a stub of torchrun. The real one is in interop/, SLURM in stages/slurm_test.py."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.start_scripts import FLAGS, StartScripts


@pytest.fixture(name="scripts")
def scripts_fixture() -> Iterator[StartScripts]:
    scripts = StartScripts()
    scripts.setUp()
    yield scripts
    assert scripts.doCleanups()  # no process is left


def expect_ranks(scripts: StartScripts, **columns: list[str]) -> None:
    """What each rank got, and the flags."""
    ranks = scripts.calls("program")
    assert {name: scripts.column(ranks, name) for name in columns} == columns
    assert [rank["flags"] for rank in ranks] == [FLAGS] * len(columns["RANK"])


def test_by_hand_each_rank_gets_its_place_and_the_flags(scripts: StartScripts) -> None:
    assert scripts.run_script("by_hand.sh", *FLAGS, NPROC_PER_NODE="3")[0] == 0
    expect_ranks(scripts, RANK=["0", "1", "2"], LOCAL_RANK=["0", "1", "2"], WORLD_SIZE=["3"] * 3,
                 LOCAL_WORLD_SIZE=["3"] * 3, MASTER_ADDR=["127.0.0.1"] * 3,
                 MASTER_PORT=[scripts.environment["MASTER_PORT"]] * 3)


def test_by_hand_the_second_machine_goes_on_counting(scripts: StartScripts) -> None:
    code, _ = scripts.run_script("by_hand.sh", *FLAGS, NNODES="2", NODE_RANK="1",
                                 MASTER_ADDR="host5")
    assert code == 0
    expect_ranks(scripts, RANK=["2", "3"], LOCAL_RANK=["0", "1"], WORLD_SIZE=["4", "4"],
                 LOCAL_WORLD_SIZE=["2", "2"], MASTER_ADDR=["host5", "host5"])


# A rank that fails ends the others; one that fails last counts too.
@pytest.mark.parametrize("hang", [{"HANG": "yes"}, {}])
@pytest.mark.parametrize("rank", ["0", "2"])
def test_a_failure_is_the_status_of_the_script(scripts: StartScripts, rank: str,
                                               hang: dict[str, str]) -> None:
    code, output = scripts.run_script("by_hand.sh", NPROC_PER_NODE="3", FAILING=rank, **hang)
    assert code == 7, output


def test_a_rank_deaf_to_sigterm_is_killed(scripts: StartScripts) -> None:
    started = time.monotonic()
    code, output = scripts.run_script("by_hand.sh", FAILING="1", HANG="deaf", GRACE_SECONDS="0.2")
    assert code == 7, output
    assert time.monotonic() - started > 0.2


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_all_ranks(scripts: StartScripts, number: int, code: int) -> None:
    process = scripts.start("by_hand.sh", HANG="yes")
    scripts.wait_for_calls("program", 2)
    process.send_signal(number)
    assert scripts.finish(process)[0] == code


def torchrun(scripts: StartScripts, nodes: int, ranks: int, name: str,
             *endpoint: str) -> list[str]:
    return ["--nnodes", str(nodes), "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
            "--rdzv-id", name, "--rdzv-endpoint", *endpoint, "--no-python",
            scripts.environment["PROGRAM"], *FLAGS]


@pytest.mark.parametrize("host, settings, count, endpoint", [
    ("host5", {}, 1, ["host5:29400"]),
    ("--local", {"RDZV_PORT": "4000"}, 2, ["127.0.0.1:4000", "--local-addr", "127.0.0.1"])])
def test_two_machines_type_the_same_line(scripts: StartScripts, host: str, count: int,
                                         settings: dict[str, str], endpoint: list[str]) -> None:
    code, output = scripts.run_script("torchrun_two_nodes.sh", host, *FLAGS, **settings)
    assert code == 0, output
    assert [call["flags"] for call in scripts.calls("torchrun")] == [
        torchrun(scripts, 2, 2, "two_nodes", *endpoint)] * count


def test_a_missing_host_is_asked_for(scripts: StartScripts) -> None:
    code, output = scripts.run_script("torchrun_two_nodes.sh")
    assert (code, output.count("\n")) == (2, 1)
    assert "expected HOST or --local" in output
