# SPDX-License-Identifier: Apache-2.0
"""The table: which fault is tried on which stage, and what is promised of it."""
from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from errno import ENOSPC
from signal import SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, Signals

from safetensors.numpy import load_file

from tests.faults import faults
from tests.faults.case import (OBSERVED, After, Case, Fault, Place, Prepare, Workspace,
                               ends_as_undisturbed)
from tests.support.programs import Result, launch
from tests.support.resume import require_whole
from tests.support.ways import Way, endless, small

Flags = tuple[object, ...]
Cases = Iterator[Case]

# Seconds from the start of a command to its end, when something is wrong with it from the start.
STARTS_IN = {"alone": 10.0, "spawn": 10.0, "by hand": 10.0, "mpirun": 15.0, "torchrun": 20.0}
# Seconds in which all are gone once a rank is; torchrun takes some to write its report.
GONE_IN = {"alone": 5.0, "spawn": 5.0, "by hand": 5.0, "mpirun": 5.0, "torchrun": 8.0}
DEADLINE = 2  # --timeout
# A rank that hangs has that long to end when it is asked to; spawn waits for the others' words too.
HANGS_FOR = {"spawn": DEADLINE + 13.0, "by hand": DEADLINE + 5.0, "mpirun": DEADLINE + 13.0,
             "torchrun": DEADLINE + 38.0}
SPAWNED: tuple[Place, ...] = ((2, "spawn"), (4, "spawn"), (5, "spawn"), (6, "spawn"))
EVERY_STAGE: tuple[Place, ...] = ((0, "alone"), (1, "alone"), (2, "spawn"), (3, "torchrun"),
                                  (4, "spawn"), (5, "spawn"), (6, "spawn"))
short = functools.partial(small, recipe="convnet", epochs=6, limit_test=100)  # 120 steps


# ---- kinds of cases ----

def codes_of(start: str, code: int) -> tuple[int, ...]:
    """What becomes of the exit code of the rank that failed.

    By hand and under mpirun the rank that ends first gives the code: it may be one that lost the
    other, and says so with 4.
    """
    if start == "torchrun":
        return (1,)
    return (code, 4) if start in ("by hand", "mpirun") else (code,)


def from_the_start(place: Place, fault: str, prepare: tuple[Prepare, ...], code: int, cause: str,
                   flags: Flags = small(), left: tuple[str, ...] = (),
                   after: After | None = None) -> Case:
    """The fault lies in the command: it ends soon, with this exit code of the rank at fault."""
    return Case(place, fault, flags, prepare, None, codes_of(place[1], code), cause,
                STARTS_IN[place[1]], left, after)


def in_training(place: Place, fault: str, inject: Fault, code: int, cause: str = "",
                flags: Flags = endless(), prepare: tuple[Prepare, ...] = (),
                seconds: float = 0, left: tuple[str, ...] = ()) -> Case:
    """The fault hits a run that would not end by itself."""
    return Case(place, fault, flags, prepare, inject, codes_of(place[1], code), cause,
                seconds or GONE_IN[place[1]], left)


def harmless(place: Place, fault: str, inject: Fault | None = None,
             prepare: tuple[Prepare, ...] = (), flags: Flags = short(),
             after: After = ends_as_undisturbed) -> Case:
    """The run ends with the weights of one that nothing happens to."""
    return Case(place, fault, flags, prepare, inject, (0,), "", 30.0, after=after)


def ends_behind_the_jump(case: Case, space: Workspace, done: Result) -> None:
    assert (space.folder / "seen").exists(), "nobody has read the clock since it jumped"
    ends_as_undisturbed(case, space, done)


def codes_of_stop(start: str, number: int) -> tuple[int, ...]:
    """Some launchers have an exit code of their own when they are told to stop."""
    return (1,) if start in ("mpirun", "torchrun") else (128 + number,)


def code_of_signal(start: str, number: int) -> int:
    """spawn sees that a rank was lost; others pass the signal on."""
    return 4 if start == "spawn" else 128 + number


def said_by(start: str, rank: int | str, text: str, code: int | str = r"\d+") -> str:
    """How an error that a rank reports is shown: by the rank, or by what started it."""
    if start == "spawn":
        return rf"^error: rank {rank}: expected exit code 0, got {code}; its last line: .*{text}"
    if start == "torchrun":
        return rf"Root Cause[^=]*\brank +: {rank} [^=]*\bexitcode +: {code} " \
               rf"[^=]*\btraceback +: .*{text}"
    return rf"^error: .*{text}" if start == "alone" else rf"^\[rank {rank}\] error: .*{text}"


