# SPDX-License-Identifier: Apache-2.0
"""fuzz.py, on a stand-in for the program and on reports made here."""
from __future__ import annotations

import re
from pathlib import Path

import fuzz
import pytest

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


def test_a_line_counts_once_and_is_reached_if_one_function_was() -> None:
    found = fuzz.coverage_of("ladder/a.cpp",
                                 report("ladder/a.cpp", {3: [0, 7, 0], 4: [0, 0], 5: [1]}))
    assert found == fuzz.Coverage("ladder/a.cpp", 3, [4])
    with pytest.raises(ValueError, match="ladder/b.cpp"):
        fuzz.coverage_of("ladder/b.cpp", report("ladder/a.cpp", {3: [1]}))


@pytest.mark.parametrize("extra, missing, code, rows", [
    ("", 5, 0, ["good +3 +4 +0 +0.2", "other +3 +4 +0 +0.2", "ladder/b.cpp +100 +95 +95.0",
                "    not reached: 0, 1, 2, 3, 4"]),
    ("", 6, 1, []),  # less than 95 % of the lines of a source
    ("bad ladder/a.cpp\n", 0, 1, ["bad +1 +2 +1 +0.1"]),
    ("ill ladder/a.cpp\n", 0, 1, ["ill +- +- +died +-"])])
def test_the_table_of_all_parsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                  capfd: pytest.CaptureFixture[str], extra: str, missing: int,
                                  code: int, rows: list[str]) -> None:
    measured = [fuzz.Coverage("ladder/a.cpp", 10, []),
                fuzz.Coverage("ladder/b.cpp", 100, list(range(missing)))]
    monkeypatch.setenv("EXTRA", extra)
    monkeypatch.setattr(fuzz, "measure", lambda *_: measured)
    program = tmp_path / "bin/parser_mutations"
    program.parent.mkdir()
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    assert fuzz.main([str(tmp_path), "--inputs", "7", "--seed", "5", "--missing"]) == code
    out = capfd.readouterr().out
    assert "saw --only good --inputs 7 --seed 5\n" in out
    for row in rows:
        assert re.search(rf"^{row}$", out, re.MULTILINE)
