# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.sh among stubs of the programs it starts: what it says about what it sees."""
from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.support.programs import Launched, Result, launch, poll_until  # noqa: E402

# Writes the record of a run that went well on the device it was told; the file $FAULTS/CHECK is
# read as bash before that. Leaves its arguments in $CALLS.
STAGE = r"""#!/usr/bin/env bash
printf '%s %s\n' "${0##*/}" "$*" >>"$CALLS"
if [[ $1 == --version ]]; then exit; fi
device=cuda:0 backend=single world=${WORLD:-1} precision=fp32 accuracy=98.50 weights=aaaa scaler=
while (($#)); do
  case $1 in
    --device | --device-ids) [[ $2 == cpu* ]] && device=cpu ;;
    --backend) backend=$2 ;;
    --nprocs) world=$2 ;;
    --precision | --mixed-precision) precision=$2 ;;
    --fp16 | --bf16) precision=${1#--} ;;
    --recipe) weights=$2 ;;
    --metrics) metrics=$2 ;;
  esac
  shift
done
[[ $precision == fp16 ]] && scaler=',"loss_scale":32768.0,"skipped_steps":1.0'
check=${metrics##*/}
if [[ -f $FAULTS/${check%.jsonl} ]]; then . "$FAULTS/${check%.jsonl}"; fi
printf '{"record":"run","backend":"%s"}\n{"record":"result","device":"%s","world_size":%s,
"precision":"%s","accuracy":%s,"train_seconds":1.5,"weights_sha256":"%s"%s}\n' "$backend" "$device" \
  "$world" "$precision" "$accuracy" "$weights" "$scaler" | sed 'N; N; s/,\n"/,"/' >"$metrics"
"""

TORCHRUN = r"""#!/usr/bin/env bash
while [[ $1 != /* ]]; do
  [[ $1 == --nproc-per-node ]] && export WORLD=$2
  shift
done
exec "$@"
"""

# 300 MiB before a program runs and 812 while one does; the second GPU is in use by others.
NVIDIA_SMI = r"""#!/usr/bin/env bash
case $* in
  *memory.used*) used=300; grep -qs -e --metrics "$CALLS" && used=812; printf '0, %s\n1, 5000\n2, [N/A]\n' $used ;;
  *memory.total*) printf 'index, name\n0, A Card\n' ;;
esac
"""

SANITIZER = r"""#!/usr/bin/env bash
printf '%s %s\n' "${0##*/}" "$*" >>"$CALLS"
errors=0
if [[ -f $FAULTS/memcheck_fp32 ]]; then . "$FAULTS/memcheck_fp32"; fi
printf '========= ERROR SUMMARY: %s errors\n' $errors
((errors == 0)) || exit 99
"""

UNIT_TEST = r"""#!/usr/bin/env bash
printf '[       OK ] Part.OnAGpu (3 ms)\n[  SKIPPED ] Part.WithoutAGpu (0 ms)\n'
if [[ -f $FAULTS/unit_tests ]]; then . "$FAULTS/unit_tests"; fi
"""

SUITE = r"""#!/usr/bin/env bash
printf '%s %s\n' "${0##*/}" "$*" >>"$CALLS"
row='"error_occurred":false'
if [[ -f $FAULTS/bench ]]; then . "$FAULTS/bench"; fi
for flag; do [[ $flag == --benchmark_out=* ]] && out=${flag#*=}; done
printf '{"benchmarks":[{"name":"full/basicnet/stage0_single_gpu/world:1","run_type":"iteration",
"train_seconds":0.21,%s}]}' "$row" >"$out"
"""

STAGES = ("stage0_single_gpu", "stage1_data_parallel", "stage2_ddp_spawn", "stage3_ddp_torchrun",
          "stage4_ddp_amp", "stage5_accelerator", "stage6_trainer")


