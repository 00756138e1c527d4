# SPDX-License-Identifier: Apache-2.0
"""Training on two machines, as two network namespaces with a cable between them: needs root."""
from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.network import HOSTS, PORT
from tests.support.programs import SECONDS, TORCHRUN, Launched
from tests.support.ways import BY_HAND, CPU, STAGE3, Run, Way


def by_hand_on(node: int, program: Path = STAGE3, ranks: int = 2,
               master_addr: str = HOSTS[0]) -> Way:
    """The ranks of one node."""
    return Way((BY_HAND, *CPU), {
        "PROGRAM": program, "NNODES": 2, "NODE_RANK": node, "NPROC_PER_NODE": ranks,
        "MASTER_ADDR": master_addr, "MASTER_PORT": PORT})


def torchrun_on(node: int) -> Way:
    """One rank. A flag makes the first node the host of the rendezvous: in a namespace, the names of
    this machine do not lead to its addresses."""
    return Way((TORCHRUN, "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend", "c10d",
                "--rdzv-id", "nodes", "--rdzv-endpoint", f"{HOSTS[0]}:{PORT}",
                "--rdzv-conf", f"is_host={node == 0}", "--local-addr", HOSTS[node],
                "--no-python", STAGE3, *CPU), {"OMP_NUM_THREADS": 1})


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
