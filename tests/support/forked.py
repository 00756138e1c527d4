# SPDX-License-Identifier: Apache-2.0
"""Runs Python programs one after the other, each in a fork of one process that has imported their
packages: that takes seconds, and a fork milliseconds.

    forked.py PLAN.json    [{"program": [SCRIPT, FLAG...], "folder": FOLDER, "ranks": N}...]

Each starts in its folder, with its output in FOLDER/stdout and FOLDER/stderr. With several ranks,
N processes get the variables of torchrun. Stops at the first program that fails.
"""
from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys
from pathlib import Path

PACKAGES = ("torch._dynamo", "accelerate", "transformers.trainer")


def launcher_variables(ranks: int) -> list[dict[str, str]]:
    if ranks == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def become(program: list[str], folder: Path, variables: dict[str, str]) -> None:
    """Of a fork: does what `python SCRIPT FLAG...` does, and ends as that would."""
    os.chdir(folder)
    os.environ |= variables
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = program
    sys.path[0] = str(Path(program[0]).parent)
    runpy.run_path(program[0], run_name="__main__")
    sys.exit()


def main() -> None:
    for package in PACKAGES:
        importlib.import_module(package)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"a process of {threads} threads must not fork"
    gc.freeze()  # else each fork visits all objects of the packages when it ends
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        folder, children = Path(job["folder"]), []
        for variables in launcher_variables(job["ranks"]):
            children.append(os.fork())
            if children[-1] == 0:
                become(job["program"], folder, variables)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            sys.exit(f"{job}\nexit codes {codes}\n{(folder / 'stderr').read_text()}")


if __name__ == "__main__":
    main()
