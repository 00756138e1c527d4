# SPDX-License-Identifier: Apache-2.0
"""The table: which fault is tried on which stage, and what is promised of it.

What the stages' own tests show already (tests/stages) is not here again.
"""
from __future__ import annotations

import functools
from collections.abc import Iterator
from signal import SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, Signals

from tests.faults import strikes
from tests.faults.cell import Cell, Workspace, ends_as_undisturbed
from tests.support.programs import Result, launch
from tests.support.resume import require_whole
from tests.support.ways import Way, endless, small

# Seconds from the start of a command to its end, when something is wrong with it from the start.
STARTS_IN = {"alone": 10.0, "spawn": 10.0, "by hand": 10.0, "mpirun": 15.0, "torchrun": 20.0}
# Seconds in which all is gone once a rank is; torchrun takes some to write its report.
GONE_IN = {"alone": 5.0, "spawn": 5.0, "by hand": 5.0, "mpirun": 5.0, "torchrun": 8.0}
DEADLINE = 2  # --timeout
# torchrun gives a rank 30 seconds to end; the others that long to say more, then to end.
HANGS_FOR = {"spawn": DEADLINE + 13.0, "mpirun": DEADLINE + 13.0, "torchrun": DEADLINE + 38.0}

Places = tuple[tuple[int, str], ...]
ALONE: Places = ((0, "alone"), (1, "alone"))
SPAWNED: Places = ((2, "spawn"), (4, "spawn"), (5, "spawn"), (6, "spawn"))
LAUNCHED: Places = ((3, "mpirun"), (4, "torchrun"), (5, "by hand"), (6, "torchrun"))
short = functools.partial(small, recipe="convnet", epochs=10, limit_test=100)  # 200 steps


def codes_of(start: str, code: int) -> tuple[int, ...]:
    """What the launcher makes of the exit code of the rank that failed.

    By hand and under mpirun the rank that ends first gives the code: it may be one that lost the
    other, and says so with 4.
    """
    if start == "torchrun":
        return (1,)
    return (code, 4) if start in ("by hand", "mpirun") else (code,)


def said_by(start: str, rank: int, text: str) -> str:
    """How the cause is told: by the rank, and once more by who started it."""
    if start == "spawn":
        return rf'^error: rank {rank}: expected exit code 0, got \d+; its last line: .*{text}'
    if start == "torchrun":
        return rf"Root Cause[^=]*\brank +: {rank} [^=]*\btraceback +: .*{text}"
    return rf"^{'' if start == 'alone' else rf'.rank {rank}. '}error: .*{text}"


def killed_by(start: str, rank: int, number: Signals) -> str:
    lost = rf"^\[rank {1 - rank}\] error: .*rank {rank} has (ended|given up)"
    if start == "spawn":
        return rf"^error: rank {rank}: .*signal {number}\b"
    if start == "torchrun":
        return rf"Root Cause[^=]*\brank +: {rank} [^=]*Signal {number}\b"
    if start == "mpirun":
        return rf"process rank {rank} with .* exited on signal {number}\b|{lost}"
    return "" if start == "alone" else rf"{lost}|Killed"


def rank_dies() -> Iterator[Cell]:
    places = {
        "SIGKILL": (SIGKILL, (*ALONE, (3, "torchrun"), (4, "torchrun"), (5, "spawn"),
                              (5, "mpirun"), (6, "spawn"), (6, "by hand"))),
        "SIGSEGV": (SIGSEGV, ((1, "alone"), (3, "mpirun"), (4, "spawn"), (5, "torchrun"),
                              (6, "spawn")))}
    for name, (number, where) in places.items():
        for stage, start in where:
            rank = 0 if start == "alone" or stage == 5 else 1
            code = 4 if start == "spawn" else 128 + number
            yield Cell(stage, start, name, endless(), strike=strikes.to_rank(number, rank),
                       codes=codes_of(start, code), cause=killed_by(start, rank, number),
                       seconds=GONE_IN[start], quick=start in ("alone", "spawn"))
    for stage, start in ((2, "spawn"), (3, "mpirun")):  # sockets fail otherwise than memory does
        code = 4 if start == "spawn" else 128 + SIGKILL
        yield Cell(stage, start, "SIGKILL, gloo", endless("--backend", "gloo"),
                   strike=strikes.to_rank(SIGKILL, 1), codes=codes_of(start, code),
                   cause=rf"{killed_by(start, 1, SIGKILL)}|^\[rank 0\] error: collective: ",
                   seconds=GONE_IN[start], quick=start == "spawn")


