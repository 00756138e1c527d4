#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks this machine: requirements of training, what is present, and what to type otherwise.

    ./run doctor

Installs and changes nothing. One row per check: `ok`, `note` for what is optional, `missing` for
what ./run needs. Exit code: 0 nothing is missing, 1 something is.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

OK, NOTE, MISSING = "ok", "note", "missing"
ROOT = Path(__file__).resolve().parents[1]
TORCH, DRIVER = "2.11", 580  # the first driver with CUDA 13
BUILD_GIB = 2.6  # memory: a compiler, and all else
DISK_GIB, PACKAGES_GIB = 6.0, 0.5  # .venv and the build; Debian packages
SET_UP = "./run sets it up"
OLDEST_COMPILER = {"g++": 12, "clang": 16}
# Subject, command, oldest and newest version, and what to do about another.
TOOLS = (("cmake", "cmake", (3, 25), (99, 0), "3.25 or newer is needed: pip install cmake"),
         ("ninja", "ninja", (1, 0), (99, 0), "apt-get install ninja-build"),
         ("Python", "python3", (3, 10), (3, 13), "3.10 to 3.13 is needed, first on the PATH"))
LAUNCHERS = {"torchrun": SET_UP, "accelerate": SET_UP,
             "mpirun": "only for MPI: apt-get install openmpi-bin", "srun": "only with SLURM"}
Row = tuple[str, str, str, str]  # state, subject, result, hint
Version = tuple[int, int]


def row(state: str, subject: str, found: str, hint: str = "") -> Row:
    return state, subject, found, "" if state == OK else hint


def output(*command: str) -> str:
    """The output of a program, or "" if there is none or it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20,
                              stdin=subprocess.DEVNULL).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine(root: Path, torch: bool) -> Iterator[Row]:
    yield row(OK, "system", f"{platform.system()} {platform.release()}, {platform.machine()}, "
              f"{len(os.sched_getaffinity(0))} CPUs")
    free = int(re.findall(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[0]) / 2**20
    yield row(OK if free >= BUILD_GIB else NOTE, "memory", f"{free:.1f} GiB are free",
              "a compiler takes up to 1.5: one at a time with CMAKE_BUILD_PARALLEL_LEVEL=1 ./run")
    for folder, wanted in ((root, 0.0 if torch else DISK_GIB), (Path("/usr"), PACKAGES_GIB)):
        free = shutil.disk_usage(folder).free / 2**30
        yield row(OK if free >= wanted else MISSING, "disk", f"{free:.1f} GiB are free in {folder}",
                  f"{wanted} are needed there")


def packages(root: Path) -> Iterator[Row]:
    """Those of ./run, where there is apt."""
    if shutil.which("dpkg-query"):
        missing = output(str(root / "tools/setup.sh"), "twins", "--missing").split("\n")
        yield row(NOTE if missing[0] else OK, "packages", ", ".join(filter(None, missing)) or "all",
                  SET_UP)


def tool(name: str, command: str, first: Version, last: Version, hint: str) -> Row:
    match = re.search(r"(\d+)\.(\d+)(?:\.\d+)?", output(command, "--version"))
    if match is None:
        return row(MISSING, name, "not found", f"{SET_UP}, where there is apt-get")
    right = first <= (int(match[1]), int(match[2])) <= last
    return row(OK if right else MISSING, name, match[0], hint)


def compiler() -> Row:
    command = os.environ.get("CXX", "g++")
    name = "clang" if "clang" in output(command, "--version") else "g++"
    oldest = OLDEST_COMPILER[name]
    return tool(name, command, (oldest, 0), (99, 0), f"{oldest} or newer; CXX names another")


def libtorch(own: str | None, versions: list[str]) -> Row:
    if own:
        return row(OK if Path(own).is_dir() else MISSING, "LibTorch", own, "no such folder")
    if not versions:
        return row(NOTE, "LibTorch", "not in .venv yet", f"{SET_UP}: 2.5 GB to download")
    return row(OK if versions[0].startswith(TORCH) else MISSING, "LibTorch",
               f"{versions[0]} in .venv", f"{TORCH} is needed: remove .venv, then ./run")


def gpus() -> Row:
    found = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if not (version := re.search(r", (\d+)\.", found)):
        return row(NOTE, "GPUs", "none with a driver that nvidia-smi finds",
                   "everything here runs on the CPU too")
    return row(OK if int(version[1]) >= DRIVER else NOTE, "GPUs", "; ".join(found.splitlines()),
               f"driver {DRIVER} or newer is needed, for CUDA 13: until then no GPU is used")


def data(root: Path) -> Row:
    names = ("train-images", "train-labels", "t10k-images", "t10k-labels")
    absent = [name for name in names if not any((root / "data/mnist").glob(f"{name}-idx?-ubyte*"))]
    found = f"no {absent[0]}" if absent else "MNIST, four files in data/mnist"
    return row(MISSING if absent else OK, "data set", found, "git checkout -- data brings it back; "
               "--data-root names another folder")


def loopback() -> Row:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return row(MISSING, "loopback", str(error), "ranks meet at 127.0.0.1: ip link set lo up")
    try:
        socket.getaddrinfo("localhost", None)
    except OSError as error:
        return row(MISSING, "loopback", f"localhost: {error}",
                   "torchrun needs this name: echo '127.0.0.1 localhost' >> /etc/hosts")
    return row(OK, "loopback", "127.0.0.1 answers")


def shared_memory() -> Row:
    try:
        os.close(os.memfd_create("ladder_doctor"))
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return row(NOTE, "shared memory", str(error), "ranks use Gloo instead: slower")
    return row(OK, "shared memory", "ranks of this machine can use it")


def launcher(name: str, hint: str) -> Row:
    path = (shutil.which(name) or "").replace(f"{ROOT}/", "")
    return row(OK if path else NOTE, name, path or "not found", hint)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="./run doctor",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="default: this checkout")
    root = parser.parse_args(arguments).root.resolve()
    versions = [path.name.removeprefix("torch-").removesuffix(".dist-info") for path in
                root.glob(".venv/lib/python3*/site-packages/torch-*.dist-info")]
    os.environ["PATH"] = f"{root}/.venv/bin:{os.environ.get('PATH', '')}"
    own = os.environ.get("LADDER_TORCH_DIR") or os.environ.get("Torch_DIR")
    rows = [*machine(root, bool(versions)), *packages(root), compiler(), *(tool(*one) for one in TOOLS),
            libtorch(own, versions), gpus(), data(root), loopback(), shared_memory(),
            *(launcher(*one) for one in LAUNCHERS.items())]
    for state, subject, *texts in rows:
        print(f"{state:<8} {subject:<14} {'; '.join(filter(None, texts))}")
    missing = ", ".join(subject for state, subject, *_ in rows if state == MISSING)
    print(f"missing: {missing}" if missing else "nothing is missing", flush=True)
    return int(bool(missing))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:  # a reader that ended, a full disk, a folder of another user
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"doctor: {error}")
