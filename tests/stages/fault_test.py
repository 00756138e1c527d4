# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, hang or are told to stop: how long it takes, what is said, and who is left."""
from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import Launched, Process, Result, all_processes  # noqa: E402
from tests.support.ways import (STAGE1, STAGE2, STAGE4, Way, alone, by_hand,  # noqa: E402
                                endless, mpirun, small, spawned, torchrun)

GONE = 5.0  # seconds in which all ranks are gone after one of them died


def adopt_orphans() -> None:
    """Who loses its parent becomes a child of this process: nobody hides behind init."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def defunct_children() -> list[Process]:
    return [process for process in all_processes()
            if process.parent == os.getpid() and process.state == "Z"]


class FaultTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        adopt_orphans()

    def launched(self, way: Way, *flags: object) -> Launched:
        started = Launched(*way.command, *flags, environment=way.environment)
        self.addCleanup(self.reap)
        self.addCleanup(started.kill_all)
        return started

    def reap(self) -> None:
        for process in defunct_children():
            os.waitpid(process.pid, 0)

    def training(self, way: Way, world: int = 2, *flags: object) -> tuple[Launched, list[Process]]:
        started = self.launched(way, *endless(), *flags)
        ranks = started.wait_until_training(60)
        self.assertEqual(len(ranks), world, ranks)
        return started, ranks

    def expect_gone(self, started: Launched, ranks: list[Process], seconds: float = GONE) -> Result:
        started.require_nothing_left(ranks, seconds)
        return started.finish(30)

    def expect_no_defunct(self) -> None:
        self.assertEqual(defunct_children(), [])


class Killed(FaultTest):
    def test_a_killed_rank_ends_all_and_is_named(self) -> None:
        for program, victim in ((STAGE2, 0), (STAGE2, 1), (STAGE4, 1)):
            with self.subTest(f"{program.name}, rank {victim}"):
                started, ranks = self.training(spawned(program=program))
                ranks[victim].send(signal.SIGKILL)
                done = self.expect_gone(started, ranks)
                self.assertEqual((done.code, done.stdout), (4, ""), done.stderr)
                self.assertRegex(done.errors[-1], rf"^error: rank {victim}, step \d+: .*signal 9\b")
                self.expect_no_defunct()

    def test_a_killed_rank_of_three(self) -> None:
        started, ranks = self.training(spawned(3), 3)
        ranks[1].send(signal.SIGSEGV)
        done = self.expect_gone(started, ranks)
        self.assertEqual(done.code, 4, done.stderr)
        self.assertRegex(done.errors[-1], r"^error: rank 1, step \d+: .*signal 11\b")
        self.expect_no_defunct()

    def test_the_others_end_under_a_launcher_too(self) -> None:
        for name, way in (("by hand", by_hand()), ("torchrun", torchrun()), ("mpirun", mpirun())):
            with self.subTest(name):
                started, ranks = self.training(way)
                ranks[1].send(signal.SIGKILL)
                done = self.expect_gone(started, ranks)
                self.assertNotEqual(done.code, 0)
                self.assertEqual(done.stdout, "")
                if name != "mpirun":  # which ends before it has collected its own children
                    self.expect_no_defunct()

    def test_a_killed_launcher_takes_its_ranks_along(self) -> None:
        started, ranks = self.training(spawned())
        started.process.kill()
        self.assertEqual(self.expect_gone(started, ranks).code, -signal.SIGKILL)


class Hanging(FaultTest):
    """SIGSTOP: the connection lives, nothing comes. Only the deadline helps."""

    def test_a_stopped_rank_of_stage_two_is_named(self) -> None:
        for victim in (0, 1):
            with self.subTest(victim):
                started, ranks = self.training(spawned(), 2, "--timeout", 2)
                ranks[victim].send(signal.SIGSTOP)
                # The deadline, the others' time to say more, that of the stopped one to end.
                done = self.expect_gone(started, ranks, 2 + 2 * 5 + 3)
                self.assertEqual((done.code, done.stdout), (4, ""), done.stderr)
                self.assertRegex(done.errors[-1], rf"rank {victim}, step \d+ \(stopped\) hung")
                self.expect_no_defunct()

    def test_a_stopped_rank_by_hand(self) -> None:
        way = by_hand()
        way.environment["GRACE_SECONDS"] = 2
        started, ranks = self.training(way, 2, "--timeout", 2)
        ranks[1].send(signal.SIGSTOP)
        done = self.expect_gone(started, ranks, 2 + 2 + 3)
        self.assertEqual(done.code, 4, done.stderr)
        self.expect_no_defunct()


class Stopped(FaultTest):
    def test_stage_two_dies_of_the_signal_that_it_gets(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                started, ranks = self.training(spawned())
                started.process.send_signal(number)
                done = self.expect_gone(started, ranks)
                self.assertEqual((done.code, done.stdout), (-number, ""), done.stderr)
                self.expect_no_defunct()

    def test_control_c_reaches_all_ranks_by_hand(self) -> None:
        started, ranks = self.training(by_hand())
        os.killpg(started.process.pid, signal.SIGINT)  # as a terminal does
        self.assertEqual(self.expect_gone(started, ranks).code, 130)
        self.expect_no_defunct()

    def test_the_rest_is_stopped_in_time(self) -> None:
        for name, way in (("torchrun", torchrun()), ("mpirun", mpirun())):
            with self.subTest(name):
                started, ranks = self.training(way)
                started.process.terminate()
                self.assertNotEqual(self.expect_gone(started, ranks).code, 0)


class Numbers(FaultTest):
    def test_a_loss_that_is_no_number_stops_all_stages(self) -> None:
        for way in (alone(STAGE1, "--device-ids", "cpu,cpu"), spawned(), by_hand(),
                    spawned(program=STAGE4)):
            begin = time.monotonic()
            done = self.launched(way, *small(lr=1e30)).finish(60)
            self.assertEqual((done.code, done.stdout), (5, ""), done.stderr)
            self.assertRegex(done.stderr, r"step \d+: expected a finite loss, got")
            self.assertLess(time.monotonic() - begin, 30)
            self.expect_no_defunct()


if __name__ == "__main__":
    unittest.main()
