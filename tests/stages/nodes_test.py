# SPDX-License-Identifier: Apache-2.0
"""Two machines, as two network namespaces with a cable between them: needs root.

What happens when the cable is cut is in the table of faults.
"""
from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.network import HOSTS, PORT  # noqa: E402
from tests.support.nodes import by_hand_on, nodes_for, train_on_nodes  # noqa: E402
from tests.support.ways import (CPU, STAGE3, TORCHRUN, Run, Way, distance, small,  # noqa: E402
                                spawned, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-nodes-"))
atexit.register(shutil.rmtree, FOLDER)


class Nodes(unittest.TestCase):
    def setUp(self) -> None:
        self.names = nodes_for(self)

    def torchrun(self, node: int) -> Way:
        """One rank. A flag makes the first node the host of the rendezvous: a machine's name does
        not lead to the address of its namespace."""
        return Way((TORCHRUN, "--nnodes", 2, "--nproc-per-node", 1,
                    "--rdzv-backend", "c10d", "--rdzv-id", "nodes",
                    "--rdzv-endpoint", f"{HOSTS[0]}:{PORT}",
                    "--rdzv-conf", f"is_host={node == 0}", "--local-addr", HOSTS[node],
                    "--no-python", STAGE3, *CPU), {"OMP_NUM_THREADS": 1})

    def train_on_both(self, ways: list[Way], *flags: object) -> Run:
        run = train_on_nodes(self.names, ways, *flags, parent=FOLDER)
        self.assertEqual(len(run.done.lines), 2)
        return run

    def expect_equal(self, run: Run, world: int) -> None:
        """Machines have no memory in common: their ranks sum by Gloo, in its order."""
        expected = train(spawned(world), *run.flags, "--backend", "gloo", parent=FOLDER)
        self.assertEqual(run.result["world_size"], world)
        self.assertEqual(run.result["seen"], 500)
        print(f"{world} ranks on two nodes and on one: {distance(run, expected):.1e}")
        self.assertEqual(run.result["weights_sha256"], expected.result["weights_sha256"])

    def test_by_hand_two_ranks_on_each_of_two_nodes_are_four_on_one(self) -> None:
        run = self.train_on_both([by_hand_on(node) for node in range(2)], *small())
        self.assertIn(f"local rank 0 of 2, by env (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "
                      f"store {HOSTS[0]}:{PORT}", run.header["launch"])
        self.expect_equal(run, 4)

    def test_under_torchrun_a_rank_on_each_of_two_nodes_is_two_on_one(self) -> None:
        run = self.train_on_both([self.torchrun(node) for node in range(2)], *small())
        self.assertIn("local rank 0 of 1, by torchrun", run.header["launch"])
        self.expect_equal(run, 2)


if __name__ == "__main__":
    unittest.main()
