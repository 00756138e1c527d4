# SPDX-License-Identifier: Apache-2.0
"""Runs scripts/ among stubs that record their calls and start what they are given."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.support.files import write
from tests.support.programs import ROOT, Process, free_port, poll_until

SECONDS = 60  # no script here runs longer: a hang fails instead of blocking
FLAGS = ["--epochs", "2", "--save", "a  b", "", "$HOME *"]

# Started instead of a stage: writes its flags and environment to $CALLS, one file a process. The
# rank in $FAILING exits with 7 at once; then the others, told so by $HANG, wait to be ended.
PROGRAM = """#!{python} -SE
import json, os, signal, sys, time
call = {{"name": os.path.basename(sys.argv[0]), "flags": sys.argv[1:], "env": dict(os.environ)}}
path = os.path.join(os.environ["CALLS"], str(os.getpid()))
with open(path + ".part", "w") as file:
    json.dump(call, file)
os.rename(path + ".part", path)
if os.environ.get("FAILING") == os.environ.get("RANK", ""):
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    started = lambda: [n for n in os.listdir(os.environ["CALLS"]) if n.isdigit()]
    while len(started()) < wanted:
        time.sleep(0.01)
    sys.exit(7)
if "HANG" in os.environ:
    if os.environ["HANG"] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


class StartScripts(unittest.TestCase):
    """A copy of scripts/ for each test; no process that it starts may outlive the test."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()
        self.calls_folder = self.folder / "calls"
        self.calls_folder.mkdir()
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        for name in ("program", "torchrun"):
            self.write_program(name, PROGRAM.format(python=sys.executable))
        self.environment = {
            "PATH": f"{self.folder / 'stubs'}:/usr/bin:/bin",
            "CALLS": str(self.calls_folder),
            "PROGRAM": str(self.folder / "stubs/program"),
            "TORCHRUN": "torchrun",
            "MASTER_PORT": str(free_port()),
        }

    def write_program(self, name: str, text: str) -> None:
        write(self.folder / "stubs" / name, text, executable=True)

    def start(self, script: str, *flags: str, **changes: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [f"scripts/{script}", *flags], cwd=self.folder, env=self.environment | changes,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )
        self.addCleanup(self.expect_no_process_left, process)
        return process

    def expect_no_process_left(self, process: subprocess.Popen[str]) -> None:
        """No process of the script's session lives on, those of torchrun included."""
        started = [Process(int(call.name)) for call in self.calls_folder.iterdir()
                   if call.name.isdigit()]
        left = [one for one in started if one.is_alive]
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for one in left:
            one.send(signal.SIGKILL)
        process.stdout.close()
        process.wait()
        self.assertEqual(left, [])

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        output, _ = process.communicate(timeout=SECONDS)
        return process.returncode, output

    def run_script(self, script: str, *flags: str, **changes: str) -> tuple[int, str]:
        return self.finish(self.start(script, *flags, **changes))

    def calls(self, name: str) -> list[dict[str, Any]]:
        """The calls of one stub, in the order of their ranks."""
        files = [path for path in self.calls_folder.iterdir() if not path.name.endswith(".part")]
        calls = [json.loads(path.read_text(encoding="utf-8")) for path in files]
        return sorted((call for call in calls if call["name"] == name),
                      key=lambda call: int(call["env"].get("RANK", "0")))

    def column(self, calls: list[dict[str, Any]], name: str) -> list[str]:
        return [call["env"].get(name) for call in calls]

    def wait_for_calls(self, name: str, count: int) -> None:
        self.assertTrue(poll_until(lambda: len(self.calls(name)) >= count, SECONDS),
                        f"{name} was not started {count} times")
