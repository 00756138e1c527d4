# SPDX-License-Identifier: Apache-2.0
"""tools/mutants.txt fits the sources, and tools/mutants.py refuses a fault that does not."""
from __future__ import annotations

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import mutants  # noqa: E402


class Table(unittest.TestCase):
    def test_every_fault_changes_one_line_of_its_file(self) -> None:
        faults = mutants.parse(mutants.TABLE.read_text())
        self.assertGreaterEqual(len(faults), 40)
        for fault in faults:
            with self.subTest(fault.name):
                self.assertRegex(fault.file, r"^(ladder|mnist)/")
                text = (ROOT / fault.file).read_text()
                changed = zip(text.split("\n"), fault.apply(text).split("\n"), strict=True)
                self.assertEqual(sum(old != new for old, new in changed), 1)


class Fault(unittest.TestCase):
    fault = mutants.Fault("sign", "ladder/a.cpp", "++a;", "--a;", ["ladder.a"])

    def test_keeps_the_indentation(self) -> None:
        self.assertEqual(self.fault.apply("{\n  ++a;\n}\n"), "{\n  --a;\n}\n")

    def test_is_refused_unless_its_line_occurs_once(self) -> None:
        for text, times in (("++b;\n", 0), ("++a;\n++a;\n", 2)):
            with self.assertRaisesRegex(mutants.Unusable, f"'sign'.* got {times} times"):
                self.fault.apply(text)


class FirstFailure(unittest.TestCase):
    def test_is_read_from_the_output_of_both_kinds_of_tests(self) -> None:
        for output, case in (("[ RUN      ] A.B\n[  FAILED  ] A.B (1 ms)\n", "A.B"),
                             ("FAIL: test_it (a.B.test_it)\n", "test_it"),
                             ("[ RUN      ] A.C\n1/1 Test #1: ***Timeout 1 s\n", "A.C (timeout)"),
                             ("[ RUN      ] A.D\n***Exception: SegFault\n", "A.D (crash)")):
            self.assertEqual(mutants.first_failure(output), case)


if __name__ == "__main__":
    unittest.main()
