#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/gpu_check.sh runs: each check is a program with a deadline, judged by its record.

Prints one line per check and a table at the end. All records and logs go to --out, and report.md,
one file to attach to a bug report. Exit code 1 if a check failed. Start it with the script, which
looks for a GPU and builds.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.gpu_report import MemoryWatch, Outcome, machine, table, write_report  # noqa: E402

BENCH_SECONDS = 1800
GRACE_SECONDS = 10  # between SIGTERM and SIGKILL

STAGE0, STAGE1, STAGE2 = "stage0_single_gpu", "stage1_data_parallel", "stage2_ddp_spawn"
STAGE3, STAGE4 = "stage3_ddp_torchrun", "stage4_ddp_amp"
STAGE5, STAGE6 = "stage5_accelerator", "stage6_trainer"

OF_SHARED = {"backend": "gloo", "world_size": 2}

# On the whole sets, points of accuracy: a BasicNet below the floor did not learn, and two that
# differ by more trained differently. On few images all is rougher.
WHOLE = {"floor": 97.0, "points": 0.5}
PART = {"floor": 20.0, "points": 5.0}


# Warnings of the library: of GPUs that CUDA does not find, of a kernel that gives other bits.
WARNING = re.compile(r"^(?:\[rank \d+\] )?warning: .*", re.MULTILINE)

# The tests of the kernel of dropout masks, and the flags under which compute-sanitizer can watch.
MASK_TESTS = "CounterMask*"
FEW = ["--limit-train", "320", "--limit-test", "64"]


@dataclass(frozen=True)
class Training:
    """A run of a program, and the expected record."""

    name: str
    command: Sequence[str]
    same: str = ""  # the check that ends with the same weights
    repeats: str = ""  # a check, with NAME_again, that shows whether such weights repeat [same]
    near: str = ""  # the check that ends with about the same accuracy
    floor: bool = False  # is the accuracy that of a network that learned?
    scaler: bool = False  # has its record numbers of the gradient scaler?
    epochs: int = 1
    ranks: int = 1  # that torchrun starts
    device: str = ""  # the first part of its device's name [--device]
    needs_gpu: bool = False  # would it be another check again, on the CPU?
    expected: dict[str, Any] = field(default_factory=dict)  # of the record


