# SPDX-License-Identifier: Apache-2.0
"""Two machines, as two network namespaces with a cable between them: needs root."""
from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.nodes import HOSTS, PORT, cut_cable, nodes_for  # noqa: E402
from tests.support.programs import Launched, Process, Result  # noqa: E402
from tests.support.ways import (BY_HAND, CPU, STAGE3, TORCHRUN, Run, Way, distance,  # noqa: E402
                                endless, small, spawned, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-nodes-"))
atexit.register(shutil.rmtree, FOLDER)


class Nodes(unittest.TestCase):
    def setUp(self) -> None:
        self.names = nodes_for(self)

    def start(self, node: int, way: Way, *flags: object) -> Launched:
        started = Launched("ip", "netns", "exec", self.names[node], *way.command, *flags,
                           environment=way.environment)
        self.addCleanup(started.kill_all)
        return started

    def by_hand(self, node: int, nproc_per_node: int) -> Way:
        return Way((BY_HAND, *CPU), {
            "PROGRAM": STAGE3, "NNODES": 2, "NODE_RANK": node, "NPROC_PER_NODE": nproc_per_node,
            "MASTER_ADDR": HOSTS[0], "MASTER_PORT": PORT})

    def torchrun(self, node: int, nproc_per_node: int) -> Way:
        """The first node is told that the meeting place is its own: the names of this machine say
        nothing about its addresses in a namespace."""
        return Way((TORCHRUN, "--nnodes", 2, "--nproc-per-node", nproc_per_node,
                    "--rdzv-backend", "c10d", "--rdzv-id", "nodes",
                    "--rdzv-endpoint", f"{HOSTS[0]}:{PORT}",
                    "--rdzv-conf", f"is_host={node == 0}", "--local-addr", HOSTS[node],
                    "--no-python", STAGE3, *CPU), {"OMP_NUM_THREADS": 1})

    def train_on_both(self, ways: list[Way], *flags: object) -> Run:
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        files = ("--metrics", folder / "a.jsonl", "--save", folder / "a.safetensors")
        started = [self.start(node, way, *flags, *files) for node, way in enumerate(ways)]
        results = [node.finish(120) for node in started]
        for done in results:
            self.assertEqual(done.code, 0, done.stderr)
        self.assertEqual((len(results[0].lines) + len(results[1].lines)), 2)
        return Run(ways[0], flags, folder, results[0])

    def expect_equal(self, run: Run, world: int) -> None:
        """Machines have no memory in common: their ranks sum by Gloo, in its order."""
        expected = train(spawned(world), *run.flags, "--backend", "gloo", parent=FOLDER)
        self.assertEqual(run.result["world_size"], world)
        self.assertEqual(run.result["seen"], 500)
        print(f"{world} ranks on two nodes and on one: {distance(run, expected):.1e}")
        self.assertEqual(run.result["weights_sha256"], expected.result["weights_sha256"])


class ByHand(Nodes):
    def test_a_rank_on_each_of_two_nodes_is_two_on_one(self) -> None:
        run = self.train_on_both([self.by_hand(node, 1) for node in range(2)], *small())
        self.assertIn(f"local rank 0 of 1, by env (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "
                      f"store {HOSTS[0]}:{PORT}", run.header["launch"])
        self.expect_equal(run, 2)

    def test_two_ranks_on_each_are_four_on_one(self) -> None:
        run = self.train_on_both([self.by_hand(node, 2) for node in range(2)], *small())
        self.expect_equal(run, 4)


class Torchrun(Nodes):
    def test_a_rank_on_each_of_two_nodes_is_two_on_one(self) -> None:
        run = self.train_on_both([self.torchrun(node, 1) for node in range(2)], *small())
        self.assertIn("local rank 0 of 1, by torchrun", run.header["launch"])
        self.expect_equal(run, 2)


class Network(Nodes):
    def training(self, *flags: object) -> tuple[list[Launched], list[list[Process]]]:
        started = [self.start(node, self.by_hand(node, 1), *endless(), *flags)
                   for node in range(2)]
        started[0].wait_until_training(60)
        return started, [node.ranks() for node in started]

    def test_a_cut_cable_ends_both_sides_at_the_deadline(self) -> None:
        started, ranks = self.training("--timeout", 3)
        cut_cable()
        results: list[Result] = []
        for node, its_ranks in zip(started, ranks):
            node.require_nothing_left(its_ranks, 3 + 7)
            results.append(node.finish(20))
        self.assertEqual([done.code for done in results], [4, 4], results)


if __name__ == "__main__":
    unittest.main()
