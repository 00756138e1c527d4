# SPDX-License-Identifier: Apache-2.0
"""Training on two machines, as two network namespaces with a cable between them: needs root."""
from __future__ import annotations

import contextlib
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

from tests.support.network import HOSTS, PORT, two_nodes
from tests.support.programs import SECONDS, Launched
from tests.support.ways import BY_HAND, CPU, STAGE3, Run, Way


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
