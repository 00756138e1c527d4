# SPDX-License-Identifier: Apache-2.0
"""Judges which measured rows still stand for the sources of this checkout.

    ./run records             each record: rows that are fresh, verified, or to be measured again
    ./run records --verify    compares changed programs with those of the records (sentinel.py)
    ./run records --measure   measures again the rows that are neither fresh nor verified

A row names the commit that it was measured at. bench/results/sources.json has the sources of that
commit, each by a hash of its tokens (sources.py, states.py). A row is fresh if its program's
sources have the same hashes now. If not, --verify compares what no noise touches: instructions per
step, weights after 20 steps, bytes sent. Rows that pass are verified at the commit of this
checkout.

Exit code: 0 every row is fresh or verified, 1 some are not, 2 a record cannot be read or measured.
Without a GPU, rows of a GPU do not count.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import sentinel
from record import run_program
from rows import MINUTE, ROOT, Record, RecordError, Records, Row


def shown(records: Records) -> list[str]:
    lines = [f"{'record':<28}{'rows':>6}{'fresh':>7}{'verified':>10}{'changed':>9}"
             f"{'minutes to measure':>20}"]
    for record in records.records:
        stale = [row for row in record.rows if row in records.stale]
        verified = sum(row.judged_at != row.commit for row in record.rows if row not in stale)
        minutes = sum(row.seconds for row in stale) / MINUTE
        lines.append(f"{record.path.name:<28}{len(record.rows):>6}"
                     f"{len(record.rows) - len(stale) - verified:>7}{verified:>10}{len(stale):>9}"
                     f"{minutes:>20.1f}")
        if stale and record.needs_gpu:
            lines[-1] += ", on a GPU, which this machine has not"
    reasons: dict[str, list[str]] = {}
    for row, names in records.stale.items():
        text = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        reasons.setdefault(text, []).append(row.program or row.name)
    for text, programs in reasons.items():
        lines.append(f"changed: {text}: rows of {', '.join(dict.fromkeys(programs))}")
    if records.pending:
        lines.append("./run records --verify compares instructions, weights and bytes; "
                     "./run records --measure measures again")
    return lines


def measure_suite(records: Records, record: Record, rows: list[Row], commit: str) -> None:
    """Replaces the rows of which no repetition failed, before it reports one that did."""
    failure = None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        try:
            run(records.root, "build/bin/suite", "--tier", record.kind.command, "--folder", folder,
                f"--benchmark_filter={pattern_of(rows)}", f"--benchmark_out={out}")
        except RecordError as error:
            failure = error
        entries = json.loads(out.read_text(encoding="utf-8"))["benchmarks"] if out.exists() else []
    failed = {one["run_name"]: one["error_message"] for one in entries if "error_message" in one}
    fresh = [one for one in entries if one["run_name"] not in failed]
    names = {entry["run_name"] for entry in fresh}
    kept = [one for one in record.content["benchmarks"] if one.get("run_name") not in names]
    record.content["benchmarks"] = kept + [one | {"commit": commit} for one in fresh]
    record.write()
    if failed:
        raise RecordError(f"{record.path.name}: not measured: " + "; ".join(
            f"{name}: {message}" for name, message in failed.items()))
    if failure:
        raise failure


def measure_whole(records: Records, record: Record) -> None:
    """Replaces a record of another program than the suite, if all of it was measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / record.path.name
        run(records.root, ".venv/bin/python", *record.kind.command.format(out).split())
        text = out.read_text(encoding="utf-8")
    if "not_run" in text:
        raise RecordError(f"{record.path.name}: left as it is: a part was not run")
    record.path.write_text(text, encoding="utf-8")


def pattern_of(rows: Iterable[Row]) -> str:
    """For the suite's filter, which is a regular expression."""
    return "^(" + "|".join(re.escape(row.name).replace("\\-", "-") for row in rows) + ")$"


def run(root: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=root, check=False)
    if done.returncode != 0:
        raise RecordError(f"{command[0]}: exit code {done.returncode}")


def measure(records: Records) -> None:
    commit = records.add_state_of_now()
    run(records.root, "bash", "-c", "tools/setup.sh bench && tools/configure.sh release && "
        "cmake --build --preset release --target stages suite libtorch_usual links divided_memory")
    try:
        for record in records.records:
            rows = [row for row in record.rows if row in records.pending]
            if not rows:
                continue
            if not record.is_of_this_machine:
                print(f"{record.path.name}: left as it is, measured on another machine or kernel; "
                      f"hint: ./run {record.kind.command} measures a whole record", flush=True)
                continue
            print(f"measuring {len(rows)} rows of {record.path.name}, about "
                  f"{sum(row.seconds for row in rows) / MINUTE:.0f} min", flush=True)
            if record.kind.entries:
                measure_whole(records, record)
            else:
                measure_suite(records, record, rows, commit)
    finally:
        again = Records(records.root)
        again.states = records.states
        again.write_states()


def verify(records: Records) -> list[str]:
    """Lines about the rows that fail."""
    if not shutil.which("valgrind"):
        raise RecordError("valgrind is missing; hint: tools/setup.sh test")
    commit = records.add_state_of_now()
    failures = sentinel.compare(records)
    for row in records.pending:
        if row not in failures:
            row.verify(commit)
    for record in records.records:
        record.write()
    records.write_states()
    return [f"{row.name}: {reason}" for row, reason in failures.items()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./run records", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="default: this checkout")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--verify", action="store_true",
                        help="compare changed programs with those of the records")
    choice.add_argument("--measure", action="store_true",
                        help="measure rows that are neither fresh nor verified")
    flags = parser.parse_args(arguments)
    try:
        records = Records(flags.root.resolve())
        if flags.measure and records.pending:
            measure(records)
            records = Records(records.root)
        if flags.verify and records.pending:
            start = time.monotonic()
            failures = verify(records)
            print(*failures, f"verified in {(time.monotonic() - start) / MINUTE:.1f} min", sep="\n")
            records = Records(records.root)
        print(*shown(records), sep="\n")
        records.write_states()  # of commits that git may lose later
        return 1 if records.pending else 0
    except (RecordError, OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"records: {getattr(error, 'stderr', None) or error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    run_program(main)
