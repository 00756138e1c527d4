# SPDX-License-Identifier: Apache-2.0
"""What a run must not leave behind: files, shared memory, listening sockets, ended processes."""
from __future__ import annotations

import ctypes
import fnmatch
import os
from collections.abc import Iterable
from pathlib import Path

from tests.support.programs import Process, address_of, all_processes, poll_until

SHARED_MEMORY = Path("/dev/shm")
SECONDS = 3.0  # what other programs of this machine put there meanwhile goes again


def files_in(folder: Path) -> set[str]:
    """All of them, with the folders between, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def listeners() -> set[str]:
    """The addresses at which any process of this machine listens."""
    tables = (Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    rows = (line.split() for table in tables for line in table)
    return {address_of(row[1]) for row in rows if row[3] == "0A"}


def adopt_orphans() -> None:
    """From now on, processes whose parent has ended are children of this process, not of init."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def reap_orphans(names: Iterable[str], seconds: float = 0.0) -> list[int]:
    """The adopted processes with these names that have ended: no process had waited for them. Waits
    at most so long for those that are about to end."""
    short = {name[:15] for name in names}

    def adopted(states: str) -> list[Process]:
        return [process for process in all_processes() if process.parent == os.getpid()
                and process.name in short and process.state in states]

    if seconds:
        poll_until(lambda: not adopted("RSDT"), seconds)
    found = [process.pid for process in adopted("Z")]
    for pid in found:
        os.waitpid(pid, 0)
    return found


class Before:
    """How it looked before a run, to say afterwards what is new."""

    def __init__(self, *folders: Path) -> None:
        self.files = {folder: files_in(folder) for folder in folders}
        self.shared = set(SHARED_MEMORY.glob("*"))
        self.addresses: set[str] = set()

    def watch(self, processes: Iterable[Process]) -> None:
        """The sockets at which these listen must be gone with them."""
        for process in processes:
            self.addresses.update(process.listening())

    def left(self, allowed: Iterable[str] = ()) -> list[str]:
        """What is there now and was not, but for names and patterns that are allowed."""
        found = [f"file {name}" for folder, old in self.files.items()
                 for name in sorted(files_in(folder) - old)
                 if not any(fnmatch.fnmatch(name, pattern) for pattern in allowed)]
        poll_until(lambda: not self._new_shared(), SECONDS)
        found += [f"shared memory {path.name}" for path in sorted(self._new_shared())]
        found += [f"listener {address}" for address in sorted(self.addresses & listeners())]
        return found

    def _new_shared(self) -> set[Path]:
        return set(SHARED_MEMORY.glob("*")) - self.shared
