# SPDX-License-Identifier: Apache-2.0
"""The damage: what is done to a run that trains, and what is prepared for one that starts."""
from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
import unittest
from pathlib import Path

import numpy
from safetensors.numpy import save_file

from tests.faults.case import PROGRAMS, Fault, Prepare, Workspace, steps_done
from tests.support.network import HOSTS, PORT, cut_cable, two_nodes
from tests.support.programs import BIN, DATA, Launched, Process, launch, poll_until
from tests.support.resume import faulty_disk
from tests.support.ways import STAGE3, Way, spawned, torchrun

# ---- signals ----


def require_possible(what: str, *command: object) -> None:
    """Skips the case where this command fails."""
    tried = subprocess.run([str(part) for part in command], timeout=20, capture_output=True,
                           text=True, check=False)
    if tried.returncode != 0:
        raise unittest.SkipTest(f"no {what} here: {tried.stderr.strip()}")


def changed(way: Way, **variables: object) -> Way:
    return Way(way.command, {**way.environment, **variables})


def to_rank(number: signal.Signals, rank: int = 0) -> Fault:
    return lambda space, started, ranks: ranks[rank].send(number)


def to_launcher(number: signal.Signals, times: int = 1) -> Fault:
    """As a scheduler does; the second when it can be no echo of the first."""
    def fault(space: Workspace, started: Launched, ranks: list[Process]) -> None:
        for count in range(times):
            time.sleep(0.7 if count else 0)
            started.process.send_signal(number)  # none if it has ended
    return fault


def to_terminal(number: signal.Signals) -> Fault:
    """As a terminal does, to all that it started."""
    return lambda space, started, ranks: os.killpg(started.process.pid, number)


def slow_rank(space: Workspace, started: Launched, ranks: list[Process]) -> None:
    """The last one works a fifth of the time for a second."""
    for _ in range(5):
        halt(ranks[-1:], 0.16)
        time.sleep(0.04)


def halt(ranks: list[Process], seconds: float) -> None:
    for rank in ranks:
        rank.send(signal.SIGSTOP)
    time.sleep(seconds)
    for rank in ranks:
        rank.send(signal.SIGCONT)


def pause(seconds: float) -> Fault:
    """All ranks stand still, as when the machine sleeps."""
    return lambda space, started, ranks: halt(ranks, seconds)


def kills(seed: int, times: int) -> Fault:
    """Kills a rank drawn by lot after a number of steps drawn by lot; then one of those that were
    started in their place, and so on."""
    def fault(space: Workspace, started: Launched, ranks: list[Process]) -> None:
        chance = random.Random(seed)
        for _ in range(times):
            steps = chance.randint(0, 200)
            poll_until(lambda: steps_done(space) >= steps, 60, 0.005)
            chance.choice(ranks).send(signal.SIGKILL)
            ranks = poll_until(lambda: successors(started, ranks), 60)
            assert ranks, f"no new ranks: {started.stderr.text}"
            (space.run / "a.rank0.jsonl").unlink(missing_ok=True)  # the steps of the old ones
    return fault


def kill_any(seed: int) -> Fault:
    """Kills a rank, or the program that started it, after a number of steps; both by lot."""
    def fault(space: Workspace, started: Launched, ranks: list[Process]) -> None:
        chance = random.Random(seed)
        steps = chance.randint(0, 200)  # of 280 or more
        poll_until(lambda: steps_done(space) >= steps, 60, 0.002)
        chance.choice(started.processes()).send(signal.SIGKILL)
    return fault


def successors(started: Launched, old: list[Process]) -> list[Process]:
    """As many others, or none yet."""
    new = [rank for rank in started.ranks() if rank.pid not in {process.pid for process in old}]
    return new if len(new) == len(old) else []


# ---- one rank that differs ----

ODD = """#!/usr/bin/env bash
if [[ ${RANK:-${OMPI_COMM_WORLD_RANK:-0}} == 1 ]]; then
  %s
else
  %s
fi
exec PROGRAM "$@"
"""


def program_of(way: Way) -> Path:
    return next(part for part in (*way.command, *way.environment.values()) if part in PROGRAMS)


def instead(space: Workspace, way: Way, text: str) -> Way:
    """A script in the place of the program, for which PROGRAM stands in it."""
    program = program_of(way)
    script = space.folder / "script"
    script.write_text(text.replace("PROGRAM", shlex.quote(str(program))))
    script.chmod(0o755)
    return Way(tuple(script if part == program else part for part in way.command),
               {name: script if value == program else value
                for name, value in way.environment.items()})


def odd_rank(odd: str, others: str = ":") -> Prepare:
    """Rank 1 does something else before it becomes the program, such as: set -- "$@" --lr 1"""
    return lambda space, way: instead(space, way, ODD % (odd, others))


def more_flags(odd: str, others: str = "") -> Prepare:
    return odd_rank(f'set -- "$@" {odd}', f'set -- "$@" {others}')


