# SPDX-License-Identifier: Apache-2.0
"""What a link between two ranks costs a training step.

    python3 bench/links/links.py -o bench/results/two-cores.links.json     at most 10 minutes

Joins two network namespaces by a cable and limits its rate in the kernel, one rate after the other.
On each it measures Gloo's all-reduce by size, and steps of training loops that average their
gradients in several ways; before that the same in shared memory, and one process alone. Two
processes, one thread each. Rows of one link alternate, round after round.

Needs root, ip and tc; without them the rows of the cable are recorded as "not run", with the reason.
Needs build/bin/links: cmake --build build --target links. Writes the record at the end; ./run links
prints its table. Exit code: 0; 1 if a cable failed, whose reason is in the record, or if anything
else did, and then there is no record; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import sys
import tempfile
import unittest
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "report"), str(ROOT / "bench" / "records"), str(ROOT)]
from link_model import RATES, VARIANTS, length_of, link_of  # noqa: E402
from record import new_record, write_record  # noqa: E402
from rows import described  # noqa: E402
from results import ResultsError  # noqa: E402
from tests.support.network import HOSTS, PORT, limit_cable, two_nodes  # noqa: E402
from tests.support.programs import BIN, Launched  # noqa: E402

PROGRAM = BIN / "links"
QUIET = 0.5  # load average
DEADLINE = 300  # seconds of one link
SIZES = (4, 4_096, 65_536, 262_144, 1_048_576, 4_799_528)  # bytes; the last is BasicNet's gradient
COMPUTE = ("compute", "compute-accumulation", "convnet-compute")
IMAGES = (1, 2, 4, 8, 16, 32, 64)
HOOKS = ("plain", "bf16", "fp16")
TRACED_RATE = "1gbit"
TRACES = ("plain", "one-bucket", "no-overlap")
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
BURSTS = {"100mbit": 16_000, "1gbit": 80_000, "10gbit": 256_000}  # bytes above the rate, at once


class Failed(Exception):
    """A program ended otherwise than it should."""


@dataclass(frozen=True)
class Plan:
    """How often each row is measured. A step at 100 Mbit/s takes ten times as long as the others."""

    rounds: int
    steps: int
    repeats: int
    samples: int = 0

    def flags(self) -> list[object]:
        return ["--rounds", self.rounds, "--steps", self.steps, "--repeats", self.repeats,
                "--samples", self.samples]


FULL = {"100mbit": Plan(11, 3, 2), "1gbit": Plan(11, 15, 4), "10gbit": Plan(11, 25, 10),
        "unlimited": Plan(11, 25, 10), "local": Plan(11, 10, 10, samples=1000)}
TRIAL = {name: Plan(2, 1, 1, samples=20 if name == "local" else 0) for name in FULL}


# --- running ----------------------------------------------------------------------------


def ranks_of(names: Sequence[str], *flags: object) -> list[dict[str, Any]]:
    """What rank 0 prints, of one rank on each node."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Launched(
            "ip", "netns", "exec", name, PROGRAM, *flags, environment={
                "RANK": rank, "WORLD_SIZE": len(names), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
                "MASTER_ADDR": HOSTS[0], "MASTER_PORT": PORT}))
            for rank, name in enumerate(names)]
        return lines_of(started)


def local_ranks(world: int, *flags: object) -> list[dict[str, Any]]:
    """The same, of ranks on this machine in shared memory, or of one process alone."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ladder-links-"))
        started = []
        for rank in range(world):
            meeting = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank,
                       "LOCAL_WORLD_SIZE": world} if world > 1 else {}
            where = ("--backend", "shm", "--init-method", f"file://{folder}/store")
            started.append(stack.enter_context(Launched(
                PROGRAM, *(where if world > 1 else ()), *flags, environment=meeting)))
        return lines_of(started)


def lines_of(started: Sequence[Launched]) -> list[dict[str, Any]]:
    try:
        results = [one.finish(DEADLINE) for one in started]
    except AssertionError as error:
        raise Failed(str(error).splitlines()[0]) from None
    for rank, done in enumerate(results):
        if done.code != 0:
            reason = done.errors[-1] if done.errors else "no message"
            raise Failed(f"rank {rank}: exit code {done.code}: {reason}")
    return [json.loads(line) for line in results[0].lines]


def words(names: Sequence[object]) -> str:
    return ",".join(map(str, names))


def section_of(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The parts that concern a link."""
    section: dict[str, Any] = {"all_reduce": {}, "variants": {}}
    for line in lines:
        key = str(line["key"])
        if line["part"] == "all-reduce":
            section["all_reduce"].setdefault(key, []).append(rounded(line["seconds"]))
        elif line["part"] == "messages":
            section["variants"][key] = {"seconds": [], "sent_bytes": [], "messages": line["bytes"]}
        elif line["part"] == "variant":
            section["variants"][key]["seconds"].append(rounded(line["seconds"]))
            section["variants"][key]["sent_bytes"].append(line["sent_bytes"])
    if section["all_reduce"]:
        link = link_of(section)
        section |= {"alpha_seconds": rounded(link.alpha), "beta_bytes_per_second": link.beta}
    return section


