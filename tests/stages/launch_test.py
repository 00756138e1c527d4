# SPDX-License-Identifier: Apache-2.0
"""How ranks find each other, and what they say when they cannot."""
from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import socket
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import Launched, Result, free_port, launch  # noqa: E402
from tests.support.ways import (STAGE2, STAGE3, STAGE4, TORCHRUN, Way, alone, by_hand,  # noqa: E402
                                mpirun, one_rank, small, spawned, torchrun, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-launch-"))
atexit.register(shutil.rmtree, FOLDER)

# Stands for rank 1 of a machine that is lost while it trains, once: the restarted rank lives.
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
    """Stage 3 alone names what is missing, and commands that work."""

    def commands(self) -> list[str]:
        missing = "launcher variables not set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; "
        error = self.refused(Way((STAGE3,)), 2, missing).stderr.strip()
        return error.split("; hint: ")[1].split(", or: ")

    def test_the_error_proposes_three_commands(self) -> None:
        starts = [re.split(r"[ =]", command)[0] for command in self.commands()]
        self.assertEqual(starts, ["torchrun", "mpirun", "RANK"])

    def test_each_of_them_works(self) -> None:
        flags = " ".join(map(str, small(limit_train=64)))
        environment = {
            "PATH": f"{TORCHRUN.parent}:{os.environ['PATH']}", "MASTER_PORT": free_port(),
            "MASTER_ADDR": "127.0.0.1", "OMPI_ALLOW_RUN_AS_ROOT": 1,
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, "OMPI_MCA_rmaps_base_oversubscribe": 1}
        for command in self.commands():
            typed = f"{command.replace('PROGRAM', str(STAGE3))} --device cpu {flags}"
            with self.subTest(command):
                done = launch("bash", "-c", typed, cwd=FOLDER, environment=environment)
                self.assertEqual(done.code, 0, done.stderr)
                self.assertEqual(len(done.lines), 2, done.stdout)

    def test_half_of_the_variables_are_named_as_missing(self) -> None:
        self.refused(Way((STAGE3,), {"RANK": 0, "WORLD_SIZE": 2}), 2, "MASTER_ADDR, MASTER_PORT: ")
        self.refused(Way((STAGE3,), {"RANK": 0, "MASTER_ADDR": "127.0.0.1"}), 2,
                     "WORLD_SIZE, MASTER_PORT: ")


class Contradictions(LaunchTest):
    def test_a_flag_against_a_variable(self) -> None:
        self.refused(one_rank(0, 2, 1), 2, "rank: 1 contradicts RANK=0", "--rank", 1)
        self.refused(one_rank(0, 2, 1), 2, "world_size: 3 contradicts WORLD_SIZE=2",
                     "--world-size", 3)

    def test_other_gpus_than_the_launchers(self) -> None:
        way = one_rank(0, 2, 1)
        way.environment["CUDA_VISIBLE_DEVICES"] = "6,7"
        for gpus in (("--gpu_ids", 0, 1), ("--gpu", "0,1")):
            self.refused(way, 2, "--gpu: 0,1 contradicts CUDA_VISIBLE_DEVICES=6,7 of the launcher",
                         *gpus)

    def test_ranks_outside_the_world(self) -> None:
        self.refused(one_rank(2, 2, 1), 2, "RANK: ")
        self.refused(one_rank(0, 0, 1), 2, "WORLD_SIZE: ")
        self.refused(Way((STAGE3,), {**one_rank(0, 2, 1).environment, "RANK": "one"}), 2, "RANK: ")

    def test_another_kind_of_meeting_place(self) -> None:
        self.refused(one_rank(0, 2, 1), 2, "init_method: ", "--init-method", "http://localhost")
        self.refused(one_rank(0, 2, 1), 2, "init_method: ", "--init-method", "tcp://localhost")

    def test_stage_two_inside_a_launcher(self) -> None:
        inside = Way((STAGE2,), one_rank(0, 2, 1).environment)
        self.refused(inside, 2, "spawn: RANK is 0: a launcher has already started the ranks")
        done = self.start(torchrun(2, program=STAGE2))
        self.assertNotEqual(done.code, 0)
        self.assertIn("spawn: RANK is", done.stderr)

    def test_nccl_without_a_gpu_each(self) -> None:
        for way in (spawned(), one_rank(0, 2, free_port())):
            way.environment["CUDA_VISIBLE_DEVICES"] = ""
            done = self.start(way, "--backend", "nccl")
            self.assertEqual((done.code, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, "--backend nccl: this machine has no GPU; hint: use --backend "
                             "gloo|backend nccl: 2 ranks on this machine but 0 GPUs")


class MeetingPlace(LaunchTest):
    def test_a_port_in_use_is_refused_at_once(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            for way in (Way((*spawned().command, "--master-port", port)), one_rank(0, 2, port)):
                text = f"MASTER_PORT {port}: expected a free port"
                self.assertLess(self.refused(way, 4, text).seconds, 5)

    def test_a_meeting_place_that_does_not_answer_ends_at_the_deadline(self) -> None:
        with socket.socket() as mute:  # accepts, as the kernel does for it, and says nothing
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            done = self.start(one_rank(1, 2, mute.getsockname()[1]), "--timeout", 2, seconds=20)
            self.assertEqual((done.code, done.stdout), (4, ""), done.stderr)
            self.assertIn("timed out after 2 s waiting for an answer", done.stderr)

    def test_nobody_at_the_meeting_place(self) -> None:
        done = self.start(one_rank(1, 2, free_port()), "--timeout", 2, seconds=20)
        self.assertEqual((done.code, done.stdout), (4, ""), done.stderr)
        self.assertIn("rank 0 opens it", done.stderr)

    def together(self, *places: tuple[int, int]) -> list[Result]:
        """Starts a process for each (rank, world size), all with one meeting place."""
        port = free_port()
        with contextlib.ExitStack() as stack:
            ways = [one_rank(rank, world, port, "--timeout", 3) for rank, world in places]
            started = [stack.enter_context(Launched(*way.command, *small(),
                                                    environment=way.environment)) for way in ways]
            return [launched.finish(20) for launched in started]

    def test_ranks_that_never_come_are_named(self) -> None:
        results = self.together((0, 3), (1, 3))
        for rank, done in enumerate(results):
            self.assertEqual((done.code, done.stdout), (4, ""), done.stderr)
            self.assertLess(done.seconds, 3 + 8)
            self.assertRegex(done.stderr, rf"^\[rank {rank}\] error: rendezvous: timed out after 3 s "
                                          r"waiting for rank 2 of 3;.*\n$")

    def test_ranks_that_disagree_about_their_number(self) -> None:
        results = self.together((0, 2), (1, 3))
        self.assertEqual([done.code for done in results], [4, 4])
        for done in results:
            self.assertRegex(done.stderr, r"^\[rank \d\] error: WORLD_SIZE of .* start all ranks with "
                                          r"the same number\n$")

    def test_a_rank_that_comes_twice(self) -> None:
        # Rank 1, because a second rank 0 would find its port in use.
        results = self.together((0, 3), (1, 3), (1, 3))
        self.assertEqual([done.code for done in results], [4, 4, 4])
        self.assertIn("rank 1: expected one process, got a second one",
                      "".join(done.stderr for done in results))

    def test_the_file_of_a_run_that_failed_is_refused(self) -> None:
        way = alone(STAGE3, "--init-method", f"file://{FOLDER}/store", "--rank", 0,
                    "--world-size", 2, "--timeout", 1)
        for text in ("waiting for rank 1 of 2", "with file://, a new file for each run"):
            done = self.start(way, *small())
            self.assertEqual((done.code, done.stdout), (4, ""), done.stderr)
            self.assertIn(text, done.stderr)


class Failures(LaunchTest):
    def test_what_goes_wrong_on_all_ranks_keeps_its_exit_code(self) -> None:
        for flags, code, text in ((("--data-root", "nowhere"), 3, "nowhere"),
                                  (("--lr", 1e30), 5, "expected a finite loss")):
            for way in (spawned(), spawned(program=STAGE4), by_hand(), mpirun()):
                done = self.start(way, *small(*flags))
                self.assertEqual((done.code, done.stdout), (code, ""), done.stderr)
                self.assertIn(text, done.stderr)
            done = self.start(torchrun(), *small(*flags))  # has one exit code for everything
            self.assertEqual((done.code, done.stdout), (1, ""), done.stderr)
            self.assertRegex(done.stderr, rf"exitcode *: {code} ")
            self.assertRegex(done.stderr, rf"traceback *: .*{text}")

    def test_torchrun_starts_again_after_a_rank_died(self) -> None:
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
