# SPDX-License-Identifier: Apache-2.0
"""The table: which fault is tried on which stage, and what is promised of it."""
from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from errno import ENOSPC
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, SIGUSR1, Signals

from safetensors.numpy import load_file

from tests.faults import faults
from tests.faults.case import (OBSERVED, After, Case, Fault, Place, Prepare, Workspace,
                               ends_as_undisturbed)
from tests.support.programs import Result, launch, result_record
from tests.support.resume import require_whole
from tests.support.ways import Way, endless, small

Flags = tuple[object, ...]
Cases = Iterator[Case]
Cause = Callable[[str], str]  # a pattern for standard error, by the way the ranks are started

# Seconds from the start of a command to its end, when something is wrong with it from the start.
STARTS_IN = {"alone": 10.0, "spawn": 10.0, "by hand": 10.0, "mpirun": 15.0, "torchrun": 20.0}
# Seconds in which all are gone once a rank is; torchrun takes some to write its report.
GONE_IN = {"alone": 5.0, "spawn": 5.0, "by hand": 5.0, "mpirun": 5.0, "torchrun": 8.0}
DEADLINE = 2  # --timeout
# A rank that hangs has that long to end when it is asked to; spawn waits for the others' words too.
HANGS_FOR = {"spawn": DEADLINE + 13.0, "by hand": DEADLINE + 5.0, "mpirun": DEADLINE + 13.0,
             "torchrun": DEADLINE + 38.0}
SPAWNED = "2 spawn, 4 spawn, 5 spawn, 6 spawn"
EVERY_STAGE = "0 alone, 1 alone, 2 spawn, 3 torchrun, 4 spawn, 5 spawn, 6 spawn"
short = functools.partial(small, recipe="convnet", epochs=6, limit_test=100)  # 120 steps


# ---- kinds of cases ----

def places(where: str) -> list[Place]:
    """Of "2 spawn, 3 by hand": stages, and how their ranks are started."""
    return [(int(place[0]), place[2:]) for place in where.split(", ")]


def codes_of(start: str, code: int) -> tuple[int, ...]:
    """What becomes of the exit code of the rank that failed.

    By hand and under mpirun the rank that ends first gives the code: it may be one that lost the
    other, and says so with 4.
    """
    if start == "torchrun":
        return (1,)
    return (code, 4) if start in ("by hand", "mpirun") else (code,)


def from_the_start(where: str, fault: str, prepare: tuple[Prepare, ...], code: int,
                   cause: str | Cause, flags: Flags = small(), left: tuple[str, ...] = (),
                   after: After | None = None) -> Cases:
    """The fault lies in the command: it ends soon, with this exit code of the rank at fault; less
    than 0 is a signal."""
    for stage, start in places(where):
        codes = codes_of(start, code if code >= 0 else code_of_signal(start, -code))
        yield Case((stage, start), fault, flags, prepare, None, codes,
                   cause if isinstance(cause, str) else cause(start), STARTS_IN[start], left, after)


def in_training(where: str, fault: str, inject: Fault, code: int, cause: str | Cause = "",
                flags: Flags = endless(), prepare: tuple[Prepare, ...] = (),
                seconds: float | dict[str, float] = GONE_IN, left: tuple[str, ...] = ()) -> Cases:
    """The fault hits a run that would not end by itself."""
    for case in from_the_start(where, fault, prepare, code, cause, flags, left):
        yield case.changed(inject=inject, seconds=seconds if isinstance(seconds, (int, float))
                           else seconds[case.start])


def harmless(where: str, fault: str, inject: Fault | None = None,
             prepare: tuple[Prepare, ...] = (), flags: Flags = short(),
             after: After = ends_as_undisturbed) -> Cases:
    """The run ends with the weights of one that nothing happens to."""
    for place in places(where):
        yield Case(place, fault, flags, prepare, inject, (0,), "", 30.0, after=after)


def ends_behind_the_jump(case: Case, space: Workspace, done: Result) -> None:
    assert (space.folder / "seen").exists(), "nobody has read the clock since it jumped"
    ends_as_undisturbed(case, space, done)


def codes_of_stop(start: str, number: int) -> tuple[int, ...]:
    """Some launchers have an exit code of their own when they are told to stop."""
    return (1,) if start in ("mpirun", "torchrun") else (128 + number,)


def code_of_signal(start: str, number: int) -> int:
    """spawn sees that a rank was lost; others pass the signal on."""
    return 4 if start == "spawn" else 128 + number


def said_by(rank: int | str, text: str, code: int | str = r"\d+") -> Cause:
    """How an error that a rank reports is shown: by the rank, or by what started it."""
    shown = {
        "spawn": rf"^error: rank {rank}: expected exit code 0, got {code}; its last line: .*{text}",
        "torchrun": rf"Root Cause[^=]*\brank +: {rank} [^=]*\bexitcode +: {code} "
                    rf"[^=]*\btraceback +: .*{text}",
        "alone": rf"^error: .*{text}"}
    return lambda start: shown.get(start, rf"^\[rank {rank}\] error: .*{text}")


