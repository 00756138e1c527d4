#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds damaged inputs to every parser, and prints what became of them and which lines they reach.

    tests/fuzz/fuzz.py BUILD [--inputs N] [--seed S] [--missing]

Runs BUILD/bin/parser_mutations for each parser, as many at a time as there are CPUs, then
BUILD/bin/parser_coverage. A finding is a file in the current folder. A line counts once, however
many functions a template makes of it. Exit code: 0 no finding and 95 % of the lines of each source,
1 anything else.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

RESULT = re.compile(r"\w+: (\d+) accepted, (\d+) refused, (\d+) findings, (\d+\.\d) s$")
LEAST = 95.0  # percent of the lines of each source
INPUTS = 20_000  # for each parser where lines are counted, as in the default tier


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


def sources_of(program: Path) -> dict[str, list[str]]:
    """By parser, from what --list prints: a parser and its sources a line."""
    done = subprocess.run([program, "--list"], check=True, stdout=subprocess.PIPE, text=True)
    return {name: sources for name, *sources in map(str.split, done.stdout.splitlines())}


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


def measure(build: Path) -> list[Coverage]:
    program = build / "bin/parser_coverage"
    objects = build / "tests/CMakeFiles/parser_coverage.dir/__"
    for data in objects.rglob("*.gcda"):  # of earlier runs
        data.unlink()
    subprocess.run([program, "--inputs", str(INPUTS)], check=True, stdout=subprocess.DEVNULL)
    sources = {source for some in sources_of(program).values() for source in some}
    return [coverage_of(source, gcov(objects / f"{source}.gcda")) for source in sorted(sources)]


def coverage_lines(rows: Sequence[Coverage], show_missing: bool) -> list[str]:
    lines = [f"{'source':<42} {'lines':>6} {'reached':>8} {'percent':>8}"]
    for row in rows:
        lines.append(f"{row.source:<42} {row.lines:>6} {row.reached:>8} {row.percent:>8.1f}")
        if show_missing and row.missing:
            lines.append(f"    not reached: {', '.join(map(str, row.missing))}")
    return lines


class Result(NamedTuple):
    parser: str
    numbers: Sequence[str]  # accepted, refused, findings, seconds; empty if the program died
    passed: bool


def feed(program: Path, parser: str, options: argparse.Namespace) -> Result:
    command = [program, "--only", parser, "--inputs", str(options.inputs)]
    if options.seed is not None:
        command += ["--seed", str(options.seed)]
    numbers: Sequence[str] = ()
    with subprocess.Popen(command, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if found := RESULT.match(line):
                numbers = found.groups()
    return Result(parser, numbers, process.returncode == 0)


def result_lines(results: Sequence[Result]) -> list[str]:
    rows = [("parser", "accepted", "refused", "findings", "seconds"),
            *((result.parser, *(result.numbers or ("-", "-", "died", "-"))) for result in results)]
    return [f"{parser:<24} {accepted:>9} {refused:>9} {findings:>9} {seconds:>8}"
            for parser, accepted, refused, findings, seconds in rows]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, metavar="BUILD", help="the build folder")
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N",
                        help="for each parser")
    parser.add_argument("--seed", type=int, metavar="S", help="other inputs")
    parser.add_argument("--missing", action="store_true", help="name the lines not reached")
    options = parser.parse_args(given)
    program = options.build.resolve() / "bin/parser_mutations"
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda name: feed(program, name, options), sources_of(program)))
    passed = all(result.passed for result in results)
    rows = measure(options.build.resolve()) if passed else []
    print("\n".join([*result_lines(results), "", *coverage_lines(rows, options.missing)]))
    return 0 if passed and all(row.percent >= LEAST for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
