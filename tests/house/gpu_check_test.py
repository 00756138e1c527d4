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
device=cuda:0 backend=single world=1 precision=fp32 accuracy=98.50 weights=aaaa scaler=
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

TORCHRUN = '#!/usr/bin/env bash\nwhile [[ $1 != /* ]]; do shift; done\nexec "$@"\n'

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
        for name in ("gpu_check.sh", "gpu_checks.py"):
            shutil.copy(ROOT / "tools" / name, self.script.parent)
        for stage in STAGES:
            self.write_program(f"bin/{stage}", STAGE)
        self.write_program("bin/part_test", UNIT_TEST)
        self.write_program("bin/suite", SUITE)
        self.write_program("stubs/torchrun", TORCHRUN)
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
                          "cmake --build --preset release --target stages suite"])

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
        self.assertIn("1 passed, 1 skipped themselves", self.line_of("unit_tests", done))
        self.assertIn("an epoch of stage 0, basicnet: 0.21 s", self.line_of("bench", done))
        self.assertTrue(self.line_of("stage2_all", done).startswith("skipped stage2_all one GPU"))
        self.assertIn("| stage4_fp16 | ok | cuda:0 | nccl | 1 | fp16 | 1.5 | aaaa |", done.stdout)
        self.assertIn((self.folder / "out/checks.md").read_text(), done.stdout)
        calls = self.calls.read_text()
        for wanted in ("stage2_ddp_spawn --backend nccl --nprocs 1 --device cuda",
                       "stage3_ddp_torchrun --backend nccl --device cuda",
                       "stage2_ddp_spawn --backend gloo --nprocs 2 --device cuda",
                       "stage1_data_parallel --device-ids 0,0 --epochs",
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
        self.assertNotIn("stage2_all", done.stdout)

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
            "unit_tests": ("echo 'x.cpp:1: skipped: no GPU'", "they found no GPU"),
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
        for name in ("part_test", "suite"):
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