def with_variable(name: str, value: object) -> Prepare:
    return lambda space, way: changed(way, **{name: value})


# Rank 1 is a child of its script, which outlives it and exits with 3.
EXITS = odd_rank('PROGRAM "$@"; exit 3')
NEVER_ARRIVES = odd_rank("exec sleep 600")


# ---- files ----

def with_data(damage: str = "") -> Prepare:
    """The data set lies in "data"; of the file `damage` the last byte is missing."""
    def prepare(space: Workspace, way: Way) -> Way:
        shutil.copytree(DATA, space.run / "data", ignore=shutil.ignore_patterns("*.md"))
        if damage:
            cut(space.run / "data" / damage)
        return Way((*way.command, "--data-root", "data"), way.environment)
    return prepare


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_data(space: Workspace, started: Launched, ranks: list[Process]) -> None:
    """All files of the set lose their second half."""
    for path in (space.run / "data").iterdir():
        os.truncate(path, path.stat().st_size // 2)


BASICNET = {"conv1": (32, 1, 3, 3), "conv2": (64, 32, 3, 3), "fc1": (128, 9216), "fc2": (10, 128)}


def weights(path: Path, **factors: float) -> None:
    """A checkpoint of BasicNet, drawn by lot; fc1=2 doubles the weights of fc1."""
    chance = numpy.random.default_rng(1)
    tensors = {}
    for layer, shape in BASICNET.items():
        size = numpy.sqrt(1.0 / numpy.prod(shape[1:]))
        drawn = chance.uniform(-size, size, shape) * factors.get(layer, 1.0)
        tensors[f"{layer}.weight"] = drawn.astype(numpy.float32)
        tensors[f"{layer}.bias"] = numpy.zeros(shape[0], numpy.float32)
    save_file(tensors, path, {"format": "pt"})


def huge_gradients(space: Workspace, way: Way) -> Way:
    """Small weights, then large ones: the loss is finite, the gradient of conv1 is not."""
    weights(space.run / "load.safetensors", conv1=1e-36, fc1=2e40, fc2=10)
    return way


def torn_checkpoint(space: Workspace, way: Way) -> Way:
    weights(space.run / "load.safetensors")
    cut(space.run / "load.safetensors")
    return way


def flipped_checkpoint(space: Workspace, way: Way) -> Way:
    """In the header, which says what lies where. The weights themselves have no checksum."""
    path = space.run / "load.safetensors"
    weights(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"data_offsets")] ^= 1
    path.write_bytes(content)
    return way


def on_disk(size: str) -> Prepare:
    """With a disk of its own in "disk"; `size` are options of tmpfs, such as 24k or 64k,ro."""
    script = 'mount -t tmpfs -o "size=$0" tmpfs disk || exit 77; exec "$@"'
    own = ("unshare", "--user", "--map-root-user", "--mount")

    def prepare(space: Workspace, way: Way) -> Way:
        disk = space.run / "disk"
        disk.mkdir()
        require_possible("disk of its own", *own, "mount", "-t", "tmpfs", "tmpfs", disk)
        return Way((*own, "bash", "-c", script, size, *way.command), way.environment)
    return prepare


def make_disk_read_only(space: Workspace, started: Launched, ranks: list[Process]) -> None:
    subprocess.run(["nsenter", "--target", str(ranks[0].pid), "--user", "--preserve-credentials",
                    "--mount", "mount", "-o", "remount,ro", space.run / "disk"], timeout=20,
                   check=True)


def faulty_calls(at: int, error: int = 0, part: str = "/a.safetensors",
                 milliseconds: int = 0) -> Prepare:
    """The call number `at` on files whose path has this part fails, or kills the rank; each of
    their fsyncs takes that long."""
    return lambda space, way: changed(way, **faulty_disk(at, error, part, milliseconds))


def slow_disk(milliseconds: int, part: str) -> Prepare:
    return faulty_calls(0, part=part, milliseconds=milliseconds)


def pipe(name: str) -> Prepare:
    """A pipe in the place of a file; nothing is at its other end."""
    def prepare(space: Workspace, way: Way) -> Way:
        os.mkfifo(space.run / name)
        return way
    return prepare


def while_saving(pattern: str, fault: Fault) -> Fault:
    """Once there is an unfinished checkpoint of this name; no sooner than a signal before it is
    more than an echo."""
    def wait(space: Workspace, started: Launched, ranks: list[Process]) -> None:
        found = poll_until(lambda: any(space.run.glob(pattern)), 60, 0.005)
        assert found, f"no {pattern}: {started.stderr.text}"
        time.sleep(0.7)
        fault(space, started, ranks)
    return wait