def said_by_any(text: str) -> Cause:
    return said_by(r"\d", text)


def ended(rank: int, signal: int = 0, code: int = 0, step: str = r", step \d+") -> Cause:
    """How the end of a rank that said nothing itself is told: of a signal, or with a code."""
    lost = rf"^\[rank {1 - rank}\] error: .*{step}: rank {rank} has (ended|failed)"
    how = rf"Signal {signal}\b" if signal else rf"exitcode +: {code}\b"
    shown = {
        "spawn": rf"^error: rank {rank}{step}: .*got {f'signal {signal}' if signal else code}\b",
        "torchrun": rf"Root Cause[^=]*\brank +: {rank} [^=]*{how}",
        "by hand": rf"^by_hand\.sh: rank {rank}\b|{lost}",
        "alone": ""}  # of a program the shell tells it
    if signal:
        shown["mpirun"] = rf"process rank {rank} with .* exited on signal {signal}\b|{lost}"
    return lambda start: shown.get(start, lost)


# ---- ranks ----

def rank_dies() -> Cases:
    for number, rank, where in (
            (SIGKILL, 0, "0 alone, 1 alone, 2 spawn, 4 torchrun, 5 spawn"),
            (SIGKILL, 1, "3 by hand, 3 torchrun, 4 spawn, 5 mpirun, 6 spawn, 6 by hand"),
            (SIGSEGV, 0, "1 alone, 5 torchrun, 6 spawn"), (SIGSEGV, 1, "3 mpirun, 4 spawn")):
        yield from in_training(where, number.name, faults.to_rank(number, rank), -number,
                               ended(rank, number))
    yield from in_training(  # sockets fail otherwise than memory does
        "2 spawn, 3 mpirun", "SIGKILL, gloo", faults.to_rank(SIGKILL, 1), -SIGKILL,
        lambda start: rf"{ended(1, SIGKILL)(start)}|"
                      r"^\[rank 0\] error: .*, step \d+: .*onnection (closed|reset) by peer",
        endless("--backend", "gloo"))
    yield from in_training("3 torchrun, 4 by hand, 5 mpirun, 6 torchrun", "exit",
                           faults.to_rank(SIGKILL, 1), 3, ended(1, code=3), prepare=(faults.EXITS,))


def hung(rank: int) -> Cause:
    def cause(start: str) -> str:
        if start == "spawn":
            return rf"^error: .*rank {rank}, step \d+ \(stopped\) hung"
        return rf"^\[rank {1 - rank}\] error: .*, step \d+: timed out after .* for rank {rank};"
    return cause


def rank_hangs() -> Cases:
    for rank, where in ((0, "4 spawn, 6 spawn"),
                        (1, "2 spawn, 5 spawn, 3 by hand, 4 mpirun, 3 torchrun")):
        yield from in_training(where, "SIGSTOP", faults.to_rank(SIGSTOP, rank), 4, hung(rank),
                               endless("--timeout", DEADLINE),
                               (faults.with_variable("GRACE_SECONDS", 1),), HANGS_FOR)


def rank_fails() -> Cases:
    """An exception, a number that is none: on one rank alone, and on all."""
    yield from from_the_start("3 mpirun, 4 torchrun, 5 by hand, 6 mpirun", "exception",
                              (faults.more_flags("--data-root nowhere"),), 3,
                              said_by(1, "nowhere", 3))
    yield from from_the_start(SPAWNED, "exception", (), 1,  # rank 0 alone writes the record
                              said_by(0, "/dev/full: write: No space left", 1),
                              small("--metrics", "/dev/full"))
    yield from from_the_start(
        "1 alone, 5 alone, 2 spawn, 4 spawn, 6 spawn, 3 mpirun, 4 torchrun, 5 by hand", "NaN loss",
        (), 5, said_by_any(r"step \d+: expected a finite loss, got"), small(lr=1e30))
    yield from from_the_start(EVERY_STAGE, "inf gradient", (faults.huge_gradients,), 5,
                              said_by_any("step 2: expected a finite loss"),
                              small("--load", "load.safetensors"))


def weights_become_nan() -> Cases:
    """Nothing goes on from a checkpoint of NaN: none is written, or all end before."""
    for where, flags in (
            ("5 spawn", ("--project-dir", "project", "--checkpointing-steps", 1)),
            ("6 spawn", ("--profile", "none", "--output-dir", "out", "--save-steps", 1))):
        yield from from_the_start(
            where, "inf gradient, then a checkpoint", (faults.huge_gradients,), 5,
            said_by_any("expected finite weights, got NaN or infinity"),
            small("--load", "load.safetensors", *flags), ("project", "project/checkpoints", "out"))