def said_by_any(start: str, text: str) -> str:
    return said_by(start, r"\d", text)


def ended(start: str, rank: int, signal: int = 0, code: int = 0, step: str = r", step \d+") -> str:
    """How the end of a rank that said nothing itself is told: of a signal, or with a code."""
    lost = rf"^\[rank {1 - rank}\] error: .*{step}: rank {rank} has (ended|failed)"
    if start == "spawn":
        return rf"^error: rank {rank}{step}: .*got {f'signal {signal}' if signal else code}\b"
    if start == "torchrun":
        how = rf"Signal {signal}\b" if signal else rf"exitcode +: {code}\b"
        return rf"Root Cause[^=]*\brank +: {rank} [^=]*{how}"
    if start == "mpirun" and signal:
        return rf"process rank {rank} with .* exited on signal {signal}\b|{lost}"
    if start == "by hand":
        return rf"^by_hand\.sh: rank {rank}\b|{lost}"
    return "" if start == "alone" else lost  # of a program the shell tells it


# ---- ranks ----

def rank_dies() -> Cases:
    for stage, start, rank in ((0, "alone", 0), (1, "alone", 0), (2, "spawn", 0),
                               (3, "by hand", 1), (3, "torchrun", 1), (4, "spawn", 1),
                               (4, "torchrun", 0), (5, "spawn", 0), (5, "mpirun", 1),
                               (6, "spawn", 1), (6, "by hand", 1)):
        yield in_training((stage, start), "SIGKILL", faults.to_rank(SIGKILL, rank),
                          code_of_signal(start, SIGKILL), ended(start, rank, SIGKILL))
    for stage, start, rank in ((1, "alone", 0), (3, "mpirun", 1), (4, "spawn", 1),
                               (5, "torchrun", 0), (6, "spawn", 0)):
        yield in_training((stage, start), "SIGSEGV", faults.to_rank(SIGSEGV, rank),
                          code_of_signal(start, SIGSEGV), ended(start, rank, SIGSEGV))
    for stage, start in ((2, "spawn"), (3, "mpirun")):  # sockets fail otherwise than memory does
        yield in_training((stage, start), "SIGKILL, gloo", faults.to_rank(SIGKILL, 1),
                          code_of_signal(start, SIGKILL),
                          rf"{ended(start, 1, SIGKILL)}|"
                          r"^\[rank 0\] error: .*, step \d+: .*onnection (closed|reset) by peer",
                          endless("--backend", "gloo"))
    for stage, start in ((3, "torchrun"), (4, "by hand"), (5, "mpirun"), (6, "torchrun")):
        yield in_training((stage, start), "exit", faults.to_rank(SIGKILL, 1), 3,
                          ended(start, 1, code=3), prepare=(faults.EXITS,))


def rank_hangs() -> Cases:
    for stage, start, rank in ((2, "spawn", 1), (4, "spawn", 0), (5, "spawn", 1), (6, "spawn", 0),
                               (3, "by hand", 1), (4, "mpirun", 1), (3, "torchrun", 1)):
        cause = rf"^error: .*rank {rank}, step \d+ \(stopped\) hung" if start == "spawn" else \
                rf"^\[rank {1 - rank}\] error: .*, step \d+: timed out after .* for rank {rank};"
        yield in_training((stage, start), "SIGSTOP", faults.to_rank(SIGSTOP, rank), 4, cause,
                          endless("--timeout", DEADLINE),
                          (faults.with_variable("GRACE_SECONDS", 1),), HANGS_FOR[start])


def rank_fails() -> Cases:
    """An exception, a number that is none: on one rank alone, and on all."""
    for stage, start in ((3, "mpirun"), (4, "torchrun"), (5, "by hand"), (6, "mpirun")):
        yield from_the_start((stage, start), "exception",
                             (faults.more_flags("--data-root nowhere"),), 3,
                             said_by(start, 1, "nowhere", 3))
    for place in SPAWNED:  # rank 0 alone writes the record
        yield from_the_start(place, "exception", (), 1,
                             said_by("spawn", 0, "/dev/full: write: No space left", 1),
                             small("--metrics", "/dev/full"))
    bad = r"step \d+: expected a finite loss, got"
    for stage, start in ((1, "alone"), (5, "alone"), (2, "spawn"), (4, "spawn"), (6, "spawn"),
                         (3, "mpirun"), (4, "torchrun"), (5, "by hand")):
        yield from_the_start((stage, start), "NaN loss", (), 5, said_by_any(start, bad),
                             small(lr=1e30))
    for place in EVERY_STAGE:
        yield from_the_start(place, "inf gradient", (faults.huge_gradients,), 5,
                             said_by_any(place[1], "step 2: expected a finite loss"),
                             small("--load", "load.safetensors"))


