# SPDX-License-Identifier: Apache-2.0
"""Runs programs beside their Python twins of bench/peers, each command once."""
from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.programs import (PEERS, PYTHON, ROOT, Launched, Result, launch, records,
                                    result_record)

FORKED = ROOT / "tests" / "support" / "forked.py"
Command = tuple[object, ...]


@dataclass(frozen=True)
class Ended:
    """A training that ended well, in a folder of its own."""

    stem: Path  # a.jsonl, a.rankR.jsonl and a.safetensors, without the ending
    done: Result

    @property
    def records(self) -> list[dict[str, Any]]:
        return records(self.stem.with_suffix(".jsonl"))

    @property
    def result(self) -> dict[str, Any]:
        return result_record(self.stem.with_suffix(".jsonl"))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.stem.with_suffix(".safetensors"))

    @property
    def metadata(self) -> dict[str, str]:
        with safe_open(self.stem.with_suffix(".safetensors"), framework="pt") as file:
            return file.metadata()


def twin(script: str, *flags: object) -> Command:
    return (PYTHON, PEERS / script, "--device", "cpu", *flags)


def in_reference_math(*program: object) -> Command:
    """The program draws the random numbers that Python draws."""
    device = () if "--device-ids" in program else ("--device", "cpu")
    return (*program, "--math", "reference", *device)


_trained: dict[Command, Ended] = {}


def recorded(stem: Path) -> Command:
    """What is added to each command."""
    return ("--threads", 1, "--fingerprint", 1, "--metrics", f"{stem}.jsonl",
            "--save", f"{stem}.safetensors")


def trained(*commands: Command, parent: Path) -> list[Ended]:
    """Runs them at the same time, on one thread per rank, each once. A function among the parts of
    a command is called at the start. Fails unless each ends well."""
    with ExitStack() as stack:
        started = {}
        for command in commands:
            if command not in _trained:
                stem = Path(tempfile.mkdtemp(dir=parent)) / "a"
                parts = [part() if callable(part) else part for part in command]
                started[command] = stem, stack.enter_context(
                    Launched(*parts, *recorded(stem), cwd=stem.parent))
        for command, (stem, launched) in started.items():
            done = launched.finish()
            if done.code != 0:
                raise AssertionError(f"{command}\nexit code {done.code}\n{done.stdout}{done.stderr}")
            _trained[command] = Ended(stem, done)
    return [_trained[command] for command in commands]


def train_forked(commands: list[Command], parent: Path) -> None:
    """Runs twins on the CPU, one after the other, in forks of one process that has imported their
    packages; with --nprocs 2 in two forks, as a launcher would. What comes before Python, such as
    `env NAME=VALUE`, is that of the first command. `trained` returns them from then on. Fails
    unless each ends well."""
    before = commands[0].index(PYTHON)
    stems = [Path(tempfile.mkdtemp(dir=parent)) / "a" for _ in commands]
    plan = [{"program": [*map(str, (*command[before + 1:], *recorded(stem)))],
             "folder": str(stem.parent),
             "ranks": command[command.index("--nprocs") + 1] if "--nprocs" in command else 1}
            for command, stem in zip(commands, stems)]
    path = Path(tempfile.mkdtemp(dir=parent)) / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    # OpenBLAS starts threads where numpy is imported; a process that has some must not fork.
    done = launch(*commands[0][:before], PYTHON, FORKED, path, seconds=600,
                  environment={"OPENBLAS_NUM_THREADS": 1, "CUDA_VISIBLE_DEVICES": ""})
    if done.code != 0:
        raise AssertionError(done.stderr)
    for command, stem in zip(commands, stems):
        printed = [(stem.parent / name).read_text() for name in ("stdout", "stderr")]
        _trained[command] = Ended(stem, Result(0, *printed))
