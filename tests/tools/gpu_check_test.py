# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.sh and tests/gpu/ among stubs of the programs that they start."""
from __future__ import annotations

import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support.files import write
from tests.support.programs import ROOT, Launched, Result, launch, poll_until

STUBS = ROOT / "tests/support/stubs/gpu"
STAGES = [*(path.name for path in ROOT.glob("stage[0-9]_*")), "zero_redundancy",
          "pipeline", "fully_sharded", "cuda_graph"]


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "checkout/tools/gpu_check.sh"
        self.script.parent.mkdir(parents=True)
        shutil.copy(ROOT / "tools/gpu_check.sh", self.script)
        shutil.copytree(ROOT / "tests/gpu", folder / "checkout/tests/gpu")
        for name, copies in {"stage": [f"bin/{stage}" for stage in STAGES],
                             "cpp_test": ["bin/part_test", "bin/kernels_test"],
                             "suite": ["bin/suite"], "torchrun": ["stubs/torchrun"],
                             "nvidia-smi": ["stubs/nvidia-smi"]}.items():
            self.write((STUBS / name).read_text(), *copies)
        self.write(f'#!/bin/sh\nexec {sys.executable} "$@"\n', "stubs/python3")
        self.calls = write(folder / "calls")
        self.environment = {"PATH": f"{folder / 'stubs'}:/usr/bin:/bin", "CALLS": self.calls,
                            "FAULTS": folder / "faults", "CUDA_VISIBLE_DEVICES": "0"}
        self.command = (self.script, "--bin", folder / "bin", "--out", folder / "out")

    def write(self, text: str, *names: str) -> None:
        for name in names:
            write(self.folder / name, text, executable=True)

    def break_with(self, **faults: str) -> None:
        for check, bash in faults.items():
            write(self.folder / "faults" / check, bash + "\n")

    def run(self, *flags: object, device: str = "cuda", code: int = 0) -> Result:
        done = launch(*self.command, "--device", device, *flags, environment=self.environment)
        assert done.code == code, done.stdout + done.stderr
        return done


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def line_of(check: str, done: Result) -> str:
    found = re.search(rf"^\w+ +{check} .*$", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return re.sub(" +", " ", found.group())


TWO_GPUS = "#!/bin/sh\nprintf '%s\\n' /dev/nvidia0 /dev/nvidia1\n"


@pytest.mark.parametrize("listed, gpus", [
    (None, 2), ("0,1", 2), ("1", 1), ("0,1,2", 2), ("GPU-a,GPU-b", 2), ("MIG-a", 1), ("", 0),
    ("-1", 0), ("none", 0)])
def test_gpus_are_device_files_that_are_not_left_out(checkout: Checkout, listed: str | None,
                                                     gpus: int) -> None:
    checkout.write(TWO_GPUS, "stubs/find")
    checkout.write('#!/bin/sh\necho "$@"\n', "stubs/python3")
    setting = ("-u", "CUDA_VISIBLE_DEVICES") if listed is None else (
        f"CUDA_VISIBLE_DEVICES={listed}",)
    done = launch("env", *setting, *checkout.command, environment=checkout.environment)
    assert done.code == (0 if gpus else 77)
    if gpus:
        assert f"--device cuda --gpus {gpus} " in done.stdout
    else:
        assert "gpu_check: skipped: no GPU: looked for /dev/nvidia0" in done.stdout
        assert f"CUDA_VISIBLE_DEVICES='{listed}' leaves out" in done.stdout
        assert checkout.calls.read_text() == ""


def test_without_programs_it_builds_them(checkout: Checkout) -> None:
    call = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\n'
    checkout.write(call, "checkout/tools/setup.sh", "checkout/tools/configure.sh", "stubs/cmake",
                   "checkout/.venv/bin/python")
    checkout.write("pytest==1\n", "checkout/requirements-test.txt")
    root = checkout.folder / "checkout"
    shutil.copytree(checkout.folder / "bin", root / "build/bin")
    done = launch(checkout.script, "--device", "cpu", environment=checkout.environment)
    assert done.code == 0, done.stderr
    *build, _, check = checkout.calls.read_text().splitlines()
    assert build == ["setup.sh build",
                     "python -m pip install --quiet --disable-pip-version-check pytest==1",
                     "configure.sh release", "cmake --build --preset release --target gpu_checks"]
    assert f"--bin {root}/build/bin --device cpu" in check
    assert f"--out {root}/runs/gpu" in check


@pytest.mark.parametrize("flags, message", [
    ("--devices cpu", "there is no flag '--devices'"),
    ("--device tpu", "--device: expected auto, cuda or cpu, got 'tpu'"),
    ("--bin", "--bin: expected a value"),
    ("--deadline 0", "--deadline: expected a number, got '0'"),
    ("--limit-train all", "--limit-train: expected a number, got 'all'"),
    ("--device cpu --bin /none", "--bin: there is no stage0_single_gpu in")])
def test_wrong_flags_are_refused(checkout: Checkout, flags: str, message: str) -> None:
    done = launch(checkout.script, *flags.split(), environment=checkout.environment)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr


def test_all_well_on_one_gpu(checkout: Checkout) -> None:
    shutil.copy(STUBS / "compute-sanitizer", checkout.folder / "stubs")
    checkout.break_with(stage0="sleep 1")  # nvidia-smi runs five times per second
    done = checkout.run()
    assert "FAILED" not in done.stdout
    for check, text in (("stage3_torchrun", "weights of stage0"),
                        ("stage6_fp16", "loss scale 32768, 1 steps skipped"),
                        ("unit_tests", "2 passed, 2 skipped themselves"),
                        ("fused_mask", "1 passed, 1 skipped themselves"),
                        ("bench", "an epoch of stage 0, basicnet: 0.21 s"),
                        ("two_gpus", "skipped two_gpus one GPU"),
                        ("memcheck_fp16", "ok memcheck_fp16 ERROR SUMMARY: 0 errors"),
                        ("twins", "skipped twins ./run bench")):
        assert text in line_of(check, done)
    assert "| stage4_fp16 | ok | cuda:0 | nccl | 1 | fp16 | 1.5 |" in done.stdout
    assert re.search(r"\| stage0 \| ok \|.* \| 0: 512 \| aaaa \|", done.stdout)
    calls = checkout.calls.read_text()
    for wanted in ("stage2_ddp_spawn --backend nccl --nprocs 1 --device cuda",
                   "stage3_ddp_torchrun --backend nccl --device cuda",
                   "stage2_ddp_spawn --backend gloo --nprocs 2 --device cuda",
                   "stage1_data_parallel --device-ids 0,0 --epochs",
                   "stage1_data_parallel --device-ids 0,cpu --epochs",
                   "stage2_ddp_spawn --sums exact --backend gloo --nprocs 2",
                   "stage5_accelerator --device cpu --project-dir",
                   "stage0_single_gpu --device cuda --limit-train 320",
                   "--limit-train 0 --limit-test 0"):
        assert wanted in calls


def test_runs_on_the_cpu_are_short(checkout: Checkout) -> None:
    checkout.run("--only", "stage0", device="cpu")
    assert "--limit-train 640 --limit-test 500" in checkout.calls.read_text()


def test_several_gpus_get_a_rank_each_in_every_stage(checkout: Checkout) -> None:
    checkout.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
    checkout.write(TWO_GPUS, "stubs/find")
    (checkout.folder / "stubs/nvidia-smi").unlink()
    done = checkout.run()
    calls = checkout.calls.read_text()
    for stage, flags in {"stage2_ddp_spawn": "--sums exact ", "stage4_ddp_amp": "",
                         "stage5_accelerator": "", "stage6_trainer": ""}.items():
        assert re.search(rf"{stage} {flags}.*--backend nccl --nprocs 2 --device cuda", calls)
    assert "stage1_data_parallel --device-ids 1,0 " in calls
    assert "| stage3_all | ok | cuda:0 | nccl | 2 |" in done.stdout
    assert re.search(r"\| stage0 \| ok \|.* \|  \| aaaa \|", done.stdout)  # memory is not known
    assert "weights of exact" in line_of("exact_all", done)
    assert "two_gpus" not in done.stdout


FAULTS = {
    "stage1_one": ("weights=bbbb", "other weights than stage0"),
    "stage2_one": ("echo; echo 'error: no store'; exit 4", "exit code 4: error: no store"),
    "stage3_torchrun": ("backend=single", "backend: expected nccl, got single"),
    "stage2_shared": ("exec sleep 600", "timed out after 1 s"),
    "stage4_fp16": ("scaler=", "expected loss_scale and skipped_steps in the metrics"),
    "stage4_bf16": ("precision=fp32", "precision: expected bf16, got fp32"),
    "convnet": ("exit 0", "it wrote no result"),
    "syncbn_shared": ("", "nothing to compare with: convnet has no result"),
    "stage5_fp16": ("accuracy=97.90", "expected 98.50 % as stage0, within 0.5 points"),
    "stage6_fp16": ("device=cpu", "device: expected cuda, got cpu"),
    "stage6_rmsprop": ("echo '[rank 0] warning: dropout on cuda:0 uses tensor operations'",
                       "[rank 0] warning: dropout on cuda:0 uses tensor operations"),
    "exact_shared": ("weights=bbbb", "other weights than exact"),
    "resumed": ("weights=bbbb", "other weights than uninterrupted"),
    "resumed_on_cpu": ("device=cuda:0", "device: expected cpu, got cuda:0"),
    "unit_tests": ("echo 'x.cpp:1: skipped: no GPU'", "they found no GPU"),
    "fused_mask": ("", "they found no GPU"),  # by the same program
    "memcheck_fp32": ("errors=3", "exit code 99: "),
    "memcheck_fp16": ("", "ERROR SUMMARY: 3 errors"),  # by the same program
    "bench": ("row='\"error_occurred\":true,\"error_message\":\"exit code 3\"'",
              "full/basicnet/stage0_single_gpu: exit code 3"),
}


def test_each_fault_fails_its_own_check_and_the_report_has_all(checkout: Checkout) -> None:
    shutil.copy(STUBS / "compute-sanitizer", checkout.folder / "stubs")
    checkout.break_with(**{check: bash for check, (bash, _) in FAULTS.items()})
    checkout.break_with(stage1_all="seq 50; echo 'error: no memory'; exit 3")
    write(checkout.folder / "out/convnet.jsonl", '{"record": "result"}\n')  # of another run
    done = checkout.run("--deadline", 1, code=1)
    for check, (_, reason) in FAULTS.items():
        line = line_of(check, done)
        assert line.startswith(f"FAILED {check} ") and reason in line
    for check in ("stage0", "stage0_again", "stage1_replicas"):
        assert line_of(check, done).startswith(f"ok {check} ")
    report = checkout.folder / "out/report.md"
    assert f"to attach to a report: {report}" in done.stdout
    text = report.read_text()
    counts = r"`tools/gpu_check.sh --bin .*`: \d+ ok, 2\d FAILED, \d skipped, in \d+ s\."
    assert re.search(counts, text)
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [line for line in text.splitlines() if line.startswith("|")] == table
    assert "GPUs:\nindex, name\n0, A Card\n" in text
    assert "### stage1_all.log\n\n```\n12\n13\n" in text  # the last 40 lines
    assert "50\nerror: no memory\n```\n" in text
    assert "### stage0.log" not in text
    assert str(checkout.script.parents[1]) not in text


def test_where_stage_0_does_not_repeat_other_weights_are_no_fault_on_a_gpu(
        checkout: Checkout) -> None:
    checkout.break_with(stage0_again="weights=bbbb", stage2_one="weights=cccc")
    done = checkout.run("--only", "stage0 or stage2_one or memcheck")
    assert "which do not repeat either" in line_of("stage2_one", done)
    assert "skipped memcheck_fp32 there is no compute-sanitizer" in line_of("memcheck_fp32", done)


def test_what_fails_on_the_cpu_and_what_is_not_built(checkout: Checkout) -> None:
    checkout.break_with(stage0="accuracy=96.90", stage0_again="weights=bbbb accuracy=96.90")
    for name in ("part_test", "kernels_test", "suite"):
        (checkout.folder / "bin" / name).unlink()
    done = checkout.run("--limit-train", 0, "--limit-test", 0, "--only",
                        "stage0 or unit_tests or bench", device="cpu", code=1)
    assert "stage1" not in done.stdout
    for check, text in (("stage0", "accuracy: expected at least 97 %"),
                        ("stage0_again", "FAILED stage0_again other weights"),
                        ("unit_tests", "skipped unit_tests not built: cmake"),
                        ("bench", "skipped bench not built: cmake")):
        assert text in line_of(check, done)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_that_runs(checkout: Checkout, number: int, code: int) -> None:
    checkout.break_with(stage0_again="exec sleep 600")
    with Launched(*checkout.command, "--device", "cuda", "--only", "stage0",
                  environment=checkout.environment) as launched:
        assert poll_until(lambda: "sleep" in [one.program for one in launched.processes()], 10)
        launched.process.send_signal(number)
        assert launched.finish(10).code == code