def weights_become_nan() -> Cases:
    """Nothing goes on from a checkpoint of NaN: none is written, or all end before."""
    for stage, flags in (
            (5, ("--project-dir", "project", "--checkpointing-steps", 1)),
            (6, ("--profile", "none", "--output-dir", "out", "--save-steps", 1))):
        yield from_the_start((stage, "spawn"), "inf gradient, then a checkpoint",
                             (faults.huge_gradients,), 5,
                             said_by_any("spawn", "expected finite weights, got NaN or infinity"),
                             small("--load", "load.safetensors", *flags),
                             ("project", "project/checkpoints", "out"))


def last_gradient_is_infinite() -> Cases:
    """No step follows that would show it: the weights are not saved."""
    for stage, start in EVERY_STAGE:
        yield from_the_start((stage, start), "inf gradient in the last step",
                             (with_old_file, faults.huge_gradients), 5, said_by(start, 0, "finite"),
                             small("--load", "load.safetensors", "--save", "a.safetensors",
                                   limit_train=32, batch_size=32),
                             after=old_file_stays)


def rank_is_late() -> Cases:
    """Slow, or paused for less than the deadline: the run ends as if nothing had been."""
    for place in ((1, "alone"), *SPAWNED, (3, "torchrun"), (5, "mpirun")):
        yield harmless(place, "slow rank", faults.slow_rank)
    for place in ((0, "alone"), (2, "spawn"), (3, "by hand"), (6, "torchrun")):
        yield harmless(place, "pause", faults.pause(1.5))
    # Stages 0 and 1 never look at that clock.
    for place in ((2, "spawn"), (3, "torchrun"), (4, "mpirun"), (5, "by hand"), (6, "spawn")):
        for fault, seconds in (("clock a day ahead", 86400), ("clock a day back", -86400)):
            yield harmless(place, fault, faults.clock_jumps, (faults.clock_to_jump(seconds),),
                           after=ends_behind_the_jump)
    for place in ((3, "by hand"), (4, "mpirun"), (5, "torchrun"), (6, "by hand")):
        yield harmless(place, "clocks apart", prepare=(faults.clocks_apart,))
    for place in ((3, "mpirun"), (4, "torchrun"), (5, "by hand"), (6, "torchrun")):
        yield from_the_start(place, "rank that never arrives", (faults.NEVER_ARRIVES,), 4,
                             r"^\[rank 0\] error: rendezvous: timed out after .* for rank 1 of 2;",
                             small("--timeout", DEADLINE))


def settings_differ(flags: str) -> str:
    """Every rank names the difference before the first collective. Which one is the odd one
    depends on who came first."""
    flag = flags.split()[0].replace("--recipe", "--batch-size")  # the first that follows from it
    return rf"^\[rank \d\] error: settings of rank \d: expected {flag} .*, as on another rank, got "


