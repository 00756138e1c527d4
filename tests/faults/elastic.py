# SPDX-License-Identifier: Apache-2.0
"""A run whose number of ranks changes: torchrun --nnodes 1:2, an agent killed and started again.

    .venv/bin/python tests/faults/elastic.py --seeds 20
    .venv/bin/python tests/faults/elastic.py --seeds 20 --equal -- --sums exact
    .venv/bin/python tests/faults/elastic.py --stage 6 --seeds 20 --equal -- --sums exact

Two agents on this machine start two ranks each. The second agent is killed with its ranks, at a
checkpoint drawn from the seed; the first goes on with two ranks; then an agent joins, and the run
ends with four. Prints one line per seed: the numbers of ranks in turn, seconds, and the hash of the
final weights. Flags after -- go to the program. --equal: each hash must be that of a run of one
process without a fault. Exit code: 0 all ended well, 1 some did not.
"""
from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import (TORCHRUN, Launched, free_port, poll_until,  # noqa: E402
                                    result_record)
from tests.support.resume import require_whole  # noqa: E402
from tests.support.ways import CPU, STAGE5, STAGE6, alone, small, train  # noqa: E402

SECONDS = 120.0  # for each step of the scenario
# 1,000 steps: it takes a second until the first agent sees the new one, and the run must not end
# meanwhile.
FLAGS = small(limit_train=800, batch_size=16, epochs=20)
RANKS = re.compile(r"^\[rank 0\] rank 0 of (\d+), .*|^rank 0 of 1, .*", re.MULTILINE)
# Lost in a collective of the library or, inside of a backward, in one of LibTorch.
LOST = r"^\[rank [01]\] error: (all_reduce on rank [01]|collective).*; hint: .*; torchrun will restart " \
       r"the ranks \(restart 1 of 5\)$"
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


@dataclass
class Elastic:
    """A run in `folder`, with its agents, the first of which hosts torchrun's rendezvous."""

    stage: Stage
    folder: Path
    flags: tuple[object, ...]
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
                   "--no-python", self.stage.program, *CPU, *self.flags, *self.stage.saving,
                   "--resume", "auto", self.stage.folder, self.project,
                   "--metrics", self.folder / "a.jsonl")
        # Without this variable, torchrun 2.11 hands a new agent the store of the first round.
        agent = self.stack.enter_context(
            Launched(*command, cwd=self.folder, environment={
                "OMP_NUM_THREADS": 1, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}))
        self.agents.append(agent)
        return agent

    def output(self) -> str:
        return "".join(agent.stderr.text for agent in self.agents)

    def starts(self, world: int) -> int:
        """How often `world` ranks have begun to train."""
        return [int(match[1] or 1) for match in RANKS.finditer(self.output())].count(world)

    def newest(self) -> int:
        """The number of the newest checkpoint; -1 if there is none."""
        return max(self.stage.checkpoints_in(self.project), default=-1)

    def wait(self, what: str, condition: Any) -> None:
        def ended() -> bool:
            return any(agent.process.poll() not in (None, -signal.SIGKILL)
                       for agent in self.agents)

        if not poll_until(lambda: condition() or ended(), SECONDS) or not condition():
            raise AssertionError(f"no {what} within {SECONDS} s or before the end:\n"
                                 f"{self.output()}")

    def wait_for_checkpoints(self, more: int) -> None:
        last = self.newest() + more * self.stage.apart
        self.wait(f"checkpoint {last}", lambda: self.newest() >= last)

    def worlds(self) -> list[int]:
        """The numbers of ranks of all starts, by agent."""
        return [int(match[1] or 1) for match in RANKS.finditer(self.output())]


def kill(agent: Launched) -> None:
    """The agent first: it must not notice the end of its ranks."""
    agent.process.send_signal(signal.SIGKILL)
    for process in agent.processes():
        process.send(signal.SIGKILL)
    agent.require_nothing_left(agent.processes())


def run_elastic(seed: int, parent: Path, *flags: object,
                stage: Stage = STAGES[5]) -> tuple[list[int], dict[str, Any]]:
    """Returns the numbers of ranks, and the last record. Raises AssertionError if it ends badly."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
        run = Elastic(stage, folder, (*FLAGS, *flags), stack)
        first = run.start_agent()
        run.wait("rendezvous", lambda: any(
            address.endswith(f":{run.port}")
            for process in first.processes() for address in process.listening()))
        second = run.start_agent()
        run.wait("start of 4 ranks", lambda: run.starts(4) == 1)
        run.wait_for_checkpoints(chance.randint(1, 6))
        time.sleep(chance.uniform(0, 0.4))  # anywhere between two checkpoints
        alone_before = run.starts(2)
        kill(second)
        run.wait("restart with 2 ranks", lambda: run.starts(2) > alone_before)
        run.wait_for_checkpoints(chance.randint(1, 3))
        for rank in (paused := first.ranks()):  # else they may be done before the new agent has begun
            rank.send(signal.SIGSTOP)
        third = run.start_agent()
        run.wait("new agent at the rendezvous", lambda: any(
            address.endswith(f":{run.port}")
            for process in third.processes() for address in process.connected()))
        for rank in paused:
            rank.send(signal.SIGCONT)
        run.wait("restart with 4 ranks", lambda: run.starts(4) == 2)
        for agent in (first, third):
            done = agent.finish(SECONDS)
            assert done.code == 0, f"exit code {done.code}:\n{run.output()}"
        assert "resumed from" in first.stderr.text, run.output()
        assert re.search(LOST, first.stderr.text, re.MULTILINE), run.output()
        for checkpoint in stage.checkpoints_in(run.project).values():
            require_whole(checkpoint)
        return run.worlds(), result_record(folder / "a.jsonl")


def undisturbed(stage: Stage, parent: Path, *flags: object) -> dict[str, Any]:
    """Of one process. `flags` count before FLAGS."""
    return train(alone(stage.program), *FLAGS, *flags, parent=parent).result


def lines(stage: Stage, seeds: Sequence[int], parent: Path, flags: tuple[object, ...],
          expected: str) -> Iterator[tuple[bool, str]]:
    for seed in seeds:
        begin = time.monotonic()
        try:
            worlds, result = run_elastic(seed, parent, *flags, stage=stage)
        except AssertionError as error:
            yield False, f"seed {seed:4}  FAILED\n{error}"
            continue
        good = expected in ("", result["weights_sha256"])
        yield good, (f"seed {seed:4}  ranks {' '.join(map(str, worlds))}  "
                     f"{time.monotonic() - begin:5.1f} s  {result['weights_sha256']}"
                     f"{'' if good else '  DIFFERS'}")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", metavar="N", type=int, default=1, help="runs, one per seed")
    parser.add_argument("--stage", type=int, choices=STAGES, default=5, help="the program")
    parser.add_argument("--first", metavar="N", type=int, default=0, help="the first seed")
    parser.add_argument("--equal", action="store_true",
                        help="compare with a run of one process without a fault")
    parser.add_argument("flags", nargs="*", help="more flags of the program, after --")
    options = parser.parse_args(given)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the agents
    with tempfile.TemporaryDirectory(prefix="ladder-elastic-") as folder:
        flags = tuple(options.flags)
        stage = STAGES[options.stage]
        expected = ""
        if options.equal:
            expected = undisturbed(stage, Path(folder), *flags)["weights_sha256"]
            print(f"undisturbed                {expected}", flush=True)
        all_good = True
        seeds = range(options.first, options.first + options.seeds)
        for good, line in lines(stage, seeds, Path(folder), flags, expected):
            all_good = all_good and good
            print(line, flush=True)
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
