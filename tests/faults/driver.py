# SPDX-License-Identifier: Apache-2.0
"""Runs the table of faults on the built programs.

    .venv/bin/python tests/faults/driver.py                    every case once
    .venv/bin/python tests/faults/driver.py --only 'stage 5'   those in whose name this is found
    .venv/bin/python tests/faults/driver.py --list             their names

A line for each case as it ends, then a table: the seconds from the fault to the end of all, of
each stage. Exit code: 0 all cases as promised, 1 some not, 2 none chosen.
"""
from __future__ import annotations

import argparse
import collections
import re
import signal
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.faults.case import PROGRAMS, Case, run_case  # noqa: E402
from tests.faults.cases import table  # noqa: E402

Ends = dict[tuple[str, int], list[str]]  # of a fault and a stage


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    parser.add_argument("--only", metavar="REGEX", default="", help="those whose name has this")
    parser.add_argument("--repeats", metavar="N", type=int, default=1,
                        help="run each N times, those that are drawn by lot once")
    return parser.parse_args(given)


def run(case: Case, folder: Path) -> str:
    """Says how it ends: seconds, "skipped" or "FAILED"."""
    try:
        seconds = run_case(case, folder)
    except unittest.SkipTest as reason:
        print(f"skipped  {case.name}: {reason}", flush=True)
        return "skipped"
    except Exception:  # the others have their turn
        print(f"FAILED   {case.name}\n{traceback.format_exc()}", flush=True)
        return "FAILED"
    print(f"{seconds:6.2f} s {case.name}", flush=True)
    return f"{seconds:.1f}"


def show(ends: Ends) -> None:
    """A row a fault, a column a stage."""
    faults = list(dict.fromkeys(fault for fault, _ in ends))
    rows = [["", *(f"stage {stage}" for stage in range(len(PROGRAMS)))]]
    rows += [[fault, *(" ".join(ends.get((fault, stage), ["-"]))
                       for stage in range(len(PROGRAMS)))] for fault in faults]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    cases = [case for case in table() if re.search(options.only, case.name)]
    if options.list:
        print("\n".join(case.name for case in cases))
    if options.list or not cases:
        return 0 if cases else 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # kills the run
    started = time.monotonic()
    ends: Ends = collections.defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="ladder-faults-") as folder:
        for repeat in range(options.repeats):
            for case in cases:
                if case.once and repeat > 0:
                    continue
                ends[case.fault, case.stage].append(run(case, Path(folder)))
    show(ends)
    said = collections.Counter(end for row in ends.values() for end in row)
    total = sum(said.values())
    print(f"{total} runs of {len(cases)} cases in {time.monotonic() - started:.0f} s: "
          f"{said['FAILED']} failed, {said['skipped']} skipped")
    return 1 if said["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
