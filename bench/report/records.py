# SPDX-License-Identifier: Apache-2.0
"""Finds records that are older than the sources that produced them.

    python3 bench/report/records.py [--root DIR]

A record names the commit that it was measured at. It is stale if a later commit changed one of its
sources, if that commit is not in the history, or if it had changes that were in no commit.
Exit code: 0 none is stale, 1 some are, 2 a record cannot be read or has no sources here.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "bench/results"
PROGRAMS = ("ladder", "mnist", "stage*_*/main.cpp")
SUITE = (*PROGRAMS, "bench/suite", "bench/peers")
COMMIT = re.compile(r'"commit"\s*:\s*"([^"]*)"')


class Source(NamedTuple):
    """Of the records with such names: what they depend on, and how to measure again."""

    names: str
    paths: tuple[str, ...]
    command: str


SOURCES = (  # the first that fits counts
    Source("*.step.json", ("ladder", "mnist", "stage0_single_gpu/main.cpp",
                           "bench/measure/step.py"),
           "python3 bench/measure/step.py {}"),
    Source("*.gradients.json", ("bench/peers/common.py", "bench/measure/gradients.py"),
           ".venv/bin/python bench/measure/gradients.py {}"),
    Source("*.updates.json", ("ladder", "mnist", "stage6_trainer/main.cpp",
                              "bench/measure/updates.py"),
           "python3 bench/measure/updates.py {}"),
    Source("*.links.json", ("ladder", "mnist", "bench/links", "bench/micro/training_step.h",
                            "tests/support/network.py", "tests/support/training.h"),
           "./run links; cp runs/links.json {}"),
    Source("*.short.json", SUITE, "./run; cp runs/short.json {}"),
    Source("*.whole.json", SUITE, "./run whole; cp runs/whole.json {}"),
    Source("*.json", SUITE, "./run bench; cp runs/bench.json {}"),
)


class RecordError(Exception):
    """A record that cannot be judged."""


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True,
                          check=False, timeout=60)
    if done.returncode != 0:
        raise RecordError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines
                 if line.startswith("model name")), "unknown")


def described() -> dict[str, Any]:
    """The commit of this checkout and the machine, for a record that is measured now."""
    try:
        commit = git(ROOT, "describe", "--always", "--dirty").strip()
    except (RecordError, OSError):  # no repository, or no git
        commit = "unknown"
    return {"commit": commit,
            "machine": {"cpu": cpu_name(), "cpus": len(os.sched_getaffinity(0)),
                        "kernel": platform.release(), "load_before": os.getloadavg()[0]}}


def commit_of(text: str) -> tuple[int, str]:
    """The line of the record that names its commit, and the commit; line 1 and "" without."""
    found = COMMIT.search(text)
    return (text.count("\n", 0, found.start()) + 1, found[1]) if found else (1, "")


def in_history(root: Path, commit: str) -> bool:
    done = subprocess.run(["git", "-C", root, "merge-base", "--is-ancestor", commit, "HEAD"],
                          capture_output=True, check=False, timeout=60)
    return done.returncode == 0


def why_stale(root: Path, commit: str, paths: tuple[str, ...]) -> str:
    """Empty if it is not."""
    if not commit:
        return "it names no commit"
    if "dirty" in commit:
        return f"it was measured at {commit}: with changes that are in no commit"
    if not in_history(root, commit):
        return (f"its commit {commit} is not in the history of HEAD (in a shallow clone: "
                "git fetch --unshallow)")
    newest = git(root, "log", "-1", "--format=%h %s", f"{commit}..HEAD", "--",
                 *(f":(glob){path}{'' if Path(path).suffix else '/**'}"
                   for path in paths)).strip()
    return f"measured at {commit}, and its sources changed in {newest}" if newest else ""


def judge(root: Path, record: Path) -> str:
    """A line about a stale record; empty if it is not."""
    name = record.relative_to(root).as_posix()
    source = next((one for one in SOURCES if fnmatch(record.name, one.names)), None)
    if source is None:
        raise RecordError(f"{name}: a record without sources; hint: add it to SOURCES in "
                          "bench/report/records.py")
    line, commit = commit_of(record.read_text(encoding="utf-8"))
    reason = why_stale(root, commit, source.paths)
    return reason and f"{name}:{line}: stale: {reason}; hint: {source.command.format(name)}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Finds records older than their sources.")
    parser.add_argument("--root", type=Path, default=ROOT,
                        help="default: this checkout")
    root = parser.parse_args(arguments).root.resolve()
    try:
        found = [judge(root, record) for record in sorted((root / FOLDER).glob("*"))
                 if record.is_file()]
        if not found:
            raise RecordError(f"{root / FOLDER}: no record; hint: is --root the project's root?")
    except (RecordError, OSError, UnicodeDecodeError, subprocess.TimeoutExpired) as error:
        print(f"records: {error}", file=sys.stderr)
        return 2
    stale = list(filter(None, found))
    print("".join(f"{line}\n" for line in stale), end="")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
