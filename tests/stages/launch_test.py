# SPDX-License-Identifier: Apache-2.0
"""Stages under launchers, on one machine and on two.

What launchers set has tests in tests/launch; failures of ranks and networks are in tests/faults.
"""
from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.network import HOSTS, PORT, two_nodes
from tests.support.nodes import by_hand_on, torchrun_on, train_on_nodes
from tests.support.programs import free_port, launch, require_refused
from tests.support.ways import STAGE3, TORCHRUN, Way, distance, small, spawned, torchrun, train


def test_each_of_them_works(tmp_path: Path) -> None:
    """The three commands that stage 3 proposes when it is started without a launcher."""
    refused = launch(STAGE3, cwd=tmp_path)
    require_refused(refused, 2, "launcher variables not set: RANK, WORLD_SIZE, MASTER_ADDR, "
                                "MASTER_PORT; ")
    commands = refused.stderr.strip().split("; hint: ")[1].split(", or: ")
    assert [re.split(r"[ =]", command)[0] for command in commands] == ["torchrun", "mpirun", "RANK"]
    environment = {
        "PATH": f"{TORCHRUN.parent}:{os.environ['PATH']}", "MASTER_PORT": free_port(),
        "MASTER_ADDR": "127.0.0.1", "OMPI_ALLOW_RUN_AS_ROOT": 1,
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, "OMPI_MCA_rmaps_base_oversubscribe": 1}
    flags = " ".join(map(str, small(limit_train=64)))
    for command in commands:
        typed = f"{command.replace('PROGRAM', str(STAGE3))} --device cpu {flags}"
        done = launch("bash", "-c", typed, cwd=tmp_path, environment=environment)
        assert (done.code, len(done.lines)) == (0, 2), (command, done)


def test_torch_distributed_launch_starts_the_ranks() -> None:
    done = launch(TORCHRUN.parent / "python", "-m", "torch.distributed.launch", "--use-env",
                  "--no-python", "--master-port", free_port(), "--nproc-per-node", 2, STAGE3,
                  *small(limit_train=64))
    assert (done.code, len(done.lines)) == (0, 2), done.stderr
    assert "rank 0 of 2, local rank 0 of 2, by torchrun" in done.stderr


# Started instead of the program. The first rank 1 is killed after its first step, as if its machine
# failed; the restarted one lives.
DIES_ONCE = """#!/usr/bin/env bash
if [[ $RANK == 1 && $TORCHELASTIC_RESTART_COUNT == 0 ]]; then
  "$PROGRAM" "$@" &
  timeout 60 tail -F -n +1 "$MARKS" 2>/dev/null | head -n 1 >"$MARKS.seen"
  kill -KILL $!
  wait $!
  exit 1
fi
exec "$PROGRAM" "$@"
"""


def test_torchrun_restarts_all_ranks_after_one_died(tmp_path: Path) -> None:
    wrapper, metrics = tmp_path / "dies_once", tmp_path / "marks.jsonl"
    wrapper.write_text(DIES_ONCE)
    wrapper.chmod(0o755)
    way = torchrun(2, "--max-restarts", 1, program=wrapper)
    done = launch(*way.command, *small(fingerprint=1, metrics=metrics), environment={
        **way.environment, "PROGRAM": STAGE3, "MARKS": tmp_path / "marks.rank1.jsonl"})
    assert done.code == 0, done.stderr
    assert '"step":1,' in (tmp_path / "marks.rank1.jsonl.seen").read_text()
    expected = train(spawned(), *small(), parent=tmp_path)
    assert metrics.read_text().count('"record":"result"') == 1
    assert expected.result["weights_sha256"] in metrics.read_text()


@pytest.mark.parametrize("way_on, world, launched", [
    (by_hand_on, 4, "local rank 0 of 2, by env (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), "
                    f"store {HOSTS[0]}:{PORT}"),
    (torchrun_on, 2, "local rank 0 of 1, by torchrun")])
def test_ranks_on_two_nodes_train_as_that_many_on_one(
        tmp_path: Path, way_on: Callable[[int], Way], world: int, launched: str) -> None:
    """Machines have no memory in common: their ranks sum by Gloo, in its order."""
    with two_nodes() as names:
        run = train_on_nodes(names, [way_on(node) for node in range(2)], *small(), parent=tmp_path)
    assert len(run.done.lines) == 2
    assert launched in run.header["launch"]
    expected = train(spawned(world), *small(), "--backend", "gloo", parent=tmp_path)
    print(f"{world} ranks on two nodes and on one: {distance(run, expected):.1e}")
    for field, value in (("world_size", world), ("seen", 500),
                         ("weights_sha256", expected.result["weights_sha256"])):
        assert run.result[field] == value, field
