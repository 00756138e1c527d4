# SPDX-License-Identifier: Apache-2.0
"""Two machines, as two network namespaces with a cable between them: needs root."""
from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.programs import SECONDS, Launched
from tests.support.ways import BY_HAND, CPU, STAGE3, Run, Way

HOSTS = ("10.77.0.1", "10.77.0.2")
PORT = 29500  # of networks that hold nobody else


def ip(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=30,
                          check=False)


def require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise unittest.SkipTest(
            f"no network namespaces here: {' '.join(done.args)}: {done.stderr.strip()}")


def node_names() -> list[str]:
    """Of their namespaces."""
    return [f"ladder-{os.getpid()}-{node}" for node in range(2)]


@contextlib.contextmanager
def two_nodes() -> Iterator[list[str]]:
    """Returns their names. Raises SkipTest where there can be none."""
    names = node_names()
    ends = [f"ladder{node}" for node in range(2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(ip, "netns", "delete", name)
            require(ip("netns", "add", name))
        require(ip("-n", names[0], "link", "add", ends[0], "type", "veth",
                   "peer", ends[1], "netns", names[1]))
        for name, end, host in zip(names, ends, HOSTS):
            require(ip("-n", name, "address", "add", f"{host}/24", "dev", end))
            for link in ("lo", end):
                require(ip("-n", name, "link", "set", link, "up"))
        yield names


def nodes_for(test: unittest.TestCase) -> list[str]:
    """Two nodes until the test is over. Why there can be none is printed."""
    stack = contextlib.ExitStack()
    test.addCleanup(stack.close)
    try:
        return stack.enter_context(two_nodes())
    except unittest.SkipTest as reason:
        print(reason)
        raise


def by_hand_on(node: int, program: Path = STAGE3, ranks: int = 2) -> Way:
    """The ranks of one node."""
    return Way((BY_HAND, *CPU), {
        "PROGRAM": program, "NNODES": 2, "NODE_RANK": node, "NPROC_PER_NODE": ranks,
        "MASTER_ADDR": HOSTS[0], "MASTER_PORT": PORT})


def train_on_nodes(names: Sequence[str], ways: Sequence[Way], *flags: object, parent: Path,
                   seconds: float = SECONDS) -> Run:
    """Runs a way on each node, to their ends. Fails unless all end well, and only that of rank 0
    prints results."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    files = ("--metrics", folder / "a.jsonl", "--save", folder / "a.safetensors")
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(
            Launched("ip", "netns", "exec", name, *way.command, *flags, *files, cwd=folder,
                     environment=way.environment)) for name, way in zip(names, ways)]
        results = [one.finish(seconds) for one in started]
    for done in results:
        assert done.code == 0, done.stderr
    assert not any(done.stdout for done in results[1:]), results
    return Run(ways[0], flags, folder, results[0])


def cut_cable() -> None:
    done = ip("-n", node_names()[0], "link", "set", "ladder0", "down")
    assert done.returncode == 0, done.stderr
