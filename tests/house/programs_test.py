# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs rely on: nothing they start escapes them, and no wait is endless."""
from __future__ import annotations

import os
import socket
import sys
import time

import pytest

from tests.support.programs import (Launched, Process, address_of, launch, poll_until,
                                    wait_until_gone)

# Leaves a process in a session of its own, as launchers do, and prints its number.
LEAVES_ONE = "setsid sleep 600 >/dev/null 2>&1 & echo $!"


def test_a_result_holds_what_was_printed() -> None:
    done = launch("bash", "-c", "echo $WORD; echo b >&2; exit 7", environment={"WORD": "a"})
    assert (done.code, done.stdout, done.stderr) == (7, "a\n", "b\n")


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


def test_a_line_that_does_not_come_is_an_error_at_the_end_of_the_output() -> None:
    with Launched("echo", "something else") as launched:
        with pytest.raises(AssertionError, match="something else"):
            launched.stdout.wait_for("this", 10)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_what_a_process_listens_on_is_seen(host: str) -> None:
    with socket.socket() as own:
        own.bind((host, 0))
        address = f"{host}:{own.getsockname()[1]}"
        assert address not in Process(os.getpid()).listening()
        own.listen()
        assert address in Process(os.getpid()).listening()


@pytest.mark.skipif(sys.byteorder != "little", reason="the kernel writes words of the machine")
def test_addresses_are_read_as_the_kernel_writes_them() -> None:
    assert address_of("0100007F:1F90") == "127.0.0.1:8080"
    assert address_of("0000000000000000FFFF00000100007F:0050") == "::ffff:127.0.0.1:80"


def test_the_state_of_processes() -> None:
    own = Process(os.getpid())
    assert own.is_alive and own.parent == os.getppid()
    assert wait_until_gone([own], 0) == [own]
    assert wait_until_gone([Process(2 ** 22)], 0) == []  # above the largest number
