#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the tests: applies one-line faults to the sources, one at a time, and runs tests on each.

    tests/mutants/mutants.py                    every fault of tests/mutants/mutants.txt
    tests/mutants/mutants.py --only 'bucket'    the faults whose name matches this regular expression
    tests/mutants/mutants.py --report           table of the results so far; runs nothing

Works on a copy of the sources with a build of its own; both are kept, and so are the results. A
second call skips the faults that it has results for, as long as neither fault nor sources change.
Without a fault, all named tests must pass first. The first call builds the library (10 to 20
minutes on two cores); a fault then takes about half a minute. It is no part of ./test.

A fault whose code does not compile counts as not caught. Exit code: 0 if at least 95 % of the
faults are caught, 1 if fewer are, 2 if nothing can be concluded.
"""
from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutants.txt")
WANTED = 0.95  # share of the faults that the tests must catch

# What the tests of this table depend on. A change of anything else keeps the results.
SOURCES = re.compile(r"(ladder|mnist|stage\d_\w+|cmake|data|tests)/|CMake")
NOT_SOURCES = re.compile(r"tests/(tools|mutants)/|.*\.md$")

Record = dict[str, Any]  # a line of the results file


class Unusable(Exception):
    """Nothing can be concluded; the message has the reason."""


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    @property
    def key(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    def apply(self, text: str) -> str:
        lines = text.split("\n")
        places = [i for i, line in enumerate(lines) if line.strip() == self.old]
        if len(places) != 1:
            raise Unusable(f"{TABLE.name}: fault '{self.name}': expected its old line once in "
                           f"{self.file}, got {len(places)} times: {self.old}")
        line = lines[places[0]]
        indentation = line[:len(line) - len(line.lstrip())]
        lines[places[0]] = indentation + self.new if self.new else ""
        return "\n".join(lines)


def parse(table: str) -> list[Fault]:
    """The faults of the table, whose head explains the form."""
    text = re.sub(r"^#.*\n", "", table, flags=re.MULTILINE)
    faults = []
    for block in re.split(r"\n\n+", text.strip()):
        fields = [line.partition(" ") for line in block.split("\n")]
        if [name for name, _, _ in fields] != ["fault", "file", "old", "new", "tests"]:
            raise Unusable(f"{TABLE.name}: expected fault, file, old, new, tests, got:\n{block}")
        fault, file, old, new, tests = (value.strip() for _, _, value in fields)
        faults.append(Fault(fault, file, old, new, tests.split()))
    if len({fault.name for fault in faults}) != len(faults):
        raise Unusable(f"{TABLE.name}: two faults have the same name")
    return faults


def targets_of(tests: Sequence[str]) -> list[str]:
    """The CMake targets that these tests run."""
    targets = set()
    for test in tests:
        kind, _, name = test.partition(".")
        of_stages = kind not in ("ladder", "fake_gpu") or name in ("stages", "costs")
        targets.add("stages" if of_stages else f"{name}_test")
        targets |= {"fake_cuda"} if kind == "fake_gpu" else set()
    return sorted(targets)


def preset_of(tests: Sequence[str]) -> str:
    """The CMake preset in which these tests run: one for all tests of a fault."""
    presets = {"fake-cuda" if test.startswith("fake_gpu.") else "release" for test in tests}
    if len(presets) != 1:
        raise Unusable(f"expected tests of one build, got {' '.join(tests)}")
    return presets.pop()


def tracked_files() -> list[str]:
    """The files that git tracks and those that it would add."""
    listing = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                             check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(name for name in set(listing.split("\0")) if name and (ROOT / name).is_file())


def hash_of_sources(root: Path, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        if SOURCES.match(name) and not NOT_SOURCES.match(name):
            content = (root / name).read_bytes()
            digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def first_failure(output: str) -> str:
    """The first failed test case in the output of ctest."""
    if found := re.search(r"\[  FAILED  \] ([\w/.]+)", output):
        return found[1]
    if found := re.search(r"^(?:FAIL|ERROR): (\w+)", output, re.MULTILINE):
        return found[1]
    started = re.findall(r"\[ RUN      \] ([\w/.]+)", output)
    how = "timeout" if "***Timeout" in output else "crash"
    return f"{started[-1]} ({how})" if started else how


def log(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


class Workspace:
    """A copy of the sources, its build and the results."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.tree, self.results = folder / "tree", folder / "results.jsonl"
        self.builds = {"release": folder / "build", "fake-cuda": folder / "build-fake-cuda"}
        self.jobs = jobs

    def synchronise(self) -> str:
        """Copies what differs, faults of an interrupted call included. Unchanged files keep their
        time; copied ones get the present one, so that they are compiled again. Returns the hash of
        the sources."""
        wanted = tracked_files()
        for name in wanted:
            source, copy = ROOT / name, self.tree / name
            if copy.is_file() and copy.read_bytes() == source.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
        for folder, _, files in os.walk(self.tree):
            for path in (Path(folder, file) for file in files):
                if str(path.relative_to(self.tree)) not in wanted and not path.is_symlink():
                    path.unlink()
        environment = self.tree / ".venv"
        if (ROOT / ".venv").exists() and not environment.exists():
            environment.symlink_to(ROOT / ".venv")
        return hash_of_sources(self.tree, wanted)

    def build_of(self, tests: Sequence[str]) -> Path:
        """The build folder of these tests, configured: without unity builds, so that a fault
        compiles one source."""
        preset = preset_of(tests)
        folder = self.builds[preset]
        if not (folder / "build.ninja").exists():
            self.command(["cmake", "--preset", preset, "-B", folder, "-DLADDER_UNITY=OFF",
                          "-DLADDER_BENCH=OFF"], "the build cannot be configured")
        return folder

    def command(self, command: Sequence[object], failure: str) -> str:
        """Runs a command and returns its output."""
        done = subprocess.run(list(map(str, command)), cwd=self.tree, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise Unusable(f"{failure}:\n{done.stdout[-4000:]}")
        return done.stdout

    def build(self, tests: Sequence[str]) -> None:
        self.command(["cmake", "--build", self.build_of(tests), "-j", self.jobs, "--target",
                      *targets_of(tests)], "the build failed")

    def failed_case(self, tests: Sequence[str]) -> str:
        """Runs tests. Returns the first test case that fails; "" if none does."""
        names = "|".join(test.replace(".", "[.]") for test in tests)
        command = ["ctest", "--test-dir", str(self.build_of(tests)), "-R", f"^({names})$",
                   "--output-on-failure", "--no-tests=error", "--stop-on-failure"]
        with subprocess.Popen(command, env={**os.environ, "GTEST_FAIL_FAST": "1"}, text=True,
                              errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, start_new_session=True) as ctest:
            try:
                output = ctest.communicate()[0]
            finally:  # a test that timed out may leave processes
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(ctest.pid, signal.SIGKILL)
        return "" if ctest.returncode == 0 else first_failure(output)

    def require_default_tests(self, tests: Sequence[str]) -> None:
        listing = self.command(["ctest", "--test-dir", self.build_of(tests), "--show-only=json-v1",
                                "-LE", "full"], "the tests cannot be listed")
        known = {test["name"] for test in json.loads(listing)["tests"]}
        if missing := sorted(set(tests) - known):
            raise Unusable(f"no tests of the default tier: {', '.join(missing)}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Within, no other call can use this folder."""
        self.tree.mkdir(parents=True, exist_ok=True)
        with (self.tree.parent / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unusable(f"{self.tree.parent}: in use; choose another --folder") from None
            yield

    @contextlib.contextmanager
    def mutated(self, fault: Fault) -> Iterator[None]:
        """Within, the fault is in the copy. The original is written anew, not put back with its old
        time: the object is newer than that, and ninja would keep the one with the fault."""
        path = self.tree / fault.file
        original = path.read_text()
        path.write_text(fault.apply(original))
        try:
            yield
        finally:
            path.write_text(original)

    def records(self) -> list[Record]:
        if not self.results.exists():
            return []
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    def append(self, record: Record) -> None:
        with self.results.open("a") as file:
            file.write(json.dumps(record) + "\n")


def run_baseline(space: Workspace, faults: Sequence[Fault], sources: str) -> None:
    """All tests must pass without a fault, else a failure with one proves nothing."""
    tests = list(dict.fromkeys(test for fault in faults for test in fault.tests))
    passed = {record.get("baseline") for record in space.records() if record["sources"] == sources}
    by_preset = [[test for test in tests if preset_of([test]) == preset] for preset in space.builds]
    for of_preset in filter(None, by_preset):
        space.require_default_tests(of_preset)
    for of_preset in by_preset:
        if missing := [test for test in of_preset if test not in passed]:
            log("building without a fault")
            space.build(missing)
        for test in missing:
            if case := space.failed_case([test]):
                raise Unusable(f"without a fault, {test} fails: {case}")
            space.append({"baseline": test, "sources": sources})
            log(f"{test} passes without a fault")


def run_fault(space: Workspace, fault: Fault, sources: str) -> Record:
    started = time.monotonic()
    with space.mutated(fault):
        try:
            space.build(fault.tests)
            case = space.failed_case(fault.tests)
            result = "caught" if case else "not caught"
        except Unusable as error:
            case, result = str(error), "does not compile"
    return {"fault": fault.name, "key": fault.key, "sources": sources, "result": result,
            "by": case, "seconds": round(time.monotonic() - started, 1)}


def results_of(space: Workspace, faults: Sequence[Fault], sources: str) -> dict[str, Record]:
    """The results of these faults in these sources, by name."""
    keys = {fault.key for fault in faults}
    return {record["fault"]: record for record in space.records()
            if record.get("key") in keys and record["sources"] == sources}


def number_caught(results: dict[str, Record]) -> int:
    return sum(record["result"] == "caught" for record in results.values())


def report(faults: Sequence[Fault], results: dict[str, Record]) -> str:
    rows = [("fault", "file", "tests", "caught by", "s")]
    for fault in faults:
        record = results.get(fault.name, {"result": "not run", "by": "", "seconds": ""})
        by = record["by"] if record["result"] == "caught" else f"-- {record['result']} --"
        rows.append((fault.name, fault.file, " ".join(fault.tests), by, str(record["seconds"])))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
             for row in rows]
    return "\n".join([*lines, "", f"caught {number_caught(results)} of {len(faults)}"])


def run(space: Workspace, faults: Sequence[Fault]) -> dict[str, Record]:
    sources = space.synchronise()
    run_baseline(space, faults, sources)
    done = results_of(space, faults, sources)
    left = [fault for fault in faults if fault.name not in done]
    for number, fault in enumerate(left, 1):
        record = run_fault(space, fault, sources)
        space.append(record)
        by = f" by {record['by']}" if record["result"] == "caught" else ""
        log(f"[{number}/{len(left)}] {record['result']}: {fault.name}{by}")
    return results_of(space, faults, sources)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="print the results and run none")
    parser.add_argument("--only", metavar="REGEX", default="", help="faults whose name matches")
    parser.add_argument("--folder", type=Path, default=ROOT / "build-mutants", metavar="FOLDER",
                        help="for copy, build and results (default build-mutants)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="parallel compiler processes (default: number of CPUs)")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    try:
        faults = [fault for fault in parse(TABLE.read_text())
                  if re.search(options.only, fault.name)]
        for fault in faults:
            fault.apply((ROOT / fault.file).read_text())
        if not faults:
            raise Unusable(f"{TABLE.name}: no fault whose name matches {options.only}")
        space = Workspace(options.folder.resolve(), options.jobs)
        if options.report:
            results = results_of(space, faults, hash_of_sources(ROOT, tracked_files()))
        else:
            with space.locked():
                results = run(space, faults)
    except KeyboardInterrupt:
        print("\nmutants: stopped; the same command goes on", file=sys.stderr)
        return 130
    except (Unusable, OSError) as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    print("\n" + report(faults, results))
    return 0 if number_caught(results) >= WANTED * len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