def record_of(path: Path) -> dict[str, Any]:
    """Header and result of a run as one; nothing if it has no result."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not lines or lines[-1].get("record") != "result":
        return {}
    return {**lines[0], **lines[-1]}


class Checks:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bin: Path = options.bin
        self.out: Path = options.out
        self.cuda = options.device == "cuda"
        self.backend = "nccl" if self.cuda else "gloo"
        self.half = "fp16" if self.cuda else "bf16"  # without a GPU, stages 5 and 6 refuse fp16
        self.gpus = options.gpus if self.cuda else 2  # without any, two ranks try the commands
        self.at = ["--device", options.device]
        self.shared = ["--backend", "gloo", "--nprocs", "2",  # two ranks can share a GPU over Gloo
                       "--device", "cuda:0" if self.cuda else "cpu"]
        self.one = ["--backend", self.backend, "--nprocs", "1", *self.at]
        self.of_one = {"backend": self.backend, "world_size": 1}
        self.all = ["--backend", self.backend, "--nprocs", str(self.gpus), *self.at]
        self.of_all = {"backend": self.backend, "world_size": self.gpus}
        whole = options.limit_train == 0 and options.limit_test == 0
        self.limits = WHOLE if whole else PART
        self.outcomes: list[Outcome] = []
        self.memory = MemoryWatch()

    def run(self) -> int:
        started = time.monotonic()
        for training in self.trainings():
            self.train(training)
        if self.gpus < 2:
            self.tell(Outcome("skipped", "two_gpus", "one GPU, and NCCL takes no two ranks on it"))
        self.unit_tests("unit_tests", sorted(self.bin.glob("*_test")), "*Gpu*")
        self.unit_tests("fused_mask", sorted(self.bin.glob("kernels_test")), MASK_TESTS)
        self.memcheck("memcheck_fp32", [STAGE0, *self.at])
        self.memcheck("memcheck_fp16", [STAGE4, "--recipe", "convnet", "--precision", "fp16",
                                        *self.one])
        self.bench()
        self.tell(Outcome("skipped", "twins", "./run bench compares them, on the GPU too"))
        self.memory.close()
        report = write_report(self.outcomes, self.out, shlex.join(sys.argv),
                              time.monotonic() - started)
        print(f"\n{table(self.outcomes)}\nrecords and logs: {self.out}\n"
              f"all in one file, to attach to a report: {report}")
        return int(any(outcome.verdict == "FAILED" for outcome in self.outcomes))

    # --- the runs -----------------------------------------------------------------------

    def trainings(self) -> list[Training]:
        """What others are compared with comes first."""
        trainings = (self.of_fp32() + self.of_16_bits() + self.of_convnet() + self.of_exact_sums() +
                     self.of_accelerator())
        if self.gpus > 1:
            trainings += self.of_all_gpus()
        return [training for training in trainings if self.cuda or not training.needs_gpu]

    def of_fp32(self) -> list[Training]:
        replica = "0" if self.cuda else "cpu"
        return [
            Training("stage0", [STAGE0, *self.at], floor=True),
            Training("stage0_again", [STAGE0, *self.at], same="stage0"),
            Training("stage0_pinned", [STAGE0, "--pin-memory", "--num-workers", "2", *self.at],
                     same="stage0"),
            Training("stage1_one", [STAGE1, "--device-ids", replica], same="stage0"),
            Training("stage1_replicas", [STAGE1, "--device-ids", f"{replica},{replica}"],
                     near="stage0"),
            Training("stage1_cpu", [STAGE1, "--device-ids", f"{replica},cpu"], near="stage0",
                     needs_gpu=True),
            Training("stage1_all", [STAGE1, *self.at], near="stage0"),
            Training("stage2_one", [STAGE2, *self.one], same="stage0", expected=self.of_one),
            Training("stage3_torchrun", [STAGE3, "--backend", self.backend, *self.at],
                     same="stage0", expected=self.of_one),
            Training("stage2_shared", [STAGE2, *self.shared], near="stage0",
                     expected=OF_SHARED),
        ]

    def of_16_bits(self) -> list[Training]:
        """On the CPU stage 4 is slow in fp16."""
        of_half = self.of_one | {"precision": self.half}
        return [
            Training("stage4_fp16", [STAGE4, "--precision", "fp16", *self.one], near="stage0",
                     scaler=True, expected=self.of_one | {"precision": "fp16"}),
            Training("stage4_bf16", [STAGE4, "--precision", "bf16", *self.one], near="stage0",
                     expected=self.of_one | {"precision": "bf16"}),
            Training(f"stage5_{self.half}", [STAGE5, "--mixed-precision", self.half, *self.one],
                     near="stage0", scaler=self.cuda, expected=of_half),
            Training(f"stage6_{self.half}", [STAGE6, f"--{self.half}", *self.one],
                     near="stage0", scaler=self.cuda, expected=of_half),
            Training("stage6_rmsprop", [STAGE6, "--profile", "none", "--optim", "rmsprop",
                                        "--save-strategy", "no", f"--{self.half}", *self.one],
                     scaler=self.cuda, expected=of_half),
        ]

    def of_convnet(self) -> list[Training]:
        """BatchNorm, and SyncBatchNorm, the default of stage 4."""
        stage0 = [STAGE0, "--recipe", "convnet", *self.at]
        stage4 = [STAGE4, "--recipe", "convnet", "--precision", "fp32"]
        return [
            Training("convnet", stage0),
            Training("convnet_again", stage0, same="convnet"),
            Training("syncbn_one", [*stage4, *self.one], same="convnet", expected=self.of_one),
            Training(f"convnet_{self.half}",
                     [STAGE4, "--recipe", "convnet", "--precision", self.half, *self.one],
                     near="convnet", scaler=self.cuda,
                     expected=self.of_one | {"precision": self.half}),
            Training("syncbn_shared", [*stage4, *self.shared], near="convnet",
                     expected=OF_SHARED),
        ]

    def of_exact_sums(self) -> list[Training]:
        """The same weights for any number of ranks."""
        exact = [STAGE2, "--sums", "exact"]
        return [
            Training("exact", [*exact, *self.one], near="stage0", expected=self.of_one),
            Training("exact_again", [*exact, *self.one], same="exact", expected=self.of_one),
            Training("exact_shared", [*exact, *self.shared], same="exact",
                     expected=OF_SHARED),
        ]

    def of_accelerator(self) -> list[Training]:
        """Accumulation, dispatched batches, and a resume: here, and on the CPU."""
        project = str(self.out / "resume")
        stage5 = [STAGE5, *self.one]
        saved = [*stage5, "--project-dir", project, "--checkpointing-steps", "epoch"]
        resume = ["--resume", f"{project}/checkpoints/checkpoint_0"]
        on_cpu = [STAGE5, "--device", "cpu", "--project-dir", project, *resume]
        return [
            Training("accumulate", [*stage5, "--gradient-accumulation-steps", "4"],
                     expected=self.of_one),
            Training("dispatch", [STAGE5, "--dispatch-batches", *self.shared], near="stage0",
                     expected=OF_SHARED),
            Training("uninterrupted", stage5, epochs=2, expected=self.of_one),
            Training("first_epoch", saved, same="stage0", expected=self.of_one),
            Training("resumed_on_cpu", on_cpu, epochs=2, near="uninterrupted", device="cpu"),
            Training("resumed", [*saved, *resume], epochs=2, same="uninterrupted",
                     repeats="stage0", expected=self.of_one),
        ]

    def of_all_gpus(self) -> list[Training]:
        """One rank per GPU, by NCCL: stages 2 to 6, and DataParallel in another order."""
        in_half = self.of_all | {"precision": self.half}
        convnet = [STAGE4, "--recipe", "convnet", "--precision", "fp32"]
        return [
            Training("stage1_reversed", [STAGE1, "--device-ids", "1,0"], near="stage0",
                     needs_gpu=True),
            Training("stage2_all", [STAGE2, *self.all], near="stage0", expected=self.of_all),
            Training("stage3_all", [STAGE3, "--backend", self.backend, *self.at],
                     ranks=self.gpus, near="stage0", expected=self.of_all),
            Training("stage4_all", [STAGE4, "--precision", self.half, *self.all], near="stage0",
                     scaler=self.cuda, expected=in_half),
            Training("syncbn_all", [*convnet, *self.all], near="convnet", expected=self.of_all),
            Training("stage5_all", [STAGE5, "--mixed-precision", self.half, *self.all],
                     near="stage0", scaler=self.cuda, expected=in_half),
            Training("stage6_all", [STAGE6, f"--{self.half}", *self.all], near="stage0",
                     scaler=self.cuda, expected=in_half),
            Training("exact_all", [STAGE2, "--sums", "exact", *self.all], same="exact",
                     expected=self.of_all),
        ]

    def command_of(self, training: Training) -> list[str]:
        program, *flags = training.command
        command = [str(self.bin / program), *flags]
        if program == STAGE3:
            own = ROOT / ".venv" / "bin" / "torchrun"
            torchrun = str(own) if own.exists() else "torchrun"
            command = [torchrun, "--standalone", "--nproc-per-node", str(training.ranks),
                       "--no-python", *command]
        return [*command, "--epochs", str(training.epochs), "--threads", "1", "--quiet",
                "--limit-train", str(self.options.limit_train),
                "--limit-test", str(self.options.limit_test),
                "--metrics", str(self.out / f"{training.name}.jsonl")]

    def start(self, name: str, command: Sequence[str], seconds: int) -> str:
        """Runs a program to its end; its output is NAME.log. Returns why it failed, or nothing."""
        log = self.out / f"{name}.log"
        limited = ["timeout", f"--kill-after={GRACE_SECONDS}", str(seconds), *command]
        started = time.monotonic()
        with open(log, "w", encoding="utf-8") as output:
            child = subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT)
            try:
                code = child.wait()
            finally:  # after Ctrl-C and SIGTERM too; `timeout` hands the signal on
                if child.poll() is None:
                    child.terminate()
                    child.wait()
        if code == 0:
            return ""
        if time.monotonic() - started >= seconds:
            return f"timed out after {seconds} s"
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in said if "error: " in line]
        return f"exit code {code}: {(errors or said[-1:] or ['no output'])[0]}"

    # --- the report ---------------------------------------------------------------------

    def tell(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        print(f"{outcome.verdict:7}  {outcome.name:15}  {outcome.seen}  {outcome.seconds:.1f} s",
              flush=True)

    def train(self, training: Training) -> None:
        started = time.monotonic()
        self.memory.begin()
        failure = self.start(training.name, self.command_of(training), self.options.deadline)
        record = {} if failure else record_of(self.out / f"{training.name}.jsonl")
        if not failure and not record:
            failure = "it wrote no result"
        seen, wrong = ([], [failure]) if failure else self.judge(training, record)
        self.tell(Outcome("FAILED" if wrong else "ok", training.name, ", ".join(wrong + seen),
                          time.monotonic() - started, record, self.memory.seen()))

    def record(self, name: str) -> dict[str, Any]:
        return next((o.record for o in self.outcomes if o.name == name and o.record), {})

    def judge(self, training: Training, record: dict[str, Any]) -> tuple[list[str], list[str]]:
        """What was seen, and the problems."""
        seen = [f"{record['accuracy']:.2f} %", f"training {record['train_seconds']:.2f} s"]
        wrong = [f"{key}: expected {value}, got {record.get(key)}"
                 for key, value in training.expected.items() if record.get(key) != value]
        device = training.device or self.options.device
        if not str(record["device"]).startswith(device):
            wrong.append(f"device: expected {device}, got {record['device']}")
        wrong += WARNING.findall((self.out / f"{training.name}.log").read_text(errors="replace"))
        if training.floor and record["accuracy"] < self.limits["floor"]:
            wrong.append(f"accuracy: expected at least {self.limits['floor']:.0f} %")
        if training.scaler:
            if record.get("loss_scale", 0) > 0 and record.get("skipped_steps") is not None:
                seen.append(f"loss scale {record['loss_scale']:.0f}, "
                            f"{record['skipped_steps']:.0f} steps skipped")
            else:
                wrong.append("expected loss_scale and skipped_steps in the record")
        if self.record(training.same):
            self.compare_weights(training, record, seen, wrong)
        other = training.same or training.near
        if other:
            self.compare_accuracy(other, record, wrong)
        return seen, wrong

    def compare_weights(self, training: Training, record: dict[str, Any], seen: list[str],
                        wrong: list[str]) -> None:
        """Equal weights are required where a repeated command gives them: on the CPU always."""
        other = self.record(training.same)
        if record["weights_sha256"] == other.get("weights_sha256"):
            seen.append(f"weights of {training.same}")
        elif not self.cuda or self.repeats(training.repeats or training.same):
            wrong.append(f"other weights than {training.same}")
        else:
            seen.append(f"other weights than {training.same}, which do not repeat either")

    def repeats(self, name: str) -> bool:
        first, again = self.record(name), self.record(f"{name}_again")
        return bool(again) and first.get("weights_sha256") == again["weights_sha256"]

    def compare_accuracy(self, name: str, record: dict[str, Any], wrong: list[str]) -> None:
        other = self.record(name).get("accuracy")
        if other is None:
            wrong.append(f"nothing to compare with: {name} has no result")
        elif abs(record["accuracy"] - other) > self.limits["points"]:
            wrong.append(f"accuracy: expected {other:.2f} % as {name}, "
                         f"within {self.limits['points']} points")

    def unit_tests(self, name: str, programs: Sequence[Path], which: str) -> None:
        """Those of the C++ tests that match."""
        started = time.monotonic()
        if not programs:
            self.tell(Outcome("skipped", name, "not built: cmake --build --preset release"))
            return
        failures, said = [], ""
        for program in programs:
            log = f"{name}.{program.name}"
            failure = self.start(log, [str(program), f"--gtest_filter={which}"],
                                 self.options.deadline)
            failures += [f"{program.name}: {failure}"] if failure else []
            said += (self.out / f"{log}.log").read_text(errors="replace")
        if self.cuda and "skipped: no GPU" in said:
            failures.append("they found no GPU")
        failures += WARNING.findall(said) if name == "fused_mask" else []
        passed = len(re.findall(r"^\[       OK \]", said, re.MULTILINE))
        skipped = len(re.findall(r"^\[  SKIPPED \] .* ms\)$", said, re.MULTILINE))
        if passed + skipped == 0:
            failures.append(f"no test matches {which}")
        seen = [f"{passed} passed", f"{skipped} skipped themselves"]
        self.tell(Outcome("FAILED" if failures else "ok", name, ", ".join(failures + seen),
                          time.monotonic() - started))

    def memcheck(self, name: str, command: Sequence[str]) -> None:
        """A short run under compute-sanitizer, which finds accesses outside of device memory."""
        sanitizer = shutil.which("compute-sanitizer")
        if not self.cuda or sanitizer is None:
            self.tell(Outcome("skipped", name, "it needs a GPU" if not self.cuda else
                              "there is no compute-sanitizer: it is part of the CUDA toolkit"))
            return
        started = time.monotonic()
        program, *flags = command
        failure = self.start(name, [
            sanitizer, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "99",
            "--report-api-errors", "no",  # CUDA's libraries try calls that may fail
            str(self.bin / program), *flags, *FEW, "--epochs", "1", "--threads", "1", "--quiet"],
            BENCH_SECONDS)
        summaries = re.findall(r"ERROR SUMMARY: .*", (self.out / f"{name}.log").read_text(
            errors="replace"))
        if not failure and not summaries:
            failure = "it printed no summary"
        self.tell(Outcome("FAILED" if failure else "ok", name,
                          ", ".join(([failure] if failure else []) + summaries),
                          time.monotonic() - started))

    def bench(self) -> None:
        """The suite's rows of one process; the others are about CPUs. No twins."""
        started = time.monotonic()
        suite = self.bin / "suite"
        if not suite.exists():
            self.tell(Outcome("skipped", "bench",
                              "not built: cmake --build --preset release --target suite"))
            return
        rows = "^(slice|full)/.*/stage[02456]_.*/world:1/" if self.cuda else "^check/basicnet/stage0_"
        failure = self.start("bench", [
            str(suite), "--tier", "bench", "--bin", str(self.bin), "--folder", str(self.out / "suite"),
            f"--benchmark_filter={rows}", f"--benchmark_out={self.out / 'bench.json'}"], BENCH_SECONDS)
        seen, wrong = ([], [failure]) if failure else self.judge_bench()
        self.tell(Outcome("FAILED" if wrong else "ok", "bench", ", ".join(wrong + seen),
                          time.monotonic() - started))

    def judge_bench(self) -> tuple[list[str], list[str]]:
        found = json.loads((self.out / "bench.json").read_text())["benchmarks"]
        rows = [row for row in found if row.get("run_type") == "iteration"]
        wrong = [f"{row['name'].split('/world')[0]}: {row.get('error_message')}"
                 for row in rows if row.get("error_occurred")]
        seen = [f"{len(rows)} runs"]
        seen += [f"an epoch of stage 0, basicnet: {row['train_seconds']:.2f} s" for row in rows
                 if row["name"].startswith("full/basicnet/stage0") and "train_seconds" in row]
        return seen, wrong if rows else ["it ran nothing"]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What tools/gpu_check.sh runs.")
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--limit-train", type=int)
    parser.add_argument("--limit-test", type=int)
    parser.add_argument("--deadline", type=int, default=300)
    options = parser.parse_args()
    options.bin, options.out = options.bin.resolve(), options.out.resolve()
    few = (640, 500) if options.device == "cpu" else (0, 0)
    for name, number in zip(("limit_train", "limit_test"), few):
        if getattr(options, name) is None:
            setattr(options, name, number)
    return options


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ["OMP_NUM_THREADS"] = "1"  # what torchrun would set, with five lines of warning
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    for folder in ("suite", "resume"):
        shutil.rmtree(options.out / folder, ignore_errors=True)
    options.out.mkdir(parents=True, exist_ok=True)
    for old in (*options.out.glob("*.jsonl"), *options.out.glob("*.log"),
                options.out / "bench.json", options.out / "report.md"):
        old.unlink(missing_ok=True)
    (options.out / "machine.txt").write_text(machine(options.bin), encoding="utf-8")
    return Checks(options).run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
