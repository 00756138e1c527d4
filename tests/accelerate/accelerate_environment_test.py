# SPDX-License-Identifier: Apache-2.0
"""Holds what the library reads, file and environment, against the Python package accelerate.

Its launcher starts a stage in tests/interop/accelerate_test.py.
"""
from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN  # noqa: E402

# Before the package is imported: a configuration of the user must not count.
HOME = tempfile.mkdtemp(prefix="ladder-accelerate-")
unittest.addModuleCleanup(shutil.rmtree, HOME)
os.environ["HF_HOME"] = HOME
for variable in [name for name in os.environ if name.startswith(("ACCELERATE_", "SLURM_"))]:
    del os.environ[variable]

import yaml  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.commands.launch import (  # noqa: E402
    _validate_launch_command,
    launch_command_parser,
)
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import write_basic_config  # noqa: E402
from accelerate.utils.launch import (  # noqa: E402
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)

HELPER = BIN / "accelerate_helper"
SECONDS = 120
DEFAULTS = {"mixed_precision": "no", "gradient_accumulation_steps": 1, "use_cpu": False,
            "debug": False, "device": "", "fork_launched": False, "notes": []}

TWO_GPUS = """\
compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: MULTI_GPU
fsdp_config: {}
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 2
use_cpu: false
"""


def changed(**entries: str | None) -> str:
    """The file of two GPUs with other entries; None removes one."""
    lines = [line for line in TWO_GPUS.splitlines() if line.split(":")[0] not in entries]
    lines += [f"{key}: {value}" for key, value in entries.items() if value is not None]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def file_of(text: str, suffix: str = ".yaml") -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=suffix, encoding="utf-8", dir=HOME) as file:
        file.write(text)
        file.flush()
        yield file.name