def rounded(seconds: float) -> float:
    """To a tenth of a microsecond."""
    return round(seconds, 7)


def rows_of(lines: Sequence[dict[str, Any]], part: str) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for line in lines:
        if line["part"] == part:
            rows.setdefault(str(line["key"]), []).append(rounded(line["seconds"]))
    return rows


def traces_of(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each traced variant the step of median length."""
    steps: dict[str, list[list[Any]]] = {}
    for line in lines:
        if line["part"] == "trace":
            steps.setdefault(line["key"], []).append(line["spans"])
    return {name: {"rate": TRACED_RATE, "spans": sorted(found, key=length_of)[len(found) // 2]}
            for name, found in steps.items()}


# --- measuring --------------------------------------------------------------------------


def measure_cable(rate: str, plan: Plan) -> list[dict[str, Any]]:
    """Raises SkipTest where there can be no cable."""
    with two_nodes() as names:
        if rate in BURSTS:
            limit_cable(names, rate, BURSTS[rate])
        flags = [*plan.flags(), "--all-reduce", words(SIZES),
                 "--variants", words((*COMPUTE, *VARIANTS))]
        if rate == TRACED_RATE:
            flags += ["--traces", words(TRACES)]
        return ranks_of(names, *flags)


def measure_cables(record: dict[str, Any], rates: Sequence[str], plans: dict[str, Plan]) -> bool:
    """Fills the record. Returns whether no row failed."""
    good = True
    for rate in rates:
        say(f"cable, {RATES[rate]}")
        plan = plans[rate]
        about = {"steps": plan.steps, "rounds": plan.rounds, "burst_bytes": BURSTS.get(rate)}
        try:
            lines = measure_cable(rate, plan)
            record["links"][rate] = about | section_of(lines)
            record["traces"] |= traces_of(lines)
        except unittest.SkipTest as reason:
            record["links"][rate] = {"not_run": f"not run: {reason}"}
        except (Failed, ResultsError) as reason:
            record["links"][rate] = {"not_run": f"failed: {reason}"}
            good = False
        if "not_run" in record["links"][rate]:
            say(record["links"][rate]["not_run"])
    return good


def measure_machine(record: dict[str, Any], plan: Plan) -> None:
    """What needs no cable. Raises Failed."""
    say("shared memory, and computing alone")
    lines = local_ranks(2, *plan.flags(), "--all-reduce", words(SIZES),
                        "--variants", words((*COMPUTE, "plain", "convnet")),
                        "--images", words(IMAGES), "--hooks", words(HOOKS))
    record["shared_memory"] = section_of(lines)
    record["images"] = rows_of(lines, "images")
    record["hooks"] = rows_of(lines, "hook")
    [samples] = [line for line in lines if line["part"] == "samples"]
    record["samples"] = {"images": samples["key"],
                         "seconds": [rounded(value) for value in samples["seconds"]]}
    say("one process")
    alone = local_ranks(1, "--rounds", plan.rounds, "--steps", plan.steps,
                        "--variants", "compute,convnet-compute")
    record["alone"] = rows_of(alone, "variant")


def say(text: str) -> None:
    print(f"links: {text}", file=sys.stderr, flush=True)


def stop(number: int, _: object) -> NoReturn:
    """A signal ends the program as an exception would: no rank and no namespace is left."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one would stop the cleaning up
    raise SystemExit(128 + number)


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures what a link between two ranks costs.")
    parser.add_argument("-o", "--output", type=new_record, required=True, metavar="FILE.json")
    parser.add_argument("--rates", default=words(list(RATES)),
                        help="rates of the cable (default %(default)s)")
    parser.add_argument("--trial", action="store_true",
                        help="few steps: shows that all works, its times mean nothing")
    options = parser.parse_args(arguments)
    options.rates = options.rates.split(",")
    for rate in options.rates:
        if rate not in RATES:
            parser.error(f"--rates: expected some of {words(list(RATES))}, got {rate}")
    if not PROGRAM.exists():
        parser.error(f"{PROGRAM} is not built; hint: cmake --build build --target links")
    return options


def main(arguments: Sequence[str]) -> int:
    options = read_arguments(arguments)
    for number in SIGNALS:
        signal.signal(number, stop)
    plans = TRIAL if options.trial else FULL
    if (load := os.getloadavg()[0]) > QUIET:
        say(f"warning: load average {load:.1f}: other programs disturb the times")
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    record: dict[str, Any] = described() | {"date": date, "links": {}, "traces": {}}
    try:
        measure_machine(record, plans["local"])
    except (Failed, ResultsError) as reason:
        say(f"failed: {reason}; no record is written")
        return 1
    good = measure_cables(record, options.rates, plans)
    write_record(options.output, record)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