def last_gradient_is_infinite() -> Cases:
    """No step follows that would show it: the weights are not saved."""
    yield from from_the_start(
        EVERY_STAGE, "inf gradient in the last step", (with_old_file, faults.huge_gradients), 5,
        said_by(0, "finite"), small("--load", "load.safetensors", "--save", "a.safetensors",
                                    limit_train=32, batch_size=32), after=old_file_stays)


def rank_is_late() -> Cases:
    """Slow, or paused for less than the deadline: the run ends as if nothing had been."""
    yield from harmless(f"1 alone, {SPAWNED}, 3 torchrun, 5 mpirun", "slow rank", faults.slow_rank)
    yield from harmless("0 alone, 2 spawn, 3 by hand, 6 torchrun", "pause", faults.pause(1.5))
    for fault, seconds in (("clock a day ahead", 86400), ("clock a day back", -86400)):
        # Stages 0 and 1 never look at that clock.
        yield from harmless("2 spawn, 3 torchrun, 4 mpirun, 5 by hand, 6 spawn", fault,
                            faults.clock_jumps, (faults.clock_to_jump(seconds),),
                            after=ends_behind_the_jump)
    yield from harmless("3 by hand, 4 mpirun, 5 torchrun, 6 by hand", "clocks apart",
                        prepare=(faults.clocks_apart,))
    yield from from_the_start("3 mpirun, 4 torchrun, 5 by hand, 6 torchrun",
                              "rank that never arrives", (faults.NEVER_ARRIVES,), 4,
                              r"^\[rank 0\] error: rendezvous: timed out after .* for rank 1 of 2;",
                              small("--timeout", DEADLINE))


def settings_differ(flags: str) -> str:
    """Every rank names the difference before the first collective. Which one is the odd one
    depends on who came first."""
    flag = flags.split()[0].replace("--recipe", "--batch-size")  # the first that follows from it
    return rf"^\[rank \d\] error: settings of rank \d: expected {flag} .*, as on another rank, got "


def ranks_disagree() -> Cases:
    soon = small("--timeout", DEADLINE)
    yield from from_the_start("4 spawn, 5 spawn, 6 spawn, 5 by hand, 6 mpirun", "port taken",
                              (faults.taken_port,), 4,
                              r"^(\[rank 0\] )?error: MASTER_PORT \d+: expected a free port")
    for where, name in (("3 torchrun, 5 by hand, 6 by hand", "WORLD_SIZE"),
                        ("4 mpirun", "OMPI_COMM_WORLD_SIZE")):
        yield from from_the_start(where, "wrong world size", (faults.odd_rank(f"export {name}=3"),),
                                  4, r"^\[rank \d\] error: WORLD_SIZE of rank \d: expected [23], "
                                  r"as on another rank, got [23]", soon)
    for where, odd in (("3 mpirun, 4 by hand", "--recipe convnet"),
                       ("5 torchrun, 6 by hand", "--width 2")):
        yield from from_the_start(where, "parameters that differ", (faults.more_flags(odd),), 4,
                                  settings_differ(odd))
    for where, name, value, cause in (
            ("3 by hand", "ATEN_CPU_CAPABILITY", "default",
             r"^\[rank \d\] error: instructions: expected "),
            ("5 by hand", "ACCELERATE_MIXED_PRECISION", "bf16", settings_differ("mixed_precision")),
            ("5 by hand", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 2,
             settings_differ("--gradient-accumulation-steps")),
            ("5 by hand, 6 by hand", "ACCELERATE_DEBUG_MODE", 1, settings_differ("debug"))):
        yield from from_the_start(where, f"{name} of one rank",
                                  (faults.odd_rank(f"export {name}={value}"),), 4, cause, soon)
    for where, flag in (("3 by hand, 5 mpirun", "--lr"), ("6 by hand", "--learning-rate")):
        yield from from_the_start(where, "learning rates that differ",
                                  (faults.more_flags("--lr 0.5"),), 4, settings_differ(flag), soon)
    yield from from_the_start("3 mpirun, 4 by hand, 5 by hand", "numbers of steps that differ",
                              (faults.more_flags("--batch-size 32"),), 4,
                              settings_differ("--batch-size"), soon)


# ---- files ----

def with_old_file(space: Workspace, way: Way) -> Way:
    """That of an earlier run, where this one will save."""
    for path in (space.run / "a.safetensors", space.folder / "old"):
        faults.weights(path)
    return way


def started_again(case: Case, cwd: Path, *flags: object) -> Result:
    way = case.way()
    again = launch(*way.command, *flags, cwd=cwd, environment=way.environment)
    assert again.code == 0, again.stderr
    return again


def old_file_stays(case: Case, space: Workspace, done: Result) -> None:
    """It has its bytes, and a run can begin with it."""
    saved = space.run / "a.safetensors"
    assert saved.read_bytes() == (space.folder / "old").read_bytes(), "the old file has changed"
    started_again(case, space.temporary, *small("--load", saved, "--quiet", epochs=0))


