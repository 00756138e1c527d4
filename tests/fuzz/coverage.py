#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs BUILD/bin/parser_coverage, and prints how many lines of the parsers its inputs reach.

    tests/fuzz/coverage.py BUILD [--inputs N] [--missing]

The sources are those that `parser_coverage --list` names. A line counts once, however many
functions a template makes of it. Exit code: 0 each source has 95 % of its lines reached, 1 one has
not.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEAST = 95.0  # percent of the lines of each source
INPUTS = 20_000  # for each parser, as in the default tier


class Coverage(NamedTuple):
    source: str
    lines: int
    missing: list[int]

    @property
    def reached(self) -> int:
        return self.lines - len(self.missing)

    @property
    def percent(self) -> float:
        return 100.0 * self.reached / self.lines


def sources_of(listing: str) -> dict[str, list[str]]:
    """By parser, from what --list prints: a parser and its sources a line."""
    return {name: sources for name, *sources in map(str.split, listing.splitlines())}


def coverage_of(source: str, report: dict[str, Any]) -> Coverage:
    """`report` is gcov's, of the file that was compiled and of all that it includes."""
    counts: dict[int, int] = {}
    for file in report["files"]:
        if not file["file"].endswith(source):
            continue
        for line in file["lines"]:
            number = line["line_number"]
            counts[number] = max(counts.get(number, 0), line["count"])
    if not counts:
        raise ValueError(f"gcov knows no line of {source}")
    return Coverage(source, len(counts), sorted(n for n, count in counts.items() if count == 0))


def gcov(data: Path) -> dict[str, Any]:
    done = subprocess.run(["gcov", "--json-format", "--stdout", data], check=True, text=True,
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def measure(build: Path, inputs: int) -> list[Coverage]:
    program = build / "bin/parser_coverage"
    objects = build / "tests/CMakeFiles/parser_coverage.dir/__"
    for data in objects.rglob("*.gcda"):  # of earlier runs
        data.unlink()
    listing = subprocess.run([program, "--list"], check=True, stdout=subprocess.PIPE, text=True)
    subprocess.run([program, "--inputs", str(inputs)], check=True, stdout=subprocess.DEVNULL)
    sources = {source for some in sources_of(listing.stdout).values() for source in some}
    return [coverage_of(source, gcov(objects / f"{source}.gcda")) for source in sorted(sources)]


def lines_of(rows: Sequence[Coverage], show_missing: bool = False) -> list[str]:
    """The table."""
    lines = [f"{'source':<42} {'lines':>6} {'reached':>8} {'percent':>8}"]
    for row in rows:
        lines.append(f"{row.source:<42} {row.lines:>6} {row.reached:>8} {row.percent:>8.1f}")
        if show_missing and row.missing:
            lines.append(f"    not reached: {', '.join(map(str, row.missing))}")
    return lines


def enough(rows: Sequence[Coverage]) -> bool:
    return all(row.percent >= LEAST for row in rows)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, metavar="BUILD", help="the build folder")
    parser.add_argument("--inputs", type=int, default=INPUTS, metavar="N", help="for each parser")
    parser.add_argument("--missing", action="store_true", help="name the lines not reached")
    options = parser.parse_args(given)
    rows = measure(options.build.resolve(), options.inputs)
    print("\n".join(lines_of(rows, options.missing)))
    return 0 if enough(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