def rank_hangs() -> Iterator[Cell]:
    for stage, start, rank in ((4, "spawn", 0), (5, "spawn", 1), (6, "spawn", 0), (4, "mpirun", 1),
                               (3, "torchrun", 1)):
        hung = rf"^error: .*rank {rank} \(stopped\) hung" if start == "spawn" else \
               rf"^\[rank {1 - rank}\] error: .*rank {rank} did not come in time"
        yield Cell(stage, start, "SIGSTOP", endless("--timeout", DEADLINE),
                   strike=strikes.to_rank(SIGSTOP, rank), codes=codes_of(start, 4), cause=hung,
                   seconds=HANGS_FOR[start])


def rank_fails() -> Iterator[Cell]:
    """An exit, an exception, a number that is none: on one rank alone, and on all."""
    for stage, start in ((3, "torchrun"), (4, "by hand"), (5, "mpirun"), (6, "torchrun")):
        yield Cell(stage, start, "exit", endless(), (strikes.EXITS,), strikes.to_rank(SIGKILL, 1),
                   codes_of(start, 3), r"^\[rank 0\] error: .*rank 1 has ended"
                   if start != "torchrun" else r"Root Cause[^=]*\brank +: 1 [^=]*exitcode +: 3 ",
                   GONE_IN[start])
    for stage, start in ((3, "mpirun"), (4, "torchrun"), (5, "by hand"), (6, "mpirun")):
        yield Cell(stage, start, "exception", small(),
                   (strikes.more_flags("--data-root nowhere"),), codes=codes_of(start, 3),
                   cause=said_by(start, 1, "nowhere"), seconds=STARTS_IN[start])
    for stage, start in SPAWNED:  # rank 0 alone writes the record
        yield Cell(stage, start, "exception", small("--metrics", "/dev/full"), codes=(1,),
                   cause=said_by(start, 0, "/dev/full: write: No space left"),
                   seconds=STARTS_IN[start], quick=stage in (5, 6))
    bad = r"step \d+: expected a finite loss, got"
    for stage, start in ((5, "alone"), (6, "spawn"), (4, "torchrun"), (5, "by hand")):
        yield Cell(stage, start, "NaN loss", small(lr=1e30), codes=codes_of(start, 5),
                   cause=said_by(start, 0 if start == "alone" else r"\d", bad),
                   seconds=STARTS_IN[start], quick=start in ("alone", "spawn"))
    for stage, start in ((3, "by hand"), (4, "mpirun"), (5, "torchrun"), (6, "by hand")):
        yield Cell(stage, start, "NaN loss of one rank", small(),
                   (strikes.more_flags("--lr 1e30"),), codes=codes_of(start, 5),
                   cause=said_by(start, 1, bad), seconds=STARTS_IN[start],
                   quick=stage == 3)
    for stage, start in (*ALONE, *SPAWNED, (3, "mpirun")):
        yield Cell(stage, start, "inf gradient", small("--load", "load.safetensors"),
                   (strikes.huge_gradients,), codes=codes_of(start, 5),
                   cause=said_by(start, 0 if start == "alone" else r"\d", "step 2: expected a "),
                   seconds=STARTS_IN[start], quick=stage in (0, 2, 6))