def weights_are_whole(case: Case, space: Workspace, done: Result) -> None:
    """Python's library reads what was saved."""
    assert load_file(space.run / "a.safetensors")


def weights_and_metrics_are_whole(case: Case, space: Workspace, done: Result) -> None:
    weights_are_whole(case, space, done)
    result_record(space.run / "a.jsonl")


def disk_fails() -> Cases:
    save = small("--save", "./a.safetensors", limit_train=64)
    yield from from_the_start(
        EVERY_STAGE, "full disk while saving", (with_old_file, faults.faulty_calls(3, ENOSPC)), 1,
        said_by(0, r"a\.safetensors\.tmp\.\d+: write: No space left"), save, after=old_file_stays)
    # Nobody can tidy up after a SIGKILL but the next process of that number.
    yield from from_the_start(
        EVERY_STAGE, "SIGKILL while saving", (with_old_file, faults.faulty_calls(3)), -SIGKILL,
        ended(0, SIGKILL, step=""), save, ("a.safetensors.tmp.*",), old_file_stays)
    yield from from_the_start(
        EVERY_STAGE, "read-only folder", (faults.on_disk("64k,ro"),), 2,
        r"error: --save: expected a file in a folder that can be written",
        small("--save", "disk/a.safetensors"))
    yield from from_the_start(
        "0 alone, 1 alone, 2 spawn, 3 mpirun, 4 spawn, 5 torchrun, 6 spawn", "full disk",
        (faults.on_disk("24k"),), 1, said_by_any(r"disk/a.*\.jsonl: write: No space left"),
        endless("--metrics", "disk/a.jsonl", "--fingerprint", 1))
    yield from in_training(
        "0 alone, 2 spawn, 4 spawn, 6 spawn", "folder that becomes read-only",
        faults.make_disk_read_only, 1, said_by(0, "disk/a.*: create: Read-only file system"),
        short("--save", "disk/a.safetensors", epochs=20), (faults.on_disk("8m"),), 30)
    for where, flags in (("5 spawn", ("--project-dir", "disk", "--checkpointing-steps", 2)),
                         ("6 spawn", ("--profile", "none", "--output-dir", "disk/out"))):
        yield from from_the_start(where, "read-only checkpoints", (faults.on_disk("64k,ro"),), 1,
                                  said_by(0, "(write|mkdir): Read-only file system"), small(*flags))


# Stage 6 writes two checkpoints.
OUTPUT = small("--profile", "none", "--recipe", "convnet", "--output-dir", "out", "--max-steps", 4,
               "--save-steps", 2)


def first_checkpoint_stays(case: Case, space: Workspace, done: Result) -> None:
    """What can be seen is whole, a run goes on from it, and tidies up."""
    found = sorted(path.name for path in (space.run / "out").glob("checkpoint-*"))
    assert found == ["checkpoint-2"], found
    require_whole(space.run / "out" / "checkpoint-2")
    again = started_again(case, space.run, *OUTPUT, "--resume")
    assert "from global step 2" in again.stderr, again.stderr
    require_whole(space.run / "out" / "checkpoint-4")
    require_no_leftovers(space)


def trainer_saves() -> Cases:
    """A fault in the second checkpoint; those of stage 5 have tests of their own."""
    second = "/out/.checkpoint-4"
    yield from from_the_start("6 alone, 6 spawn", "SIGKILL while saving a checkpoint",
                              (faults.faulty_calls(3, part=second),), -SIGKILL, ended(0, SIGKILL),
                              OUTPUT, ("out*",), first_checkpoint_stays)
    yield from from_the_start("6 alone, 6 spawn", "full disk while saving a checkpoint",
                              (faults.faulty_calls(3, ENOSPC, second),), 1,
                              said_by(0, "No space left on device"), OUTPUT,
                              ("out", "out/checkpoint-2*"), first_checkpoint_stays)


def files_are_damaged() -> Cases:
    where = "1 alone, 2 spawn, 3 mpirun, 4 spawn, 5 torchrun, 6 spawn"
    for fault, damage in (("checkpoint torn", faults.torn_checkpoint),
                          ("checkpoint with a flipped bit", faults.flipped_checkpoint)):
        yield from from_the_start(where, fault, (damage,), 3,
                                  said_by_any("load.safetensors: expected "),
                                  small("--load", "load.safetensors"))
    images = "t10k-images-idx3-ubyte.gz"
    yield from from_the_start(where, "data file truncated", (faults.with_data(images),), 3,
                              said_by_any(f"{images}: expected "))
    for where, flags in (("0 alone, 1 alone, 3 by hand, 6 spawn", short()),
                         ("4 spawn", short("--num-workers", 1)),
                         ("5 spawn", short("--dispatch-batches"))):
        yield from harmless(where, "data file truncated mid-run", faults.cut_data,
                            (faults.with_data(),), flags)


