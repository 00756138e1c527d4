# SPDX-License-Identifier: Apache-2.0
"""Starts the built programs as a user would, and reads what they leave."""
from __future__ import annotations

import atexit
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LADDER_BIN", ROOT / "build" / "bin"))
PYTHON = ROOT / ".venv" / "bin" / "python"
TORCHRUN = PYTHON.parent / "torchrun"
DATA = ROOT / "data" / "mnist"
PEERS = ROOT / "bench" / "peers"
FULL = "LADDER_FULL" in os.environ  # the tier --full
SECONDS = 240  # no program here runs longer: a hang fails instead of blocking
MARK = "LADDER_TEST_MARK"  # in the environment of all that one command started


@dataclass
class Result:
    code: int
    stdout: str
    stderr: str
    seconds: float = 0.0

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def errors(self) -> list[str]:
        return self.stderr.splitlines()


def run(program: str | Path, *arguments: object, cwd: Path | None = None) -> Result:
    """Runs a program of build/bin, or one given by path, to its end."""
    path = BIN / program if isinstance(program, str) else program
    command = [str(path), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS,
                          stdin=subprocess.DEVNULL, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def require_refused(done: Result, code: int, *texts: str) -> None:
    """It ended with this exit code, and one line on the standard error and nothing else."""
    assert (done.code, done.stdout, len(done.errors)) == (code, "", 1), done
    for text in texts:
        assert text in done.stderr, done.stderr


def temporary_folder(name: str) -> Path:
    """Removed when this program ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"ladder-{name}-"))
    atexit.register(shutil.rmtree, folder)
    return folder


def settings_helper(*arguments: object, environment: Mapping[str, str] | None = None) -> Any:
    """What tests/support/settings_helper.cpp prints, or the text of its refusal."""
    done = subprocess.run([BIN / "settings_helper", *map(str, arguments)], text=True, check=False,
                          env={**os.environ, **(environment or {})}, capture_output=True,
                          timeout=SECONDS)
    assert done.returncode in (0, 2), done
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def records(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a metrics file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def result_record(path: Path) -> dict[str, Any]:
    """The last record of a metrics file, which says how the run ended."""
    last = records(path)[-1]
    assert last["record"] == "result", last
    return last


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_has(*features: str) -> bool:
    """Has this CPU one of these, by the kernel's names, such as avx512_bf16?"""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return any(not set(features).isdisjoint(line.split())
               for line in lines if line.startswith(("flags", "Features")))