def ranks_disagree() -> Cases:
    for place in ((4, "spawn"), (5, "spawn"), (6, "spawn"), (5, "by hand"), (6, "mpirun")):
        yield from_the_start(place, "port taken", (faults.taken_port,), 4,
                             r"^(\[rank 0\] )?error: MASTER_PORT \d+: expected a free port")
    for stage, start in ((3, "torchrun"), (4, "mpirun"), (5, "by hand"), (6, "by hand")):
        name = "OMPI_COMM_WORLD_SIZE" if start == "mpirun" else "WORLD_SIZE"
        yield from_the_start((stage, start), "wrong world size",
                             (faults.odd_rank(f"export {name}=3"),), 4,
                             r"^\[rank \d\] error: WORLD_SIZE of rank \d: expected [23], as "
                             r"on another rank, got [23]", small("--timeout", DEADLINE))
    for place, odd in (((3, "mpirun"), "--recipe convnet"), ((4, "by hand"), "--recipe convnet"),
                       ((5, "torchrun"), "--width 2"), ((6, "by hand"), "--width 2")):
        yield from_the_start(place, "parameters that differ", (faults.more_flags(odd),), 4,
                             settings_differ(odd))
    for stage, name, value in ((3, "ATEN_CPU_CAPABILITY", "default"),
                               (5, "ACCELERATE_MIXED_PRECISION", "bf16"),
                               (5, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 2),
                               (5, "ACCELERATE_DEBUG_MODE", 1), (6, "ACCELERATE_DEBUG_MODE", 1)):
        setting = name.removeprefix("ACCELERATE_").removesuffix("_MODE").lower()
        yield from_the_start((stage, "by hand"), f"{name} of one rank",
                             (faults.odd_rank(f"export {name}={value}"),), 4,
                             r"^\[rank \d\] error: instructions of rank \d: expected "
                             if stage == 3 else settings_differ(setting),
                             small("--timeout", DEADLINE))
    for place in ((3, "by hand"), (5, "mpirun"), (6, "by hand")):
        yield from_the_start(place, "learning rates that differ", (faults.more_flags("--lr 0.5"),),
                             4, settings_differ("--lr" if place[0] < 6 else "--learning-rate"),
                             small("--timeout", DEADLINE))
    for place in ((3, "mpirun"), (4, "by hand"), (5, "by hand")):
        yield from_the_start(place, "numbers of steps that differ",
                             (faults.more_flags("--batch-size 32"),), 4,
                             settings_differ("--batch-size"), small("--timeout", DEADLINE))


# ---- files ----

def with_old_file(space: Workspace, way: Way) -> Way:
    """That of an earlier run, where this one will save."""
    for path in (space.run / "a.safetensors", space.folder / "old"):
        faults.weights(path)
    return way


def old_file_stays(case: Case, space: Workspace, done: Result) -> None:
    """It has its bytes, and a run can begin with it."""
    saved = space.run / "a.safetensors"
    assert saved.read_bytes() == (space.folder / "old").read_bytes(), "the old file has changed"
    way = case.way()
    again = launch(*way.command, *small("--load", saved, "--quiet", epochs=0),
                   cwd=space.temporary, environment=way.environment)
    assert again.code == 0, again.stderr


def weights_are_whole(case: Case, space: Workspace, done: Result) -> None:
    """Python's library reads what was saved."""
    assert load_file(space.run / "a.safetensors")


def disk_fails() -> Cases:
    save = small("--save", "./a.safetensors", limit_train=64)
    for stage, start in EVERY_STAGE:
        place = stage, start
        yield from_the_start(place, "full disk while saving",
                             (with_old_file, faults.faulty_calls(3, ENOSPC)), 1,
                             said_by(start, 0, r"a\.safetensors\.tmp\.\d+: write: No space left"),
                             save, after=old_file_stays)
        # Nobody can tidy up after a SIGKILL but the next process of that number.
        yield from_the_start(place, "SIGKILL while saving",
                             (with_old_file, faults.faulty_calls(3)),
                             code_of_signal(start, SIGKILL), ended(start, 0, SIGKILL, step=""),
                             save, left=("a.safetensors.tmp.*",), after=old_file_stays)
        yield from_the_start(place, "read-only folder", (faults.on_disk("64k,ro"),), 2,
                             r"error: --save: expected a file in a folder that can be written",
                             small("--save", "disk/a.safetensors"))
    for stage, start in ((0, "alone"), (1, "alone"), (2, "spawn"), (3, "mpirun"), (4, "spawn"),
                         (5, "torchrun"), (6, "spawn")):
        yield from_the_start((stage, start), "full disk", (faults.on_disk("24k"),), 1,
                             said_by_any(start, r"disk/a.*\.jsonl: write: No space left"),
                             endless("--metrics", "disk/a.jsonl", "--fingerprint", 1))
    for stage, start in ((0, "alone"), (2, "spawn"), (4, "spawn"), (6, "spawn")):
        yield in_training((stage, start), "folder that becomes read-only",
                          faults.make_disk_read_only, 1,
                          said_by(start, 0, "disk/a.*: create: Read-only file system"),
                          short("--save", "disk/a.safetensors", epochs=20),
                          (faults.on_disk("8m"),), 30)
    for stage, flags in ((5, ("--project-dir", "disk", "--checkpointing-steps", 2)),
                         (6, ("--profile", "none", "--output-dir", "disk/out"))):
        yield from_the_start((stage, "spawn"), "read-only checkpoints",
                             (faults.on_disk("64k,ro"),), 1,
                             said_by("spawn", 0, "(write|mkdir): Read-only file system"),
                             small(*flags))


