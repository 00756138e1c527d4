# SPDX-License-Identifier: Apache-2.0
"""The checks of tools/gpu_check.sh, which looks for a GPU and builds: see bench/gpu.md.

Each check is a program with a deadline, judged by its metrics. What a check saw is a property of its
test; conftest.py prints it and writes the report.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainings import STAGE0, STAGE3, STAGE4, Setup, Training, trainings_of

ROOT = Path(__file__).resolve().parents[2]
BENCH_SECONDS = 1800
GRACE_SECONDS = 10  # between SIGTERM and SIGKILL

# On the whole sets, points of accuracy: a BasicNet below the floor did not learn, and two that
# differ by more trained differently. On few images all is rougher.
WHOLE = {"floor": 97.0, "points": 0.5}
PART = {"floor": 20.0, "points": 5.0}

# Warnings of the library: of GPUs that CUDA does not find, of a kernel that gives other bits.
WARNING = re.compile(r"^(?:\[rank \d+\] )?warning: .*", re.MULTILINE)
# The flags under which compute-sanitizer can watch.
FEW = ["--limit-train", "320", "--limit-test", "64", "--epochs", "1", "--threads", "1", "--quiet"]

Record = dict[str, Any]


class Check:
    """One check: what it saw, and the problems."""

    def __init__(self, setup: Setup, records: dict[str, Record]) -> None:
        self.setup = setup
        self.records = records  # of all trainings so far
        self.record: Record = {}
        self.seen: list[str] = []
        self.wrong: list[str] = []

    def start(self, name: str, command: Sequence[object], seconds: int) -> str:
        """Runs a program to its end; its output is NAME.log. Returns why it failed, or nothing."""
        with open(self.setup.out / f"{name}.log", "w", encoding="utf-8") as output:
            child = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL,
                                     stdout=output, stderr=subprocess.STDOUT,
                                     start_new_session=True)
            try:
                code = child.wait(seconds)
            except subprocess.TimeoutExpired:
                return f"timed out after {seconds} s"
            finally:  # after a signal too
                end(child)
        if code == 0:
            return ""
        lines = [line for line in self.log(name).splitlines() if line.strip()]
        errors = [line for line in lines if "error: " in line]
        return f"exit code {code}: {(errors or lines[-1:] or ['no output'])[0]}"

    def log(self, name: str) -> str:
        return (self.setup.out / f"{name}.log").read_text(errors="replace")

    @staticmethod
    def torchrun(ranks: int) -> list[object]:
        own = ROOT / ".venv/bin/torchrun"
        return [own if own.exists() else "torchrun", "--standalone", "--nproc-per-node", ranks,
                "--no-python"]

    def command_of(self, training: Training) -> list[object]:
        program, *flags = training.command
        command: list[object] = [self.setup.bin / program, *flags]
        if program == STAGE3:
            command = [*self.torchrun(training.ranks), *command]
        return [*command, "--epochs", training.epochs, "--threads", 1, "--quiet",
                "--limit-train", self.setup.limit_train, "--limit-test", self.setup.limit_test,
                "--metrics", self.setup.out / f"{training.name}.jsonl"]

    def judge(self, training: Training) -> None:
        record, limits = self.record, WHOLE if self.setup.whole else PART
        self.seen += [f"{record['accuracy']:.2f} %", f"training {record['train_seconds']:.2f} s"]
        self.wrong += [f"{key}: expected {value}, got {record.get(key)}"
                       for key, value in training.expected.items() if record.get(key) != value]
        device = training.device or self.setup.device
        if not str(record["device"]).startswith(device):
            self.wrong.append(f"device: expected {device}, got {record['device']}")
        self.wrong += WARNING.findall(self.log(training.name))
        if training.floor and record["accuracy"] < limits["floor"]:
            self.wrong.append(f"accuracy: expected at least {limits['floor']:.0f} %")
        if training.scaler:
            if record.get("loss_scale", 0) > 0 and record.get("skipped_steps") is not None:
                self.seen.append(f"loss scale {record['loss_scale']:.0f}, "
                                 f"{record['skipped_steps']:.0f} steps skipped")
            else:
                self.wrong.append("expected loss_scale and skipped_steps in the metrics")
        if training.same in self.records:
            self.compare_weights(training)
        if name := training.same or training.near:
            self.compare_accuracy(name, limits["points"])

    def compare_weights(self, training: Training) -> None:
        """Equal weights are required where a repeated command gives them: on the CPU always."""
        name = training.same
        if self.record["weights_sha256"] == self.records[name]["weights_sha256"]:
            self.seen.append(f"weights of {name}")
        elif not self.setup.cuda or self.repeats(training.repeats or name):
            self.wrong.append(f"other weights than {name}")
        else:
            self.seen.append(f"other weights than {name}, which do not repeat either")

    def repeats(self, name: str) -> bool:
        pair = [self.records.get(one, {}).get("weights_sha256") for one in (name, f"{name}_again")]
        return pair[1] is not None and pair[0] == pair[1]

    def compare_accuracy(self, name: str, points: float) -> None:
        if name not in self.records:
            self.wrong.append(f"nothing to compare with: {name} has no result")
        elif abs(self.record["accuracy"] - self.records[name]["accuracy"]) > points:
            accuracy = self.records[name]["accuracy"]
            self.wrong.append(f"accuracy: expected {accuracy:.2f} % as {name}, within {points} "
                              "points")


def end(child: subprocess.Popen[bytes]) -> None:
    """What is left of its process group; a launcher ends ranks with groups of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, number)
            child.wait(GRACE_SECONDS)


