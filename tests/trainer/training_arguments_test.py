# SPDX-License-Identifier: Apache-2.0
"""Holds the training arguments against those of the Python package transformers."""
from __future__ import annotations

import dataclasses
import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import settings_helper, temporary_folder  # noqa: E402
from tests.support.ways import ignore_accelerate_configuration  # noqa: E402

HOME = temporary_folder("transformers")
ignore_accelerate_configuration(HOME)  # before the package is imported
os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import HfArgumentParser  # noqa: E402
from transformers import TrainingArguments as Real  # noqa: E402
from transformers.trainer_utils import SchedulerType  # noqa: E402
from transformers.training_args import OptimizerNames  # noqa: E402

# Arguments of the library's own.
OWN = {"banner", "cuda_graph", "fast_dev_run", "limit_train_batches", "sums", "micro_batch",
       "overwrite_output_dir"}  # the last is of earlier versions of the package
# Names that earlier versions of the package had, and tutorials still have.
OLD = set("""
    warmup_ratio logging_dir save_safetensors group_by_length adafactor dispatch_batches fp16_backend
    fp16_opt_level fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap half_precision_backend
    include_inputs_for_metrics include_tokens_per_second jit_mode_eval mp_parameters past_index
    per_gpu_eval_batch_size per_gpu_train_batch_size push_to_hub_model_id push_to_hub_organization
    push_to_hub_token ray_scope sharded_ddp split_batches torchdynamo tpu_metrics_debug tpu_num_cores
    use_ipex use_legacy_prediction_loop use_mps_device xpu_backend""".split())
OLD_SPELLINGS = {"evaluation_strategy": "eval_strategy", "no_cuda": "use_cpu"}

# None in the package means that somebody else decides; here the decision is the default.
OTHER_DEFAULTS: dict[str, tuple[Any, Any]] = {
    "lr_scheduler_kwargs": (None, {}),
    "label_names": (None, ["labels"]),
    "ddp_find_unused_parameters": (None, False),
    "ddp_broadcast_buffers": (None, True),
    "accelerator_config": ({"split_batches": False, "dispatch_batches": None, "even_batches": True,
                            "use_seedable_sampler": True, "non_blocking": False,
                            "gradient_accumulation_kwargs": None},
                           {"split_batches": False, "dispatch_batches": False,
                            "even_batches": True}),
}


def helper(command: str, arguments: dict[str, Any]) -> Any:
    """What the library makes of them, or the text of its refusal."""
    path = HOME / "arguments.json"
    path.write_text(json.dumps(arguments), encoding="utf-8")
    return settings_helper(command, path)


def real(**arguments: Any) -> Real:
    """The package's, which must not take a GPU of this machine, and writes nothing."""
    return Real(**{"output_dir": "out", "use_cpu": True, **arguments})


def values(arguments: Real) -> dict[str, Any]:
    return json.loads(arguments.to_json_string())


TABLES = settings_helper("tables")


class Tables(unittest.TestCase):
    def test_every_name_of_the_package_is_known(self) -> None:
        theirs = {field.name for field in dataclasses.fields(Real)}
        ours = set(TABLES["arguments"]) | set(TABLES["unsupported"])
        self.assertEqual(ours, theirs | OWN | OLD)
        self.assertEqual(TABLES["deprecated"], OLD_SPELLINGS)
        self.assertFalse(set(OLD_SPELLINGS) & theirs)

    def test_defaults_are_those_of_the_package(self) -> None:
        theirs = values(Real())
        shared = [name for name in TABLES["arguments"] if name in theirs]
        self.assertGreater(len(shared), 50)
        for name in shared:
            found = (theirs[name], TABLES["arguments"][name])
            self.assertEqual(found, OTHER_DEFAULTS.get(name, (found[0],) * 2), name)

    def test_defaults_of_unsupported_arguments(self) -> None:
        for field in dataclasses.fields(Real):
            if field.name not in TABLES["unsupported"]:
                continue
            known = field.default is not dataclasses.MISSING
            standard = field.default if known else field.default_factory()  # type: ignore[misc]
            self.assertEqual(TABLES["unsupported"][field.name], standard, field.name)

    def test_optimizers_and_schedules_are_called_as_in_the_package(self) -> None:
        for argument, theirs, own in (("optim", OptimizerNames, {"adam"}),
                                      ("lr_scheduler_type", SchedulerType, set())):
            refusal = helper("read", {argument: "none such"})
            names = set(refusal.split("one of ")[1].split(", got")[0].split(", "))
            self.assertEqual(names - {each.value for each in theirs}, own)
            self.assertGreaterEqual(len(names), 5)


