# SPDX-License-Identifier: Apache-2.0
"""tests/fuzz/fuzz.py and coverage.py, on a stand-in for the program and on reports made here."""
from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/fuzz"))
import coverage  # noqa: E402
import fuzz  # noqa: E402

# Takes the arguments of parser_mutations. The parser "bad" has a finding, "ill" dies.
PROGRAM = """#!/bin/sh
case "$*" in
  --list) printf 'good ladder/a.cpp ladder/b.cpp\\nother ladder/b.cpp\\n%s' "$EXTRA" ;;
  *bad*) echo "bad: 1 accepted, 2 refused, 1 findings, 0.1 s"; exit 1 ;;
  *ill*) kill -ABRT $$ ;;
  *) echo "$2: 3 accepted, 4 refused, 0 findings, 0.2 s"; echo "saw $*" ;;
esac
"""


def report(source: str, counts: dict[int, list[int]]) -> dict[str, object]:
    """As gcov makes it: one entry for each function that has the line."""
    lines = [{"line_number": number, "count": count}
             for number, some in counts.items() for count in some]
    header = {"file": "/usr/include/string", "lines": [{"line_number": 1, "count": 0}]}
    return {"files": [header, {"file": f"/checkout/{source}", "lines": lines}]}


class Lines(unittest.TestCase):
    def test_count_once_and_are_reached_if_one_function_was(self) -> None:
        found = coverage.coverage_of("ladder/a.cpp",
                                     report("ladder/a.cpp", {3: [0, 7, 0], 4: [0, 0], 5: [1]}))
        self.assertEqual(found, coverage.Coverage("ladder/a.cpp", 3, [4]))
        self.assertEqual(found.reached, 2)

    def test_of_a_source_that_gcov_does_not_know_are_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "ladder/b.cpp"):
            coverage.coverage_of("ladder/b.cpp", report("ladder/a.cpp", {3: [1]}))

    def test_are_enough_from_95_percent_of_each_source_on(self) -> None:
        full = coverage.Coverage("ladder/a.cpp", 1000, [])
        self.assertTrue(coverage.enough([full, coverage.Coverage("ladder/b.cpp", 20, [1])]))
        self.assertFalse(coverage.enough([full, coverage.Coverage("ladder/b.cpp", 39, [1, 2])]))


class Fuzz(unittest.TestCase):
    def run_fuzz(self, extra: str = "", missing: int = 0) -> tuple[int, str]:
        """With the parsers of `extra` too, and lines of b.cpp not reached."""
        rows = [coverage.Coverage("ladder/a.cpp", 10, []),
                coverage.Coverage("ladder/b.cpp", 100, list(range(missing)))]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "bin/parser_mutations"
            program.parent.mkdir()
            program.write_text(PROGRAM, encoding="utf-8")
            program.chmod(0o755)
            out = io.StringIO()
            with (contextlib.redirect_stdout(out),
                  mock.patch.dict("os.environ", {"EXTRA": extra}),
                  mock.patch.object(coverage, "measure", return_value=rows)):
                code = fuzz.main([folder, "--inputs", "7", "--seed", "5"])
        return code, out.getvalue()

    def test_prints_a_table_of_all_parsers(self) -> None:
        code, out = self.run_fuzz(missing=5)
        self.assertEqual(code, 0)
        self.assertIn("saw --only good --inputs 7 --seed 5\n", out)
        self.assertRegex(out, r"\ngood +3 +4 +0 +0\.2 +110 +105\nother +3 +4 +0 +0\.2 +100 +95\n")
        self.assertRegex(out, r"\nladder/b\.cpp +100 +95 +95\.0\n")

    def test_fails_if_too_few_lines_are_reached(self) -> None:
        self.assertEqual(self.run_fuzz(missing=6)[0], 1)

    def test_fails_if_there_is_a_finding(self) -> None:
        code, out = self.run_fuzz("bad ladder/a.cpp\n")
        self.assertEqual(code, 1)
        self.assertRegex(out, r"\nbad +1 +2 +1 +0\.1 +- +-\n")

    def test_fails_if_a_program_dies(self) -> None:
        code, out = self.run_fuzz("ill ladder/a.cpp\n")
        self.assertEqual(code, 1)
        self.assertRegex(out, r"\nill +- +- +died +- +- +-\n")


if __name__ == "__main__":
    unittest.main()
