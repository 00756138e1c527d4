# SPDX-License-Identifier: Apache-2.0
"""Stages under launchers, and errors before the rendezvous, from the command line.

What launchers set has tests in tests/comm, what is done when ranks fail is in tests/faults.
"""
from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import Result, free_port, launch  # noqa: E402
from tests.support.ways import (STAGE2, STAGE3, TORCHRUN, Way, one_rank, small,  # noqa: E402
                                spawned, torchrun, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-launch-"))
atexit.register(shutil.rmtree, FOLDER)

# Started instead of the program. The first rank 1 is killed after its first step, as if its machine
# failed; the restarted one lives.
DIES_ONCE = """#!/usr/bin/env bash
if [[ $RANK == 1 && $TORCHELASTIC_RESTART_COUNT == 0 ]]; then
  "$PROGRAM" "$@" &
  timeout 60 tail -F -n +1 "$MARKS" 2>/dev/null | head -n 1 >"$MARKS.seen"
  kill -KILL $!
  wait $!
  exit 1
fi
exec "$PROGRAM" "$@"
"""


class LaunchTest(unittest.TestCase):
    def start(self, way: Way, *flags: object, seconds: float = 60) -> Result:
        return launch(*way.command, *flags, cwd=FOLDER, environment=way.environment,
                      seconds=seconds)

    def refused(self, way: Way, code: int, text: str, *flags: object) -> Result:
        """Expects the exit code, and one line on the standard error and nothing else."""
        done = self.start(way, *flags)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (code, "", 1), done.stderr)
        self.assertIn(text, done.stderr)
        return done


class NoLauncher(LaunchTest):
    """Stage 3 without a launcher proposes three commands."""

    def commands(self) -> list[str]:
        missing = "launcher variables not set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; "
        error = self.refused(Way((STAGE3,)), 2, missing).stderr.strip()
        return error.split("; hint: ")[1].split(", or: ")

    def test_each_of_them_works(self) -> None:
        flags = " ".join(map(str, small(limit_train=64)))
        environment = {
            "PATH": f"{TORCHRUN.parent}:{os.environ['PATH']}", "MASTER_PORT": free_port(),
            "MASTER_ADDR": "127.0.0.1", "OMPI_ALLOW_RUN_AS_ROOT": 1,
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, "OMPI_MCA_rmaps_base_oversubscribe": 1}
        commands = self.commands()
        self.assertEqual([re.split(r"[ =]", command)[0] for command in commands],
                         ["torchrun", "mpirun", "RANK"])
        for command in commands:
            typed = f"{command.replace('PROGRAM', str(STAGE3))} --device cpu {flags}"
            with self.subTest(command):
                done = launch("bash", "-c", typed, cwd=FOLDER, environment=environment)
                self.assertEqual(done.code, 0, done.stderr)
                self.assertEqual(len(done.lines), 2, done.stdout)


class Launchers(LaunchTest):
    def test_a_flag_that_contradicts_a_variable_is_refused(self) -> None:
        self.refused(one_rank(0, 2, 1), 2, "rank: 1 contradicts RANK=0", "--rank", 1)

    def test_other_gpus_than_the_launchers_are_refused(self) -> None:
        way = one_rank(0, 2, 1)
        way.environment["CUDA_VISIBLE_DEVICES"] = "6,7"
        self.refused(way, 2, "--gpu: 0,1 contradicts CUDA_VISIBLE_DEVICES=6,7 of the launcher",
                     "--gpu", "0,1")

    def test_stage_two_refuses_to_spawn_inside_a_launcher(self) -> None:
        inside = Way((STAGE2,), one_rank(0, 2, 1).environment)
        self.refused(inside, 2, "spawn: RANK is 0: a launcher has already started the ranks")

    def test_a_store_that_does_not_answer_ends_the_rank_at_the_deadline(self) -> None:
        with socket.socket() as mute:  # the kernel accepts connections for it
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            done = self.start(one_rank(1, 2, mute.getsockname()[1]), "--timeout", 1, seconds=20)
            self.assertEqual((done.code, done.stdout), (4, ""), done.stderr)
            self.assertIn("timed out after 1 s waiting for an answer", done.stderr)

    def test_torch_distributed_launch_starts_the_ranks(self) -> None:
        way = Way((TORCHRUN.parent / "python", "-m", "torch.distributed.launch", "--use-env",
                   "--no-python", "--master-port", free_port(), "--nproc-per-node", 2, STAGE3))
        done = self.start(way, *small(limit_train=64))
        self.assertEqual((done.code, len(done.lines)), (0, 2), done.stderr)
        self.assertIn("rank 0 of 2, local rank 0 of 2, by torchrun", done.stderr)

    def test_torchrun_restarts_all_ranks_after_one_died(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        wrapper = folder / "dies_once"
        wrapper.write_text(DIES_ONCE)
        wrapper.chmod(0o755)
        marks = folder / "marks.rank1.jsonl"
        way = torchrun(2, "--max-restarts", 1, program=wrapper)
        done = launch(*way.command, *small(fingerprint=1, metrics=folder / "marks.jsonl"),
                      cwd=folder,
                      environment={**way.environment, "PROGRAM": STAGE3, "MARKS": marks})
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn('"step":1,', (folder / "marks.rank1.jsonl.seen").read_text())
        expected = train(spawned(), *small(), parent=FOLDER)
        metrics = (folder / "marks.jsonl").read_text()
        self.assertEqual(metrics.count('"record":"result"'), 1)
        self.assertIn(expected.result["weights_sha256"], metrics)


if __name__ == "__main__":
    unittest.main()
