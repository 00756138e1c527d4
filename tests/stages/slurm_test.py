# SPDX-License-Identifier: Apache-2.0
"""A real SLURM of two nodes on this machine, by support/slurm_cluster.sh: needs root and SLURM."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.files import write  # noqa: E402
from tests.support.programs import (ROOT, Process, Result, all_processes, poll_until,  # noqa: E402
                                    result_record, records)
from tests.support.ways import CPU, STAGE3, endless, small  # noqa: E402

INSIDE = "LADDER_SLURM"  # set to a folder in the cluster
CLUSTER = ROOT / "tests/support/slurm_cluster.sh"
SECONDS = 90  # no job here runs longer: a hang fails instead of blocking
SCRIPTS = ("slurm_by_hand.sbatch", "slurm_torchrun.sbatch")
FLAGS = (*CPU, *small(limit_train=192, limit_test=64))

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


class Slurm(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=os.environ[INSIDE]))
        self.before = {process.pid for process in all_processes()}

    def tearDown(self) -> None:
        """No process of a job is left; only those of the cluster are visible here."""
        slurm("scancel", "--user=root")

        def left() -> list[Process]:
            return [process for process in all_processes()
                    if process.pid not in self.before and process.is_alive]
        poll_until(lambda: not left(), 15)
        self.assertEqual(left(), [])

    def files(self, name: str) -> tuple[object, ...]:
        """Flags, with two blanks in the name of a file."""
        return ("--metrics", self.folder / f"{name}.jsonl",
                "--save", self.folder / f"{name}  a.safetensors")

    def start_program(self, folder: Path, script: str, **environment: object) -> Job:
        write(folder / "program", PROGRAM.format(folder=folder), executable=True)
        return Job(folder, script, "--epochs", "a  b", PROGRAM=folder / "program", **environment)

    def launch_line(self, name: str) -> str:
        return str(records(self.folder / f"{name}.jsonl")[0]["launch"])

    def test_srun_and_both_scripts_train_the_same_weights(self) -> None:
        jobs = {name: Job(self.folder, f"slurm_{name}.sbatch", *FLAGS, *self.files(name))
                for name in ("torchrun", "by_hand")}
        srun = slurm("srun", "--nodes=2", "--ntasks-per-node=2", STAGE3, *FLAGS,
                     *self.files("srun"))
        self.assertEqual(srun.code, 0, srun.stderr)
        for job in jobs.values():
            self.assertEqual(job.finish()["ExitCode"], "0:0", job.text)
        for name, launch in (
                ("srun", "rank 0 of 4, local rank 0 of 2, by srun (SLURM_PROCID, "
                 "SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID), store "
                 "node1:1"),
                ("torchrun", "by torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "
                 "store host"),
                ("by_hand", "rank 0 of 4, local rank 0 of 2, by env (RANK, WORLD_SIZE, "
                 f"MASTER_ADDR, MASTER_PORT), store node1:{15000 + int(jobs['by_hand'].number)}")):
            with self.subTest(name):
                self.assertIn(launch, self.launch_line(name))
                self.assertTrue((self.folder / f"{name}  a.safetensors").exists())
        results = {name: result_record(self.folder / f"{name}.jsonl")["weights_sha256"]
                   for name in ("srun", "torchrun", "by_hand")}
        self.assertEqual(len(set(results.values())), 1, results)
        for warning in ("OMP_NUM_THREADS environment variable", "TCPStore", "[W"):
            self.assertNotIn(warning, jobs["torchrun"].text)

    def test_two_steps_of_one_allocation_use_two_ports_and_the_cpus_that_they_have(self) -> None:
        step = f'srun --overlap "{STAGE3}" {" ".join(map(str, CPU))} --limit-train 640 ' \
               f'--limit-test 64 --metrics "{self.folder}/$step.jsonl"'
        done = slurm("salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "bash",
                     "-c", f"for step in 0 1; do {step} & steps+=($!); done; "
                     "wait ${steps[0]} && wait ${steps[1]}")
        self.assertEqual(done.code, 0, done.stderr)
        lines = [self.launch_line(str(step)) for step in range(2)]
        self.assertNotEqual(lines[0].rpartition(":")[2], lines[1].rpartition(":")[2], lines)
        self.assertEqual(done.stderr.count(", 1 thread ("), 2, done.stderr)

    def test_an_arbitrary_distribution_is_refused(self) -> None:
        done = slurm("srun", "--nodes=2", "--ntasks=2", "--distribution=arbitrary",
                     "--nodelist=node2,node1", STAGE3, *FLAGS)
        self.assertEqual(done.code, 2, done.stderr)
        self.assertIn("error: MASTER_ADDR: expected the host of rank 0, as SLURM_DISTRIBUTION="
                      "arbitrary", done.stderr)

    def test_sigterm_to_the_ranks_ends_a_run_that_saves_a_snapshot(self) -> None:
        """scancel --signal=TERM, as sbatch --signal=TERM@N, signals the steps, not the script."""
        jobs = {}
        for script in SCRIPTS:
            jobs[script] = Job(self.folder, script, *CPU,
                               *endless("--snapshot", self.folder / script))
        for job in jobs.values():
            job.wait_for("epoch 1/")
            self.assertEqual(slurm("scancel", "--signal=TERM", job.number).code, 0)
        for script, job in jobs.items():
            with self.subTest(script):
                snapshot = self.folder / script
                self.assertEqual(job.finish()["JobState"], "FAILED")
                self.assertRegex(job.text, f"SIGTERM: stopped after step .* saved {snapshot}")
                self.assertTrue((snapshot / "manifest.json").exists())

    def test_scancel_ends_all_ranks_and_with_sigterm_waits_for_one_that_saves(self) -> None:
        for flags, state in (((), "CANCELLED"), (("--signal=TERM",), "FAILED")):
            folder = self.folder / state
            folder.mkdir()
            job = self.start_program(folder, "slurm_by_hand.sbatch")
            self.assertTrue(poll_until(lambda: len(list(folder.glob("rank?"))) == 4, SECONDS))
            self.assertEqual(slurm("scancel", *flags, job.number).code, 0)
            self.assertEqual(job.finish()["JobState"], state)
        self.assertTrue((folder / "saved").exists(), job.text)

    def test_a_failure_is_the_status_of_the_job_and_ends_the_other_ranks(self) -> None:
        jobs = {}
        for script in SCRIPTS:
            folder = self.folder / script
            folder.mkdir()
            jobs[script] = self.start_program(folder, script, FAILING=3)
        for (script, job), status in zip(jobs.items(), ("7:0", "1:0")):
            with self.subTest(script):
                self.assertEqual(job.finish()["ExitCode"], status, job.text)
                for rank in range(4):
                    flags = (self.folder / script / f"flags{rank}").read_text()
                    self.assertEqual(flags, "--epochs\na  b\n")
                    variables = (self.folder / script / f"rank{rank}").read_text().splitlines()
                    self.assertIn("WORLD_SIZE=4", variables)
                    self.assertIn(f"LOCAL_RANK={rank % 2}", variables)
                    self.assertNotIn("TORCH_CPP_LOG_LEVEL=ERROR", variables)


def reason_to_skip() -> str:
    missing = [name for name in ("slurmctld", "slurmd", "srun", "munged", "ip")
               if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)}: tools/setup.sh slurm"
    done = subprocess.run(["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip()


def main() -> int:
    if INSIDE in os.environ:
        unittest.main()
    if reason := reason_to_skip():
        print(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="ladder-slurm-") as folder:
        return subprocess.run([CLUSTER, folder, sys.executable, *sys.argv], check=False,
                              env=os.environ | {INSIDE: folder}, timeout=200).returncode


if __name__ == "__main__":
    sys.exit(main())
