# SPDX-License-Identifier: Apache-2.0
"""Compares programs with those of an earlier commit by what no noise touches.

Each row trains 20 steps with both: weights_sha256 must be equal, and the bytes sent within 1 %, as
the ranks meet by messages whose number depends on their timing. Each C++ program trains alone under
callgrind: the instructions per step may differ by 2 %. Two ranks are not counted, because they wait
for each other in a loop. The earlier programs are built into build-records/, once per commit.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from rows import RecordError, Records, Row
from sources import PYTHON

STEPS = 20
TOLERANCE, TOLERANCE_OF_BYTES = 0.02, 0.01
SHORT, LONG = 2, 8  # steps of the two runs whose difference is counted
SECONDS = 1200
BUILT = "build-records"
# The same kernels on all CPUs that have AVX2, and the widest that valgrind supports.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1"}
ALONE = {"stage1_data_parallel": ("--device-ids", "cpu"),
         "stage4_ddp_amp": ("--precision", "fp32")}
# valgrind does not support pidfd_open, with which spawn waits. Programs with the same loop:
COUNTED = {"stage2_ddp_spawn": ("stage3_ddp_torchrun",),
           "zero_redundancy": ("stage5_accelerator", "--zero-redundancy")}


class Side(NamedTuple):
    """C++ and Python programs of one commit."""

    bin: Path
    peers: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def instructions(program: Path, steps: int, *flags: str) -> int:
    """Of a whole run with one image per step, of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | AVX2
        if program.name.startswith(("stage3", "stage4", "pipeline")):
            environment |= LAUNCHED | {"MASTER_PORT": str(free_port())}
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/counts.%p", program,
             "--batch-size", "1", "--threads", "1", "--limit-train", str(steps), "--epochs", "1",
             "--limit-test", "1", "--quiet", *ALONE.get(program.name, ()), *flags],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
            stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise RecordError(f"{program.name} under callgrind: exit code {done.returncode}\n"
                              f"{done.stderr[-2000:]}")
        return sum(int(re.search(r"^(?:summary|totals): (\d+)", file.read_text(), re.MULTILINE)[1])
                   for file in Path(folder).glob("counts.*"))


def per_step(program: Path, *flags: str) -> int:
    return (instructions(program, LONG, *flags) - instructions(program, SHORT, *flags)) // (
        LONG - SHORT)


def counted(program: Path, *flags: str) -> int | str:
    """Instructions per step, or why there are none."""
    try:
        return per_step(program, *flags)
    except RecordError as error:
        return str(error)


def built(records: Records, commit: str) -> Side:
    """The programs of a commit."""
    folder = records.root / BUILT / commit
    if not folder.exists():
        if not records.is_here(commit):
            raise RecordError("not in this clone; hint: git fetch --unshallow")
        done = subprocess.run(["git", "-C", records.root, "archive", commit], check=True,
                              capture_output=True, timeout=60)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
            files.extractall(part := folder.with_suffix(".part"), filter="data")
        part.rename(folder)
    torch = next((records.root / ".venv/lib").glob("python3*/site-packages/torch"))
    print(f"building {commit}", flush=True)
    for command in (["cmake", "--preset", "release", "-DLADDER_TESTS=OFF", "-DLADDER_WERROR=OFF",
                     f"-DLADDER_TORCH_DIR={torch}"],
                    ["cmake", "--build", "--preset", "release", "--target", "stages",
                     "libtorch_usual"]):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return Side(folder / "build/bin", folder / "bench/peers")


def setup_of(name: str) -> str:
    """The same for rows that train alike for 20 steps, with any seed, epochs and most kinds."""
    words = [word for word in name.split("/iterations:")[0].split("/")
             if not word.startswith(("seed:", "epochs:"))]
    if words[0] not in ("check", "phases"):
        words[0] = "slice"
    return "/".join(words)