class Lists(unittest.TestCase):
    """A list of arguments means the same on both sides."""

    TUTORIAL: dict[str, Any] = {
        "output_dir": "basic-trainer", "per_device_train_batch_size": 64,
        "per_device_eval_batch_size": 64, "num_train_epochs": 1, "eval_strategy": "epoch",
        "remove_unused_columns": False}
    LONG: dict[str, Any] = {
        "output_dir": "out", "num_train_epochs": 2.5, "max_steps": 1000, "learning_rate": 1 / 3,
        "lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2},
        "warmup_steps": 0.1, "optim": "sgd", "weight_decay": 0.01, "adam_beta2": 0.98,
        "gradient_accumulation_steps": 4, "max_grad_norm": 0.5, "label_smoothing_factor": 0.1,
        "bf16": True, "use_cpu": True, "logging_strategy": "epoch", "logging_first_step": True,
        "eval_strategy": "steps", "eval_steps": 50, "save_steps": 100, "save_total_limit": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "accuracy", "seed": 7,
        "data_seed": 8, "dataloader_drop_last": True, "label_names": ["labels"],
        "ddp_timeout": 60, "ddp_bucket_cap_mb": 10,
        "ddp_find_unused_parameters": False, "disable_tqdm": True, "do_train": True,
        "run_name": "run", "resume_from_checkpoint": "out/checkpoint-100",
        "accelerator_config": {"split_batches": True, "even_batches": False}}

    def same(self, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        for name, value in ours.items():
            if name in OWN | OLD:
                continue
            other = theirs[name]
            if name == "accelerator_config":
                other = {key: other[key] or False for key in value}
            elif other is None and name in OTHER_DEFAULTS:
                other = OTHER_DEFAULTS[name][1]
            self.assertEqual(value, other, name)

    def completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        read = helper("complete", arguments)
        self.assertIsInstance(read, dict, read)
        return read

    def test_the_same_list(self) -> None:
        for arguments in (self.TUTORIAL, self.LONG, {"output_dir": "out"},
                          {"output_dir": "out", "label_names": []},
                          {"output_dir": "out", "label_names": ["start", "end"]}):
            read = self.completed({**arguments, "use_cpu": True})
            self.same(read["arguments"], values(real(**arguments)))

    def test_what_one_writes_the_other_reads(self) -> None:
        path = HOME / "training_args.json"
        for arguments in (self.TUTORIAL, self.LONG):
            theirs = values(real(**arguments))
            read = self.completed(theirs)
            self.same(read["arguments"], theirs)
            expected = {"hub_token"} | ({"remove_unused_columns"} & set(arguments))
            self.assertEqual({note.split(":")[0] for note in read["notes"]}, expected)
            ours = self.completed({**arguments, "use_cpu": True})["arguments"]
            shared = {name: value for name, value in ours.items() if name not in OWN | OLD}
            path.write_text(json.dumps(shared), encoding="utf-8")
            self.same(ours, values(HfArgumentParser(Real).parse_json_file(str(path))[0]))


class Rules(unittest.TestCase):
    """What follows from other arguments, and what is refused."""

    DERIVED = ("do_eval", "eval_steps", "metric_for_best_model", "greater_is_better", "report_to",
               "dataloader_pin_memory", "output_dir", "logging_steps", "save_steps")

    def test_both_derive_the_same(self) -> None:
        steps, epoch = {"eval_strategy": "steps"}, {"eval_strategy": "epoch"}
        for arguments in (
                steps, epoch, {**steps, "logging_steps": 7}, {**steps, "eval_steps": 0},
                {**steps, "logging_steps": 0.1}, {**steps, "eval_steps": 3, "logging_steps": 7},
                {**steps, "load_best_model_at_end": True},
                {**steps, "load_best_model_at_end": True, "save_strategy": "best"},
                {**steps, "load_best_model_at_end": True, "eval_steps": 0.1, "save_steps": 0.3},
                {**epoch, "lr_scheduler_type": "reduce_lr_on_plateau"},
                {"metric_for_best_model": "eval_loss"}, {"metric_for_best_model": "accuracy"},
                {"metric_for_best_model": "accuracy", "greater_is_better": False},
                {"output_dir": "~/out"}, {"use_cpu": True}, {"do_eval": True},
                {"report_to": "none"}, {"report_to": ["none"]},
                {"logging_strategy": "no", "logging_steps": 0}, {"output_dir": None}):
            with self.subTest(arguments):
                read = helper("complete", {"use_cpu": True, "output_dir": "out", **arguments})
                self.assertIsInstance(read, dict, read)
                theirs = values(real(**arguments))
                self.assertEqual({name: read["arguments"][name] for name in self.DERIVED},
                                 {name: theirs[name] for name in self.DERIVED})

    def test_both_refuse(self) -> None:
        steps = {"eval_strategy": "steps", "load_best_model_at_end": True}
        for arguments in (
                {"logging_steps": 0}, {"logging_steps": 1.5}, {"save_steps": 1.5},
                {"eval_strategy": "steps", "eval_steps": 2.5},
                {"eval_strategy": "steps", "logging_strategy": "no", "logging_steps": 0},
                {"fp16": True, "bf16": True}, {"warmup_steps": -1},
                {"lr_scheduler_type": "reduce_lr_on_plateau"},
                {**steps, "save_strategy": "epoch"}, {**steps, "save_strategy": "no"},
                {**steps, "eval_steps": 30, "save_steps": 100},
                {**steps, "eval_steps": 0.2, "save_steps": 0.3},
                {**steps, "eval_steps": 0.1, "save_steps": 100},
                {"eval_strategy": "epochs"}, {"save_strategy": "always"}, {"optim": "adamv"},
                {"lr_scheduler_type": "quadratic"}, {"unknown_argument": 1},
                {"dispatch_batches": True}):
            with self.subTest(arguments):
                self.assertIsInstance(helper("complete", arguments), str)
                self.assertRaises((ValueError, TypeError), real, **arguments)

    def test_only_accepted_here(self) -> None:
        """Names of earlier versions."""
        for arguments in ({"evaluation_strategy": "epoch"}, {"warmup_ratio": 0.1},
                          {"logging_dir": "logs"}, {"no_cuda": True}):
            with self.subTest(arguments):
                read = helper("complete", arguments)
                self.assertIsInstance(read, dict, read)
                self.assertEqual([note.split(":")[0] for note in read["notes"]], list(arguments))
                self.assertRaises(TypeError, real, **arguments)


if __name__ == "__main__":
    unittest.main()