def paths_are_no_files() -> Cases:
    """Opening never waits for the other end of a pipe."""
    yield from from_the_start(EVERY_STAGE, "pipe as --load", (faults.pipe("load.safetensors"),), 3,
                              said_by_any("load.safetensors: expected a readable file, got a pipe; "
                                          "hint: name a file"),
                              small("--load", "load.safetensors"))
    yield from from_the_start(EVERY_STAGE, "pipe without a reader as --metrics",
                              (faults.pipe("p"),), 2,
                              said_by(0, "--metrics: expected a file that can be written, .*"
                                         "; hint: it is a pipe without a reader"),
                              small("--metrics", "p"))
    for where, flag in (("3 torchrun", "--snapshot"), ("5 spawn, 6 spawn", "--resume")):
        yield from from_the_start(where, "pipe as checkpoint", (faults.pipe("p"),), 3,
                                  said_by_any("p: expected a checkpoint, got no folder; hint: name "
                                              "the folder of a checkpoint"), small(flag, "p"))


def limits_are_reached() -> Cases:
    """Exit code 1, the limit and what to type; nobody waits for anybody, and no part is left."""
    for files in (12, 20, 24):
        yield from from_the_start(SPAWNED, f"{files} open files", (faults.limited("-n", files),), 1,
                                  r"Too many open files; hint: this process may open "
                                  rf"{files} files: ulimit -n \d+")
    yield from from_the_start(SPAWNED, "few processes", (faults.few_processes(6),), 1,
                              r"start \d processes with 7 threads each: Resource temporarily "
                              "unavailable; hint: this user may have 6 processes and threads")
    yield from from_the_start(SPAWNED, "small stack", (faults.limited("-s", 64),), 1,
                              "use 256 KiB of stack: .*; hint: this process may use 64 KiB")
    large = "write: File too large; hint: a file may have"
    yield from from_the_start(EVERY_STAGE, "file size", (with_old_file, faults.limited("-f", 100)),
                              1, said_by(0, f"{large} at most 102400 bytes: ulimit -f unlimited"),
                              small("--save", "./a.safetensors", limit_train=64),
                              after=old_file_stays)
    for where, flags in (
            ("5 spawn", ("--project-dir", "project", "--checkpointing-steps", 2)),
            ("6 spawn", ("--profile", "none", "--output-dir", "out", "--save-steps", 2))):
        yield from from_the_start(where, "file size of a checkpoint", (faults.limited("-f", 100),),
                                  1, said_by_any(large), small(*flags),
                                  ("project", "project/checkpoints", "out"))
    yield from from_the_start("0 alone", "memory", (faults.limited("-v", 5_000_000),), 1,
                              r"^error: out of memory: .*; hint: use a smaller batch size; this "
                              "process may use 4882 MiB of memory: ulimit -v unlimited",
                              small(limit_train=30000, batch_size=30000))


# ---- who started it ----

def streams_close() -> Cases:
    where = "0 alone, 1 alone, 2 spawn, 3 by hand, 4 spawn, 5 spawn, 6 spawn"
    yield from harmless(where, "closed stdout", prepare=(faults.in_shell('exec "$@" >&-'),),
                        flags=small(limit_train=64))
    yield from harmless(where, "stderr without a reader",
                        prepare=(faults.in_shell('"$@" 2> >(exec true)'),))
    for fault, script, error in (
            ("stdout without a reader", '"$@" | exec true', "Broken pipe"),
            ("full disk as stdout", 'exec "$@" >/dev/full', "No space left on device")):
        yield from from_the_start(where, fault, (faults.in_shell(script),), 1,
                                  said_by(0, f"standard output: write: {error}"),
                                  small("--save", "./a.safetensors", "--metrics", "a.jsonl",
                                        limit_train=64),
                                  ("a.safetensors", "a.jsonl"), weights_and_metrics_are_whole)


def stopped(number: Signals, saved: str) -> Cause:
    def cause(start: str) -> str:
        name = number.name
        if start == "mpirun":
            name = "SIGTERM"  # which it sends for both
        elif start == "torchrun":
            name = f"(SIGTERM|{name})"  # the former if the signal meets it outside its loop
        return rf"^(\[rank 0\] )?{name}: stopped after step \d+; {saved}"
    return cause


# Stages 5 and 6 with a place for checkpoints, but none due.
SAVING: dict[int, Flags] = {
    5: ("--project-dir", "project"),
    6: ("--profile", "none", "--output-dir", "out", "--save-strategy", "no")}
KEPT = ("snapshot*", "project*", "out*")
some_seconds = functools.partial(small, recipe="convnet", epochs=40, limit_train=200,
                                 limit_test=50, batch_size=16)


def require_no_leftovers(space: Workspace) -> None:
    """What a killed run left of a checkpoint went with the next one that was written."""
    left = [path.name for path in space.run.rglob(".*")]
    assert not left, f"the next run has left {left}"


