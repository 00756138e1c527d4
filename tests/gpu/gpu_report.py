# SPDX-License-Identifier: Apache-2.0
"""For the GPU checks: memory of the GPUs during a check, and the report of all checks."""
from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60  # for a program that describes the machine
LOG_LINES = 40  # of a check that failed
COLUMNS = ("check", "", "device", "backend", "ranks", "precision", "training s", "MiB per GPU",
           "weights", "seen")
RIGHT = {"ranks", "training s", "MiB per GPU"}
MEMORY_QUERY = ("nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
MEMORY_INTERVAL = 0.2  # seconds between two looks at it


@dataclass
class Outcome:
    verdict: str  # ok, FAILED or skipped
    name: str
    seen: str
    seconds: float = 0.0
    record: dict[str, Any] = field(default_factory=dict)
    memory: str = ""  # largest use per GPU, "0: 612, 1: 598"


def output_of(*command: str) -> str:
    """What a program prints, or why it does not."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, errors="replace", timeout=SECONDS,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return done.stdout.rstrip()


def memory_in_use() -> dict[str, int]:
    """MiB by GPU."""
    pairs = [line.split(", ") for line in output_of(*MEMORY_QUERY).splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


class MemoryWatch(threading.Thread):
    """The largest memory in use per GPU, by nvidia-smi, above that before the first check."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest: dict[str, int] = {}
        self.stopped = threading.Event()
        self.before = memory_in_use()  # empty without nvidia-smi
        if self.before:
            self.start()

    def run(self) -> None:
        while not self.stopped.wait(MEMORY_INTERVAL):
            for gpu, mebibytes in memory_in_use().items():
                self.largest[gpu] = max(self.largest.get(gpu, 0), mebibytes)

    def begin(self) -> None:
        self.largest = {}

    def seen(self) -> str:
        """Since `begin`, of the GPUs that were used."""
        used = {gpu: most - self.before.get(gpu, 0) for gpu, most in dict(self.largest).items()}
        return ", ".join(f"{gpu}: {used[gpu]}" for gpu in sorted(used) if used[gpu] > 0)

    def close(self) -> None:
        self.stopped.set()
        if self.is_alive():
            self.join(SECONDS)


def table(outcomes: Sequence[Outcome]) -> str:
    rows: list[Sequence[str]] = [COLUMNS, [
        "---:" if name in RIGHT else "---" for name in COLUMNS]]
    for outcome in outcomes:
        record = {"train_seconds": "", "weights_sha256": "", **outcome.record}
        rows.append([outcome.name, outcome.verdict,
                     *(str(record.get(key, "")) for key in
                       ("device", "backend", "world_size", "precision")),
                     str(record["train_seconds"])[:5], outcome.memory,
                     record["weights_sha256"][:8], outcome.seen.replace("|", "\\|")])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def machine(programs: Path) -> str:
    """Commit, versions, system, driver and GPUs. No names of hosts, users or processes."""
    parts = {
        "commit": output_of("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "versions": output_of(str(programs / "stage0_single_gpu"), "--version"),
        "system": output_of(sys.executable, str(ROOT / "tools" / "doctor.py")),
        "GPUs": output_of("nvidia-smi", "--format=csv", "--query-gpu=index,name,memory.total,"
                          "driver_version,compute_cap,mig.mode.current,pcie.link.gen.max"),
        "connections": output_of("nvidia-smi", "topo", "-m"),
    }
    return "\n".join(f"{name}:\n{text}\n" for name, text in parts.items())


def tails(outcomes: Sequence[Outcome], out: Path) -> str:
    """The ends of the logs of all checks that failed."""
    parts = []
    for outcome in outcomes:
        if outcome.verdict != "FAILED":
            continue
        for log in (out / f"{outcome.name}.log", *sorted(out.glob(f"{outcome.name}.*.log"))):
            program = log.name.split(".")[1]  # of the unit tests
            if log.exists() and (program == "log" or f"{program}: " in outcome.seen):
                lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                parts.append(f"### {log.name}\n\n```\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts) or "None failed.\n"


def write_report(outcomes: Sequence[Outcome], out: Path, command: str, seconds: float) -> Path:
    """One file for a bug report or for bench/gpu.md."""
    counts = ", ".join(f"{sum(o.verdict == verdict for o in outcomes)} {verdict}"
                       for verdict in ("ok", "FAILED", "skipped"))
    about = (out / "machine.txt").read_text(errors="replace")
    text = (f"# tools/gpu_check.sh\n\n`{command}`: {counts}, in {seconds:.0f} s.\n\n"
            f"{table(outcomes)}\n## Machine\n\n```\n{about}```\n\n"
            f"## Logs of checks that failed\n\n{tails(outcomes, out)}")
    report = out / "report.md"
    report.write_text(text.replace(f"{ROOT}/", "").replace(f"{Path.home()}/", "~/"),
                      encoding="utf-8")
    return report