def trained(root: Path, side: Side, tier: str, names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Weights and bytes of each row, by its setup."""
    rows = "|".join(re.escape(name.split("/iterations:")[0]).replace(r"\-", "-") for name in names)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        subprocess.run([root / "build/bin/suite", "--tier", tier, "--steps", str(STEPS), "--bin",
                        side.bin, "--peers", side.peers, "--folder", folder,
                        f"--benchmark_filter=^({rows})/iterations", f"--benchmark_out={out}"],
                       cwd=root, check=False, timeout=3600)
        entries = json.loads(out.read_text(encoding="utf-8"))["benchmarks"] if out.exists() else []
    found = {}
    for entry in entries:
        weights = re.search(r"weights_sha256=(\S+)", entry.get("label", ""))
        found[setup_of(entry["run_name"])] = (
            weights[1] if weights else f"none, {entry.get('error_message', 'no line')}",
            round(entry.get("sent_bytes_per_step", 0)))
    return found


def different_training(records: Records, rows: Sequence[Row],
                       sides: Sequence[Side]) -> dict[str, str]:
    """The setups whose weights or bytes differ."""
    by_tier: dict[str, dict[str, str]] = {}
    setups: set[str] = set()
    for row in rows:
        if setup_of(row.name) not in setups:
            setups.add(setup_of(row.name))
            by_tier.setdefault(row.kind.command, {})[row.name] = ""
    then, now = ({key: value for tier, names in by_tier.items()
                  for key, value in trained(records.root, side, tier, names).items()}
                 for side in sides)
    failures = {}
    for setup in setups:
        (before, sent_before), (after, sent) = (side.get(setup, ("none, not run", 0))
                                                for side in (then, now))
        if before != after or before.startswith("none, "):
            failures[setup] = f"weights after {STEPS} steps: {before:.32} before, {after:.32} now"
        elif abs(sent - sent_before) > TOLERANCE_OF_BYTES * sent_before:
            failures[setup] = f"bytes sent per step: {sent_before:,} before, {sent:,} now"
    return failures


def different_instructions(programs: Iterable[str], sides: Sequence[Side]) -> dict[str, str]:
    """The programs, with a recipe, whose instructions per step differ."""
    runs = [(program, recipe) for program in sorted(programs)
            for recipe in ("basicnet", "convnet")[:1 + program.startswith("stage0")]]
    asked = [(side, *COUNTED.get(program, (program,)), "--recipe", recipe)
             for program, recipe in runs for side in sides]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        counts = dict(zip(unique := list(dict.fromkeys(asked)), pool.map(
            lambda one: counted(one[0].bin / one[1], *one[2:]), unique)))
    found = [counts[one] for one in asked]
    failures = {}
    for (program, recipe), before, after in zip(runs, found[::2], found[1::2]):
        if text := next((one for one in (before, after) if isinstance(one, str)), ""):
            failures[f"{program}/{recipe}"] = text.splitlines()[0]
            continue
        print(f"{program}, {recipe}: {before:,} instructions per step before, {after:,} now "
              f"({after / before:.4f})", flush=True)
        if abs(after / before - 1) > TOLERANCE:
            failures[f"{program}/{recipe}"] = f"instructions per step: {after / before:.3f} times"
    return failures


def failures_of(records: Records, rows: Sequence[Row], commit: str) -> dict[Row, str]:
    """Of rows that were measured at this commit."""
    try:
        sides = (built(records, commit),
                 Side(records.root / "build/bin", records.root / "bench/peers"))
    except (OSError, RecordError, subprocess.SubprocessError) as error:
        return {row: f"{commit} cannot be built: {error}" for row in rows}
    own = [row for row in rows if not row.kind.entries]
    stand_ins = {row: [one for one in records.rows_of_this_machine if not one.kind.entries and
                       any(fnmatch(one.name, pattern) for pattern in row.kind.stand_in)]
                 for row in rows if row.kind.entries}
    compared = list(dict.fromkeys([*own, *(one for some in stand_ins.values() for one in some)]))
    training = different_training(records, compared, sides)
    steady = {row.program for row in compared
              if row.program not in PYTHON and setup_of(row.name) not in training}
    counts = different_instructions(steady, sides)

    def reason(row: Row) -> str:
        recipe = row.name.split("/")[1].split("-")[0]
        counted = (f"{row.program}/{recipe}", f"{row.program}/basicnet",
                   f"stage0_single_gpu/{recipe}")
        return training.get(setup_of(row.name), "") or next(
            (counts[name] for name in counted if name in counts), "")

    failures = {row: text for row in own if (text := reason(row))}
    for row, others in stand_ins.items():
        changed = [name for name in records.stale[row]
                   if name in row.kind.entries and not name.endswith("/main.cpp")]
        text = next(filter(None, map(reason, others)), "")
        if changed or not others or text:
            failures[row] = text or f"no program to compare, and {', '.join(changed)} changed"
    return failures


def build(root: Path) -> None:
    subprocess.run(["bash", "-c", "tools/setup.sh bench && tools/configure.sh release && cmake "
                    "--build --preset release --target stages suite libtorch_usual"],
                   cwd=root, check=True, stdout=sys.stderr)


def compare(records: Records) -> Mapping[Row, str]:
    """The stale rows that fail, each with its reason."""
    build(records.root)
    failures: dict[Row, str] = {}
    by_commit: dict[str, list[Row]] = {}
    for row, names in records.pending.items():
        # Both sides would run with the libraries of today.
        if of_libraries := [name for name in names if name.startswith("version of ")]:
            failures[row] = f"another {', '.join(of_libraries)}"
            continue
        # Of the measured program, so that small differences do not add up.
        by_commit.setdefault(same_programs(records, row.commit), []).append(row)
    for commit, rows in by_commit.items():
        failures |= failures_of(records, rows, commit)
    return failures


def same_programs(records: Records, commit: str) -> str:
    """A commit whose programs have the same sources, if possible one that git has."""
    def programs(state: Mapping[str, str] | None) -> Mapping[str, str]:
        return {name: value for name, value in (state or {}).items()
                if not name.startswith(("bench/measure/", "bench/links/", "tests/"))}

    same = [other for other in sorted(records.states)
            if programs(records.states[other]) == programs(records.state(commit))]
    return next(filter(records.is_here, same), commit)
