# SPDX-License-Identifier: Apache-2.0
"""A case of the table: a stage, a way to start it, a fault, and what is promised of that."""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.leftovers import SECONDS, Before, adopt_orphans, reap_orphans
from tests.support.programs import Launched, Process, Result, poll_until, result_record
from tests.support.ways import (STAGE0, STAGE1, STAGE2, STAGE3, STAGE4, STAGE5, STAGE6, Run, Way,
                                alone, by_hand, mpirun, spawned, torchrun, train)

PROGRAMS = (STAGE0, STAGE1, STAGE2, STAGE3, STAGE4, STAGE5, STAGE6)
STARTS: dict[str, Callable[[Path], Way]] = {
    "alone": lambda program: alone(program, *(
        ("--device-ids", "cpu,cpu") if program == STAGE1 else ())),
    "spawn": lambda program: spawned(program=program),
    "one": lambda program: spawned(1, program=program),
    "torchrun": lambda program: torchrun(program=program),
    "mpirun": lambda program: mpirun(program=program),
    "by hand": lambda program: by_hand(program=program),
}
OBSERVED = ("--metrics", "a.jsonl", "--fingerprint", 1)
OBSERVATIONS = ("a.jsonl", "a.rank?.jsonl")
DIRECT = ("alone", "spawn", "one")  # the command is a stage itself
COLLECTS = ("spawn", "one", "by hand")  # what starts the ranks is ours, and waits for all of them
# What a launcher itself leaves in its temporary folder: the logs of ranks that failed.
OF_LAUNCHERS = {"torchrun": ("torchelastic_*",)}

Place = tuple[int, str]  # a stage, and how its ranks are started
Fault = Callable[["Workspace", Launched, list[Process]], None]
Prepare = Callable[["Workspace", Way], Way]
After = Callable[["Case", "Workspace", Result], None]


@dataclass
class Workspace:
    """Where a run lives: `run` is its current folder, `temporary` what it takes for /tmp."""

    folder: Path
    stack: contextlib.ExitStack  # closed when all is over

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"


@dataclass(frozen=True)
class Case:
    """What is done, and what must be seen. Without `inject` the fault lies in the command."""

    place: Place
    fault: str
    flags: tuple[object, ...] = ()
    prepare: tuple[Prepare, ...] = ()  # changes to the command; files that the run meets
    inject: Fault | None = None        # done to the run once it trains
    codes: tuple[int, ...] = (0,)      # as a shell shows them: 137 for signal 9
    cause: str = ""                    # a regular expression, for the standard error
    seconds: float = 5.0               # from the injection, or the start, until all are gone
    left: tuple[str, ...] = ()         # files that may be new, as patterns
    after: After | None = None         # what else must be true then
    once: bool = False                 # drawn by lot: to repeat it shows less than another draw

    @property
    def stage(self) -> int:
        return self.place[0]

    @property
    def start(self) -> str:
        return self.place[1]

    @property
    def name(self) -> str:
        return f"stage {self.stage}, {self.start}: {self.fault}"

    @property
    def world(self) -> int:
        return 1 if self.start in ("alone", "one") else 2

    @property
    def is_observed(self) -> bool:
        """Writes metrics and a fingerprint of each step: to know when it trains, and how it ended."""
        return self.inject is not None or self.after is ends_as_undisturbed

    def way(self) -> Way:
        return STARTS[self.start](PROGRAMS[self.stage])

    def changed(self, **changes: Any) -> Case:
        return dataclasses.replace(self, **changes)


def shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def steps_done(space: Workspace) -> int:
    lines = space.run / "a.rank0.jsonl"
    return lines.read_bytes().count(b"\n") if lines.exists() else 0


def injected(case: Case, space: Workspace, started: Launched, before: Before) -> float:
    """Waits until it trains, does the damage and returns when that was."""
    assert case.inject is not None
    poll_until(lambda: steps_done(space) >= 2 or started.process.poll() is not None, 60, 0.005)
    ranks = started.ranks()
    assert len(ranks) == case.world, f"{len(ranks)} ranks train: {started.stderr.text}"
    before.watch(started.processes())
    begin = time.monotonic()
    case.inject(space, started, ranks)
    return begin


def require_ending(case: Case, done: Result, took: float) -> None:
    shown = f"exit code {done.code} after {took:.1f} s\n{done.stdout}{done.stderr}"
    assert shell_code(done.code) in case.codes, f"expected exit code {case.codes}: {shown}"
    assert done.code <= 128 or case.start not in DIRECT, f"expected it to die of a signal: {shown}"
    assert took <= case.seconds, f"expected the end within {case.seconds} s: {shown}"
    assert re.search(case.cause, done.stderr, re.MULTILINE), f"expected {case.cause!r}: {shown}"
    if done.code != 0:  # else they were started again
        sayers = re.findall(r"^(?:\[rank \d+\] )?error: ", done.stderr, re.MULTILINE)
        assert len(sayers) == len(set(sayers)), f"expected a line from each at most: {shown}"


def stop_ignoring_signals() -> None:
    """What is ignored here, as nohup and a shell's background have it, all children ignore too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def run_case(case: Case, parent: Path) -> float:
    """Returns the seconds from the fault to the end. Raises AssertionError, or SkipTest."""
    stop_ignoring_signals()
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
        space = Workspace(Path(folder), stack)
        space.run.mkdir()
        space.temporary.mkdir()
        way = functools.reduce(lambda way, change: change(space, way), case.prepare, case.way())
        observed = OBSERVED if case.is_observed else ()
        before = Before(space.run, space.temporary)
        started = stack.enter_context(
            Launched(*way.command, *case.flags, *observed, cwd=space.run,
                     environment={**way.environment, "TMPDIR": space.temporary}))
        begin = injected(case, space, started, before) if case.inject else started.started
        done = started.finish(case.seconds + 5)
        took = time.monotonic() - begin
        killed = done.code == -signal.SIGKILL  # and its ranks are about to end
        orphans = reap_orphans((program.name for program in PROGRAMS), SECONDS if killed else 0.0)
        require_ending(case, done, took)
        if case.start in COLLECTS and not killed:
            assert not orphans, f"ranks that were not waited for: {orphans}\n{done.stderr}"
        allowed = (*case.left, *(OBSERVATIONS if observed else ()),
                   *OF_LAUNCHERS.get(case.start, ()))
        left = before.left(allowed)
        assert not left, f"left behind: {left}\n{done.stderr}"
        if case.after is not None:
            case.after(case, space, done)
        return took


@functools.cache
def undisturbed(place: Place, flags: tuple[object, ...], parent: Path) -> Run:
    return train(Case(place, "").way(), *flags, parent=parent)


def ends_as_undisturbed(case: Case, space: Workspace, done: Result) -> None:
    """Nothing has happened: the same weights."""
    expected = undisturbed(case.place, case.flags, space.folder.parent)
    ours, theirs = result_record(space.run / "a.jsonl"), expected.result
    for field in ("weights_sha256", "steps", "correct", "seen"):
        assert ours[field] == theirs[field], f"{field}: {ours[field]}, undisturbed {theirs[field]}"