class Process:
    """A process of this machine, by its number. What ended meanwhile has no state, parent and age."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __repr__(self) -> str:
        return f"{self.pid} ({self.state}) {self.program}"

    def _read(self, name: str) -> bytes:
        try:
            return Path(f"/proc/{self.pid}/{name}").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return b""

    def _stat(self) -> list[str]:
        """State, parent and so on: what stands behind the name, which may hold blanks itself."""
        return self._read("stat").decode(errors="replace").rpartition(")")[2].split()

    @property
    def state(self) -> str:
        return (self._stat() or [""])[0]

    @property
    def parent(self) -> int:
        return int((self._stat() or ["", "0"])[1])

    @property
    def started(self) -> int:
        """Clock ticks after the start of the machine; 0 if it has ended."""
        return int((self._stat() or ["0"] * 20)[19])

    @property
    def program(self) -> str:
        return self._read("cmdline").split(b"\0")[0].decode(errors="replace")

    @property
    def name(self) -> str:
        """At most 15 characters of the program's. One that ended has it until it is waited for."""
        return self._read("comm").decode(errors="replace").rstrip("\n")

    @property
    def environment(self) -> dict[str, str]:
        """As it was when the program was started; a fork keeps that of its parent."""
        entries = self._read("environ").decode(errors="replace").split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    @property
    def is_alive(self) -> bool:
        return self.state not in ("", "Z", "X")

    def send(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def listening(self) -> list[str]:
        """The addresses, "127.0.0.1:1234", at which sockets of this process listen."""
        return [address_of(row[1]) for row in self._sockets("0A")]

    def connected(self) -> list[str]:
        """The addresses to which it has connections."""
        return [address_of(row[2]) for row in self._sockets("01")]

    def _sockets(self, state: str) -> list[list[str]]:
        """The rows in /proc/net/tcp of its sockets in this state."""
        inodes = set()
        for path in Path(f"/proc/{self.pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(path))
            except OSError:  # closed meanwhile
                continue
        rows = (row.split() for name in ("net/tcp", "net/tcp6")
                for row in self._read(name).decode().splitlines()[1:])
        return [row for row in rows if row[3] == state and f"socket:[{row[9]}]" in inodes]


def address_of(text: str) -> str:
    """"0100007F:1F90" in /proc/net/tcp is 127.0.0.1:8080: words of the machine, in hexadecimal."""
    host, port = text.split(":")
    words = [bytes.fromhex(host[i:i + 8])[::-1] for i in range(0, len(host), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return f"{socket.inet_ntop(family, b''.join(words))}:{int(port, 16)}"


def all_processes() -> list[Process]:
    return [Process(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()]


class Output:
    """What a command has written so far, to a file that has no name."""

    def __init__(self, command: subprocess.Popen[bytes], file: IO[bytes]) -> None:
        self.command = command
        self.file = file

    @property
    def text(self) -> str:
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode(errors="replace")

    def wait_for(self, pattern: str, seconds: float = SECONDS) -> str:
        """The first line in which `pattern` is found. Fails at the end of the command or the time."""
        def found() -> str | None:
            return next((line for line in self.text.splitlines() if re.search(pattern, line)), None)

        poll_until(lambda: found() or self.command.poll() is not None, seconds)
        line = found()
        if line is None:
            raise AssertionError(f"no line with {pattern!r} came, but:\n{self.text}")
        return line


class Launched:
    """A command under way, with every process that came of it.

    A mark in their environment tells which these are: launchers give ranks sessions and process
    groups of their own. At the end of the `with`, none of them is left, whatever happened.
    """

    def __init__(self, *command: object, cwd: Path | None = None,
                 environment: Mapping[str, object] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.command = command
        self.environment = environment or {}
        changes = {name: str(value) for name, value in (environment or {}).items()}
        self.started = time.monotonic()
        stdout, stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [str(part) for part in command], cwd=cwd, env=os.environ | changes | {MARK: self.mark},
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)
        self.stdout, self.stderr = Output(self.process, stdout), Output(self.process, stderr)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.kill_all()

    def processes(self) -> list[Process]:
        """Those alive, the oldest first."""
        marked = [process for process in all_processes()
                  if process.environment.get(MARK) == self.mark and process.is_alive]
        return sorted(marked, key=lambda process: (process.started, process.pid))

    def ranks(self) -> list[Process]:
        """Those that train, in the order of their ranks: the stage's program, but no launcher."""
        ours = [process for process in self.processes()
                if process.program.startswith(str(BIN))]
        parents = {process.parent for process in ours}

        def rank(process: Process) -> int:
            said = process.environment
            return int(said.get("RANK", said.get("OMPI_COMM_WORLD_RANK", "0")))

        return sorted((p for p in ours if p.pid not in parents), key=rank)  # stable: forks by age

    def wait_until_training(self, seconds: float = SECONDS) -> list[Process]:
        """Returns the ranks once a progress line was printed."""
        self.stderr.wait_for(r"^epoch 1/", seconds)
        return self.ranks()

    def finish(self, seconds: float = SECONDS) -> Result:
        """Waits for the end of the command, and expects that nothing of it is left then."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            shown = f"{self.processes()}\n{self.stdout.text}{self.stderr.text}"
            self.kill_all()
            raise AssertionError(f"no end within {seconds} s: {shown}") from None
        took = time.monotonic() - self.started
        self.require_nothing_left(self.processes())
        return Result(code, self.stdout.text, self.stderr.text, took)

    def require_nothing_left(self, processes: list[Process], seconds: float = 5) -> None:
        left = wait_until_gone(processes, seconds)
        if left:
            shown = f"{left}\n{self.stdout.text}{self.stderr.text}"
            self.kill_all()
            raise AssertionError(f"still there after {seconds} s: {shown}")

    def kill_all(self) -> None:
        """Repeats until none is left: one that forks may be quicker than the list."""
        while left := self.processes():
            for process in left:
                process.send(signal.SIGKILL)
            wait_until_gone(left, 10)
        self.process.wait(timeout=10)


def wait_until_gone(processes: list[Process], seconds: float) -> list[Process]:
    """Waits until they ended, and returns those that did not within the time."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))  # its end
        os.close(descriptor)
    return [process for process in processes if process.is_alive]


def launch(*command: object, cwd: Path | None = None,
           environment: Mapping[str, object] | None = None, seconds: float = SECONDS) -> Result:
    """Runs a command to its end. Fails after `seconds`, and when a process of it is left behind."""
    with Launched(*command, cwd=cwd, environment=environment) as launched:
        return launched.finish(seconds)


def shown_on_terminal(*command: object, stdout: bool = False, cwd: Path | None = None) -> str:
    """What a command that ends well writes to a terminal: its stderr, or its stdout too."""
    controller, terminal = pty.openpty()
    child = subprocess.Popen([str(part) for part in command], stderr=terminal, cwd=cwd,
                             stdout=terminal if stdout else subprocess.DEVNULL,
                             stdin=subprocess.DEVNULL)
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:  # the program closed the terminal
            break
        if not part:
            break
        shown += part
    os.close(controller)
    code = child.wait(timeout=SECONDS)
    assert code == 0, shown
    return shown.decode()


def poll_until(condition: Callable[[], Any], seconds: float, interval: float = 0.02) -> Any:
    """For what nobody announces: asks until the answer is true, and returns the last one."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(interval)
    return answer