def rank_is_late() -> Iterator[Cell]:
    """Slow, or paused for less than the deadline: the run ends as if nothing had been."""
    for stage, start in ((1, "alone"), *SPAWNED, (3, "torchrun"), (5, "mpirun")):
        yield Cell(stage, start, "slow rank", short(), strike=strikes.slow_rank, seconds=30,
                   after=ends_as_undisturbed, quick=stage == 4)
    for stage, start in ((0, "alone"), (2, "spawn"), (3, "by hand"), (6, "torchrun")):
        yield Cell(stage, start, "clock jump", short(), strike=strikes.pause(1.5), seconds=30,
                   after=ends_as_undisturbed, quick=stage == 2)
    for stage, start in ((3, "by hand"), (4, "mpirun"), (5, "torchrun"), (6, "by hand")):
        yield Cell(stage, start, "clocks apart", short(),
                   (strikes.clocks_apart,), seconds=40, after=ends_as_undisturbed)
    for stage, start in LAUNCHED:
        yield Cell(stage, start, "rank that never arrives", small("--timeout", DEADLINE),
                   (strikes.NEVER_ARRIVES,), codes=codes_of(start, 4),
                   cause=r"^\[rank 0\] error: rendezvous: .*got none from rank 1",
                   seconds=STARTS_IN[start] + DEADLINE, quick=start == "by hand")


def ranks_disagree() -> Iterator[Cell]:
    for stage, start in ((4, "spawn"), (5, "spawn"), (6, "spawn"), (5, "by hand"), (6, "mpirun")):
        yield Cell(stage, start, "port taken", small(), (strikes.taken_port,), codes=(4,),
                   cause=r"^(\[rank 0\] )?error: MASTER_PORT \d+: expected a free port",
                   seconds=STARTS_IN[start], quick=start == "spawn")
    wrong = {"torchrun": "WORLD_SIZE", "by hand": "WORLD_SIZE", "mpirun": "OMPI_COMM_WORLD_SIZE"}
    for stage, start in ((3, "torchrun"), (4, "mpirun"), (5, "by hand"), (6, "by hand")):
        yield Cell(stage, start, "wrong world size", small("--timeout", DEADLINE),
                   (strikes.odd_rank(f"export {wrong[start]}=3"),), codes=codes_of(start, 4),
                   cause=r"^\[rank \d\] error: WORLD_SIZE of rank \d: expected [23], as another "
                         r"rank says, got [23]", seconds=STARTS_IN[start] + DEADLINE,
                   quick=stage == 5)
    network = r"^\[rank \d\] error: model, tensor 1: expected .*conv1\.bias .*, as on rank 0, got " \
              r".* on rank 1"
    for stage, start in ((3, "mpirun"), (4, "by hand"), (5, "torchrun"), (6, "by hand")):
        odd = "--recipe convnet" if stage in (3, 4) else "--width 2"
        yield Cell(stage, start, "parameters that differ", small(), (strikes.more_flags(odd),),
                   codes=codes_of(start, 4), cause=network, seconds=STARTS_IN[start],
                   quick=stage == 4)
    values = r"^\[rank \d\] error: replicas, tensor 1: .*, as on rank 0, got .* on rank 1"
    for stage, start in ((3, "by hand"), (4, "torchrun"), (5, "mpirun"), (6, "by hand")):
        checked = () if stage == 6 else ("--check-replicas", 2)  # else they are at the end
        yield Cell(stage, start, "values that differ", small(*checked),
                   (strikes.more_flags("--lr 0.5"),), codes=codes_of(start, 4), cause=values,
                   seconds=STARTS_IN[start], quick=stage == 3)
    for stage, start in ((3, "mpirun"), (4, "by hand"), (5, "by hand")):
        yield Cell(stage, start, "numbers of steps that differ", small("--timeout", DEADLINE),
                   (strikes.more_flags("--batch-size 32"),), codes=codes_of(start, 4),
                   cause=r"^\[rank \d\] error: .*rank \d is at .*, this one at ",
                   seconds=STARTS_IN[start])


# ---- files ----

