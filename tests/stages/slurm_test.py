# SPDX-License-Identifier: Apache-2.0
"""A real SLURM of two nodes on this machine, by support/slurm_cluster.sh: needs root and SLURM."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files import write
from tests.support.programs import (ROOT, Process, Result, all_processes, poll_until, records,
                                    result_record)
from tests.support.ways import CPU, STAGE3, endless, small

INSIDE = "LADDER_SLURM"  # set to a folder in the cluster
CLUSTER = ROOT / "tests/support/slurm_cluster.sh"
SECONDS = 90  # no job here runs longer: a hang fails instead of blocking
SCRIPTS = ("slurm_by_hand.sbatch", "slurm_torchrun.sbatch")
FLAGS = (*CPU, *small(limit_train=192, limit_test=64))
in_cluster = pytest.mark.skipif(INSIDE not in os.environ, reason="test_in_a_cluster runs it")

# Started instead of a stage: writes its flags and variables to files of its rank. The rank in
# $FAILING ends with 7, the others wait to be ended. Rank 0 saves after SIGTERM, for a second.
PROGRAM = """#!/usr/bin/env bash
printf '%s\\n' "$@" >"{folder}/flags$RANK"
env >"{folder}/rank$RANK"
if ((RANK == 0)); then
  trap 'sleep 1; touch {folder}/saved; exit 143' TERM
  sleep 600 &
  wait
