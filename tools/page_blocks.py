# SPDX-License-Identifier: Apache-2.0
"""What the cog blocks of the pages call: quoted code, help texts, numbers in tables.

A block is an HTML comment with a call, its output, and an end mark; tools/pages.sh writes the
output. The calls:

    quote("FILE#NAME")            the lines between `#region NAME` and `#endregion NAME`
    quote("FILE", PIECE, ...)     pieces of a file in their order, `...` between them. A piece is
                                  the beginning of a line, or "FIRST .. LAST": the beginnings of its
                                  first and its last line; "FIRST .. }" ends at the brace that
                                  closes the block. The amount of white space does not count.
    help_text("PROGRAM")          output of build/bin/PROGRAM --help
    stage_cells(COLUMN, VALUES)   rewrites cells of the table in the block, in the rows of the
                                  stages: changed_lines, added_and_removed or lengths of ladder.py
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import cog

import ladder

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(os.environ.get("LADDER_BIN", ROOT / "build/bin"))
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".diff": "diff"}
MARK = re.compile(r"(?://|#) #(end)?region\s+(\S+)\s*$")


def fail(text: str) -> NoReturn:
    cog.error(f"{cog.inFile}:{cog.firstLineNum}: {text}")
    raise AssertionError


def dedented(lines: Sequence[str]) -> list[str]:
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip(" .")), default=0)
    return [line if line == "..." else line[depth:].rstrip() for line in lines]


def region(lines: Sequence[str], name: str) -> Sequence[str]:
    marks = [(number, match[1]) for number, line in enumerate(lines)
             if (match := MARK.search(line)) and match[2] == name]
    if [end for _, end in marks] != [None, "end"]:
        fail(f"expected one `#region {name}` and one `#endregion {name}`, got {len(marks)} marks")
    (begin, _), (end, _) = marks
    return lines[begin + 1:end]


def plain(line: str) -> str:
    """White space does not count, except between words; nor does that behind the sign of a diff."""
    return re.sub(r"^([-+]) ", r"\1", " ".join(line.split()))


def find(lines: Sequence[str], wanted: str, begin: int) -> int:
    for number in range(begin, len(lines)):
        if plain(lines[number]).startswith(plain(wanted)):
            return number
    raise LookupError(wanted)


def closing(lines: Sequence[str], opened: int) -> int:
    """The next brace that is not further to the right."""
    depth = len(lines[opened]) - len(lines[opened].lstrip())
    for number in range(opened + 1, len(lines)):
        if lines[number].lstrip().startswith("}") and not lines[number][:depth + 1].isspace():
            return number
    raise LookupError("}")


def pieces_of(lines: Sequence[str], pieces: Sequence[str]) -> list[str]:
    """The pieces, with a line of dots for each gap that is more than blank lines."""
    found: list[str] = []
    place = 0
    for piece in pieces:
        first, _, last = piece.partition(" .. ")
        begin = end = find(lines, first, place)
        if last:
            end = closing(lines, begin) if last == "}" else find(lines, last, begin + 1)
        gap = lines[place:begin] if found else []
        found += ["..."] if any(gap) else gap
        found += lines[begin:end + 1]
        place = end + 1
    return found


def quote(source: str, *pieces: str) -> None:
    name, _, wanted = source.partition("#")
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    try:
        shown = region(lines, wanted) if wanted else pieces_of(lines, pieces)
    except LookupError as missing:
        fail(f"{name} has no such line there: {missing}; quote another line, or in another order")
    shown = dedented([line for line in shown if not MARK.search(line)])
    print(f"```{LANGUAGES[Path(name).suffix]}", *shown, "```", sep="\n")


def help_text(program: str) -> None:
    """Of a program that is not built, the present text stays."""
    if not (BIN / program).exists():
        print(cog.previous, end="")
        return
    done = subprocess.run([BIN / program, "--help"], check=True, capture_output=True, text=True,
                          timeout=60)
    print("```text", done.stdout.replace(f"{BIN.parents[1]}/", "").rstrip("\n"), "```", sep="\n")


def stage_cells(column: int, values: Callable[[Path], dict[str, list[object]]]) -> None:
    """The first column of a table is number 1."""
    missing = values(ROOT)
    for line in cog.previous.splitlines():
        cells = line.split("|")
        own = missing.pop(cells[1].strip(" `"), []) if line.startswith("|") else []
        cells[column:column + len(own)] = [f" {value} " for value in own]
        print("|".join(cells))
    if missing:
        fail(f"expected a row `{next(iter(missing))}` in the table; write one")