def old_file_stays(cell: Cell, space: Workspace, done: Result) -> None:
    """The file of the last run has its bytes, and a run can begin with it."""
    saved, old = space.run / "a.safetensors", space.folder / "old"
    assert saved.read_bytes() == old.read_bytes(), "the old checkpoint has changed"
    way = cell.way()
    again = launch(*way.command, *small("--load", saved, "--quiet", epochs=0),
                   cwd=space.temporary, environment=way.environment)
    assert again.code == 0, again.stderr


def with_old_file(space: Workspace, way: Way) -> Way:
    for path in (space.run / "a.safetensors", space.folder / "old"):
        strikes.weights(path)
    return way


def disk_fails() -> Iterator[Cell]:
    save = small("--save", "./a.safetensors")
    everywhere = (*ALONE, (2, "spawn"), (3, "torchrun"), (4, "spawn"), (5, "spawn"), (6, "spawn"))
    no_space = 28
    for stage, start in everywhere:
        code = 1 if start == "alone" else codes_of(start, 1)[0]
        yield Cell(stage, start, "full disk while saving", save,
                   (with_old_file, strikes.faulty_calls(3, no_space)), codes=(code,),
                   cause=said_by(start, 0, r"a\.safetensors\.tmp\.\d+: write: No space left"),
                   seconds=STARTS_IN[start], after=old_file_stays, quick=stage in (0, 2, 6))
        code = 4 if start == "spawn" else 128 + SIGKILL
        # Nobody can tidy up after a SIGKILL but the next process of that number.
        yield Cell(stage, start, "SIGKILL while saving", save,
                   (with_old_file, strikes.faulty_calls(3)), codes=codes_of(start, code),
                   cause=killed_by(start, 0, SIGKILL), seconds=STARTS_IN[start],
                   left=("a.safetensors.tmp.*",), after=old_file_stays, quick=stage == 5)
        yield Cell(stage, start, "read-only folder", small("--save", "disk/a.safetensors"),
                   (strikes.on_disk("64k,ro"),), codes=codes_of(start, 2),
                   cause=r"error: --save: expected a file in a folder that can be written, got",
                   seconds=STARTS_IN[start], left=("disk",), quick=stage in (1, 4))
    marks = ("--metrics", "disk/a.jsonl", "--fingerprint", 1)
    for stage, start in (*ALONE, (2, "spawn"), (3, "mpirun"), (4, "spawn"), (5, "torchrun"),
                         (6, "spawn")):
        rank = 0 if start == "alone" else r"\d"
        yield Cell(stage, start, "full disk", endless(*marks), (strikes.on_disk("24k"),),
                   codes=codes_of(start, 1),
                   cause=said_by(start, rank, r"disk/a.*\.jsonl: write: No space left"),
                   seconds=STARTS_IN[start] + 10, left=("disk",), quick=stage in (0, 5))
    for stage, start in ((0, "alone"), (2, "spawn"), (4, "spawn"), (6, "spawn")):
        yield Cell(stage, start, "folder that becomes read-only",
                   short("--save", "disk/a.safetensors"), (strikes.on_disk("8m"),),
                   strikes.make_disk_read_only, codes=(1,),
                   cause=said_by(start, 0, "disk/a.*: create: Read-only file system"),
                   seconds=30, left=("disk",))
    folders = {5: ("--project-dir", "disk", "--checkpointing-steps", 2),
               6: ("--profile", "none", "--output-dir", "disk/out", "--max-steps", 3)}
    for stage, flags in folders.items():
        yield Cell(stage, "spawn", "read-only checkpoints", small(*flags),
                   (strikes.on_disk("64k,ro"),), codes=(1,),
                   cause=said_by("spawn", 0, "project_dir: Read-only file system"),
                   seconds=STARTS_IN["spawn"], left=("disk",), quick=stage == 5)


OUTPUT = small("--profile", "none", "--recipe", "convnet", "--output-dir", "out", "--max-steps", 4,
               "--save-steps", 2)