def helper(*arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """What the library makes of it, or its refusal as a text."""
    done = subprocess.run([HELPER, *arguments], env={**os.environ, **(environment or {})},
                          capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)
    assert done.returncode == 2, done
    return done.stderr


class Refused(Exception):
    """Any exception of the Python package."""


def launcher_environment(path: str, *flags: str) -> dict[str, str]:
    """The variables that `accelerate launch` would set, without launching."""
    arguments = ["--config_file", path, "--main_process_port", "0", *flags, "--no_python", "program"]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            args, _, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
            several = args.multi_gpu and not args.cpu
            new = prepare_multi_gpu_env(args) if several else prepare_simple_launcher_cmd_env(args)[1]
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    new = {name: value for name, value in new.items() if os.environ.get(name) != value}
    new.pop("MASTER_ADDR", None)  # the launcher of one process sets them, but no rank
    new.pop("MASTER_PORT", None)
    return new


class ConfigFile(unittest.TestCase):
    """The file read here, and the environment that the launcher makes of it, say the same."""

    def same(self, text: str, suffix: str = ".yaml") -> None:
        with self.subTest(text=text), file_of(text, suffix) as path:
            variables = launcher_environment(path)
            launched = helper("resolve", environment=variables)
            read = helper("resolve", "--config_file", path)
            self.assertIsInstance(read, dict, read)
            for key in ("mixed_precision", "debug"):
                self.assertEqual(read[key], launched[key], key)
            if "ACCELERATE_USE_CPU" in variables:  # the launcher of several does not say it
                self.assertEqual(read["use_cpu"], launched["use_cpu"])

    def both_refuse(self, text: str, part: str) -> None:
        with self.subTest(text=text), file_of(text) as path:
            with self.assertRaises(Refused):
                launcher_environment(path)
            refusal = helper("resolve", "--config_file", path)
            self.assertIn(part, refusal)
            self.assertTrue(refusal.startswith(path), refusal)

    def only_here_refused(self, text: str, part: str) -> None:
        with self.subTest(text=text), file_of(text) as path:
            launcher_environment(path)
            self.assertIn(part, helper("resolve", "--config_file", path))

    def test_the_file_of_two_gpus(self) -> None:
        self.same(TWO_GPUS)
        with file_of(TWO_GPUS) as path:
            read = helper("resolve", "--config_file", path)
        self.assertLessEqual({"mixed_precision": "fp16", "distributed_type": "MULTI_GPU",
                              "num_processes": 2, "num_machines": 1, "machine_rank": 0,
                              "main_process_ip": "", "main_process_port": -1,
                              "use_cpu": False}.items(), read.items())

    def test_values_that_both_read(self) -> None:
        for value in ("'no'", "FP16", "bf16", "null", '"bf16"', "bf16 # text", None):
            self.same(changed(mixed_precision=value))
            self.same(changed(mixed_precision=value, distributed_type="'NO'"))
        for value in ("true", "'true'", "yes", "on", "1", "'false'", "y", "no", "False", "off", "0"):
            self.same(changed(use_cpu=value, distributed_type="MULTI_CPU"))
        for value in ("true", "1", "0", "no", "Yes", "off"):
            self.same(changed(debug=value))
        for value in ("NO", "no", "'NO'", "MULTI_CPU"):
            self.same(changed(distributed_type=value))
        for key in ("deepspeed_config", "fsdp_config", "megatron_lm_config", "fp8_config",
                    "parallelism_config", "mpirun_config", "dynamo_config"):
            self.same(changed(**{key: "{}"}))
            self.same(changed(**{key: "null"}))
        self.same(changed(mixed_precision=None, fp16="true"))
        self.same(changed(dynamo_backend="'NO'"))
        self.same(changed(dynamo_config="{dynamo_backend: 'NO'}"))
        self.same(changed(gpu_ids="0,1"))
        self.same("---\n" + TWO_GPUS + "...\n")
        self.same("\ufeff" + TWO_GPUS)
        self.same(TWO_GPUS.replace("\n", "\r\n"))
        self.same("distributed_type: 'NO'\n")

    def test_values_that_both_refuse(self) -> None:
        for value in ("half", "fp8", "[bf16]", "16"):
            self.both_refuse(changed(mixed_precision=value), ": mixed_precision: expected no, fp16")
        for value in ("multi_gpu", "TPU"):
            self.both_refuse(changed(distributed_type=value), ": distributed_type: expected NO,")
        self.both_refuse(changed(distributed_type=None), "expected the key distributed_type")
        self.both_refuse(changed(unknown_key="1"), ": unknown_key: ")
        self.both_refuse(changed(gradient_accumulation_steps="4"), "no such key")
        self.both_refuse(changed(gpu_ids="[0, 1]"), ": gpu_ids: ")
        self.both_refuse(changed(compute_environment="AMAZON_SAGEMAKER"), ": compute_environment: ")
        self.both_refuse(changed(use_cpu="maybe", distributed_type="'NO'"), ": use_cpu: ")
        self.both_refuse(TWO_GPUS + "---\n" + TWO_GPUS, "a second document")
        self.both_refuse("", "not a map of names")
        self.both_refuse("- a\n", "not a map of names")
        self.both_refuse(TWO_GPUS + "a: 'b\n", "not YAML")

    def test_what_only_the_library_refuses(self) -> None:
        for key, value in {"deepspeed_config": "{zero_stage: 2}",
                           "fsdp_config": "{fsdp_offload_params: true}",
                           "megatron_lm_config": "{megatron_lm_tp_degree: 2}",
                           "fp8_config": "{backend: TE}",
                           "parallelism_config": "{parallelism_config_tp_size: 2}",
                           "mpirun_config": "{mpirun_ccl: '1'}",
                           "tpu_env": "[A]"}.items():
            self.only_here_refused(changed(**{key: value}), f": {key}: not supported")
        self.only_here_refused(changed(dynamo_config="{dynamo_backend: INDUCTOR}"), "INDUCTOR")
        self.only_here_refused(changed(distributed_type="FSDP"), "got 'FSDP'")
        self.only_here_refused(TWO_GPUS + "mixed_precision: bf16\n", "is set again")
        self.only_here_refused(TWO_GPUS.replace(": LOCAL", ": &x LOCAL").replace(": main", ": *x"),
                               "an alias")
        self.only_here_refused(changed(num_processes="two"), ": num_processes: ")

    def test_a_bare_no_is_read_here_alone(self) -> None:
        with file_of(changed(mixed_precision="no")) as path:
            with self.assertRaises(Refused):
                launcher_environment(path)
            self.assertEqual(helper("resolve", "--config_file", path)["mixed_precision"], "no")

    def test_json(self) -> None:
        self.same(json.dumps({"distributed_type": "NO", "mixed_precision": "bf16",
                              "use_cpu": True, "debug": True}), ".json")

    def test_what_the_package_writes(self) -> None:
        path = Path(HOME) / "written.yaml"
        with contextlib.redirect_stdout(io.StringIO()):
            write_basic_config(mixed_precision="bf16", save_location=str(path))
        self.same(path.read_text(encoding="utf-8"))
        as_yaml = yaml.safe_dump(json.loads(path.read_text(encoding="utf-8")))
        self.same(as_yaml)
        self.assertIn("mixed_precision: bf16", as_yaml)


class Environment(unittest.TestCase):
    """Variables and options mean the same to Python's Accelerator and to the library."""

    def same(self, variables: Mapping[str, str], **options: Any) -> dict[str, Any]:
        flags = [["--cpu"] if key == "cpu" else [f"--{key}", str(value)]
                 for key, value in options.items() if value is not False]
        read = helper("resolve", *[part for flag in flags for part in flag], environment=variables)
        self.assertIsInstance(read, dict, read)
        with mock.patch.dict(os.environ, variables), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
            accelerator = Accelerator(**options)
            state = accelerator.state
            python = {"mixed_precision": accelerator.mixed_precision,
                      "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
                      "use_cpu": state._cpu, "debug": state.debug,
                      "fork_launched": state.fork_launched}
        self.assertEqual({key: read[key] for key in python}, python)
        return read

    def tearDown(self) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    def test_nothing_said(self) -> None:
        self.assertLessEqual(DEFAULTS.items(), self.same({}).items())

    def test_an_option_wins_over_the_variable(self) -> None:
        read = self.same({"ACCELERATE_MIXED_PRECISION": "fp16"}, mixed_precision="bf16")
        self.assertEqual(read["mixed_precision"], "bf16")
        self.assertEqual(self.same({"ACCELERATE_MIXED_PRECISION": "bf16"})["mixed_precision"], "bf16")
        self.assertEqual(self.same({}, mixed_precision="no")["mixed_precision"], "no")

    def test_the_variable_for_accumulation_wins_over_the_option(self) -> None:
        variables = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3"}
        read = self.same(variables, gradient_accumulation_steps=5)
        self.assertEqual(read["gradient_accumulation_steps"], 3)
        self.assertEqual(len(read["notes"]), 1)
        self.same(variables)
        self.same({}, gradient_accumulation_steps=5)

    def test_a_true_for_use_cpu_is_never_taken_back(self) -> None:
        for value in ("True", "False"):
            self.assertTrue(self.same({"ACCELERATE_USE_CPU": value}, cpu=True)["use_cpu"])
        self.assertTrue(self.same({"ACCELERATE_USE_CPU": "yes"}, cpu=False)["use_cpu"])
        self.assertFalse(self.same({"ACCELERATE_USE_CPU": "off"})["use_cpu"])

    def test_flags(self) -> None:
        for text in ("y", "YES", "t", "True", "on", "1", "n", "No", "f", "false", "OFF", "0"):
            self.same({"ACCELERATE_DEBUG_MODE": text, "FORK_LAUNCHED": text})
        for name in ("ACCELERATE_USE_CPU", "ACCELERATE_DEBUG_MODE", "FORK_LAUNCHED"):
            self.assertIn(f"{name}: expected true or false, got 'maybe'",
                          helper("resolve", environment={name: "maybe"}))
            with self.assertRaises(ValueError), mock.patch.dict(os.environ, {name: "maybe"}):
                AcceleratorState._reset_state(reset_partial_state=True)
                Accelerator()

    def test_what_would_be_silently_fp32_in_python_is_refused(self) -> None:
        refusal = helper("resolve", environment={"ACCELERATE_MIXED_PRECISION": "half"})
        self.assertIn("ACCELERATE_MIXED_PRECISION: expected no, fp16 or bf16, got 'half'", refusal)

    def test_the_file_stands_below_the_environment(self) -> None:
        with file_of(changed(debug="true", use_cpu="true")) as path:
            read = helper("resolve", "--config_file", path,
                          environment={"ACCELERATE_MIXED_PRECISION": "bf16",
                                       "ACCELERATE_DEBUG_MODE": "false"})
        self.assertEqual((read["mixed_precision"], read["debug"], read["use_cpu"]),
                         ("bf16", False, True))


if __name__ == "__main__":
    unittest.main()