# Stage 6 writes two checkpoints.
OUTPUT = small("--profile", "none", "--recipe", "convnet", "--output-dir", "out", "--max-steps", 4,
               "--save-steps", 2)


def first_checkpoint_stays(case: Case, space: Workspace, done: Result) -> None:
    """What can be seen is whole, a run goes on from it, and tidies up."""
    found = sorted(path.name for path in (space.run / "out").glob("checkpoint-*"))
    assert found == ["checkpoint-2"], found
    require_whole(space.run / "out" / "checkpoint-2")
    way = case.way()
    again = launch(*way.command, *OUTPUT, "--resume", cwd=space.run, environment=way.environment)
    assert again.code == 0 and "from global step 2" in again.stderr, again.stderr
    require_whole(space.run / "out" / "checkpoint-4")
    require_no_leftovers(space)


def trainer_saves() -> Cases:
    """A fault in the second checkpoint; those of stage 5 have tests of their own."""
    second = "/out/.checkpoint-4"
    for start in ("alone", "spawn"):
        yield from_the_start((6, start), "SIGKILL while saving a checkpoint",
                             (faults.faulty_calls(3, part=second),),
                             code_of_signal(start, SIGKILL), ended(start, 0, SIGKILL), OUTPUT,
                             left=("out*",), after=first_checkpoint_stays)
        yield from_the_start((6, start), "full disk while saving a checkpoint",
                             (faults.faulty_calls(3, ENOSPC, second),), 1,
                             said_by(start, 0, "No space left on device"), OUTPUT,
                             left=("out", "out/checkpoint-2*"), after=first_checkpoint_stays)


def files_are_damaged() -> Cases:
    load = small("--load", "load.safetensors")
    for stage, start in ((1, "alone"), (2, "spawn"), (3, "mpirun"), (4, "spawn"), (5, "torchrun"),
                         (6, "spawn")):
        place = stage, start
        refused = said_by_any(start, "load.safetensors: expected ")
        yield from_the_start(place, "checkpoint torn", (faults.torn_checkpoint,), 3, refused, load)
        yield from_the_start(place, "checkpoint with a flipped bit",
                             (faults.flipped_checkpoint,), 3, refused, load)
        images = "t10k-images-idx3-ubyte.gz"
        yield from_the_start(place, "data file truncated", (faults.with_data(images),), 3,
                             said_by_any(start, f"{images}: expected "))
    for place, flags in (((0, "alone"), short()), ((1, "alone"), short()),
                         ((3, "by hand"), short()), ((4, "spawn"), short("--num-workers", 1)),
                         ((5, "spawn"), short("--dispatch-batches")), ((6, "spawn"), short())):
        yield harmless(place, "data file truncated mid-run", faults.cut_data,
                       (faults.with_data(),), flags)


def paths_are_no_files() -> Cases:
    """Opening never waits for the other end of a pipe."""
    for stage, start in EVERY_STAGE:
        place = stage, start
        yield from_the_start(place, "pipe as --load", (faults.pipe("load.safetensors"),), 3,
                             said_by_any(start, "load.safetensors: expected a readable file, got a "
                                                "pipe; hint: name a file"),
                             small("--load", "load.safetensors"))
        yield from_the_start(place, "pipe without a reader as --metrics", (faults.pipe("p"),), 2,
                             said_by(start, 0, "--metrics: expected a file that can be written, .*"
                                               "; hint: it is a pipe without a reader"),
                             small("--metrics", "p"))
    for stage, start, flag in ((3, "torchrun", "--snapshot"), (5, "spawn", "--resume"),
                               (6, "spawn", "--resume")):
        yield from_the_start((stage, start), "pipe as checkpoint", (faults.pipe("p"),), 3,
                             said_by_any(start, "p: expected a checkpoint, got no folder; hint: "
                                                "name the folder of a checkpoint"), small(flag, "p"))