class GpuCheck(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()
        self.script = self.folder / "checkout" / "tools" / "gpu_check.sh"
        self.script.parent.mkdir(parents=True)
        for name in ("gpu_check.sh", "gpu_checks.py", "gpu_report.py"):
            shutil.copy(ROOT / "tools" / name, self.script.parent)
        for stage in STAGES:
            self.write_program(f"bin/{stage}", STAGE)
        self.write_program("bin/part_test", UNIT_TEST)
        self.write_program("bin/kernels_test", UNIT_TEST)
        self.write_program("bin/suite", SUITE)
        self.write_program("stubs/torchrun", TORCHRUN)
        self.write_program("stubs/nvidia-smi", NVIDIA_SMI)
        (self.folder / "faults").mkdir()
        self.calls = self.folder / "calls"
        self.calls.touch()
        self.environment = {
            "PATH": f"{self.folder / 'stubs'}:/usr/bin:/bin",
            "CALLS": self.calls,
            "FAULTS": self.folder / "faults",
            "CUDA_VISIBLE_DEVICES": "0",
        }
        self.command = (self.script, "--bin", self.folder / "bin", "--out", self.folder / "out")

    def write_program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def break_with(self, **faults: str) -> None:
        for check, bash in faults.items():
            (self.folder / "faults" / check).write_text(bash + "\n", encoding="utf-8")

    def run_script(self, *flags: object, device: str = "cuda") -> Result:
        return launch(*self.command, "--device", device, *flags, environment=self.environment)

    def line_of(self, check: str, done: Result) -> str:
        found = re.search(rf"^\w+ +{check} .*$", done.stdout, re.MULTILINE)
        assert found, done.stdout + done.stderr
        return re.sub(" +", " ", found.group())


class SearchTest(GpuCheck):
    def test_without_a_gpu_it_says_so_in_one_line_and_starts_nothing(self) -> None:
        self.environment["CUDA_VISIBLE_DEVICES"] = "-1"
        for flags in ((), ("--bin", self.folder / "bin")):
            done = launch(self.script, *flags, environment=self.environment)
            self.assertEqual(done.code, 77, done.stderr)
            self.assertEqual(done.stdout, "gpu_check: skipped: no GPU: looked for /dev/nvidia0 and "
                             "up and /dev/dxg, less what CUDA_VISIBLE_DEVICES='-1' leaves out; "
                             "hint: tools/gpu_check.sh --device cpu tries the checks without one\n")
        self.assertEqual(self.calls.read_text(), "")

    def test_gpus_are_device_files_that_are_not_left_out(self) -> None:
        self.write_program("stubs/find", "#!/bin/sh\nprintf '%s\\n' /dev/nvidia0 /dev/nvidia1\n")
        self.write_program("stubs/python3", "#!/bin/sh\necho \"$@\"\n")
        cases = {None: 2, "0,1": 2, "1": 1, "0,1,2": 2, "GPU-a,GPU-b": 2, "MIG-a": 1,
                 "": 0, "-1": 0, "none": 0}
        for listed, gpus in cases.items():
            with self.subTest(listed=listed):
                setting = ("-u", "CUDA_VISIBLE_DEVICES") if listed is None else (
                    f"CUDA_VISIBLE_DEVICES={listed}",)
                done = launch("env", *setting, *self.command, environment=self.environment)
                self.assertEqual(done.code, 0 if gpus else 77, done.stderr)
                self.assertEqual(f"--device cuda --gpus {gpus} " in done.stdout, gpus > 0)

    def test_without_programs_it_builds_them(self) -> None:
        checkout = self.script.parents[1]
        call = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\n'
        for name in ("tools/setup.sh", "tools/configure.sh"):
            self.write_program(f"checkout/{name}", call)
        self.write_program("stubs/cmake", call)
        self.write_program("stubs/python3", "#!/bin/sh\necho \"$@\"\n")
        (checkout / "build").mkdir()
        shutil.copytree(self.folder / "bin", checkout / "build" / "bin")
        done = launch(self.script, "--device", "cpu", environment=self.environment)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn(f"--bin {checkout}/build/bin --device cpu", done.stdout)
        self.assertIn(f"--out {checkout}/runs/gpu", done.stdout)
        self.assertEqual(self.calls.read_text().splitlines(),
                         ["setup.sh build", "configure.sh release",
                          "cmake --build --preset release --target gpu_checks"])

    def test_help_names_the_exit_code(self) -> None:
        done = launch(self.script, "--help", environment=self.environment)
        self.assertEqual(done.code, 0)
        self.assertIn("77 skipped: there is no GPU", done.stdout)

    def test_wrong_flags_are_refused(self) -> None:
        cases = {
            ("--devices", "cpu"): "there is no flag '--devices'",
            ("--device", "tpu"): "--device: expected auto, cuda or cpu, got 'tpu'",
            ("--bin",): "--bin: expected a value",
            ("--deadline", "0"): "--deadline: expected a number, got '0'",
            ("--limit-train", "all"): "--limit-train: expected a number, got 'all'",
            ("--device", "cpu", "--bin", self.folder): "--bin: there is no stage0_single_gpu in",
        }
        for flags, message in cases.items():
            with self.subTest(flags=flags):
                done = launch(self.script, *flags, environment=self.environment)
                self.assertEqual((done.code, done.stdout), (2, ""))
                self.assertIn(message, done.stderr)


class VerdictTest(GpuCheck):
    def test_all_well_on_one_gpu(self) -> None:
        done = self.run_script()
        self.assertEqual(done.code, 0, done.stdout + done.stderr)
        self.assertNotIn("FAILED", done.stdout)
        self.assertIn("weights of stage0", self.line_of("stage3_torchrun", done))
        self.assertIn("loss scale 32768, 1 steps skipped", self.line_of("stage6_fp16", done))
        self.assertIn("2 passed, 2 skipped themselves", self.line_of("unit_tests", done))
        self.assertIn("1 passed, 1 skipped themselves", self.line_of("fused_mask", done))
        self.assertIn("an epoch of stage 0, basicnet: 0.21 s", self.line_of("bench", done))
        self.assertTrue(self.line_of("two_gpus", done).startswith("skipped two_gpus one GPU"))
        self.assertIn("skipped memcheck_fp32 there is no compute-sanitizer",
                      self.line_of("memcheck_fp32", done))
        self.assertIn("| stage4_fp16 | ok | cuda:0 | nccl | 1 | fp16 | 1.5 |", done.stdout)
        calls = self.calls.read_text()
        for wanted in ("stage2_ddp_spawn --backend nccl --nprocs 1 --device cuda",
                       "stage3_ddp_torchrun --backend nccl --device cuda",
                       "stage2_ddp_spawn --backend gloo --nprocs 2 --device cuda",
                       "stage1_data_parallel --device-ids 0,0 --epochs",
                       "stage1_data_parallel --device-ids 0,cpu --epochs",
                       "stage2_ddp_spawn --sums exact --backend gloo --nprocs 2",
                       "stage5_accelerator --device cpu --project-dir",
                       "--limit-train 0 --limit-test 0"):
            self.assertIn(wanted, calls)
        self.break_with(stage0="exit 0")  # old records do not count
        done = self.run_script()
        self.assertIn("FAILED stage0 it wrote no result", self.line_of("stage0", done))

    def test_on_the_cpu_gloo_and_bf16_take_the_places_and_runs_are_short(self) -> None:
        done = self.run_script(device="cpu")
        self.assertEqual(done.code, 0, done.stdout + done.stderr)
        calls = self.calls.read_text()
        self.assertNotIn("nccl", calls)
        self.assertIn("stage6_trainer --bf16 --backend gloo", calls)
        self.assertIn("--limit-train 640 --limit-test 500", calls)
        self.assertIn("stage2_ddp_spawn --backend gloo --nprocs 2 --device cpu", calls)
        self.assertIn("skipped memcheck_fp32 it needs a GPU", self.line_of("memcheck_fp32", done))

    def test_several_gpus_get_a_rank_each_in_every_stage(self) -> None:
        self.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
        self.write_program("stubs/find", "#!/bin/sh\nprintf '%s\\n' /dev/nvidia0 /dev/nvidia1\n")
        done = self.run_script()
        self.assertEqual(done.code, 0, done.stdout + done.stderr)
        calls = self.calls.read_text()
        for stage, flags in {"stage2_ddp_spawn": "--sums exact ", "stage4_ddp_amp": "",
                             "stage5_accelerator": "", "stage6_trainer": ""}.items():
            self.assertRegex(calls, rf"{stage} {flags}.*--backend nccl --nprocs 2 --device cuda")
        self.assertIn("stage1_data_parallel --device-ids 1,0 ", calls)
        self.assertIn("| stage3_all | ok | cuda:0 | nccl | 2 |", done.stdout)
        self.assertIn("weights of exact", self.line_of("exact_all", done))
        self.assertNotIn("two_gpus", done.stdout)

    def test_the_memory_of_each_gpu_is_that_of_the_check(self) -> None:
        self.break_with(stage0="sleep 1")  # nvidia-smi is asked five times per second
        done = self.run_script()
        self.assertRegex(done.stdout, r"\| stage0 \| ok \|.* \| 0: 512 \| aaaa \|")
        (self.folder / "stubs" / "nvidia-smi").unlink()
        done = self.run_script()
        self.assertRegex(done.stdout, r"\| stage0 \| ok \|.* \|  \| aaaa \|")

    def test_compute_sanitizer_watches_short_runs(self) -> None:
        self.write_program("stubs/compute-sanitizer", SANITIZER)
        done = self.run_script()
        self.assertIn("ok memcheck_fp16 ERROR SUMMARY: 0 errors", self.line_of("memcheck_fp16", done))
        self.assertRegex(self.calls.read_text(), "compute-sanitizer --tool memcheck .*"
                         "/stage0_single_gpu --device cuda --limit-train 320")
        self.break_with(memcheck_fp32="errors=3")
        line = self.line_of("memcheck_fp32", self.run_script())
        self.assertTrue(line.startswith("FAILED memcheck_fp32 exit code 99: "), line)
        self.assertIn("ERROR SUMMARY: 3 errors", line)

    def test_each_fault_fails_its_own_check_and_says_why(self) -> None:
        faults = {
            "stage1_one": ("weights=bbbb", "other weights than stage0"),
            "stage2_one": ("echo; echo 'error: no store'; exit 4", "exit code 4: error: no store"),
            "stage3_torchrun": ("backend=single", "backend: expected nccl, got single"),
            "stage2_shared": ("exec sleep 600", "timed out after 1 s"),
            "stage4_fp16": ("scaler=", "expected loss_scale and skipped_steps in the record"),
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
            "bench": ("row='\"error_occurred\":true,\"error_message\":\"exit code 3\"'",
                      "full/basicnet/stage0_single_gpu: exit code 3"),
        }
        self.break_with(**{check: bash for check, (bash, _) in faults.items()})
        done = self.run_script("--deadline", 1)
        self.assertEqual(done.code, 1, done.stdout + done.stderr)
        for check, (_, reason) in faults.items():
            with self.subTest(check=check):
                line = self.line_of(check, done)
                self.assertTrue(line.startswith(f"FAILED {check} "), line)
                self.assertIn(reason, line)
        for check in ("stage0", "stage0_again", "stage1_all"):
            self.assertTrue(self.line_of(check, done).startswith(f"ok {check} "))

    def test_the_report_is_one_file_with_all_that_a_reader_needs(self) -> None:
        self.break_with(stage0_again="seq 50; echo 'error: no memory'; exit 3")
        done = self.run_script()
        report = self.folder / "out" / "report.md"
        self.assertIn(f"to attach to a report: {report}", done.stdout)
        text = report.read_text()
        self.assertRegex(text, r"`.*gpu_checks.py .*`: \d+ ok, 1 FAILED, \d+ skipped, in \d+ s\.")
        table = [line for line in done.stdout.splitlines() if line.startswith("|")]
        self.assertEqual([line for line in text.splitlines() if line.startswith("|")], table)
        self.assertIn("GPUs:\nindex, name\n0, A Card\n", text)
        self.assertIn("### stage0_again.log\n\n```\n12\n13\n", text)  # the last 40 lines
        self.assertIn("50\nerror: no memory\n```\n", text)
        self.assertNotIn("### stage0.log", text)
        self.assertNotIn(str(self.script.parents[1]), text)

    def test_where_stage_0_does_not_repeat_other_weights_are_no_fault_on_a_gpu(self) -> None:
        self.break_with(stage0_again="weights=bbbb", stage2_one="weights=cccc")
        done = self.run_script()
        self.assertEqual(done.code, 0, done.stdout)
        self.assertIn("which do not repeat either", self.line_of("stage2_one", done))
        done = self.run_script(device="cpu")
        self.assertEqual(done.code, 1, done.stdout)
        self.assertIn("FAILED stage0_again other weights", self.line_of("stage0_again", done))

    def test_a_network_that_learned_nothing_fails_and_what_is_not_built_is_skipped(self) -> None:
        self.break_with(stage0="accuracy=96.90")
        for name in ("part_test", "kernels_test", "suite"):
            (self.folder / "bin" / name).unlink()
        done = self.run_script()
        self.assertEqual(done.code, 1, done.stdout)
        self.assertIn("accuracy: expected at least 97 %", self.line_of("stage0", done))
        self.assertIn("skipped unit_tests not built: cmake", self.line_of("unit_tests", done))
        self.assertIn("skipped bench not built: cmake", self.line_of("bench", done))


class EndTest(GpuCheck):
    def test_sigterm_and_ctrl_c_end_the_program_that_runs(self) -> None:
        self.break_with(stage0_again="exec sleep 600")
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with self.subTest(number=number), Launched(
                    *self.command, "--device", "cuda", environment=self.environment) as launched:
                # Not before the program is reached: `timeout` hands on nothing while it forks.
                started = poll_until(
                    lambda: "sleep" in [one.program for one in launched.processes()], 10)
                self.assertTrue(started, launched.stdout.text + launched.stderr.text)
                launched.process.send_signal(number)
                self.assertEqual(launched.finish(10).code, code)


if __name__ == "__main__":
    unittest.main()
