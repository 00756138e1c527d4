# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of a run's processes while they train, for each way to start them.

Those of the launchers are printed and not checked; docs/security.md lists them. The ways that
listen like one of these are checked in the tier --full alone.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import ipaddress
import os
import shutil
import socket
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.network import HOSTS, PORT, ip, require  # noqa: E402
from tests.support.nodes import nodes_for  # noqa: E402
from tests.support.programs import BIN, FULL, ROOT, Launched, Process, free_port  # noqa: E402
from tests.support.ways import (BY_HAND, CPU, STAGE0, STAGE1, STAGE3, STAGE4, STAGE5,  # noqa: E402
                                STAGE6, TORCHRUN, Way, accelerate, alone, by_hand, endless,
                                mpirun, one_rank, spawned, torchrun)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-listening-"))
atexit.register(shutil.rmtree, FOLDER)

GLOO = ("--backend", "gloo")  # instead of the shared memory that is the default on one machine


def by_shell(command: str, *flags: object) -> Way:
    """Two ranks by hand; `command` starts rank $r of "$@"."""
    script = f"for r in 0 1; do {command} & done; wait -n; exit"
    return Way(("bash", "-c", script, "bash", STAGE3, *CPU, *flags))


def meeting_at(place: str) -> Way:
    return by_shell('"$@" --rank $r --world-size 2', "--init-method", place)


def srun() -> Way:
    """As the tasks of a SLURM step on one machine find themselves."""
    return by_shell('env SLURM_STEP_ID=0 SLURM_PROCID=$r SLURM_LOCALID=$r SLURM_STEP_NUM_TASKS=2 '
                    f'SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST={socket.gethostname()} '
                    f'MASTER_PORT={free_port()} "$@"')


def two_torchruns() -> Way:
    """Two machines that are both this one, a rank each."""
    return Way((ROOT / "scripts" / "torchrun_two_nodes.sh", "--local", *CPU),
               {"TORCHRUN": TORCHRUN, "PROGRAM": STAGE3, "NPROC_PER_NODE": 1,
                "RDZV_PORT": free_port(), "OMP_NUM_THREADS": 1})


Ways = dict[str, Callable[[], Way]]

ONE_RANK: Ways = {
    "stage 0": lambda: alone(STAGE0),
}
ONE_RANK_FULL: Ways = {
    "stage 1, two replicas": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
    "by hand, one rank": lambda: one_rank(0, 1, free_port()),
}
RANKS: Ways = {
    "spawn": spawned,
    "spawn, Gloo": lambda: spawned(2, *GLOO),
    "by hand": by_hand,
    "mpirun": mpirun,
    "torchrun": torchrun,
}
RANKS_FULL: Ways = {
    "spawn, one rank": lambda: spawned(1),  # keeps the socket of its store
    **{f"spawn, {stage.name}": functools.partial(spawned, program=stage)
       for stage in (STAGE4, STAGE5, STAGE6)},
    "by hand, tcp://": lambda: meeting_at(f"tcp://127.0.0.1:{free_port()}"),
    "by hand, file://": lambda: meeting_at(f"file://{tempfile.mkdtemp(dir=FOLDER)}/store"),
    "srun": srun,
    "two torchruns": two_torchruns,
    "accelerate launch": accelerate,
}


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


def outside(addresses: list[str]) -> list[str]:
    """Those of the addresses that another machine may reach."""
    def is_loopback(host: str) -> bool:
        number = ipaddress.ip_address(host)
        return (getattr(number, "ipv4_mapped", None) or number).is_loopback

    return [address for address in addresses if not is_loopback(host_of(address))]


class ListeningTest(unittest.TestCase):
    def ours(self, name: str, started: Launched) -> list[list[str]]:
        """What each rank listens on, and the parent of spawn. Prints it, and what the processes of
        the launcher listen on."""
        ranks = [rank.pid for rank in started.ranks()]
        self.assertNotEqual(ranks, [])
        result = []
        for process in started.processes():
            addresses = process.listening()
            is_ours = process.program.startswith(str(BIN))
            kind = "rank" if process.pid in ranks else "parent" if is_ours else "launcher"
            if is_ours:
                result.append(addresses)
            if is_ours or addresses:
                print(f"{name}: {kind}: {', '.join(addresses) or 'nothing'}", flush=True)
        return result

    def start(self, way: Way, *prefix: object) -> Launched:
        started = Launched(*prefix, *way.command, *endless(limit_train=64, limit_test=50),
                           cwd=FOLDER, environment=way.environment)
        self.addCleanup(started.kill_all)
        return started


