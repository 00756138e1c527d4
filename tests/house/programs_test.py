# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs rely on: nothing they start escapes them, and no wait is endless."""
from __future__ import annotations

import os
import socket
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import (Launched, Process, address_of, launch,  # noqa: E402
                                    wait_until_gone)

# Leaves a process in a session of its own, as launchers do, and says its number.
LEAVES_ONE = "setsid sleep 600 >/dev/null 2>&1 & echo $!"


class LaunchTest(unittest.TestCase):
    def test_a_result_holds_what_was_printed(self) -> None:
        done = launch("bash", "-c", "echo $WORD; echo b >&2; exit 7", environment={"WORD": "a"})
        self.assertEqual((done.code, done.stdout, done.stderr), (7, "a\n", "b\n"))

    def test_a_process_left_behind_is_an_error_and_is_killed(self) -> None:
        with Launched("bash", "-c", LEAVES_ONE) as launched:
            pid = int(launched.stdout.wait_for(r"\d", 10))
            # In an exec a process has no environment, by which it would be found: wait for the last.
            deadline = time.monotonic() + 10
            while (pid, "sleep") not in ((one.pid, one.program) for one in launched.processes()):
                self.assertLess(time.monotonic(), deadline)
            with self.assertRaisesRegex(AssertionError, "still there after 0.1 s"):
                launched.require_nothing_left(launched.processes(), 0.1)
        self.assertFalse(Process(pid).is_alive)

    def test_a_command_that_hangs_is_killed_with_its_children(self) -> None:
        begin = time.monotonic()
        with Launched("bash", "-c", f"{LEAVES_ONE}; sleep 600") as launched:
            pid = int(launched.stdout.wait_for(r"\d", 10))
            with self.assertRaisesRegex(AssertionError, "no end within 0.2 s"):
                launched.finish(0.2)
            self.assertEqual(launched.processes(), [])
        self.assertFalse(Process(pid).is_alive)
        self.assertLess(time.monotonic() - begin, 10)

    def test_a_line_that_does_not_come_is_an_error_at_the_end_of_the_output(self) -> None:
        with Launched("echo", "something else") as launched:
            with self.assertRaisesRegex(AssertionError, "something else"):
                launched.stdout.wait_for("this", 10)


class ProcessTest(unittest.TestCase):
    def test_what_a_process_listens_on_is_seen(self) -> None:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0")):
            with socket.socket(family) as own:
                own.bind((host, 0))
                address = f"{host}:{own.getsockname()[1]}"
                self.assertNotIn(address, Process(os.getpid()).listening())
                own.listen()
                self.assertIn(address, Process(os.getpid()).listening())

    def test_addresses_are_read_as_the_kernel_writes_them(self) -> None:
        if sys.byteorder == "little":
            self.assertEqual(address_of("0100007F:1F90"), "127.0.0.1:8080")
            self.assertEqual(address_of("0000000000000000FFFF00000100007F:0050"),
                             "::ffff:127.0.0.1:80")

    def test_the_state_of_processes(self) -> None:
        own = Process(os.getpid())
        self.assertTrue(own.is_alive)
        self.assertEqual(own.parent, os.getppid())
        self.assertEqual(wait_until_gone([own], 0), [own])
        self.assertEqual(wait_until_gone([Process(2 ** 22)], 0), [])  # above the largest number


if __name__ == "__main__":
    unittest.main()
