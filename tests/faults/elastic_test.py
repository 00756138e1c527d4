# SPDX-License-Identifier: Apache-2.0
"""A run whose number of ranks changes: torchrun --nnodes 1:2, an agent killed and started again.

Two agents on this machine start two ranks each. The second agent is killed with its ranks, at a
checkpoint drawn from the seed; the first goes on with two ranks; then an agent joins, and the run
ends with four. Variables give more seeds, stage 6, and more flags of the program; with exact sums,
the weights must be those of a run of one process without a fault:

    LADDER_SEEDS=20 LADDER_STAGE=6 LADDER_FLAGS="--sums exact" \\
        .venv/bin/python -m pytest -s tests/faults/elastic_test.py
"""
from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import (TORCHRUN, Launched, free_port, poll_until, result_record,
                                    temporary_folder)
from tests.support.resume import require_whole
from tests.support.ways import CPU, STAGE5, STAGE6, alone, small, train

SECONDS = 120.0  # for each step of the scenario
# 1,000 steps: it takes a second until the first agent sees the new one, and the run must not end
# meanwhile.
FLAGS = (*small(limit_train=800, batch_size=16, epochs=20),
         *os.environ.get("LADDER_FLAGS", "").split())
RANKS = re.compile(r"^\[rank 0\] rank 0 of (\d+), .*|^rank 0 of 1, .*", re.MULTILINE)
# Lost in a collective of the library or, inside of a backward, in one of LibTorch.
LOST = r"^\[rank [01]\] error: (all_reduce on rank [01]|collective).*; hint: .*; " \
       r"torchrun will restart the ranks \(restart 1 of 5\)$"
# Waits of the rendezvous, in seconds: for further agents, and until a silent agent counts as lost.
WAITS = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=4"


@dataclass(frozen=True)
class Stage:
    """A program, and its words for checkpoints."""

    program: Path
    folder: str  # the flag
    checkpoints: str  # in that folder
    apart: int  # the difference between the numbers of two of them
    saving: tuple[object, ...]

    def checkpoints_in(self, folder: Path) -> dict[int, Path]:
        """Those that can be seen, by number, the oldest first."""
        numbers = {int(re.split("[-_]", path.name)[-1]): path
                   for path in folder.glob(self.checkpoints)}
        return dict(sorted(numbers.items()))


STAGES = {
    5: Stage(STAGE5, "--project-dir", "checkpoints/checkpoint_*", 1,
             ("--checkpointing-steps", 20, "--total-limit", 3)),
    6: Stage(STAGE6, "--output-dir", "checkpoint-*", 20,
             ("--save-steps", 20, "--save-strategy", "steps", "--save-total-limit", 3)),
}
STAGE = STAGES[int(os.environ.get("LADDER_STAGE", 5))]