def first_checkpoint_stays(cell: Cell, space: Workspace, done: Result) -> None:
    """What can be seen is whole, and a run goes on from it."""
    found = sorted(path.name for path in (space.run / "out").glob("checkpoint-*"))
    assert found == ["checkpoint-2"], found
    require_whole(space.run / "out" / "checkpoint-2")
    way = cell.way()
    again = launch(*way.command, *OUTPUT, "--resume", cwd=space.run, environment=way.environment)
    assert again.code == 0 and "from global step 2" in again.stderr, again.stderr
    require_whole(space.run / "out" / "checkpoint-4")
    left = [path.name for path in (space.run / "out").glob(".*")]
    assert not left, f"not tidied up by the next run: {left}"


def trainer_saves() -> Iterator[Cell]:
    """A fault in the second checkpoint of stage 6; stage 5 has tests of its own."""
    second = "/out/.checkpoint-4"
    for start in ("alone", "spawn"):
        yield Cell(6, start, "SIGKILL while saving a checkpoint", OUTPUT,
                   (strikes.faulty_calls(3, part=second),),
                   codes=(4,) if start == "spawn" else (128 + SIGKILL,),
                   cause=killed_by(start, 0, SIGKILL), seconds=STARTS_IN[start],
                   left=("out*",), after=first_checkpoint_stays, quick=start == "alone")
        yield Cell(6, start, "full disk while saving a checkpoint", OUTPUT,
                   (strikes.faulty_calls(3, 28, second),), codes=(1,),
                   cause=said_by(start, 0, "No space left on device"), seconds=STARTS_IN[start],
                   left=("out", "out/checkpoint-2*"), after=first_checkpoint_stays)


def files_are_damaged() -> Iterator[Cell]:
    load = small("--load", "load.safetensors")
    for stage, start in ((1, "alone"), (2, "spawn"), (3, "mpirun"), (4, "spawn"), (5, "torchrun"),
                         (6, "spawn")):
        rank = 0 if start == "alone" else r"\d"
        yield Cell(stage, start, "checkpoint torn", load, (strikes.torn_checkpoint,),
                   codes=codes_of(start, 3), cause=said_by(start, rank, "load.safetensors: exp"),
                   seconds=STARTS_IN[start], quick=stage == 2)
        yield Cell(stage, start, "checkpoint with a flipped bit", load,
                   (strikes.flipped_checkpoint,), codes=codes_of(start, 3),
                   cause=said_by(start, rank, "load.safetensors: exp"), seconds=STARTS_IN[start],
                   quick=stage == 6)
        yield Cell(stage, start, "data file truncated", small(),
                   (strikes.with_data("t10k-images-idx3-ubyte.gz"),), codes=codes_of(start, 3),
                   cause=said_by(start, rank, "t10k-images-idx3-ubyte.gz: expected "),
                   seconds=STARTS_IN[start], quick=stage == 4)
    for stage, start, more in ((0, "alone", ()), (1, "alone", ()), (3, "by hand", ()),
                               (4, "spawn", ("--num-workers", 1)),
                               (5, "spawn", ("--dispatch-batches",)), (6, "spawn", ())):
        yield Cell(stage, start, "data file truncated mid-run", short(*more),
                   (strikes.with_data(),), strikes.cut_data, seconds=30,
                   after=ends_as_undisturbed, quick=stage == 5)


# ---- who started it ----

def streams_close() -> Iterator[Cell]:
    for stage, start in (*ALONE, (2, "spawn"), (3, "by hand"), (4, "spawn"), (5, "spawn"),
                         (6, "spawn")):
        yield Cell(stage, start, "closed stdout", small(), (strikes.in_shell('exec "$@" >&-'),),
                   seconds=30, after=ends_as_undisturbed, quick=stage in (1, 5))
        yield Cell(stage, start, "stdout without a reader", small("--save", "a.safetensors"),
                   (strikes.in_shell('"$@" | exec true'),), codes=codes_of(start, 1),
                   cause=said_by(start, 0, "standard output"), seconds=30, left=("a.safetensors",))
        yield Cell(stage, start, "stderr without a reader", short(),
                   (strikes.in_shell('"$@" 2> >(exec true)'),), seconds=30,
                   after=ends_as_undisturbed)


