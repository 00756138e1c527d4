# SPDX-License-Identifier: Apache-2.0
"""scripts/ with stubs of SLURM's commands and of torchrun. The real torchrun is in interop/."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.start_scripts import FLAGS, StartScripts

HOSTS = ("host5", "host6", "host9")
SLURM = {"SLURM_JOB_ID": "1234567", "SLURM_JOB_NODELIST": "host[5-6,9]", "SLURM_JOB_NUM_NODES": "3",
         "SLURM_CPUS_PER_TASK": "4"}


@pytest.fixture(name="scripts")
def scripts_fixture() -> Iterator[StartScripts]:
    scripts = StartScripts()
    scripts.setUp()
    yield scripts
    assert scripts.doCleanups()  # no process is left


@pytest.fixture(name="slurm")
def slurm_fixture(scripts: StartScripts) -> StartScripts:
    del scripts.environment["MASTER_PORT"]
    scripts.environment |= SLURM
    return scripts


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


def test_slurm_by_hand_each_rank_gets_its_place_and_the_flags(slurm: StartScripts) -> None:
    assert slurm.run_script("slurm_by_hand.sbatch", *FLAGS)[0] == 0
    assert [call["flags"] for call in slurm.calls("srun")] == [
        ["--nodes=1", "--ntasks=1", f"--nodelist={host}", "--cpus-per-task=4"] for host in HOSTS]
    expect_ranks(slurm, RANK=[str(rank) for rank in range(6)], LOCAL_RANK=["0", "1"] * 3,
                 SLURM_STEP_NODELIST=[host for host in HOSTS for _ in range(2)],
                 WORLD_SIZE=["6"] * 6, MASTER_ADDR=["host5"] * 6, MASTER_PORT=["19567"] * 6)


@pytest.mark.parametrize("script, settings", [
    # A rank that fails ends the others; one that fails last counts too.
    *(("by_hand.sh", {"NPROC_PER_NODE": "3", "FAILING": rank} | hang)
      for rank in ("0", "2") for hang in ({"HANG": "yes"}, {})),
    *(("slurm_by_hand.sbatch", SLURM | {"FAILING": rank}) for rank in ("0", "5")),
    ("slurm_by_hand.sbatch", SLURM | {"FAILING": "5", "HANG": "yes"}),
    ("slurm_torchrun.sbatch", SLURM | {"FAILING": ""})])
def test_a_failure_is_the_status_of_the_script(scripts: StartScripts, script: str,
                                               settings: dict[str, str]) -> None:
    if script != "by_hand.sh":
        del scripts.environment["MASTER_PORT"]
    code, output = scripts.run_script(script, **settings)
    assert code == 7, output


def test_a_rank_deaf_to_sigterm_is_killed(scripts: StartScripts) -> None:
    started = time.monotonic()
    code, output = scripts.run_script("by_hand.sh", FAILING="1", HANG="deaf", GRACE_SECONDS="0.2")
    assert code == 7, output
    assert time.monotonic() - started > 0.2


@pytest.mark.parametrize("script, ranks, number, code", [
    ("by_hand.sh", 2, signal.SIGTERM, 143), ("by_hand.sh", 2, signal.SIGINT, 130),
    ("slurm_by_hand.sbatch", 6, signal.SIGTERM, 143)])
def test_a_signal_ends_all_ranks(scripts: StartScripts, script: str, ranks: int, number: int,
                                 code: int) -> None:
    process = scripts.start(script, HANG="yes", **(SLURM if script != "by_hand.sh" else {}))
    scripts.wait_for_calls("program", ranks)
    process.send_signal(number)
    assert scripts.finish(process)[0] == code


@pytest.mark.parametrize("script", ["slurm_by_hand.sbatch", "slurm_torchrun.sbatch"])
def test_without_a_host_list_nothing_starts(slurm: StartScripts, script: str) -> None:
    assert slurm.run_script(script, SLURM_JOB_NODELIST="nonsense")[0] != 0
    assert slurm.calls("srun") == []


def torchrun(scripts: StartScripts, nodes: int, ranks: int, name: str,
             *endpoint: str) -> list[str]:
    return ["--nnodes", str(nodes), "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
            "--rdzv-id", name, "--rdzv-endpoint", *endpoint, "--no-python",
            scripts.environment["PROGRAM"], *FLAGS]


def test_srun_starts_one_torchrun_a_machine(slurm: StartScripts) -> None:
    assert slurm.run_script("slurm_torchrun.sbatch", *FLAGS, NPROC_PER_NODE="8")[0] == 0
    assert [call["flags"] for call in slurm.calls("srun")] == [
        ["--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=4", "--kill-on-bad-exit=1"]]
    assert [call["flags"] for call in slurm.calls("torchrun")] == [
        torchrun(slurm, 3, 8, "1234567", "host5:19567")]


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
