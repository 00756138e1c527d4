#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds damaged inputs to every parser, and prints what became of them and which lines they reach.

    tests/fuzz/fuzz.py BUILD [--inputs N] [--seed S]

Runs BUILD/bin/parser_mutations for each parser, as many at a time as there are CPUs, then
BUILD/bin/parser_coverage. A finding is a file in the current folder. Exit code: 0 no finding and
95 % of the lines of each source, 1 anything else.
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
import coverage  # noqa: E402

RESULT = re.compile(r"\w+: (\d+) accepted, (\d+) refused, (\d+) findings, (\d+\.\d) s$")


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


def lines_of(results: Sequence[Result], sources: dict[str, list[str]],
             rows: Sequence[coverage.Coverage]) -> list[str]:
    """The table, a parser a line. Without `rows`, nothing is known of the lines."""
    lines = [f"{'parser':<24} {'accepted':>9} {'refused':>9} {'findings':>9} {'seconds':>8}"
             f" {'lines':>6} {'reached':>8}"]
    for result in results:
        accepted, refused, findings, seconds = result.numbers or ("-", "-", "died", "-")
        own = [row for row in rows if row.source in sources[result.parser]]
        count, reached = ((sum(row.lines for row in own), sum(row.reached for row in own))
                          if own else ("-", "-"))
        lines.append(f"{result.parser:<24} {accepted:>9} {refused:>9} {findings:>9} {seconds:>8}"
                     f" {count:>6} {reached:>8}")
    return lines


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, metavar="BUILD", help="the build folder")
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N",
                        help="for each parser")
    parser.add_argument("--seed", type=int, metavar="S", help="other inputs")
    options = parser.parse_args(given)
    program = options.build.resolve() / "bin/parser_mutations"
    listing = subprocess.run([program, "--list"], check=True, stdout=subprocess.PIPE, text=True)
    sources = coverage.sources_of(listing.stdout)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda name: feed(program, name, options), sources))
    passed = all(result.passed for result in results)
    rows = coverage.measure(options.build.resolve(), coverage.INPUTS) if passed else []
    print("\n".join([*lines_of(results, sources, rows), "", *coverage.lines_of(rows)]))
    return 0 if passed and coverage.enough(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