def record_of(path: Path) -> Record:
    """Header and result of a run as one; nothing if it has no result."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not lines or lines[-1].get("record") != "result":
        return {}
    return {**lines[0], **lines[-1]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "training" in metafunc.fixturenames:
        cases = trainings_of(metafunc.config.stash[Setup.key])
        metafunc.parametrize("training", cases, ids=lambda one: one.name)


def test_training(training: Training, check: Check) -> None:
    failure = check.start(training.name, check.command_of(training), check.setup.deadline)
    check.record = {} if failure else record_of(check.setup.out / f"{training.name}.jsonl")
    if check.record:
        check.judge(training)
        check.records[training.name] = check.record
    else:
        check.wrong.append(failure or "it wrote no result")


def test_two_gpus(check: Check) -> None:
    if check.setup.gpus < 2:
        pytest.skip("one GPU, and NCCL takes no two ranks on it")
    check.seen.append("the checks with _all in their names")


@pytest.mark.parametrize("name, programs, which", [
    ("unit_tests", "*_test", "*Gpu*"), ("fused_mask", "kernels_test", "CounterMask*")],
    ids=["unit_tests", "fused_mask"])
def test_cpp(name: str, programs: str, which: str, check: Check) -> None:
    """Those of the C++ tests that match; fused_mask has the kernel of dropout masks."""
    found = sorted(check.setup.bin.glob(programs))
    if not found:
        pytest.skip("not built: cmake --build --preset release")
    output = ""
    for program in found:
        log = f"{name}.{program.name}"
        failure = check.start(log, [program, f"--gtest_filter={which}"], check.setup.deadline)
        check.wrong += [f"{program.name}: {failure}"] if failure else []
        output += check.log(log)
    if check.setup.cuda and "skipped: no GPU" in output:
        check.wrong.append("they found no GPU")
    check.wrong += WARNING.findall(output) if name == "fused_mask" else []
    passed = len(re.findall(r"^\[       OK \]", output, re.MULTILINE))
    skipped = len(re.findall(r"^\[  SKIPPED \] .* ms\)$", output, re.MULTILINE))
    if passed + skipped == 0:
        check.wrong.append(f"no test matches {which}")
    check.seen += [f"{passed} passed", f"{skipped} skipped themselves"]


@pytest.mark.parametrize("name", ["memcheck_fp32", "memcheck_fp16"])
def test_memory(name: str, check: Check) -> None:
    """A short run under compute-sanitizer, which finds accesses outside of device memory."""
    setup = check.setup
    sanitizer = shutil.which("compute-sanitizer")
    if not setup.cuda:
        pytest.skip("it needs a GPU")
    if sanitizer is None:
        pytest.skip("there is no compute-sanitizer: it is part of the CUDA toolkit")
    # Stage 4 is started by torchrun: its own spawn refuses a process with the sanitizer's thread.
    start, program, *flags = ([[], STAGE0] if name == "memcheck_fp32" else [
        check.torchrun(1), STAGE4, "--recipe", "convnet", "--precision", "fp16", "--backend",
        setup.backend])
    failure = check.start(name, [
        *start, sanitizer, "--tool", "memcheck", "--target-processes", "all",
        "--error-exitcode", "99",
        "--report-api-errors", "no",  # CUDA's libraries try calls that may fail
        setup.bin / program, *flags, *setup.at, *FEW], BENCH_SECONDS)
    check.seen += re.findall(r"ERROR SUMMARY: .*", check.log(name))
    check.wrong += [failure] if failure else [] if check.seen else ["it printed no summary"]


def test_bench(check: Check) -> None:
    """The suite's rows of one process; the others are about CPUs. No twins."""
    setup = check.setup
    if not (setup.bin / "suite").exists():
        pytest.skip("not built: cmake --build --preset release --target suite")
    rows = "^(slice|full)/.*/stage[02456]_.*/world:1/" if setup.cuda else "^check/basicnet/stage0_"
    failure = check.start("bench", [
        setup.bin / "suite", "--tier", "bench", "--bin", setup.bin, "--folder", setup.out / "suite",
        f"--benchmark_filter={rows}", f"--benchmark_out={setup.out / 'bench.json'}"], BENCH_SECONDS)
    if failure:
        check.wrong.append(failure)
        return
    found = [row for row in json.loads((setup.out / "bench.json").read_text())["benchmarks"]
             if row.get("run_type") == "iteration"]
    check.wrong += [f"{row['name'].split('/world')[0]}: {row.get('error_message')}"
                    for row in found if row.get("error_occurred")]
    check.wrong += [] if found else ["it ran nothing"]
    check.seen.append(f"{len(found)} runs")
    check.seen += [f"an epoch of stage 0, basicnet: {row['train_seconds']:.2f} s" for row in found
                   if row["name"].startswith("full/basicnet/stage0") and "train_seconds" in row]


def test_twins() -> None:
    pytest.skip("./run bench compares them, on the GPU too")
