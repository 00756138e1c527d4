# SPDX-License-Identifier: Apache-2.0
"""The quick cases of the table of faults, once; and that its checks notice what they are for."""
from __future__ import annotations

import collections
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.faults import leftovers
from tests.faults.case import PROGRAMS, Case, require_ending, run_case
from tests.faults.cases import KINDS, QUICK, restarts, table
from tests.faults.leftovers import SHARED_MEMORY, Before, adopt_orphans, reap_orphans
from tests.support.files import write
from tests.support.programs import Process, Result, temporary_folder

FOLDER = temporary_folder("faults")


@pytest.mark.parametrize("case", [case for case in table() if case.name in QUICK],
                         ids=lambda case: case.name)
def test_a_quick_case_ends_as_promised(case: Case) -> None:
    print(f"{run_case(case, FOLDER):6.2f} s")


def test_the_quick_cases_are_of_all_kinds_and_stages_and_each_case_has_its_name() -> None:
    names = collections.Counter(case.name for case in table())
    assert [name for name, count in names.items() if count > 1] == []
    assert QUICK <= set(names)
    for kind in set(KINDS) - {restarts}:
        assert QUICK & {case.name for case in kind()}, kind.__name__
    assert {case.stage for case in table() if case.name in QUICK} == set(range(len(PROGRAMS)))
    cases = collections.Counter(case.stage for case in table() if not case.once)
    assert cases.total() >= 60
    assert min(cases[stage] for stage in range(len(PROGRAMS))) >= 10


SAID = "error: rank 1: gone\n[rank 0] error: lost\n"


@pytest.mark.parametrize("refused, code, said, took", [
    ("", -9, SAID, 1.0), ("exit code", 0, SAID, 1.0), ("die of a signal", 137, SAID, 1.0),
    ("within 5", -9, SAID, 5.1), ("rank 1", -9, "[rank 0] error: lost\n", 1.0),
    ("a line from each", -9, SAID + "[rank 0] error: lost again\n", 1.0)])
def test_code_time_and_cause_count(refused: str, code: int, said: str, took: float) -> None:
    case = Case((2, "spawn"), "x", codes=(137,), cause="^error: rank 1: ", seconds=5)
    if not refused:
        return require_ending(case, Result(code, "", said), took)
    with pytest.raises(AssertionError, match=refused):
        require_ending(case, Result(code, "", said), took)


def test_a_file_is_noticed_unless_it_is_allowed(tmp_path: Path) -> None:
    write(tmp_path / "old")
    before = Before(tmp_path)
    write(tmp_path / "old", "more")
    assert before.left() == []
    write(tmp_path / "new" / "a.tmp.1")
    assert before.left(["*.tmp.*"]) == ["file new"]


def test_shared_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "SECONDS", 0.1)
    before, path = Before(), SHARED_MEMORY / f"ladder-faults-test-{os.getpid()}"
    try:
        path.touch()
        assert f"shared memory {path.name}" in before.left()
    finally:
        path.unlink()


def test_a_process_that_was_not_waited_for_is_noticed(tmp_path: Path) -> None:
    program = write(tmp_path / "stage_of_this_test", "#!/bin/sh\necho $$\nread line\n",
                    executable=True)
    adopt_orphans()
    with subprocess.Popen(["bash", "-c", '"$0" <&0 &', program], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as shell:
        orphan = Process(int(shell.stdout.readline()))
        shell.wait(60)  # and then the end of its input
    assert reap_orphans(["another"]) == []
    assert reap_orphans([program.name], 60) == [orphan.pid]
    assert orphan.state == ""


def test_a_socket_that_still_listens_is_noticed() -> None:
    before = Before()
    with socket.create_server(("127.0.0.1", 0)) as server:
        before.watch([Process(os.getpid())])
        assert f"listener 127.0.0.1:{server.getsockname()[1]}" in before.left()
    assert before.left() == []