def limits_are_reached() -> Cases:
    """Exit code 1, the limit and what to type; nobody waits for anybody, and no part is left."""
    for place in SPAWNED:
        for files in (12, 20, 24):
            yield from_the_start(place, f"{files} open files", (faults.limited("-n", files),), 1,
                                 rf"Too many open files; hint: this process may open {files} files: "
                                 r"ulimit -n \d+")
        yield from_the_start(place, "few processes", (faults.few_processes(6),), 1,
                             r"start 5 threads: Resource temporarily unavailable; hint: this "
                             "user may have 6 processes and threads")
    for stage, start in EVERY_STAGE:
        said = said_by(start, 0, "write: File too large; hint: a file may have at most 102400 bytes: "
                                 "ulimit -f unlimited")
        yield from_the_start((stage, start), "file size",
                             (with_old_file, faults.limited("-f", 100)), 1, said,
                             small("--save", "./a.safetensors", limit_train=64),
                             after=old_file_stays)
    for stage, flags in ((5, ("--project-dir", "project", "--checkpointing-steps", 2)),
                         (6, ("--profile", "none", "--output-dir", "out", "--save-steps", 2))):
        yield from_the_start((stage, "spawn"), "file size of a checkpoint",
                             (faults.limited("-f", 100),), 1,
                             said_by_any("spawn", "write: File too large; hint: a file may have"),
                             small(*flags), ("project", "project/checkpoints", "out"))
    yield from_the_start((0, "alone"), "memory", (faults.limited("-v", 5_000_000),), 1,
                         r"^error: out of memory: .*; hint: use a smaller batch size; this process "
                         "may use 4882 MiB of memory: ulimit -v unlimited",
                         small(limit_train=30000, batch_size=30000))


# ---- who started it ----

def streams_close() -> Cases:
    for stage, start in ((0, "alone"), (1, "alone"), (2, "spawn"), (3, "by hand"), (4, "spawn"),
                         (5, "spawn"), (6, "spawn")):
        place = stage, start
        yield harmless(place, "closed stdout", prepare=(faults.in_shell('exec "$@" >&-'),),
                       flags=small(limit_train=64))
        yield harmless(place, "stderr without a reader",
                       prepare=(faults.in_shell('"$@" 2> >(exec true)'),))
        yield from_the_start(place, "stdout without a reader",
                             (faults.in_shell('"$@" | exec true'),), 1,
                             said_by(start, 0, "standard output"), small(limit_train=64))


def stopped(start: str, number: Signals, saved: str) -> str:
    name = "SIGTERM" if start == "mpirun" else number.name  # which it sends for both
    return rf"^(\[rank 0\] )?{name}: stopped after step \d+; {saved}"


# Stages 5 and 6 with a place for checkpoints, but none due.
SAVING: dict[int, Flags] = {5: ("--project-dir", "project"),
                            6: ("--profile", "none", "--output-dir", "out", "--save-strategy", "no")}
some_seconds = functools.partial(small, recipe="convnet", epochs=40, limit_train=200,
                                 limit_test=50, batch_size=16)


def require_no_leftovers(space: Workspace) -> None:
    """What a killed run left of a checkpoint went with the next one that was written."""
    left = [path.name for path in space.run.rglob(".*")]
    assert not left, f"the next run has left {left}"


def goes_on_as_undisturbed(case: Case, space: Workspace, done: Result) -> None:
    """Started again, from a checkpoint if there is one, it ends with the weights of a run that
    nobody stopped."""
    way = case.way()
    has_checkpoint = any(space.run.glob("project/checkpoints/checkpoint_*")) or \
        any(space.run.glob("out/checkpoint-*"))
    resume = ("--resume",) if has_checkpoint else ()
    again = launch(*way.command, *case.flags, *resume, *OBSERVED, cwd=space.run,
                   environment=way.environment)
    assert again.code == 0, again.stderr
    require_no_leftovers(space)
    goes_on = re.search(r"resumed from|from global step [1-9]", again.stderr)
    assert bool(goes_on) == has_checkpoint, again.stderr
    ends_as_undisturbed(case, space, again)


def saved_and_stopped(place: Place, number: Signals, inject: Fault) -> Case:
    return Case(place, f"{number.name}, saved", some_seconds(*SAVING[place[0]]), inject=inject,
                codes=codes_of_stop(place[1], number), cause=stopped(place[1], number, "saved "),
                seconds=GONE_IN[place[1]], left=("project*", "out*"),
                after=goes_on_as_undisturbed)


