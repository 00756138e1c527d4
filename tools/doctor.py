#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks this machine: requirements of training, what is present, and what to type otherwise.

    ./run doctor

Installs and changes nothing. One row per check: `ok`, `note` for what is optional, `missing` for
what ./run needs. Exit code: 0 nothing is missing, 1 something is.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

OK, NOTE, MISSING = "ok", "note", "missing"
ROOT = Path(__file__).resolve().parents[1]
TORCH = "2.11"
GPP, CMAKE = 12, (3, 25)
PYTHON = (3, 10), (3, 13)
DRIVER = 580  # the first with CUDA 13
MNIST = {"train-images-idx3-ubyte": (2051, 60000), "train-labels-idx1-ubyte": (2049, 60000),
         "t10k-images-idx3-ubyte": (2051, 10000), "t10k-labels-idx1-ubyte": (2049, 10000)}
BUILD_GIB = 4.0  # two compilers at a time over LibTorch's headers
DISK_GIB = 8.0  # LibTorch with its CUDA libraries, and the build
SET_UP = "./run sets it up"


class Row(NamedTuple):
    state: str
    thing: str
    found: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.state:<8} {self.thing:<14} {self.found}" + (f"; {self.hint}" * bool(self.hint))


def output(*command: str | Path) -> str:
    """The output of a program, or "" if there is none or it fails."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpus() -> Row:
    usable = len(os.sched_getaffinity(0))
    features = re.search(r"^(?:flags|Features)\s*:(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    flags = set(features[1].split()) if features else set()
    widest = next((name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags),
                  platform.machine())
    limit = read("/sys/fs/cgroup/cpu.max").split()
    found = f"{usable} usable, {widest}"
    if len(limit) == 2 and limit[0] != "max" and int(limit[0]) < usable * int(limit[1]):
        return Row(NOTE, "CPUs", f"{found}, but the cgroup allows "
                   f"{int(limit[0]) / int(limit[1]):.1f}", "--threads sets as many")
    if "bf16" not in widest:
        return Row(NOTE, "CPUs", found, "no bfloat16 in hardware: mixed precision is slower here")
    return Row(OK, "CPUs", found)


def memory() -> Row:
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", read("/proc/meminfo"), re.MULTILINE))
    free, total = (int(sizes.get(name, 0)) / 2**20 for name in ("MemAvailable", "MemTotal"))
    found = f"{free:.1f} of {total:.1f} GiB are free"
    if free < BUILD_GIB:
        return Row(NOTE, "memory", found, "to build with less: CMAKE_BUILD_PARALLEL_LEVEL=1 ./run")
    return Row(OK, "memory", found)


def disk(root: Path) -> Row:
    free = shutil.disk_usage(root).free / 2**30
    if free < DISK_GIB and not torch_versions(root):
        return Row(MISSING, "disk", f"{free:.1f} GiB are free",
                   f"LibTorch and the build take {DISK_GIB:.0f}; TMPDIR counts too")
    return Row(OK, "disk", f"{free:.1f} GiB are free")


def tool(name: str, least: tuple[int, ...], otherwise: str) -> Row:
    text = output(name, "--version")
    match = re.search(r"(\d+)\.(\d+)(?:\.\d+)?", text)
    if match is None:
        return Row(MISSING, name, "not found", f"{SET_UP}, where there is apt-get")
    version = (int(match[1]), int(match[2]))
    if version < least:
        wanted = ".".join(map(str, least))
        return Row(MISSING, name, match[0], f"{wanted} or newer is needed; {otherwise}")
    return Row(OK, name, match[0])


def python(root: Path) -> Row:
    own = root / ".venv/bin/python"
    version = output(own if own.exists() else "python3", "--version").removeprefix("Python ")
    first, last = PYTHON
    if not first <= tuple(map(int, re.findall(r"\d+", version)[:2])) <= last:
        return Row(MISSING, "Python", version or "not found", f"{'.'.join(map(str, first))} to "
                   f"{'.'.join(map(str, last))} is needed: put such a python3 first on the PATH")
    return Row(OK, "Python", version)


def torch_versions(root: Path) -> list[str]:
    found = root.glob(".venv/lib/python3*/site-packages/torch-*.dist-info")
    return [path.name.removeprefix("torch-").removesuffix(".dist-info") for path in found]


def libtorch(root: Path) -> Row:
    own = os.environ.get("LADDER_TORCH_DIR") or os.environ.get("Torch_DIR")
    if own:
        state = OK if Path(own).is_dir() else MISSING
        return Row(state, "LibTorch", own, "" if state == OK else "there is no such folder")
    versions = torch_versions(root)
    if not versions:
        return Row(NOTE, "LibTorch", "not in .venv yet", f"{SET_UP}: 2.5 GB, some minutes")
    if not versions[0].startswith(TORCH):
        return Row(MISSING, "LibTorch", f"{versions[0]} in .venv",
                   f"{TORCH} is needed: remove .venv, then ./run")
    return Row(OK, "LibTorch", f"{versions[0]} in .venv")


def programs(root: Path) -> Row:
    stages = sorted(path.parent.name for path in root.glob("stage*/main.cpp"))
    built = [stage for stage in stages if os.access(root / "build/bin" / stage, os.X_OK)]
    if len(built) < len(stages):
        return Row(NOTE, "programs", f"{len(built)} of {len(stages)} stages are built",
                   "./run builds the others")
    return Row(OK, "programs", f"all {len(stages)} stages are built")


def gpus() -> Row:
    names = output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if names:
        return Row(OK, "GPUs", "; ".join(names.splitlines()), "tools/gpu_check.sh tries them")
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return Row(NOTE, "GPUs", "a device without a working driver", "type nvidia-smi for its error")
    return Row(NOTE, "GPUs", "none", "everything here runs on the CPU too")


def driver() -> Row:
    version = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if not re.match(r"\d+\.", version):
        return Row(NOTE, "GPU driver", "none", "only GPUs need one")
    cuda = re.search(r"CUDA (?:\w+ )?Version: *([\d.]+)", output("nvidia-smi"))
    text = version.splitlines()[0] + (f", up to CUDA {cuda[1]}" if cuda else "")
    if int(version.partition(".")[0]) < DRIVER:
        return Row(NOTE, "GPU driver", text, f"{DRIVER} or newer is needed, for CUDA 13: until "
                   "then no GPU is used")
    return Row(OK, "GPU driver", text)


def nccl(root: Path) -> Row:
    found = [path.name.removesuffix(".dist-info").rsplit("-", 1)[1] for path in
             root.glob(".venv/lib/python3*/site-packages/nvidia_nccl_*.dist-info")]
    return Row(OK, "NCCL", found[0]) if found else Row(NOTE, "NCCL", "not in .venv",
                                                       "only GPUs use it; Gloo serves CPUs")


def problem_of(path: Path, magic: int, count: int) -> str:
    """The problem of one file of MNIST, or ""."""
    file = next((one for one in (path.with_name(path.name + ".gz"), path) if one.exists()), None)
    if file is None:
        return f"no {path.name}(.gz)"
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
            head = struct.unpack(">II", stream.read(8))
    except (OSError, EOFError, struct.error) as error:
        return f"{file.name}: {error}"
    return "" if head == (magic, count) else f"{file.name} is not that of MNIST"


def data(root: Path) -> Row:
    folder = root / "data/mnist"
    problems = [text for name, (magic, count) in MNIST.items()
                if (text := problem_of(folder / name, magic, count))]
    if problems:
        return Row(MISSING, "data set", problems[0], "git checkout -- data brings it back; "
                   "--data-root names another folder")
    return Row(OK, "data set", "MNIST, four files in data/mnist")


def loopback() -> Row:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5):
                server.accept()[0].close()
    except OSError as error:
        return Row(MISSING, "loopback", str(error), "ranks meet at 127.0.0.1: ip link set lo up")
    try:
        socket.getaddrinfo("localhost", None)
    except OSError as error:
        return Row(MISSING, "loopback", f"localhost: {error}",
                   "torchrun needs this name: echo '127.0.0.1 localhost' >> /etc/hosts")
    return Row(OK, "loopback", "127.0.0.1 answers")


def shared_memory() -> Row:
    try:
        os.close(os.memfd_create("ladder_doctor"))
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return Row(NOTE, "shared memory", str(error), "ranks talk by Gloo instead: slower")
    return Row(OK, "shared memory", "ranks of this machine can use it")


def launchers(root: Path) -> Iterator[Row]:
    folder = root / ".venv/bin"
    for name, hint in (("torchrun", SET_UP), ("accelerate", "./run bench installs it"),
                       ("mpirun", "only for MPI: apt-get install openmpi-bin"),
                       ("srun", "only on clusters with SLURM")):
        path = shutil.which(name, path=f"{folder}:{os.environ.get('PATH', '')}")
        yield Row(OK, name, path.replace(f"{root}/", "")) if path else Row(NOTE, name, "not found",
                                                                          hint)


def rows(root: Path) -> Iterator[Row]:
    yield Row(OK, "system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield cpus()
    yield memory()
    yield disk(root)
    yield tool(os.environ.get("CXX", "g++"), (GPP, 0), "CXX names another")
    yield tool("cmake", CMAKE, "pip install cmake has one, to be put first on the PATH")
    yield tool("ninja", (1, 0), "apt-get install ninja-build")
    checks: tuple[Callable[[Path], Row], ...] = (python, libtorch, programs)
    for check in checks:
        yield check(root)
    yield gpus()
    yield driver()
    yield nccl(root)
    yield data(root)
    yield loopback()
    yield shared_memory()
    yield from launchers(root)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="./run doctor",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="default: this checkout")
    root = parser.parse_args(arguments).root.resolve()
    if not os.access(root, os.R_OK | os.X_OK):
        parser.error(f"--root {root}: expected a folder that can be read")
    found = list(rows(root))
    missing = [row.thing for row in found if row.state == MISSING]
    print(*found, f"missing: {', '.join(missing)}" if missing else "nothing is missing", sep="\n",
          flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:  # a reader that ended, a full disk, a folder of another user
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"doctor: {error}")
