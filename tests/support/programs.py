# SPDX-License-Identifier: Apache-2.0
"""Starts the built programs as a user would, and reads what they leave."""
from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LADDER_BIN", ROOT / "build" / "bin"))
PYTHON = ROOT / ".venv" / "bin" / "python"
DATA = ROOT / "data" / "mnist"
SECONDS = 240  # no program here runs longer: a hang fails instead of blocking


@dataclass
class Result:
    code: int
    stdout: str
    stderr: str

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


def records(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a metrics file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def result_record(path: Path) -> dict[str, Any]:
    """The last record of a metrics file, which says how the run ended."""
    last = records(path)[-1]
    assert last["record"] == "result", last
    return last