class Checker(unittest.TestCase):
    """The tests below would find a socket that the network can reach."""

    def outside(self, *hosts: str) -> list[str]:
        """Opens a socket for each, in this process, and looks at this process."""
        with contextlib.ExitStack() as stack:
            for host in hosts:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                listener = stack.enter_context(socket.socket(family))
                listener.bind((host, 0))
                listener.listen()
            addresses = Process(os.getpid()).listening()
        self.assertEqual(sorted(map(host_of, addresses)), sorted(hosts))
        return [host_of(address) for address in outside(addresses)]

    def test_the_loopback_interface_is_not_outside(self) -> None:
        self.assertEqual(self.outside("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"), [])

    def test_a_socket_on_all_interfaces_is(self) -> None:
        for host in ("0.0.0.0", "::"):
            self.assertEqual(self.outside("127.0.0.1", host), [host])


class OneMachine(ListeningTest):
    def training(self, name: str, way: Way) -> list[list[str]]:
        """In the second epoch, after a test. Stage 6 has no line for that: soon after its start."""
        started = self.start(way)
        started.stderr.wait_for(r"^epoch 2/|^\[rank 0\] stage6_trainer: ", 60)
        seen = self.ours(name, started)
        started.kill_all()
        return seen

    def check_one_rank(self, ways: Ways) -> None:
        for name, way in ways.items():
            with self.subTest(name):
                self.assertEqual(self.training(name, way()), [[]])

    def check_ranks(self, ways: Ways) -> None:
        for name, way in ways.items():
            with self.subTest(name):
                addresses = sum(self.training(name, way()), [])
                self.assertNotEqual(addresses, [])
                self.assertEqual(outside(addresses), [], f"of {addresses}")

    def test_one_rank_listens_on_nothing(self) -> None:
        self.check_one_rank(ONE_RANK)

    def test_ranks_listen_on_the_loopback_interface_only(self) -> None:
        self.check_ranks(RANKS)

    @unittest.skipUnless(FULL, "the other ways to start them, with LADDER_FULL")
    def test_the_other_ways_listen_alike(self) -> None:
        self.check_one_rank(ONE_RANK_FULL)
        self.check_ranks(RANKS_FULL)


class TwoMachines(ListeningTest):
    """A rank each, with a network between them; its addresses are HOSTS."""

    def setUp(self) -> None:
        self.nodes = nodes_for(self)

    def training(self, name: str, ways: list[Way]) -> list[list[str]]:
        """The addresses of the rank on each machine."""
        started = [self.start(way, "ip", "netns", "exec", node)
                   for node, way in zip(self.nodes, ways)]
        started[0].stderr.wait_for(r"^epoch 2/", 60)
        seen = [self.ours(f"two machines, {name}, {host}", node)
                for host, node in zip(HOSTS, started)]
        self.assertEqual([len(ranks) for ranks in seen], [1, 1])
        return [ranks[0] for ranks in seen]

    def by_hand(self, master_addr: str, node: int) -> Way:
        return Way((BY_HAND, *CPU), {
            "PROGRAM": STAGE3, "NNODES": 2, "NODE_RANK": node, "NPROC_PER_NODE": 1,
            "MASTER_ADDR": master_addr, "MASTER_PORT": PORT})

    def torchrun(self, node: int) -> Way:
        """The first is told that the meeting place is its own: in a namespace the names of this
        machine say nothing about its addresses."""
        return Way((TORCHRUN, "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend", "c10d",
                    "--rdzv-id", "nodes", "--rdzv-endpoint", f"{HOSTS[0]}:{PORT}",
                    "--rdzv-conf", f"is_host={node == 0}", "--local-addr", HOSTS[node],
                    "--no-python", STAGE3, *CPU), {"OMP_NUM_THREADS": 1})

    def expect_hosts(self, seen: list[list[str]]) -> None:
        """Every socket at the address that faces the other machine."""
        self.assertEqual([set(map(host_of, addresses)) for addresses in seen],
                         [{host} for host in HOSTS])

    def test_by_hand_they_listen_on_what_faces_the_other(self) -> None:
        seen = self.training("by hand", [self.by_hand(HOSTS[0], node) for node in range(2)])
        self.expect_hosts(seen)
        self.assertIn(f"{HOSTS[0]}:{PORT}", seen[0])

    @unittest.skipUnless(FULL, "two machines under torchrun, with LADDER_FULL")
    def test_under_torchrun_too(self) -> None:
        self.expect_hosts(self.training("torchrun", [self.torchrun(node) for node in range(2)]))

    def test_the_store_at_a_name_for_the_loopback_is_open_to_all(self) -> None:
        name = socket.gethostname()
        if not socket.gethostbyname(name).startswith("127."):
            self.skipTest(f"{name} is no loopback address here")
        require(ip("-n", self.nodes[0], "route", "add", "default", "dev", "ladder0"))
        seen = self.training("by its own name", [self.by_hand(name, 0), self.by_hand(HOSTS[0], 1)])
        self.assertIn(f"0.0.0.0:{PORT}", seen[0])
        self.expect_hosts([[a for a in seen[0] if a != f"0.0.0.0:{PORT}"], seen[1]])


if __name__ == "__main__":
    unittest.main()
