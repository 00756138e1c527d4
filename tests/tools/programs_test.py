# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs rely on: nothing they start escapes them, and no wait is endless."""
from __future__ import annotations

import time

import pytest

from tests.support.programs import Launched, Process, poll_until

# Leaves a process in a session of its own, as launchers do, and prints its number.
LEAVES_ONE = "setsid sleep 600 >/dev/null 2>&1 & echo $!"


def test_a_process_left_behind_is_an_error_and_is_killed() -> None:
    with Launched("bash", "-c", LEAVES_ONE) as launched:
        pid = int(launched.stdout.wait_for(r"\d", 10))
        # In an exec a process has no environment, by which it would be found: wait for the last.
        assert poll_until(lambda: (pid, "sleep") in (
            (one.pid, one.program) for one in launched.processes()), 10)
        with pytest.raises(AssertionError, match="still there after 0.1 s"):
            launched.require_nothing_left(launched.processes(), 0.1)
    assert not Process(pid).is_alive


def test_a_command_that_hangs_is_killed_with_its_children() -> None:
    begin = time.monotonic()
    with Launched("bash", "-c", f"{LEAVES_ONE}; sleep 600") as launched:
        pid = int(launched.stdout.wait_for(r"\d", 10))
        with pytest.raises(AssertionError, match="no end within 0.2 s"):
            launched.finish(0.2)
        assert launched.processes() == []
    assert not Process(pid).is_alive
    assert time.monotonic() - begin < 10


def test_a_line_that_is_missing_is_an_error_at_the_end_of_the_output() -> None:
    with Launched("echo", "something else") as launched:
        with pytest.raises(AssertionError, match="something else"):
            launched.stdout.wait_for("this", 10)