def told_to_stop() -> Cases:
    """All ranks stop after the same step, and save what they can."""
    for number in (SIGINT, SIGTERM):
        for place in ((0, "alone"), (1, "alone"), (2, "spawn"), (4, "spawn"), (5, "alone"),
                      (5, "spawn"), (6, "spawn"), (6, "mpirun"), (5, "torchrun")):
            yield in_training(place, number.name, faults.to_launcher(number),
                              codes_of_stop(place[1], number)[0],
                              stopped(place[1], number, "nothing saved"))
        # The step in hand takes longer than it is to the second signal, which ends all at once.
        for place in ((0, "alone"), (2, "spawn"), (4, "spawn"), (5, "alone"), (5, "spawn"),
                      (6, "spawn")):
            yield Case(place, f"{number.name}, twice",
                       endless(limit_train=24000, batch_size=8000),
                       inject=faults.to_launcher(number, 2), codes=(128 + number,),
                       cause=r"\A(?![\s\S]*stopped after)", seconds=2.0)
        # Launchers that hear it again die of it; their ranks end by themselves. mpirun then leaves
        # its folder behind.
        for place in ((6, "mpirun"), (5, "torchrun")):
            yield Case(place, f"{number.name}, twice", endless(),
                       inject=faults.to_launcher(number, 2),
                       codes=(128 + number, *codes_of_stop(place[1], number)),
                       seconds=GONE_IN[place[1]], left=("ompi.*",))
        for place in ((5, "alone"), (5, "spawn"), (5, "torchrun"), (5, "mpirun"), (6, "alone"),
                      (6, "spawn"), (6, "torchrun")):
            yield saved_and_stopped(place, number, faults.to_launcher(number))
    for stage in (5, 6):  # one rank alone hears it
        yield saved_and_stopped((stage, "by hand"), SIGTERM, faults.to_rank(SIGTERM))
    for stage in (3, 4, 5, 6):
        for number, inject in ((SIGINT, faults.to_terminal), (SIGTERM, faults.to_launcher)):
            # In the background of a script, ranks ignore SIGINT; the script sends them SIGTERM.
            yield in_training((stage, "by hand"), number.name, inject(number), 128 + number,
                              stopped("by hand", SIGTERM, "nothing saved"))
    for place in ((0, "alone"), (2, "spawn"), (6, "spawn")):
        yield in_training(place, "SIGHUP", faults.to_launcher(SIGHUP), 128 + SIGHUP)


def launcher_dies() -> Cases:
    """Ranks that nobody waits for any more do not go on for hours."""
    for place in ((2, "spawn"), (4, "spawn"), (5, "spawn"), (6, "spawn"), (3, "mpirun"),
                  (6, "mpirun"), (3, "torchrun"), (5, "torchrun"), (4, "by hand")):
        # mpirun has no time to remove its own files.
        yield Case(place, "launcher killed", endless(), inject=faults.to_launcher(SIGKILL),
                   codes=(128 + SIGKILL,), seconds=GONE_IN[place[1]], left=("ompi.*",))