def in_the_last_save(fault: Fault) -> Fault:
    """While a checkpoint is written, after which no other one may be."""
    unfinished = "**/.*.partial"

    def wait(space: Workspace, started: Launched, ranks: list[Process]) -> None:
        saves: set[int] = set()

        def ended() -> bool:
            with contextlib.suppress(FileNotFoundError):  # it has been finished meanwhile
                saves.update(path.stat().st_ino for path in space.run.glob(unfinished))
            return started.process.poll() is not None

        while_saving(unfinished, fault)(space, started, ranks)
        poll_until(ended, 60, 0.005)
        assert len(saves) == 1, f"expected one save, got {len(saves)}: {started.stderr.text}"
    return wait


def trained_before(*flags: object, folder: str = ".") -> Prepare:
    """Another run has ended in this folder, with two ranks and these flags."""
    def prepare(space: Workspace, way: Way) -> Way:
        program = program_of(way)
        run = space.run / folder
        run.mkdir(exist_ok=True)
        ranks = torchrun(program=program) if program == STAGE3 else spawned(program=program)
        done = launch(*ranks.command, *flags, cwd=run, environment=ranks.environment)
        assert done.code == 0, done.stderr
        return way
    return prepare


def second_run(refused: str) -> Fault:
    """The same command once more, without metrics, while the first one trains: it is refused."""
    def fault(space: Workspace, started: Launched, ranks: list[Process]) -> None:
        command = started.command[:started.command.index("--metrics")]
        done = launch(*command, cwd=space.run, environment=started.environment)
        assert done.code in (1, 2), done.stderr
        assert re.search(refused, done.stderr, re.MULTILINE), done.stderr
    return fault


def then(first: Fault, second: Fault) -> Fault:
    def fault(space: Workspace, started: Launched, ranks: list[Process]) -> None:
        first(space, started, ranks)
        second(space, started, ranks)
    return fault


# ---- limits of the system ----

def limited(*limits: object) -> Prepare:
    """Under `ulimit` with these arguments, such as "-n", 20."""
    return in_shell(f'ulimit {" ".join(map(str, limits))} && exec "$@"')


def few_processes(count: int) -> Prepare:
    """As a user of its own, who may have `count` processes and threads; root has no limit."""
    own = ("setpriv", "--reuid", "64242", "--regid", "64242", "--clear-groups")

    def prepare(space: Workspace, way: Way) -> Way:
        for folder in (space.folder.parent, space.folder, space.run, space.temporary):
            folder.chmod(0o777)
        require_possible(f"other user who can start {BIN}", *own, "test", "-x", PROGRAMS[0])
        limited = Way((*own, *way.command), way.environment)
        return in_shell(f'ulimit -u {count} && exec "$@"')(space, limited)
    return prepare


# ---- streams, ports, clocks, networks ----

def in_shell(script: str) -> Prepare:
    """`script` starts "$@"."""
    return lambda space, way: Way(("bash", "-o", "pipefail", "-c", script, "bash", *way.command),
                                  way.environment)


def taken_port(space: Workspace, way: Way) -> Way:
    """Somebody else listens where the ranks are to meet."""
    other = space.stack.enter_context(socket.socket())
    other.bind(("127.0.0.1", 0))
    other.listen()
    port = other.getsockname()[1]
    if "MASTER_PORT" in way.environment:
        return changed(way, MASTER_PORT=port)
    return Way((*way.command, "--master-port", port), way.environment)


def clock_to_jump(seconds: int) -> Prepare:
    """The clock on the wall, once clock_jumps()."""
    return lambda space, way: changed(
        way, LD_PRELOAD=BIN / "libjumping_clock.so", JUMPING_CLOCK_SECONDS=seconds,
        JUMPING_CLOCK_FILE=space.folder / "jumped", JUMPING_CLOCK_SEEN=space.folder / "seen")


def clock_jumps(space: Workspace, started: Launched, ranks: list[Process]) -> None:
    (space.folder / "jumped").touch()


def clocks_apart(space: Workspace, way: Way) -> Way:
    """The clock of rank 1 is a hundred days ahead."""
    require_possible("clock of its own", "unshare", "--time", "true")
    own = 'exec unshare --time --fork --kill-child --monotonic 8640000 PROGRAM "$@"'
    return odd_rank(own)(space, way)


# Starts "$@" on both nodes, whose names come first, and exits with their exit code.
ON_BOTH_NODES = """
first=$1 second=$2
shift 2
NODE_RANK=0 ip netns exec "$first" "$@" & one=$!
NODE_RANK=1 ip netns exec "$second" "$@" & two=$!
wait $one; one=$?
wait $two; two=$?
((one == two)) || echo "exit codes $one and $two"
exit $((one == two ? one : 99))
"""


def on_two_nodes(space: Workspace, way: Way) -> Way:
    """A rank on each of two machines, started by hand."""
    names = space.stack.enter_context(two_nodes())
    return Way(("bash", "-c", ON_BOTH_NODES, "bash", *names, *way.command),
               {**way.environment, "NNODES": 2, "NPROC_PER_NODE": 1, "MASTER_ADDR": HOSTS[0],
                "MASTER_PORT": PORT})


def cut_network(space: Workspace, started: Launched, ranks: list[Process]) -> None:
    cut_cable()
