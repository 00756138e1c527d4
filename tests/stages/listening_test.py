# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of a run's processes while they train, for each way to start them.

Those of the launchers are printed and not checked; docs/security.md lists them. The ways that
listen like one of these are checked in the tier --full alone.
"""
from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support.network import HOSTS, PORT, ip, require, two_nodes
from tests.support.nodes import by_hand_on, torchrun_on
from tests.support.programs import (BIN, FULL, ROOT, Launched, Process, free_port,
                                    temporary_folder)
from tests.support.ways import (CPU, STAGE0, STAGE1, STAGE3, STAGE4, STAGE5, STAGE6, TORCHRUN, Way,
                                accelerate, alone, by_hand, endless, mpirun, one_rank, spawned,
                                torchrun, with_init_method)

FOLDER = temporary_folder("listening")


def srun() -> Way:
    """As the tasks of a SLURM step on one machine find themselves."""
    script = 'for r in 0 1; do SLURM_PROCID=$r SLURM_LOCALID=$r "$@" & done; wait -n; exit'
    return Way(("bash", "-c", script, "bash", STAGE3, *CPU), {
        "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_TASKS_PER_NODE": 2,
        "SLURM_STEP_NODELIST": socket.gethostname(), "MASTER_PORT": free_port()})


def two_torchruns() -> Way:
    """Two machines that are both this one, a rank each."""
    return Way((ROOT / "scripts" / "torchrun_two_nodes.sh", "--local", *CPU),
               {"TORCHRUN": TORCHRUN, "PROGRAM": STAGE3, "NPROC_PER_NODE": 1,
                "RDZV_PORT": free_port(), "OMP_NUM_THREADS": 1})


WAYS: dict[str, Callable[[], Way]] = {
    "stage 0": lambda: alone(STAGE0),
    "spawn": spawned,
    # Instead of the shared memory that is the default on one machine.
    "spawn, Gloo": lambda: spawned(2, "--backend", "gloo"),
    "by hand": by_hand,
    "mpirun": mpirun,
    "torchrun": torchrun,
}
FULL_WAYS: dict[str, Callable[[], Way]] = {
    "stage 1, two replicas": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
    "by hand, one rank": lambda: one_rank(0, 1, free_port()),
    "spawn, one rank": lambda: spawned(1),  # keeps the socket of its store
    **{f"spawn, {stage.name}": functools.partial(spawned, program=stage)
       for stage in (STAGE4, STAGE5, STAGE6)},
    "by hand, tcp://": lambda: with_init_method(f"tcp://127.0.0.1:{free_port()}"),
    "by hand, file://": lambda: with_init_method(f"file://{FOLDER}/store"),
    "srun": srun,
    "two torchruns": two_torchruns,
    "accelerate launch": accelerate,
}
LISTENS_ON_NOTHING = ("stage 0", "stage 1, two replicas", "by hand, one rank")


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


def outside(addresses: list[str]) -> list[str]:
    """Those of the addresses that another machine may reach."""
    def is_loopback(host: str) -> bool:
        number = ipaddress.ip_address(host)
        return (getattr(number, "ipv4_mapped", None) or number).is_loopback

    return [address for address in addresses if not is_loopback(host_of(address))]


def addresses_of(name: str, started: Launched) -> list[list[str]]:
    """What each rank listens on, and the parent of spawn. Prints it, and what the processes of the
    launcher listen on."""
    ranks = [rank.pid for rank in started.ranks()]
    assert ranks
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


def training(way: Way, *prefix: object) -> Launched:
    return Launched(*prefix, *way.command, *endless(limit_train=64, limit_test=50), cwd=FOLDER,
                    environment=way.environment)


@pytest.mark.parametrize("hosts, found", [
    (("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"), []),
    (("127.0.0.1", "0.0.0.0"), ["0.0.0.0"]), (("127.0.0.1", "::"), ["::"])])
def test_a_socket_that_the_network_can_reach_is_found(hosts: tuple[str, ...],
                                                      found: list[str]) -> None:
    """By the tests below: here in this process."""
    with contextlib.ExitStack() as stack:
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = stack.enter_context(socket.socket(family))
            listener.bind((host, 0))
            listener.listen()
        addresses = Process(os.getpid()).listening()
    assert sorted(map(host_of, addresses)) == sorted(hosts)
    assert [host_of(address) for address in outside(addresses)] == found


@pytest.mark.parametrize("name", [*WAYS, *(FULL_WAYS if FULL else ())])
def test_one_rank_listens_on_nothing_and_several_on_the_loopback_interface_only(name: str) -> None:
    """In the second epoch, after a test. Stage 6 has no line for that: soon after its start."""
    with training((WAYS | FULL_WAYS)[name]()) as started:
        started.stderr.wait_for(r"^epoch 2/|^\[rank 0\] stage6_trainer: ", 60)
        seen = addresses_of(name, started)
    if name in LISTENS_ON_NOTHING:
        assert seen == [[]]
    else:
        assert sum(seen, []) and outside(sum(seen, [])) == []


@pytest.fixture(name="nodes")
def network() -> Iterator[list[str]]:
    """Two machines for a rank each, with a network between them; its addresses are HOSTS."""
    with two_nodes() as names:
        yield names


def listening_on(nodes: list[str], name: str, ways: list[Way]) -> list[list[str]]:
    """The addresses of the rank on each machine."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(training(way, "ip", "netns", "exec", node))
                   for node, way in zip(nodes, ways)]
        started[0].stderr.wait_for(r"^epoch 2/", 60)
        seen = [addresses_of(f"two machines, {name}, {host}", node)
                for host, node in zip(HOSTS, started)]
    assert [len(ranks) for ranks in seen] == [1, 1]
    return [ranks[0] for ranks in seen]


def require_hosts(seen: list[list[str]]) -> None:
    """Every socket at the address that faces the other machine."""
    assert [set(map(host_of, addresses)) for addresses in seen] == [{host} for host in HOSTS]


def test_by_hand_they_listen_on_what_faces_the_other(nodes: list[str]) -> None:
    seen = listening_on(nodes, "by hand", [by_hand_on(node, ranks=1) for node in range(2)])
    require_hosts(seen)
    assert f"{HOSTS[0]}:{PORT}" in seen[0]


@pytest.mark.skipif(not FULL, reason="two machines under torchrun, with LADDER_FULL")
def test_under_torchrun_too(nodes: list[str]) -> None:
    require_hosts(listening_on(nodes, "torchrun", [torchrun_on(node) for node in range(2)]))


def test_the_store_at_a_name_for_the_loopback_is_open_to_all(nodes: list[str]) -> None:
    name = socket.gethostname()
    if not socket.gethostbyname(name).startswith("127."):
        pytest.skip(f"{name} is no loopback address here")
    require(ip("-n", nodes[0], "route", "add", "default", "dev", "ladder0"))
    seen = listening_on(nodes, "by its own name", [by_hand_on(0, ranks=1, master_addr=name),
                                                   by_hand_on(1, ranks=1)])
    assert f"0.0.0.0:{PORT}" in seen[0]
    require_hosts([[a for a in seen[0] if a != f"0.0.0.0:{PORT}"], seen[1]])