def goes_on_as_undisturbed(case: Case, space: Workspace, done: Result) -> None:
    """Started again, from a checkpoint if there is one, it ends with the weights of a run that
    nobody stopped."""
    has_checkpoint = any(space.run.glob("project/checkpoints/checkpoint_*")) or \
        any(space.run.glob("out/checkpoint-*"))
    resume = ("--resume",) if has_checkpoint else ()
    again = started_again(case, space.run, *case.flags, *resume, *OBSERVED)
    require_no_leftovers(space)
    goes_on = re.search(r"resumed from|from global step [1-9]", again.stderr)
    assert bool(goes_on) == has_checkpoint, again.stderr
    ends_as_undisturbed(case, space, again)


def told(where: str, fault: str, number: Signals, inject: Fault, cause: str | Cause = "",
         flags: Flags | dict[int, Flags] = endless(), prepare: tuple[Prepare, ...] = (),
         **changes: object) -> Cases:
    """Launchers have their own exit codes when they are told to stop."""
    for stage, start in places(where):
        case = Case((stage, start), fault, flags[stage] if isinstance(flags, dict) else flags,
                    prepare, inject, codes_of_stop(start, number),
                    cause if isinstance(cause, str) else cause(start), GONE_IN[start])
        yield case.changed(**changes)


def saved_and_stopped(where: str, number: Signals, inject: Fault) -> Cases:
    flags = {stage: some_seconds(*saving) for stage, saving in SAVING.items()}
    yield from told(where, f"{number.name}, saved", number, inject, stopped(number, "saved "),
                    flags, left=("project*", "out*"), after=goes_on_as_undisturbed)


def told_to_stop() -> Cases:
    """All ranks stop after the same step, and save what they can."""
    for number in (SIGINT, SIGTERM):
        once, twice = (faults.to_launcher(number, times) for times in (1, 2))
        unsaved = stopped(number, "nothing saved")
        yield from told("0 alone, 1 alone, 2 spawn, 4 spawn, 5 alone, 5 spawn, 6 spawn, 5 torchrun",
                        number.name, number, once, unsaved)
        yield from in_training("6 mpirun", number.name, once, 1, unsaved)
        # The step in hand takes longer than it is to the second signal, which ends all at once. The
        # line of step 2 is written before the program checks whether it is to stop.
        yield from told("0 alone, 2 spawn, 4 spawn, 5 alone, 5 spawn, 6 spawn",
                        f"{number.name}, twice", number, twice,
                        r"\A(?![\s\S]*stopped after step (?!2;))",
                        endless(limit_train=24000, batch_size=8000), seconds=2.0)
        # Launchers that hear it again die of it; their ranks end by themselves. mpirun then leaves
        # its folder behind.
        yield from told("6 mpirun, 5 torchrun", f"{number.name}, twice", number, twice,
                        codes=(128 + number, 1), left=("ompi.*",))
        yield from saved_and_stopped("5 alone, 5 spawn, 5 torchrun, 5 mpirun, 6 alone, 6 spawn, "
                                     "6 torchrun", number, once)
    # One rank alone hears it.
    yield from saved_and_stopped("5 by hand, 6 by hand", SIGTERM, faults.to_rank(SIGTERM))
    for number, inject in ((SIGINT, faults.to_terminal), (SIGTERM, faults.to_launcher)):
        # In the background of a script, ranks ignore SIGINT; the script sends them SIGTERM.
        yield from in_training("3 by hand, 4 by hand, 5 by hand, 6 by hand", number.name,
                               inject(number), 128 + number, stopped(SIGTERM, "nothing saved"))
    for number in (SIGHUP, SIGUSR1):
        once = faults.to_launcher(number)
        yield from told("0 alone, 2 spawn, 6 spawn", number.name, number, once,
                        stopped(number, "nothing saved"))
        yield from saved_and_stopped("5 alone, 5 spawn, 6 spawn", number, once)


def launcher_dies() -> Cases:
    """Ranks that nobody waits for any more do not go on for hours."""
    # mpirun has no time to remove its own files.
    yield from told("2 spawn, 4 spawn, 5 spawn, 6 spawn, 3 mpirun, 6 mpirun, 3 torchrun, "
                    "5 torchrun, 4 by hand", "launcher killed", SIGKILL,
                    faults.to_launcher(SIGKILL), codes=(128 + SIGKILL,), left=("ompi.*",))


def network_fails() -> Cases:
    """The cable between two machines is cut: both sides end, at the deadline."""
    yield from in_training("4 by hand, 5 by hand, 6 by hand", "network cut", faults.cut_network, 4,
                           r"^\[rank \d\] error: ", endless("--timeout", DEADLINE),
                           (faults.on_two_nodes,), DEADLINE + 7)


def three_restarts(*flags: object) -> Prepare:
    """With more flags of the program, which are not those of the undisturbed run."""
    def prepare(space: Workspace, way: Way) -> Way:
        launcher, *rest = way.command
        return Way((launcher, "--max-restarts", 3, *rest, *flags), way.environment)
    return prepare


