# SPDX-License-Identifier: Apache-2.0
"""scripts/pytorchjob.yaml: what the operator (Kubeflow Training Operator, version 1) refuses in a
PyTorchJob, and what a pod runs, without a cluster."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.files import write

ROOT = Path(__file__).resolve().parents[2]
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
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("mnist/*.cpp"))
    assert all(f'"{flag}"' in sources for flag in words if flag.startswith("--"))


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
