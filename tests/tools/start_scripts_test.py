# SPDX-License-Identifier: Apache-2.0
"""scripts/ with a stub of torchrun. The real one is in interop/, SLURM in stages/slurm_test.py."""
from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.files import write
from tests.support.start_scripts import FLAGS, ROOT, StartScripts


@pytest.fixture(name="scripts")
def scripts_fixture() -> Iterator[StartScripts]:
    scripts = StartScripts()
    scripts.setUp()
    yield scripts
    assert scripts.doCleanups()  # no process is left


# The second machine goes on counting.
@pytest.mark.parametrize("settings, ranks, local_ranks, world, host", [
    ({"NPROC_PER_NODE": "3"}, "012", "012", "3", "127.0.0.1"),
    ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "host5"}, "23", "01", "4", "host5")])
def test_by_hand_each_rank_gets_its_place_and_the_flags(
        scripts: StartScripts, settings: dict[str, str], ranks: str, local_ranks: str, world: str,
        host: str) -> None:
    assert scripts.run_script("by_hand.sh", *FLAGS, **settings)[0] == 0
    here, port = str(len(ranks)), scripts.environment["MASTER_PORT"]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [(*map(call["env"].get, names), call["flags"]) for call in scripts.calls("program")] == [
        (rank, local, world, here, host, port, FLAGS) for rank, local in zip(ranks, local_ranks)]


@pytest.mark.parametrize("script, name, value", [
    (["by_hand.sh"], "NPROC_PER_NODE", "0"), (["by_hand.sh"], "NPROC_PER_NODE", "10000"),
    (["by_hand.sh"], "NNODES", "two"), (["by_hand.sh"], "NODE_RANK", "-1"),
    (["by_hand.sh"], "GRACE_SECONDS", "soon"),
    (["torchrun_two_nodes.sh", "--local"], "NPROC_PER_NODE", "0")])
def test_a_wrong_number_is_refused_before_a_rank_starts(scripts: StartScripts, script: list[str],
                                                        name: str, value: str) -> None:
    code, output = scripts.run_script(*script, **{name: value})
    assert code == 2 and re.search(rf"{name}: expected a .*, got '{value}'", output)
    assert not scripts.calls("program") + scripts.calls("torchrun")


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


@pytest.mark.parametrize("host, settings, count, endpoint", [
    ("host5", {}, 1, ["host5:29400"]),
    ("--local", {"RDZV_PORT": "4000"}, 2, ["127.0.0.1:4000", "--local-addr", "127.0.0.1"])])
def test_two_machines_type_the_same_line(scripts: StartScripts, host: str, count: int,
                                         settings: dict[str, str], endpoint: list[str]) -> None:
    code, output = scripts.run_script("torchrun_two_nodes.sh", host, *FLAGS, **settings)
    assert code == 0, output
    assert [call["flags"] for call in scripts.calls("torchrun")] == [
        ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id",
         "two_nodes", "--rdzv-endpoint", *endpoint, "--no-python", scripts.environment["PROGRAM"],
         *FLAGS]] * count


def test_a_missing_host_is_asked_for(scripts: StartScripts) -> None:
    code, output = scripts.run_script("torchrun_two_nodes.sh")
    assert (code, output.count("\n")) == (2, 1)
    assert "expected HOST or --local" in output


# --- pytorchjob.yaml: what the operator (Kubeflow Training Operator, version 1) refuses in a
# PyTorchJob, and what a pod runs, without a cluster ----------------------------------------------

JOB = yaml.safe_load((ROOT / "scripts/pytorchjob.yaml").read_text(encoding="utf-8"))
REPLICAS = JOB["spec"]["pytorchReplicaSpecs"]
[CONTAINER] = REPLICAS["Master"]["template"]["spec"]["containers"]
RECORD = '#!/usr/bin/env bash\nprintf "%s\\n" "${0##*/} $*" >>calls\n'
# Resolves the name at the third request.
GETENT = RECORD + "(($(grep -c getent calls) >= 3))\n"


def test_the_fields_that_the_operator_checks() -> None:
    assert (JOB["apiVersion"], JOB["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert re.fullmatch(r"[a-z][-a-z0-9]{0,40}", JOB["metadata"]["name"])  # of services too
    policy = JOB["spec"]["runPolicy"]
    assert set(policy) <= {"activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy",
                           "schedulingPolicy", "suspend", "ttlSecondsAfterFinished"}
    assert policy["cleanPodPolicy"] in ("All", "None", "Running")
    assert set(REPLICAS) == {"Master", "Worker"}
    assert REPLICAS["Master"]["replicas"] == 1  # without: no RANK, no MASTER_ADDR
    for replica in REPLICAS.values():
        assert set(replica) == {"replicas", "restartPolicy", "template"}
        assert replica["restartPolicy"] in ("Always", "ExitCode", "Never", "OnFailure")
    assert CONTAINER["name"] == "pytorch"
    assert all(isinstance(word, str) for word in CONTAINER["command"])


def test_a_pod_is_a_rank_and_all_run_the_same() -> None:
    """nprocPerNode would be a factor of WORLD_SIZE; the elastic variables are torchrun's."""
    assert set(JOB["spec"]) == {"runPolicy", "pytorchReplicaSpecs"}
    assert REPLICAS["Master"]["template"] == REPLICAS["Worker"]["template"]


def test_the_program_and_its_flags_exist() -> None:
    program, *words = re.search(r"^exec build/bin/(.*)$", CONTAINER["command"][-1],
                                re.MULTILINE)[1].split()
    assert (ROOT / program / "main.cpp").is_file()
    paths = [*ROOT.glob("mnist/*option*.h"), *ROOT.glob("mnist/*.cpp"), *ROOT.glob("ladder/*/*option*")]
    sources = "".join(path.read_text(encoding="utf-8") for path in paths)
    names = [word[2:].replace("-", "_") for word in words if word.startswith("--")]
    assert names and all(f'"{name}"' in sources for name in names)


# The second starts without the name after a minute, to show what is wrong.
@pytest.mark.parametrize("stubs, calls", [
    ({}, ["getent hosts ladder-master-0"] * 3),
    ({"timeout": RECORD + "exit 124\n"}, ["timeout 60 bash -c until getent hosts"])])
def test_a_pod_waits_for_the_name_of_rank_0(tmp_path: Path, stubs: dict[str, str],
                                            calls: list[str]) -> None:
    programs = {"stage3_ddp_torchrun": RECORD, "getent": GETENT, "sleep": "#!/bin/sh\n"} | stubs
    for name, text in programs.items():
        write(tmp_path / "build/bin" / name, text, executable=True)
    subprocess.run(CONTAINER["command"], cwd=tmp_path, check=True, timeout=30,
                   env={"PATH": f"{tmp_path / 'build/bin'}:/usr/bin:/bin",
                        "MASTER_ADDR": "ladder-master-0"},
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    *waiting, program = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert [call[:len(wanted)] for call, wanted in zip(waiting, calls, strict=True)] == calls
    assert program == "stage3_ddp_torchrun --timeout 300"