# The same command serves the first start and every restart.
RESUMES: dict[int, Flags] = {
    3: ("--snapshot", "snapshot", "--snapshot-steps", 10),
    5: ("--project-dir", "project", "--checkpointing-steps", 10, "--total-limit", 2,
        "--resume", "auto")}


def restarts() -> Cases:
    """torchrun starts all ranks again when one is killed; each time they go on."""
    flags = small(recipe="convnet", epochs=60, limit_train=200, limit_test=50, batch_size=16)
    for seed in range(20):
        for stage in (3, 5):
            yield Case((stage, "torchrun"), f"restarts, seed {seed}", flags,
                       (three_restarts(*RESUMES[stage]),), faults.kills(seed, 3),
                       cause="by torchrun .* restart 3; ", seconds=120,
                       left=("project*", "snapshot*"), after=ends_as_undisturbed, once=True)


# With checkpoints, where a stage has any: every ten steps.
KEEPING: dict[int, Flags] = {4: (),
                             5: (*SAVING[5], "--checkpointing-steps", 10, "--total-limit", 2),
                             6: ("--profile", "none", "--output-dir", "out", "--save-steps", 10,
                                 "--save-total-limit", 2)}


def resume_points() -> Cases:
    """Killed somewhere, a rank or the program that started it, and started again."""
    for seed in range(200):
        stage, start = (4, 5, 6)[seed % 3], ("spawn", "one")[seed // 3 % 2]
        yield Case((stage, start), f"killed and started again, point {seed}",
                   some_seconds(*KEEPING[stage]), inject=faults.kill_any(seed),
                   codes=(137, 4), left=("project*", "out*"), after=goes_on_as_undisturbed,
                   once=True)


# ---- folders of checkpoints ----

# One checkpoint, at the end of the epoch.
ONE_CHECKPOINT: dict[int, Flags] = {
    3: ("--snapshot", "snapshot"),
    5: ("--project-dir", "project", "--checkpointing-steps", "epoch"),
    6: ("--profile", "none", "--output-dir", "out", "--save-strategy", "epoch")}
OF_STAGE = {3: "snapshot", 5: "project", 6: "out"}
tiny = functools.partial(small, recipe="convnet", limit_train=64, limit_test=50, batch_size=16)


def disk_is_slow() -> Cases:
    """A checkpoint takes longer than --timeout, and longer than the grace after SIGTERM."""
    for place in places("3 torchrun, 5 spawn, 5 mpirun, 6 spawn, 6 torchrun"):
        yield Case(place, "slow disk", tiny(*ONE_CHECKPOINT[place[0]], "--timeout", DEADLINE),
                   (faults.slow_disk(400, OF_STAGE[place[0]]),),
                   seconds=40, left=KEPT, after=ends_as_undisturbed)
    term = faults.to_launcher(SIGTERM)
    for stage in (5, 6):
        yield from told(f"{stage} spawn", "SIGTERM, slow disk", SIGTERM, term,
                        stopped(SIGTERM, "saved "), some_seconds(*SAVING[stage]),
                        (faults.slow_disk(600, OF_STAGE[stage]),), seconds=25, left=KEPT,
                        after=goes_on_as_undisturbed)
    for fault, saves in (("SIGTERM in a regular save", {**KEEPING, 3: RESUMES[3]}),
                         ("SIGTERM in the save of an epoch", ONE_CHECKPOINT)):
        yield from told("3 torchrun, 5 alone, 5 spawn, 6 alone, 6 spawn", fault, SIGTERM,
                        faults.in_the_last_save(term), stopped(SIGTERM, "saved "),
                        {stage: some_seconds(*flags) for stage, flags in saves.items()},
                        (faults.slow_disk(300, "/run/"),), seconds=25, left=KEPT)
    saving = faults.while_saving("project/checkpoints/.*.partial", term)
    yield from told("5 alone, 5 spawn", "SIGTERM, twice while saving", SIGTERM,
                    faults.then(term, saving),
                    "^warning: not saved: project/checkpoints/checkpoint_0;",
                    some_seconds(*SAVING[5]), (faults.slow_disk(600, OF_STAGE[5]),), left=KEPT)
    # The file is finished, and then the signal ends the program.
    yield from told("0 alone, 1 alone, 2 spawn, 4 spawn", "SIGTERM, slow --save", SIGTERM,
                    faults.while_saving("a.safetensors.tmp.*", term), "",
                    some_seconds("--save", "./a.safetensors"),
                    (faults.slow_disk(2000, "/a.safetensors"),), seconds=25,
                    left=("a.safetensors",), after=weights_are_whole)


def runs_share_a_folder() -> Cases:
    """The second one is refused; the first one does not notice it."""
    for place in ("3 torchrun", "5 spawn", "6 spawn", "6 torchrun"):
        stage = int(place[0])
        second = faults.second_run(rf"{OF_STAGE[stage]}: in use by process \d+ on \S+;")
        yield from told(place, "second run in its folder", SIGTERM,
                        faults.then(second, faults.to_launcher(SIGTERM)),
                        stopped(SIGTERM, "saved "),
                        endless(*(RESUMES[3] if stage == 3 else KEEPING[stage])), seconds=40,
                        left=KEPT)
    for stage, name, value in ((5, "--lr", '"0.5"'), (6, "learning_rate", "0.5")):
        yield from from_the_start(f"{stage} spawn", "checkpoints of another run",
                                  (faults.trained_before(*tiny(*ONE_CHECKPOINT[stage], lr=0.5)),),
                                  2, said_by(0, f"of another run: {name} is {value} there"),
                                  tiny(*ONE_CHECKPOINT[stage]))


def folders_are_not_shared() -> Cases:
    """Rank 1 has a folder of the same name, or none, as on a machine of its own."""
    resume: dict[int, Flags] = {3: (), 5: ("--resume", "auto"), 6: ("--resume",)}
    for stage in (3, 5, 6):
        flags = tiny(*ONE_CHECKPOINT[stage])
        before, own = faults.trained_before(*flags), "folders of their own"
        for fault, prepare, cause, more, left in (
                ("other weights", (before, faults.trained_before(*flags, "--lr", 0.5, folder="own"),
                                   faults.odd_rank("cd own")),
                 "load_state: .*: expected the checkpoint of rank 0 on all ranks, got another one "
                 "on rank 1;", resume[stage], ()),
                ("none on one rank", (before, faults.odd_rank("mkdir own; cd own")),
                 "load_state: .*, got none on rank 1 ", resume[stage], ("own",)),
                ("while saving", (faults.odd_rank("mkdir own; cd own"),),
                 "save_state: .*: expected the folder that rank 0 created on all ranks, got none "
                 "on rank 1;", (), (*KEPT, "own"))):
            name = f"{own} {fault}" if fault == "while saving" else f"{own}, {fault}"
            yield from from_the_start(f"{stage} by hand", name, prepare, 4,
                                      rf"^\[rank \d\] error: {cause}", (*flags, *more), left)


# Each kind of fault once, spread over stages and launchers; elastic_test.py has restarts.
QUICK = {
    "stage 5, spawn: slow disk", "stage 5, alone: SIGTERM, twice while saving",
    "stage 6, spawn: second run in its folder", "stage 6, spawn: checkpoints of another run",
    "stage 5, by hand: folders of their own, other weights", "stage 5, spawn: SIGKILL",
    "stage 2, spawn: SIGKILL, gloo", "stage 4, spawn: SIGSEGV", "stage 4, by hand: exit",
    "stage 3, by hand: SIGSTOP", "stage 3, mpirun: exception", "stage 0, alone: inf gradient",
    "stage 5, spawn: inf gradient, then a checkpoint",
    "stage 1, alone: inf gradient in the last step", "stage 2, spawn: slow rank",
    "stage 2, spawn: clock a day ahead", "stage 5, by hand: rank that never arrives",
    "stage 4, spawn: port taken", "stage 5, by hand: wrong world size",
    "stage 4, by hand: parameters that differ", "stage 3, by hand: learning rates that differ",
    "stage 2, spawn: full disk while saving", "stage 5, spawn: SIGKILL while saving",
    "stage 1, alone: read-only folder", "stage 0, alone: full disk",
    "stage 5, spawn: read-only checkpoints", "stage 6, alone: SIGKILL while saving a checkpoint",
    "stage 2, spawn: checkpoint torn", "stage 4, spawn: data file truncated",
    "stage 0, alone: data file truncated mid-run", "stage 2, spawn: pipe as --load",
    "stage 0, alone: pipe without a reader as --metrics", "stage 4, spawn: 20 open files",
    "stage 1, alone: file size", "stage 1, alone: closed stdout",
    "stage 2, spawn: stdout without a reader", "stage 0, alone: full disk as stdout",
    "stage 6, by hand: SIGINT", "stage 6, spawn: SIGHUP", "stage 5, spawn: SIGTERM, saved",
    "stage 5, spawn: SIGTERM in a regular save",
    "stage 6, spawn: killed and started again, point 2", "stage 4, spawn: launcher killed",
    "stage 4, by hand: network cut",
}


KINDS = (rank_dies, rank_hangs, rank_fails, weights_become_nan, last_gradient_is_infinite,
         rank_is_late, ranks_disagree, disk_fails, trainer_saves, files_are_damaged,
         paths_are_no_files, limits_are_reached, streams_close, told_to_stop, launcher_dies,
         network_fails, restarts, resume_points, disk_is_slow, runs_share_a_folder,
         folders_are_not_shared)


def table() -> list[Case]:
    return [case for kind in KINDS for case in kind()]