def told_to_stop() -> Iterator[Cell]:
    for number in (SIGINT, SIGTERM):
        for stage, start in (*ALONE, (4, "spawn"), (5, "alone"), (5, "spawn"), (6, "spawn"),
                             (6, "mpirun"), (5, "torchrun")):
            codes = (1, 128 + number) if start in ("torchrun", "mpirun") else (128 + number,)
            for times in (1, 2):
                yield Cell(stage, start, f"{number.name}{', twice' if times == 2 else ''}",
                           endless(), strike=strikes.to_launcher(number, times), codes=codes,
                           seconds=GONE_IN[start],
                           quick=(stage, start, times) in ((0, "alone", 1), (5, "spawn", 2)))
    for stage in (4, 5, 6):
        yield Cell(stage, "by hand", "SIGINT", endless(), strike=strikes.to_terminal(SIGINT),
                   codes=(130,), seconds=GONE_IN["by hand"])
        yield Cell(stage, "by hand", "SIGTERM", endless(), strike=strikes.to_launcher(SIGTERM),
                   codes=(143,), seconds=GONE_IN["by hand"])
    for stage, start in ((0, "alone"), (2, "spawn"), (6, "spawn")):
        yield Cell(stage, start, "SIGHUP", endless(), strike=strikes.to_launcher(SIGHUP),
                   codes=(128 + SIGHUP,), seconds=GONE_IN[start])


def launcher_dies() -> Iterator[Cell]:
    """Ranks that nobody waits for any more do not go on for hours."""
    for stage, start in ((4, "spawn"), (5, "spawn"), (6, "spawn"), (3, "mpirun"), (6, "mpirun"),
                         (3, "torchrun"), (5, "torchrun"), (4, "by hand")):
        yield Cell(stage, start, "launcher killed", endless(), strike=strikes.to_launcher(SIGKILL),
                   codes=(128 + SIGKILL,), seconds=GONE_IN[start], left=("ompi.*",),
                   quick=(stage, start) in ((4, "spawn"), (6, "mpirun")))


def network_fails() -> Iterator[Cell]:
    """The cable between two machines is cut: both sides end, at the deadline."""
    for stage in (4, 5, 6):
        yield Cell(stage, "by hand", "network cut", endless("--timeout", DEADLINE),
                   (strikes.on_two_nodes,), strikes.cut_network, (4,),
                   r"^\[rank \d\] error: ", seconds=DEADLINE + 7)


# ---- restarts ----

# Stands for the program: goes on from the last checkpoint, if there is one.
RESUMES = """#!/usr/bin/env bash
set -- "$@" --project-dir project --checkpointing-steps 10 --total-limit 2
[[ ! -L project/checkpoints/latest ]] || set -- "$@" --resume
exec PROGRAM "$@"
"""


def three_restarts(space: Workspace, way: Way) -> Way:
    launcher, *rest = strikes.instead(space, way, RESUMES).command
    return Way((launcher, "--max-restarts", 3, *rest), way.environment)


def restarts() -> Iterator[Cell]:
    """torchrun starts all ranks again when one is killed; each time they go on."""
    flags = small(recipe="convnet", epochs=40, limit_train=200, limit_test=50, batch_size=16)
    for seed in range(20):
        yield Cell(5, "torchrun", f"restarts, seed {seed}", flags, (three_restarts,),
                   strikes.kills(seed, 3), seconds=120, left=("project*",),
                   after=ends_as_undisturbed)


def table() -> list[Cell]:
    groups = (rank_dies, rank_hangs, rank_fails, rank_is_late, ranks_disagree, disk_fails,
              trainer_saves, files_are_damaged, streams_close, told_to_stop, launcher_dies,
              network_fails, restarts)
    return [cell for group in groups for cell in group()]
