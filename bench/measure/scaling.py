# SPDX-License-Identifier: Apache-2.0
"""Measures stage 2 on 1, 2, 3, 4 and more processes: time of a step, and bytes.

    python3 bench/measure/scaling.py bench/results/NAME.scaling.json

Both networks, one thread per process, and the same batch for any number of processes, which divide
it; up to four processes, and on more cores up to their number. Beside each, one process alone with
the batch of one rank: what the ranks could reach if exchanging gradients cost nothing and each had
a core. Rows take turns, round after round. Takes two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import write_record  # noqa: E402
from records import described  # noqa: E402

PROGRAM = ROOT / "build/bin/stage2_ddp_spawn"
BATCHES = {"basicnet": 64, "convnet": 32}
STEPS = {"basicnet": 100, "convnet": 300}
ROUNDS = 3
SECONDS = 300  # that a run may take


def ranks_of(cores: int) -> list[int]:
    """1 to 4, then doubled up to the number of cores."""
    found = [1, 2, 3, 4]
    while found[-1] < cores:
        found.append(min(2 * found[-1], cores))
    return found


def command_of(recipe: str, ranks: int, batch: int, metrics: Path) -> list[str]:
    return list(map(str, [PROGRAM, "--nprocs", ranks, "--threads", 1, "--device", "cpu",
                          "--recipe", recipe, "--epochs", 1, "--batch-size", batch,
                          "--limit-train", batch * STEPS[recipe], "--limit-test", ranks,
                          "--metrics", metrics, "--quiet"]))


def run(recipe: str, ranks: int, batch: int) -> dict[str, float]:
    """Milliseconds of a step, and the bytes that a rank sends in it."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run.jsonl"
        subprocess.run(command_of(recipe, ranks, batch, metrics), check=True, timeout=SECONDS,
                       stdout=subprocess.DEVNULL)
        result = json.loads(metrics.read_text().splitlines()[-1])
    return {"ms": 1e3 * result["train_seconds"] / result["steps"],
            "sent": result["sent_bytes"] / result["steps"] / ranks}


def measure(cores: int) -> dict[str, dict[str, Any]]:
    """Rows "RECIPE/RANKS", each with its milliseconds, those of its part alone, and its bytes."""
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for recipe, batch in BATCHES.items():
            for ranks in ranks_of(cores):
                row = rows.setdefault(f"{recipe}/{ranks}", {"ms": [], "alone_ms": []})
                found = run(recipe, ranks, batch)
                row["ms"].append(round(found["ms"], 3))
                row["sent_bytes_per_rank"] = round(found["sent"])
                alone = found if ranks == 1 else run(recipe, 1, -(-batch // ranks))
                row["alone_ms"].append(round(alone["ms"], 3))
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures a step on 1, 2, 3, 4 processes.")
    parser.add_argument("record", type=Path, metavar="NAME.scaling.json")
    options = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0))
    write_record(options.record, described() | {"threads": 1, "cores": cores, "batch": BATCHES,
                                                "rows": measure(cores)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