fi
[[ $RANK == "${{FAILING-}}" ]] || exec sleep 600
until [[ -e {folder}/rank0 && -e {folder}/rank1 && -e {folder}/rank2 ]]; do sleep 0.05; done
exit 7
"""


def slurm(*command: object, seconds: float = SECONDS, **environment: object) -> Result:
    """Runs a command of SLURM to its end."""
    started = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=seconds,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        stdin=subprocess.DEVNULL, check=False)
    return Result(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


class Job:
    """A batch script of scripts/ in the queue, with the lines that it prints."""

    def __init__(self, folder: Path, script: str, *flags: object, **environment: object) -> None:
        self.output = folder / f"{script}.out"
        done = slurm("sbatch", "--parsable", "--cpus-per-task=2", f"--output={self.output}",
                     ROOT / "scripts" / script, *flags, **environment)
        assert done.code == 0, done.stderr
        self.number = done.stdout.strip()

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait_for(self, text: str) -> None:
        assert poll_until(lambda: text in self.text, SECONDS), f"no {text!r} in:\n{self.text}"

    def finish(self) -> dict[str, str]:
        """Waits for the end of the job, and returns its fields. sbatch --wait looks every 10 s."""
        gone = poll_until(lambda: not slurm("squeue", "-ho", "%T", "-j", self.number).stdout,
                          SECONDS, 0.1)
        assert gone, f"no end within {SECONDS} s:\n{self.text}"
        words = slurm("scontrol", "show", "job", "-o", self.number).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)


def reason_to_skip() -> str:
    missing = [name for name in ("slurmctld", "slurmd", "srun", "munged", "ip")
               if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)}: tools/setup.sh slurm"
    done = subprocess.run(["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip()


@pytest.fixture(name="folder")
def cluster() -> Iterator[Path]:
    """For a test's files, on the nodes of the cluster. No process of a job is left after the test;
    only those of the cluster are visible here."""
    before = {process.pid for process in all_processes()}

    def left() -> list[Process]:
        return [process for process in all_processes()
                if process.pid not in before and process.is_alive]

    yield Path(tempfile.mkdtemp(dir=os.environ[INSIDE]))
    slurm("scancel", "--user=root")
    poll_until(lambda: not left(), 15)
    assert left() == []


def launch_line(path: Path) -> str:
    return str(records(path)[0]["launch"])


def start_program(folder: Path, script: str, **environment: object) -> Job:
    program = write(folder / "program", PROGRAM.format(folder=folder), executable=True)
    return Job(folder, script, "--epochs", "a  b", PROGRAM=program, **environment)


@in_cluster
def test_srun_and_both_scripts_train_the_same_weights(folder: Path) -> None:
    def files(name: str) -> tuple[object, ...]:
        """Flags, with two blanks in the name of a file."""
        return "--metrics", folder / f"{name}.jsonl", "--save", folder / f"{name}  a.safetensors"

    jobs = {name: Job(folder, f"slurm_{name}.sbatch", *FLAGS, *files(name))
            for name in ("torchrun", "by_hand")}
    srun = slurm("srun", "--nodes=2", "--ntasks-per-node=2", STAGE3, *FLAGS, *files("srun"))
    assert srun.code == 0, srun.stderr
    for job in jobs.values():
        assert job.finish()["ExitCode"] == "0:0", job.text
    for name, launch in (
            ("srun", "rank 0 of 4, local rank 0 of 2, by srun (SLURM_PROCID, "
             "SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID), store "
             "node1:1"),
            ("torchrun", "by torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), store host"),
            ("by_hand", "rank 0 of 4, local rank 0 of 2, by env (RANK, WORLD_SIZE, "
             f"MASTER_ADDR, MASTER_PORT), store node1:{15000 + int(jobs['by_hand'].number)}")):
        assert launch in launch_line(folder / f"{name}.jsonl")
        assert (folder / f"{name}  a.safetensors").exists()
    results = [result_record(folder / f"{name}.jsonl")["weights_sha256"]
               for name in ("srun", "torchrun", "by_hand")]
    assert len(set(results)) == 1, results
    for warning in ("OMP_NUM_THREADS environment variable", "TCPStore", "[W"):
        assert warning not in jobs["torchrun"].text


@in_cluster
def test_two_steps_of_one_allocation_use_two_ports_and_the_cpus_that_they_have(
        folder: Path) -> None:
    step = f'srun --overlap "{STAGE3}" {" ".join(map(str, CPU))} --limit-train 640 ' \
           f'--limit-test 64 --metrics "{folder}/$step.jsonl"'
    done = slurm("salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "bash", "-c",
                 f"for step in 0 1; do {step} & steps+=($!); done; "
                 "wait ${steps[0]} && wait ${steps[1]}")
    assert done.code == 0, done.stderr
    ports = {launch_line(folder / f"{number}.jsonl").rpartition(":")[2] for number in range(2)}
    assert len(ports) == 2, ports
    assert done.stderr.count(", 1 thread (") == 2, done.stderr


@in_cluster
def test_an_arbitrary_distribution_is_refused() -> None:
    done = slurm("srun", "--nodes=2", "--ntasks=2", "--distribution=arbitrary",
                 "--nodelist=node2,node1", STAGE3, *FLAGS)
    assert done.code == 2, done.stderr
    assert "error: MASTER_ADDR: expected the host of rank 0, as SLURM_DISTRIBUTION=" \
        "arbitrary" in done.stderr


@in_cluster
def test_sigterm_to_the_ranks_ends_a_run_that_saves_a_snapshot(folder: Path) -> None:
    """scancel --signal=TERM, as sbatch --signal=TERM@N, signals the steps, not the script."""
    jobs = {script: Job(folder, script, *CPU, *endless("--snapshot", folder / script))
            for script in SCRIPTS}
    for job in jobs.values():
        job.wait_for("epoch 1/")
        assert slurm("scancel", "--signal=TERM", job.number).code == 0
    for script, job in jobs.items():
        assert job.finish()["JobState"] == "FAILED"
        assert re.search(f"SIGTERM: stopped after step .* saved {folder / script}", job.text)
        assert (folder / script / "manifest.json").exists()


@in_cluster
@pytest.mark.parametrize("flags, state", [((), "CANCELLED"), (("--signal=TERM",), "FAILED")])
def test_scancel_ends_all_ranks_and_with_sigterm_waits_for_one_that_saves(
        folder: Path, flags: tuple[str, ...], state: str) -> None:
    job = start_program(folder, "slurm_by_hand.sbatch")
    assert poll_until(lambda: len(list(folder.glob("rank?"))) == 4, SECONDS)
    assert slurm("scancel", *flags, job.number).code == 0
    assert job.finish()["JobState"] == state
    assert not flags or (folder / "saved").exists(), job.text


@in_cluster
def test_a_failure_is_the_status_of_the_job_and_ends_the_other_ranks(folder: Path) -> None:
    for script in SCRIPTS:
        (folder / script).mkdir()
    jobs = {script: start_program(folder / script, script, FAILING=3) for script in SCRIPTS}
    for (script, job), status in zip(jobs.items(), ("7:0", "1:0")):
        assert job.finish()["ExitCode"] == status, job.text
        for rank in range(4):
            assert (folder / script / f"flags{rank}").read_text() == "--epochs\na  b\n"
            variables = (folder / script / f"rank{rank}").read_text().splitlines()
            assert {"WORLD_SIZE=4", f"LOCAL_RANK={rank % 2}"} <= set(variables)
            assert "TORCH_CPP_LOG_LEVEL=ERROR" not in variables


@pytest.mark.skipif(INSIDE in os.environ, reason="inside of the cluster")
def test_in_a_cluster(tmp_path: Path) -> None:
    """Runs the tests above."""
    if reason := reason_to_skip():
        print(f"skipped: {reason}")
        pytest.skip(reason)
    done = subprocess.run([CLUSTER, tmp_path, sys.executable, "-m", "pytest", "-v", "-s", "-p",
                           "no:cacheprovider", __file__], check=False,
                          env=os.environ | {INSIDE: str(tmp_path)}, timeout=200)
    assert done.returncode == 0
