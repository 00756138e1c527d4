# SPDX-License-Identifier: Apache-2.0
"""Stage 4: 16 bits, SyncBatchNorm, the checkpoint with its scaler, and the profile.

Flags are tested in tests/mnist/command_line_test.cpp, the scaler in tests/amp/grad_scaler_test.cpp,
equality with other stages and with Python in tests/equality/.
"""
from __future__ import annotations

import atexit
import functools
import json
import shutil
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import cpu_has, free_port, launch, records  # noqa: E402
from tests.support.twins import PEERS  # noqa: E402
from tests.support.ways import (STAGE0, STAGE4, Run, alone, distance, one_rank,  # noqa: E402
                                require_equal_weights, small, spawned, train)

sys.path.insert(0, str(PEERS))
from common import ConvNet  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-amp-"))
atexit.register(shutil.rmtree, FOLDER)

WAYS = {
    "stage 0": lambda: alone(STAGE0),
    "stage 4": lambda: spawned(program=STAGE4),
}
FP32 = ("--precision", "fp32")


@functools.cache
def trained(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


def is_running(name: str) -> bool:
    return "running" in name


def is_weight(name: str) -> bool:
    return not is_running(name) and not name.endswith("num_batches_tracked")


STEPS = 50
FLAGS = small(recipe="convnet", limit_train=STEPS * 32, limit_test=100)


class SyncBatchNorm(unittest.TestCase):
    """50 steps on one rank, and with the same global batches on two.

    The distance that rounding leaves depends on the CPU's instructions: in the weights 1e-8 with
    AVX-512 and 5e-7 with AVX2, in the running statistics 2e-7 and 6e-6. Without SyncBatchNorm it is
    5e-5 and 9e-3.
    """

    def apart(self, *flags: object, of: Callable[[str], bool]) -> float:
        """How far two ranks of stage 4 with these flags end from one of stage 0."""
        two, one = trained("stage 4", *FLAGS, *FP32, *flags), trained("stage 0", *FLAGS)
        self.assertEqual((one.result["steps"], two.result["steps"]), (STEPS, STEPS))
        apart = distance(two, one, of)
        print(f"{flags}, {of.__name__}: {apart:.1e}")
        return apart

    def test_two_ranks_are_close_to_stage_zero(self) -> None:
        self.assertLessEqual(self.apart(of=is_weight), 1e-6)
        self.assertLessEqual(self.apart(of=is_running), 1e-5)

    def test_without_it_they_train_another_network(self) -> None:
        self.assertGreater(self.apart("--no-sync-bn", of=is_weight), 1e-5)
        self.assertGreater(self.apart("--no-sync-bn", of=is_running), 1e-3)


class Bf16(unittest.TestCase):
    def test_it_is_the_default_on_the_cpu(self) -> None:
        run = trained("stage 4", *FLAGS, "--fingerprint", 1)
        self.assertEqual((run.header["precision"], run.result["precision"]), ("bf16", "bf16"))
        self.assertIn("on cpu in bf16,", run.done.stderr)
        self.assertGreater(distance(run, trained("stage 4", *FLAGS, *FP32), is_weight), 2e-6)
        self.assertEqual("bf16 is emulated" in run.done.stderr,
                         not cpu_has("avx512_bf16", "amx_bf16", "bf16"))
        self.assertNotIn("loss_scale", run.result)
        with safe_open(run.weights, framework="pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})

    def test_both_ranks_hold_the_same_weights_and_statistics_after_each_step(self) -> None:
        run = trained("stage 4", *FLAGS, "--fingerprint", 1)
        ranks = [records(run.folder / f"a.rank{rank}.jsonl") for rank in range(2)]
        self.assertEqual([len(marks) for marks in ranks], [STEPS, STEPS])
        for one, other in zip(*ranks):
            self.assertEqual(other["gradients"], one["gradients"], one["step"])
            self.assertEqual(other["weights"], one["weights"], one["step"])
            self.assertNotEqual(other["positions"], one["positions"])


FP16 = small(recipe="convnet", limit_train=64, limit_test=32, precision="fp16")


def saved() -> Path:
    """What two steps in fp16 leave."""
    return trained("stage 4", *FP16).weights


def saved_state() -> dict[str, Any]:
    with safe_open(saved(), framework="pt") as file:
        return json.loads(file.metadata()["scaler"])


class Fp16(unittest.TestCase):
    def test_it_works_on_the_cpu_and_records_its_scale(self) -> None:
        run = trained("stage 4", *FP16)
        self.assertEqual((run.header["precision"], run.result["precision"]), ("fp16", "fp16"))
        skipped = run.result["skipped_steps"]
        self.assertLess(skipped, run.result["steps"])
        self.assertEqual(run.result["loss_scale"], 65536 / 2**skipped)

    def test_rank_0_logs_that_it_is_slow_where_it_is_emulated(self) -> None:
        names = ("avx512_fp16", "amx_fp16", "fphp")
        if cpu_has(*names):
            self.skipTest(f"this CPU has one of {', '.join(names)}: fp16 is not emulated")
        lines = [line for line in trained("stage 4", *FP16).done.errors
                 if "fp16 is emulated" in line]
        self.assertEqual(len(lines), 1, lines)


class Checkpoint(unittest.TestCase):
    def written(self, state: str) -> Path:
        """A file of Python with these weights and this state of a scaler."""
        path = Path(tempfile.mkdtemp(dir=FOLDER)) / "edited.safetensors"
        save_file(load_file(saved()), path, {"scaler": state})
        return path

    def resumed(self, **changes: float) -> Run:
        """Two steps from a state of the scaler with these changes."""
        path = self.written(json.dumps(saved_state() | changes))
        return trained("stage 4", *FP16, "--load", path)

    def test_python_loads_the_weights_into_its_own_network(self) -> None:
        keys = ConvNet().load_state_dict(load_file(saved()), strict=True)
        self.assertEqual((keys.missing_keys, keys.unexpected_keys), ([], []))

    def test_python_loads_the_scaler(self) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        scaler.load_state_dict(saved_state())
        self.assertEqual(scaler.state_dict(), saved_state())
        self.assertEqual(scaler.get_scale(), trained("stage 4", *FP16).result["loss_scale"])

    def test_scale_and_count_of_good_steps_are_those_of_the_file(self) -> None:
        result = self.resumed(scale=1024.0, _growth_tracker=1999).result
        self.assertEqual((result["loss_scale"], result["skipped_steps"]), (2048, 0))

    def test_a_scale_that_is_too_large_skips_steps_and_shrinks(self) -> None:
        run = self.resumed(scale=2.0**60)
        self.assertEqual((run.result["steps"], run.result["skipped_steps"]), (2, 2))
        self.assertEqual(run.result["loss_scale"], 2.0**58)
        before, after = load_file(saved()), load_file(run.weights)
        for name in before:  # statistics of BatchNorm move with each forward
            self.assertEqual(torch.equal(before[name], after[name]), is_weight(name), name)

    def test_stages_four_and_zero_evaluate_it_alike(self) -> None:
        flags = small(recipe="convnet", limit_test=32, epochs=0, load=saved())
        four, zero = trained("stage 4", *flags, *FP32), trained("stage 0", *flags)
        require_equal_weights(four, zero)
        for field in ("seen", "correct"):
            self.assertEqual(four.result[field], zero.result[field], field)
        for name, tensor in load_file(saved()).items():
            self.assertTrue(torch.equal(load_file(four.weights)[name], tensor), name)

    def test_a_damaged_scaler_is_refused(self) -> None:
        path = self.written(json.dumps(saved_state() | {"scale": -1.0}))
        way = one_rank(0, 1, free_port(), program=STAGE4)
        done = launch(*way.command, *FP16, "--quiet", "--load", path, cwd=path.parent,
                      environment=way.environment)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (3, "", 1), done.stderr)
        self.assertIn(f"{path}: expected", done.stderr)
        self.assertEqual(list(path.parent.iterdir()), [path])


class Profile(unittest.TestCase):
    def test_it_is_the_run_of_the_tutorial(self) -> None:
        run = trained("stage 4", "--profile", "ddp-practice", "--threads", 1, "--limit-train", 192,
                      "--limit-test", 32)
        self.assertEqual([run.header[key] for key in ("recipe", "epochs", "batch_size", "lr")],
                         ["convnet", 3, 32, 1e-4])
        self.assertEqual(run.header["options"]["--batch-mode"], "per-device")
        self.assertEqual(run.result["steps"], 3 * 192 // (2 * 32))


if __name__ == "__main__":
    unittest.main()
