# SPDX-License-Identifier: Apache-2.0
"""The quick cases of the table of faults, once; and that its checks notice what they are for."""
from __future__ import annotations

import atexit
import collections
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.faults.case import PROGRAMS, Case, require_ending, run_case  # noqa: E402
from tests.faults.cases import KINDS, QUICK, table  # noqa: E402
from tests.faults.leftovers import (SHARED_MEMORY, Before, adopt_orphans,  # noqa: E402
                                    reap_orphans)
from tests.support.programs import Process, Result  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-faults-"))
atexit.register(shutil.rmtree, FOLDER)


class QuickCases(unittest.TestCase):
    def test_all_end_as_promised(self) -> None:
        for case in table():
            if case.name in QUICK:
                with self.subTest(case.name):
                    print(f"{run_case(case, FOLDER):6.2f} s {case.name}", flush=True)


class Table(unittest.TestCase):
    def test_each_case_has_a_name_of_its_own(self) -> None:
        names = collections.Counter(case.name for case in table())
        self.assertEqual([name for name, count in names.items() if count > 1], [])
        self.assertEqual(QUICK - set(names), set())

    def test_the_quick_cases_are_of_all_kinds_and_stages(self) -> None:
        for kind in KINDS:
            self.assertTrue(QUICK & {case.name for case in kind()}, kind.__name__)
        self.assertEqual({case.stage for case in table() if case.name in QUICK},
                         set(range(len(PROGRAMS))))

    def test_no_stage_is_left_out(self) -> None:
        cases = collections.Counter(case.stage for case in table() if not case.once)
        self.assertGreaterEqual(sum(cases.values()), 60)
        self.assertGreaterEqual(min(cases[stage] for stage in range(len(PROGRAMS))), 10)


class Ending(unittest.TestCase):
    CASE = Case((2, "spawn"), "x", codes=(137,), cause="^error: rank 1: ", seconds=5)
    SAID = "error: rank 1: gone\n[rank 0] error: lost\n"

    def refused(self, text: str, code: int = -9, said: str = SAID, took: float = 1.0) -> None:
        with self.assertRaisesRegex(AssertionError, text):
            require_ending(self.CASE, Result(code, "", said), took)

    def test_code_time_and_cause_count(self) -> None:
        require_ending(self.CASE, Result(-9, "", self.SAID), 1.0)
        self.refused("exit code", code=0)
        self.refused("die of a signal", code=137)
        self.refused("within 5", took=5.1)
        self.refused("rank 1", said="[rank 0] error: lost\n")
        self.refused("a line from each", said=self.SAID + "[rank 0] error: lost again\n")


class Leftovers(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=FOLDER))
        (self.folder / "old").touch()
        self.before = Before(self.folder)

    def test_a_file_is_noticed_unless_it_is_allowed(self) -> None:
        (self.folder / "old").write_text("more")
        self.assertEqual(self.before.left(), [])
        (self.folder / "new").mkdir()
        (self.folder / "new" / "a.tmp.1").touch()
        self.assertEqual(self.before.left(["*.tmp.*"]), ["file new"])

    def test_shared_memory_is_noticed(self) -> None:
        path = SHARED_MEMORY / f"ladder-faults-test-{os.getpid()}"
        path.touch()
        self.addCleanup(path.unlink)
        with unittest.mock.patch("tests.faults.leftovers.SECONDS", 0.1):
            self.assertIn(f"shared memory {path.name}", self.before.left())

    def test_a_process_that_was_not_waited_for_is_noticed(self) -> None:
        program = self.folder / "stage_of_this_test"
        program.write_text("#!/bin/sh\necho $$\nread line\n")
        program.chmod(0o755)
        adopt_orphans()
        script = '"$0" <&0 &'
        with subprocess.Popen(["bash", "-c", script, program], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as shell:
            orphan = Process(int(shell.stdout.readline()))
            shell.wait(60)  # and then the end of its input
        self.assertEqual(reap_orphans(["another"]), [])
        self.assertEqual(reap_orphans([program.name], 60), [orphan.pid])
        self.assertEqual(orphan.state, "")

    def test_a_socket_that_still_listens_is_noticed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.before.watch([Process(os.getpid())])
            address = f"127.0.0.1:{server.getsockname()[1]}"
            self.assertEqual(self.before.left(), [f"listener {address}"])
        self.assertEqual(self.before.left(), [])


if __name__ == "__main__":
    unittest.main()