def network_fails() -> Cases:
    """The cable between two machines is cut: both sides end, at the deadline."""
    for stage in (4, 5, 6):
        yield in_training((stage, "by hand"), "network cut", faults.cut_network, 4,
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
KEPT = ("snapshot*", "project*", "out*")
tiny = functools.partial(small, recipe="convnet", limit_train=64, limit_test=50, batch_size=16)


def disk_is_slow() -> Cases:
    """A checkpoint takes longer than --timeout, and longer than the grace after SIGTERM."""
    for stage, start in ((3, "torchrun"), (5, "spawn"), (5, "mpirun"), (6, "spawn"),
                         (6, "torchrun")):
        yield Case((stage, start), "slow disk",
                   tiny(*ONE_CHECKPOINT[stage], "--timeout", DEADLINE),
                   (faults.slow_disk(400, OF_STAGE[stage]),),
                   seconds=40, left=KEPT, after=ends_as_undisturbed)
    for stage in (5, 6):
        yield Case((stage, "spawn"), "SIGTERM, slow disk", some_seconds(*SAVING[stage]),
                   (faults.slow_disk(600, OF_STAGE[stage]),), faults.to_launcher(SIGTERM),
                   codes_of_stop("spawn", SIGTERM), stopped("spawn", SIGTERM, "saved "), 25,
                   KEPT, goes_on_as_undisturbed)
    for start in ("alone", "spawn"):
        yield Case((5, start), "SIGTERM, twice while saving", some_seconds(*SAVING[5]),
                   (faults.slow_disk(600, OF_STAGE[5]),),
                   faults.then(faults.to_launcher(SIGTERM),
                               faults.while_saving("project/checkpoints/.*.partial",
                                                   faults.to_launcher(SIGTERM))),
                   codes_of_stop("spawn", SIGTERM),
                   "^warning: not saved: project/checkpoints/checkpoint_0;", 5, KEPT)
    # The file is finished, and then the signal ends the program.
    for place in ((0, "alone"), (1, "alone"), (2, "spawn"), (4, "spawn")):
        yield Case(place, "SIGTERM, slow --save", some_seconds("--save", "./a.safetensors"),
                   (faults.slow_disk(2000, "/a.safetensors"),),
                   faults.while_saving("a.safetensors.tmp.*", faults.to_launcher(SIGTERM)),
                   codes_of_stop(place[1], SIGTERM), "", 25, ("a.safetensors",), weights_are_whole)


def runs_share_a_folder() -> Cases:
    """The second one is refused; the first one does not notice it."""
    for stage, start in ((3, "torchrun"), (5, "spawn"), (6, "spawn"), (6, "torchrun")):
        flags = RESUMES[3] if stage == 3 else KEEPING[stage]
        yield in_training((stage, start), "second run in its folder",
                          faults.then(faults.second_run(rf"{OF_STAGE[stage]}: in use by "
                                                        r"process \d+ on \S+;"),
                                      faults.to_launcher(SIGTERM)),
                          codes_of_stop(start, SIGTERM)[0], stopped(start, SIGTERM, "saved "),
                          endless(*flags), seconds=40, left=KEPT)
    for stage, name, value in ((5, "--lr", '"0.5"'), (6, "learning_rate", "0.5")):
        yield from_the_start((stage, "spawn"), "checkpoints of another run",
                             (faults.trained_before(*tiny(*ONE_CHECKPOINT[stage], lr=0.5)),), 2,
                             said_by("spawn", 0, f"of another run: {name} is {value} there"),
                             tiny(*ONE_CHECKPOINT[stage]))


def folders_are_not_shared() -> Cases:
    """Rank 1 has a folder of the same name, or none, as on a machine of its own."""
    resume: dict[int, Flags] = {3: (), 5: ("--resume", "auto"), 6: ("--resume",)}
    for stage in (3, 5, 6):
        flags = tiny(*ONE_CHECKPOINT[stage])
        place = stage, "by hand"
        yield from_the_start(place, "folders of their own, other weights",
                             (faults.trained_before(*flags),
                              faults.trained_before(*flags, "--lr", 0.5, folder="own"),
                              faults.odd_rank("cd own")), 4,
                             r"^\[rank \d\] error: load_state: .*: expected the checkpoint of "
                             "rank 0 on all ranks, got another one on rank 1;",
                             (*flags, *resume[stage]))
        yield from_the_start(place, "folders of their own, none on one rank",
                             (faults.trained_before(*flags),
                              faults.odd_rank("mkdir own; cd own")), 4,
                             r"^\[rank \d\] error: load_state: .*, got none on rank 1 ",
                             (*flags, *resume[stage]), ("own",))
        yield from_the_start(place, "folders of their own while saving",
                             (faults.odd_rank("mkdir own; cd own"),), 4,
                             r"^\[rank \d\] error: save_state: .*: expected the folder that "
                             "rank 0 created on all ranks, got none on rank 1;", flags,
                             (*KEPT, "own"))


# Each kind of fault once, spread over stages and launchers.
QUICK = {
    "stage 5, spawn: slow disk", "stage 5, alone: SIGTERM, twice while saving",
    "stage 6, spawn: second run in its folder", "stage 6, spawn: checkpoints of another run",
    "stage 5, by hand: folders of their own, other weights", "stage 5, spawn: SIGKILL",
    "stage 2, spawn: SIGKILL, gloo", "stage 4, spawn: SIGSEGV", "stage 4, by hand: exit",
    "stage 3, by hand: SIGSTOP", "stage 4, torchrun: exception", "stage 3, mpirun: exception",
    "stage 0, alone: inf gradient", "stage 5, spawn: inf gradient, then a checkpoint",
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
    "stage 0, alone: stdout without a reader", "stage 0, alone: SIGINT", "stage 6, by hand: SIGINT",
    "stage 6, spawn: SIGHUP", "stage 5, spawn: SIGTERM, saved",
    "stage 6, spawn: killed and started again, point 2", "stage 4, spawn: launcher killed",
    "stage 4, by hand: network cut", "stage 3, torchrun: restarts, seed 0",
}


KINDS = (rank_dies, rank_hangs, rank_fails, weights_become_nan, last_gradient_is_infinite,
         rank_is_late, ranks_disagree, disk_fails, trainer_saves, files_are_damaged,
         paths_are_no_files, limits_are_reached, streams_close, told_to_stop, launcher_dies,
         network_fails, restarts, resume_points, disk_is_slow, runs_share_a_folder,
         folders_are_not_shared)


def table() -> list[Case]:
    return [case for kind in KINDS for case in kind()]
