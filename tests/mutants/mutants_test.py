# SPDX-License-Identifier: Apache-2.0
"""mutants.txt fits the sources, and mutants.py refuses a fault that does not."""
from __future__ import annotations

import pytest

import mutants

FAULT = mutants.Fault("sign", "ladder/a.cpp", "++a;", "--a;", ["ladder.a"])


def test_every_fault_changes_one_line_of_its_file() -> None:
    for fault in mutants.parse(mutants.TABLE.read_text()):
        assert fault.file.startswith(("ladder/", "mnist/")), fault.name
        text = (mutants.ROOT / fault.file).read_text()
        changed = zip(text.split("\n"), fault.apply(text).split("\n"), strict=True)
        assert sum(old != new for old, new in changed) == 1, fault.name


def test_a_fault_keeps_the_indentation() -> None:
    assert FAULT.apply("{\n  ++a;\n}\n") == "{\n  --a;\n}\n"


@pytest.mark.parametrize("text, times", [("++b;\n", 0), ("++a;\n++a;\n", 2)])
def test_a_fault_is_refused_unless_its_line_occurs_once(text: str, times: int) -> None:
    with pytest.raises(mutants.Unusable, match=f"'sign'.* got {times} times"):
        FAULT.apply(text)


@pytest.mark.parametrize("output, case", [
    ("[ RUN      ] A.B\n[  FAILED  ] A.B (1 ms)\n", "A.B"),
    ("FAIL: test_it (a.B.test_it)\n", "test_it"),
    ("[ RUN      ] A.C\n1/1 Test #1: ***Timeout 1 s\n", "A.C (timeout)"),
    ("[ RUN      ] A.D\n***Exception: SegFault\n", "A.D (crash)")])
def test_the_first_failure_in_the_output_of_ctest(output: str, case: str) -> None:
    assert mutants.first_failure(output) == case
