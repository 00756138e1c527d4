# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces with a cable between them, whose rate the kernel can limit: needs root."""
from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import unittest
from collections.abc import Iterator, Sequence

HOSTS = ("10.77.0.1", "10.77.0.2")
ENDS = ("ladder0", "ladder1")  # of the cable
PORT = 29500  # of networks that hold nobody else


def ip(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=30,
                          check=False)


def require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise unittest.SkipTest(
            f"no network namespaces here: {' '.join(done.args)}: {done.stderr.strip()}")


def require_program(name: str) -> None:
    if shutil.which(name) is None:
        raise unittest.SkipTest(f"no {name} here: apt-get install iproute2")


def node_names() -> list[str]:
    """Of their namespaces."""
    return [f"ladder-{os.getpid()}-{node}" for node in range(2)]


@contextlib.contextmanager
def two_nodes() -> Iterator[list[str]]:
    """Returns their names. Raises SkipTest where there can be none."""
    require_program("ip")
    names = node_names()
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(ip, "netns", "delete", name)
            require(ip("netns", "add", name))
        require(ip("-n", names[0], "link", "add", ENDS[0], "type", "veth",
                   "peer", ENDS[1], "netns", names[1]))
        for name, end, host in zip(names, ENDS, HOSTS):
            require(ip("-n", name, "address", "add", f"{host}/24", "dev", end))
            for link in ("lo", end):
                require(ip("-n", name, "link", "set", link, "up"))
        yield names


def limit_cable(names: Sequence[str], rate: str, burst: int) -> None:
    """Limits what either end sends, by the kernel's token bucket filter: `rate` as tc writes it,
    such as "1gbit", and beside it up to `burst` bytes at once. Raises SkipTest without tc."""
    require_program("tc")
    for name, end in zip(names, ENDS):
        require(subprocess.run(
            ["tc", "-n", name, "qdisc", "replace", "dev", end, "root", "tbf", "rate", rate,
             "burst", str(burst), "latency", "200ms"],
            capture_output=True, text=True, timeout=30, check=False))


def cut_cable() -> None:
    done = ip("-n", node_names()[0], "link", "set", ENDS[0], "down")
    assert done.returncode == 0, done.stderr
