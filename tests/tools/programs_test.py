# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs rely on: nothing they start escapes them."""
from __future__ import annotations

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
