# SPDX-License-Identifier: Apache-2.0
"""Holds what the library reads, file and environment, against the Python package accelerate.

Its launcher starts a stage in tests/interop/accelerate_test.py.
"""
from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import unittest
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import settings_helper, temporary_folder  # noqa: E402
from tests.support.ways import ignore_accelerate_configuration  # noqa: E402

HOME = temporary_folder("accelerate")
ignore_accelerate_configuration(HOME)  # before the package is imported
for variable in [name for name in os.environ if name.startswith("SLURM_")]:
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


def file_of(text: str, suffix: str = ".yaml") -> Path:
    path = HOME / f"config{suffix}"
    path.write_bytes(text.encode())
    return path


class Refused(Exception):
    """Any exception of the Python package."""


def launcher_environment(path: Path) -> dict[str, str]:
    """The variables that `accelerate launch` would set, without launching."""
    arguments = ["--config_file", str(path), "--main_process_port", "0", "--no_python", "program"]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            args, _, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
            if args.multi_gpu and not args.cpu:
                new = prepare_multi_gpu_env(args)
            else:
                new = prepare_simple_launcher_cmd_env(args)[1]
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    new = {name: value for name, value in new.items() if os.environ.get(name) != value}
    new.pop("MASTER_ADDR", None)  # the launcher of one process sets them, but no rank
    new.pop("MASTER_PORT", None)
    return new


class ConfigFile(unittest.TestCase):
    """The file read here, and the environment that the launcher makes of it, say the same.

    What the library alone refuses or reads is in accelerate_config_test.cpp.
    """

    def same(self, text: str, suffix: str = ".yaml") -> dict[str, Any]:
        path = file_of(text, suffix)
        variables = launcher_environment(path)
        launched = settings_helper("resolve", environment=variables)
        read = settings_helper("resolve", "--config_file", path)
        self.assertIsInstance(read, dict, read)
        keys = ["mixed_precision", "debug"]
        if "ACCELERATE_USE_CPU" in variables:  # the launcher of several does not set it
            keys.append("use_cpu")
        self.assertEqual([read[key] for key in keys], [launched[key] for key in keys], text)
        return read

    def test_values_that_both_read(self) -> None:
        for value in ("'no'", "FP16", "bf16", "null", '"bf16"', "bf16 # text", None):
            self.same(changed(mixed_precision=value))
            self.same(changed(mixed_precision=value, distributed_type="'NO'"))
        for value in ("true", "'true'", "yes", "on", "1", "'false'", "y", "no", "False", "off",
                      "0"):
            self.same(changed(use_cpu=value, distributed_type="MULTI_CPU"))
        for value in ("true", "1", "0", "no", "Yes", "off"):
            self.same(changed(debug=value))
        for value in ("NO", "no", "'NO'", "MULTI_CPU"):
            self.same(changed(distributed_type=value))
        for key in ("deepspeed_config", "fsdp_config", "megatron_lm_config", "fp8_config",
                    "parallelism_config", "mpirun_config", "dynamo_config"):
            self.same(changed(**{key: "{}"}))
            self.same(changed(**{key: "null"}))
        for text in (TWO_GPUS, changed(mixed_precision=None, fp16="true"),
                     changed(dynamo_backend="'NO'"), changed(gpu_ids="0,1"),
                     changed(dynamo_config="{dynamo_backend: 'NO'}"), f"---\n{TWO_GPUS}...\n",
                     "\ufeff" + TWO_GPUS, TWO_GPUS.replace("\n", "\r\n"),
                     "distributed_type: 'NO'\n"):
            self.same(text)

    def test_values_that_both_refuse(self) -> None:
        for text in (*(changed(mixed_precision=value) for value in ("half", "fp8", "[bf16]", "16")),
                     changed(distributed_type="multi_gpu"), changed(distributed_type="TPU"),
                     changed(distributed_type=None), changed(unknown_key="1"),
                     changed(gradient_accumulation_steps="4"), changed(gpu_ids="[0, 1]"),
                     changed(compute_environment="AMAZON_SAGEMAKER"),
                     changed(use_cpu="maybe", distributed_type="'NO'"),
                     f"{TWO_GPUS}---\n{TWO_GPUS}", "", "- a\n", TWO_GPUS + "a: 'b\n"):
            path = file_of(text)
            self.assertRaises(Refused, launcher_environment, path)
            refusal = settings_helper("resolve", "--config_file", path)
            self.assertTrue(refusal.startswith(str(path)), refusal)

    def test_json_and_what_the_package_writes(self) -> None:
        self.same(json.dumps({"distributed_type": "NO", "mixed_precision": "bf16",
                              "use_cpu": True, "debug": True}), ".json")
        path = HOME / "written.yaml"
        with contextlib.redirect_stdout(io.StringIO()):
            write_basic_config(mixed_precision="bf16", save_location=str(path))
        written = path.read_text(encoding="utf-8")
        for text in (written, yaml.safe_dump(json.loads(written))):
            self.assertEqual(self.same(text)["mixed_precision"], "bf16")


class Environment(unittest.TestCase):
    """Variables and options mean the same to Python's Accelerator and to the library."""

    def same(self, variables: Mapping[str, str], **options: Any) -> dict[str, Any]:
        flags = [["--cpu"] if key == "cpu" else [f"--{key}", str(value)]
                 for key, value in options.items() if value is not False]
        read = settings_helper("resolve", *[part for flag in flags for part in flag],
                               environment=variables)
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

    def test_an_option_wins_over_the_variable_for_the_precision(self) -> None:
        self.assertLessEqual(DEFAULTS.items(), self.same({}).items())
        variables = {"ACCELERATE_MIXED_PRECISION": "bf16"}
        self.assertEqual(self.same(variables)["mixed_precision"], "bf16")
        self.assertEqual(self.same(variables, mixed_precision="no")["mixed_precision"], "no")

    def test_the_variable_for_accumulation_wins_over_the_option(self) -> None:
        variables = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3"}
        read = self.same(variables, gradient_accumulation_steps=5)
        self.assertEqual((read["gradient_accumulation_steps"], len(read["notes"])), (3, 1))
        self.same(variables)
        self.same({}, gradient_accumulation_steps=5)

    def test_a_true_for_use_cpu_is_never_taken_back(self) -> None:
        for variable, option, use_cpu in (("True", True, True), ("False", True, True),
                                          ("yes", False, True), ("off", False, False)):
            read = self.same({"ACCELERATE_USE_CPU": variable}, cpu=option)
            self.assertEqual(read["use_cpu"], use_cpu, variable)

    def test_flags(self) -> None:
        for text in ("y", "YES", "t", "True", "on", "1", "n", "No", "f", "false", "OFF", "0"):
            self.same({"ACCELERATE_DEBUG_MODE": text, "FORK_LAUNCHED": text})
        for name in ("ACCELERATE_USE_CPU", "ACCELERATE_DEBUG_MODE", "FORK_LAUNCHED"):
            self.assertIn(f"{name}: expected true or false, got 'maybe'",
                          settings_helper("resolve", environment={name: "maybe"}))
            with self.assertRaises(ValueError), mock.patch.dict(os.environ, {name: "maybe"}):
                AcceleratorState._reset_state(reset_partial_state=True)
                Accelerator()


if __name__ == "__main__":
    unittest.main()