@dataclass
class Elastic:
    """A run in `folder`, with its agents, the first of which hosts torchrun's rendezvous."""

    folder: Path
    stack: ExitStack
    agents: list[Launched] = field(default_factory=list)
    port: int = field(default_factory=free_port)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def start_agent(self) -> Launched:
        command = (TORCHRUN, "--nnodes", "1:2", "--max-restarts", 5, "--rdzv-backend", "c10d",
                   "--rdzv-id", "elastic", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                   "--rdzv-conf", WAITS, "--local-addr", "127.0.0.1", "--nproc-per-node", 2,
                   "--no-python", STAGE.program, *CPU, *FLAGS, *STAGE.saving,
                   "--resume", "auto", STAGE.folder, self.project,
                   "--metrics", self.folder / "a.jsonl")
        # Without this variable, torchrun 2.11 hands a new agent the store of the first round.
        agent = self.stack.enter_context(
            Launched(*command, cwd=self.folder, environment={
                "OMP_NUM_THREADS": 1, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}))
        self.agents.append(agent)
        return agent

    def output(self) -> str:
        return "".join(agent.stderr.text for agent in self.agents)

    def worlds(self) -> list[int]:
        """The numbers of ranks of all starts, by agent."""
        return [int(match[1] or 1) for match in RANKS.finditer(self.output())]

    def starts(self, world: int) -> int:
        """How often `world` ranks have begun to train."""
        return self.worlds().count(world)

    def wait_for_agent(self, agent: Launched, addresses: str) -> None:
        """Until it listens at the rendezvous, or is connected to it."""
        self.wait("agent at the rendezvous", lambda: any(
            address.endswith(f":{self.port}") for process in agent.processes()
            for address in getattr(process, addresses)()))

    def newest(self) -> int:
        """The number of the newest checkpoint; -1 if there is none."""
        return max(STAGE.checkpoints_in(self.project), default=-1)

    def wait(self, what: str, condition: Any) -> None:
        def ended() -> bool:
            return any(agent.process.poll() not in (None, -signal.SIGKILL)
                       for agent in self.agents)

        if not poll_until(lambda: condition() or ended(), SECONDS) or not condition():
            raise AssertionError(f"no {what} within {SECONDS} s or before the end:\n"
                                 f"{self.output()}")

    def wait_for_checkpoints(self, more: int) -> None:
        last = self.newest() + more * STAGE.apart
        self.wait(f"checkpoint {last}", lambda: self.newest() >= last)


def kill(agent: Launched) -> None:
    """The agent first: it must not notice the end of its ranks."""
    agent.process.send_signal(signal.SIGKILL)
    for process in agent.processes():
        process.send(signal.SIGKILL)
    agent.require_nothing_left(agent.processes())


@pytest.fixture(name="undisturbed", scope="module")
def weights_of_one_process() -> str:
    """With exact sums; else any."""
    if "exact" not in FLAGS:
        return ""
    run = train(alone(STAGE.program), *FLAGS, parent=temporary_folder("elastic"))
    return run.result["weights_sha256"]


@pytest.mark.parametrize("seed", range(int(os.environ.get("LADDER_SEEDS", 1))))
def test_a_run_goes_on_with_fewer_ranks_and_then_with_more(
        tmp_path: Path, seed: int, undisturbed: str) -> None:
    chance = random.Random(seed)
    with ExitStack() as stack:
        run = Elastic(tmp_path, stack)
        first = run.start_agent()
        run.wait_for_agent(first, "listening")
        second = run.start_agent()
        run.wait("start of 4 ranks", lambda: run.starts(4) == 1)
        run.wait_for_checkpoints(chance.randint(1, 6))
        time.sleep(chance.uniform(0, 0.4))  # anywhere between two checkpoints
        alone_before = run.starts(2)
        kill(second)
        run.wait("restart with 2 ranks", lambda: run.starts(2) > alone_before)
        run.wait_for_checkpoints(chance.randint(1, 3))
        paused = first.ranks()  # else they may be done before the new agent has begun
        for rank in paused:
            rank.send(signal.SIGSTOP)
        third = run.start_agent()
        run.wait_for_agent(third, "connected")
        for rank in paused:
            rank.send(signal.SIGCONT)
        run.wait("restart with 4 ranks", lambda: run.starts(4) == 2)
        for agent in (first, third):
            done = agent.finish(SECONDS)
            assert done.code == 0, f"exit code {done.code}:\n{run.output()}"
    print("ranks", *run.worlds(), flush=True)
    assert "resumed from" in first.stderr.text, run.output()
    assert re.search(LOST, first.stderr.text, re.MULTILINE), run.output()
    for checkpoint in STAGE.checkpoints_in(run.project).values():
        require_whole(checkpoint)
    result = result_record(tmp_path / "a.jsonl")
    assert [result[key] for key in ("world_size", "steps", "seen")] == [4, 1000, 500]
    assert result["accuracy"] > 90
    assert undisturbed in ("", result["weights_sha256"])
