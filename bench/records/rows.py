# SPDX-License-Identifier: Apache-2.0
"""The records in bench/results, their rows, and which of them the sources have changed since."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from record import write_record
from sources import Tree, entry_of
from states import read_states, write_states

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "bench/results"
STATES = "sources.json"
MINUTE = 60.0


class RecordError(Exception):
    """A record that cannot be judged."""


class Kind(NamedTuple):
    """Of the records with such names."""

    names: str
    entries: tuple[str, ...]  # where the programs begin, if the rows do not name them
    command: str  # that measures again; of the suite: its tier
    seconds: float = 0.0  # that this takes, if the rows do not tell
    stand_in: tuple[str, ...] = ()  # patterns of the suite's rows that are verified in its place


KINDS = (  # the first that fits counts
    Kind("*.step.json", ("stage0_single_gpu/main.cpp", "bench/measure/step.py"),
         "bench/measure/step.py {}", 110, ("slice/basicnet/stage0_single_gpu/*",)),
    Kind("*.gradients.json", ("bench/peers/common.py", "bench/measure/gradients.py"),
         "bench/measure/gradients.py {}", 60),
    Kind("*.updates.json", ("stage6_trainer/main.cpp", "bench/measure/updates.py"),
         "bench/measure/updates.py {}", 180, ("slice/convnet/stage6_trainer/world:2/*",)),
    Kind("*.links.json", ("bench/links/links.cpp", "bench/links/spans.cpp",
                          "bench/links/variants.cpp", "bench/links/links.py",
                          "tests/support/network.py"),
         "bench/links/links.py -o {}", 420, ("slice/*/stage2_ddp_spawn/world:2/*",)),
    Kind("*.pipeline.json", ("beyond/pipeline/main.cpp", "bench/measure/pipeline.py"),
         "bench/measure/pipeline.py {}", 60, ("slice/basicnet/pipeline/*",)),
    Kind("*.divided.json", ("bench/micro/divided_memory.cpp", "beyond/fully_sharded/main.cpp",
                            "bench/measure/divided.py"),
         "bench/measure/divided.py {}", 60,
         ("slice/basicnet/zero_redundancy/*", "slice/basicnet/pipeline/*",
          "slice/basicnet/fully_sharded/*")),
    Kind("*.scaling.json", ("stage2_ddp_spawn/main.cpp", "stage4_ddp_amp/main.cpp",
                            "beyond/zero_redundancy/main.cpp", "beyond/fully_sharded/main.cpp",
                            "bench/measure/scaling.py"),
         "bench/measure/scaling.py {}", 480,
         ("slice/*/stage2_ddp_spawn/world:2/*", "slice/basicnet/stage4_ddp_amp/world:2/*",
          "slice/basicnet/zero_redundancy/*", "slice/basicnet/fully_sharded/*")),
    Kind("*.python.json", ("bridges/torch_distributed/backend.cpp", "bench/peers/ddp.py",
                           "stage2_ddp_spawn/main.cpp", "bench/measure/python_backend.py"),
         "bench/measure/python_backend.py {}", 900, ("slice/*/stage2_ddp_spawn/world:2/*",)),
    Kind("*.short.json", (), "short"),
    Kind("*.whole.json", (), "whole"),
    Kind("*.json", (), "bench"),
)


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


def commit_of(root: Path) -> str:
    """Of a checkout, with -dirty if its sources are in no commit; records of other rows may be."""
    changes = git(root, "status", "--porcelain", "--untracked-files=no", ":/", f":!/{FOLDER}")
    return git(root, "rev-parse", "--short", "HEAD").strip() + "-dirty" * bool(changes)


def described() -> dict[str, Any]:
    """The commit of this checkout and the machine, for a record that is measured now."""
    try:
        commit = commit_of(ROOT)
    except (RecordError, OSError):  # no repository, or no git
        commit = "unknown"
    return {"commit": commit,
            "machine": {"cpu": cpu_name(), "cpus": len(os.sched_getaffinity(0)),
                        "kernel": platform.release(), "load_before": os.getloadavg()[0]}}


class Row:
    """One row of a record, with its repetitions; a record of another program is one row."""

    def __init__(self, kind: Kind, name: str, entries: list[dict[str, Any]], commit: str) -> None:
        self.kind, self.name, self.entries = kind, name, entries
        self.commit = entries[0].get("commit", commit)

    @property
    def program(self) -> str:
        return self.name.split("/")[2] if not self.kind.entries else ""

    @property
    def sources(self) -> tuple[str, ...]:
        return self.kind.entries or (entry_of(self.program),)

    @property
    def judged_at(self) -> str:
        return self.entries[0].get("verified_at", self.commit)

    @property
    def seconds(self) -> float:
        """What measuring it again takes."""
        return self.kind.seconds or sum(
            one.get("startup_seconds", 0) + max(one.get("train_seconds", 0), one["real_time"]) + 1
            for one in self.entries)

    def verify(self, commit: str) -> None:
        for entry in self.entries:
            entry["verified_at"] = commit


class Record:
    def __init__(self, path: Path) -> None:
        self.path = path
        kind = next((one for one in KINDS if fnmatch(path.name, one.names)), None)
        if kind is None:
            raise RecordError(f"{path}: a record of no kind; hint: add it to KINDS in "
                              "bench/records/records.py")
        self.kind = kind
        try:
            self.content = json.loads(path.read_text(encoding="utf-8"))
            self.rows = list(self._rows())
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RecordError(f"{path}: not a record: {error!r}") from error

    def _rows(self) -> Iterator[Row]:
        if self.kind.entries:
            yield Row(self.kind, self.path.name, [self.content], "")
            return
        found: dict[str, list[dict[str, Any]]] = {}
        for entry in self.content["benchmarks"]:
            if entry.get("run_type", "iteration") == "iteration":
                found.setdefault(entry["run_name"], []).append(entry)
        for name, entries in found.items():
            yield Row(self.kind, name, entries, self.content["context"]["commit"])

    @property
    def is_of_this_machine(self) -> bool:
        """Rows that were measured on two machines cannot be compared; a whole record can."""
        if self.kind.entries:
            return True
        context = self.content["context"]
        return (context["cpu"], context["usable_cpus"], context["kernel"]) == (
            cpu_name(), str(len(os.sched_getaffinity(0))), f"Linux {platform.release()}")

    @property
    def needs_gpu(self) -> bool:
        """Whether its rows are of a GPU, and this machine has none to verify or measure them."""
        gpu = self.content.get("context", {}).get("gpu", "none")
        return gpu != "none" and not any(Path("/dev").glob("nvidia[0-9]*"))

    def write(self) -> None:
        write_record(self.path, self.content)


class Records:
    """All records of a checkout, and the sources that they were measured with."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, Tree(root)
        self.folder = root / FOLDER
        self.records = [Record(path) for path in sorted(self.folder.glob("*.json"))
                        if path.name != STATES]
        if not self.records:
            raise RecordError(f"{self.folder}: no record; hint: is --root the project's root?")
        self.states = read_states(self.folder / STATES)
        self.written = dict(self.states)
        self.completed: set[str] = set()  # states to which git has added what it knows

    @property
    def rows(self) -> list[Row]:
        return [row for record in self.records for row in record.rows]

    @property
    def rows_of_this_machine(self) -> list[Row]:
        """Those that it can verify or measure."""
        return [row for record in self.records if not record.needs_gpu for row in record.rows]

    @cached_property
    def head(self) -> str:
        return commit_of(self.root)

    def _all_sources(self, tree: Tree) -> dict[str, str]:
        return {name: value for entries in {row.sources for row in self.rows}
                for name, value in tree.sources(entries).items()}

    def is_here(self, commit: str) -> bool:
        """Whether git has it."""
        try:
            git(self.root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
        except RecordError:
            return False
        return True

    def state(self, commit: str) -> dict[str, str] | None:
        """The sources of a commit; of one that no record had so far, from git; None without."""
        if commit not in self.states:
            if not self.is_here(commit):
                return None
            self.states[commit] = self._all_sources(Tree(self.root, commit))
        return self.states[commit]

    def write_states(self) -> None:
        """Those that a row names, the new ones last."""
        used = {row.judged_at for row in self.rows} | {row.commit for row in self.rows}
        kept = {commit: value for commit, value in self.states.items() if commit in used}
        if kept != self.written:
            write_states(self.folder / STATES, kept)
            self.written = kept

    def add_state_of_now(self) -> str:
        """The name of the present sources. Only committed ones have one."""
        if self.head.endswith("-dirty"):
            raise RecordError(f"{self.head}: there are changes in no commit; hint: git commit")
        self.states[self.head] = self._all_sources(self.now)
        return self.head

    def changed(self, row: Row) -> list[str]:
        """The sources of a row that are others now; empty if it is fresh."""
        then = self.state(row.judged_at)
        if then is None:
            commit = row.judged_at or "an unnamed commit"
            return [f"sources of {commit}, which is not in this clone"]
        if gone := [name for name in row.sources if name not in self.now.names]:
            return [f"{name}, which is gone" for name in gone]
        now = self.now.sources(row.sources)
        if (not now.keys() <= then.keys() and row.judged_at not in self.completed
                and self.is_here(row.judged_at)):
            # It was written for the rows of that time, which may not have needed all of these.
            then |= self._all_sources(Tree(self.root, row.judged_at))
            self.completed.add(row.judged_at)
        return [name for name, value in now.items() if then.get(name) != value]

    @cached_property
    def stale(self) -> dict[Row, list[str]]:
        found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for row in self.rows:
            key = (row.judged_at, row.sources)
            if key not in found:
                found[key] = self.changed(row)
        return {row: names for row in self.rows
                if (names := found[row.judged_at, row.sources])}

    @cached_property
    def pending(self) -> dict[Row, list[str]]:
        return {row: self.stale[row] for row in self.rows_of_this_machine if row in self.stale}
