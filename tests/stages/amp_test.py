# SPDX-License-Identifier: Apache-2.0
"""Stage 4: 16 bits, SyncBatchNorm, its checkpoint and flags."""
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
from tests.support.programs import Result, cpu_has, free_port, launch, records  # noqa: E402
from tests.support.twins import PEERS  # noqa: E402
from tests.support.ways import (STAGE0, STAGE1, STAGE2, STAGE3, STAGE4, Run, Way,  # noqa: E402
                                alone, distance, one_rank, require_equal_weights, small,
                                spawned, torchrun, train)

sys.path.insert(0, str(PEERS))
from common import ConvNet  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-amp-"))
atexit.register(shutil.rmtree, FOLDER)

WAYS = {
    "stage 0": lambda: alone(STAGE0),
    "stage 4": lambda: spawned(program=STAGE4),
    "stage 4, 3 ranks": lambda: spawned(3, program=STAGE4),
}

short = functools.partial(small, limit_train=320, limit_test=100)
tiny = functools.partial(small, recipe="convnet", limit_train=64, limit_test=32)
BASICNET = short()
CONVNET = short(recipe="convnet")
FP32 = ("--precision", "fp32")


@functools.cache
def trained(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


class AmpTest(unittest.TestCase):
    def expect_equal(self, a: Run, b: Run) -> None:
        require_equal_weights(a, b)
        for field in ("steps", "seen", "correct"):
            self.assertEqual(a.result[field], b.result[field], field)

    def start(self, way: Way, *flags: object) -> tuple[Result, Path]:
        """In a new folder, which it returns too."""
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = launch(*way.command, *flags, cwd=folder, environment=way.environment)
        return done, folder

    def refused(self, text: str, way: Way, *flags: object, code: int = 2) -> None:
        """Expects one line on the standard error, before anything is trained or written."""
        done, folder = self.start(way, *flags)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (code, "", 1), done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(list(folder.iterdir()), [])


def is_running(name: str) -> bool:
    return "running" in name


def is_weight(name: str) -> bool:
    return not is_running(name) and not name.endswith("num_batches_tracked")


class SyncBatchNorm(AmpTest):
    """50 steps on one rank, and with the same global batches on two.

    The distance that rounding leaves depends on the CPU's instructions: in the weights 1e-8 with
    AVX-512 and 5e-7 with AVX2, in the running statistics 2e-7 and 6e-6. Without SyncBatchNorm it is
    5e-5 and 9e-3.
    """

    STEPS = 50
    FLAGS = small(recipe="convnet", limit_train=STEPS * 32, limit_test=100)

    def apart(self, a: Run, b: Run, of: Callable[[str], bool]) -> float:
        self.assertEqual((a.result["steps"], b.result["steps"]), (self.STEPS, self.STEPS))
        apart = distance(a, b, of)
        print(f"{a.result['world_size']} and {b.result['world_size']} ranks, {of.__name__}: "
              f"{apart:.1e}")
        return apart

    def test_two_ranks_are_close_to_stage_zero(self) -> None:
        run = trained("stage 4", *self.FLAGS, *FP32)
        for math in ("reference", "fast"):
            exact = trained("stage 0", *self.FLAGS, "--math", math)
            self.assertLessEqual(self.apart(run, exact, is_weight), 1e-6)
            self.assertLessEqual(self.apart(run, exact, is_running), 1e-5)

    def test_without_it_they_train_another_network(self) -> None:
        one = trained("stage 0", *self.FLAGS, "--math", "reference")
        two = trained("stage 4", *self.FLAGS, *FP32, "--no-sync-bn")
        self.assertGreater(self.apart(two, one, is_weight), 1e-5)
        self.assertGreater(self.apart(two, one, is_running), 1e-3)


class Bf16(AmpTest):
    def test_it_is_the_default_on_the_cpu_and_in_the_record(self) -> None:
        run = trained("stage 4", *CONVNET)
        self.assertEqual((run.header["precision"], run.result["precision"]), ("bf16", "bf16"))
        self.assertIn("on cpu in bf16,", run.done.stderr)
        self.expect_equal(run, trained("stage 4", *CONVNET, "--precision", "bf16"))
        self.assertGreater(distance(run, trained("stage 4", *CONVNET, *FP32), is_weight), 1e-6)
        self.assertEqual("bf16 is emulated" in run.done.stderr,
                         not cpu_has("avx512_bf16", "amx_bf16", "bf16"))

    def test_it_has_no_loss_scale(self) -> None:
        run = trained("stage 4", *CONVNET)
        self.assertNotIn("loss_scale", run.result)
        with safe_open(run.weights, framework="pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})

    def test_the_same_command_twice(self) -> None:
        again = train(WAYS["stage 4"](), *BASICNET, parent=FOLDER)
        self.expect_equal(again, trained("stage 4", *BASICNET))

    def test_all_ranks_hold_the_same_weights_and_statistics_after_each_step(self) -> None:
        run = trained("stage 4, 3 ranks", *CONVNET, "--fingerprint", 1)
        ranks = [records(run.folder / f"a.rank{rank}.jsonl") for rank in range(3)]
        self.assertEqual({len(marks) for marks in ranks}, {run.result["steps"]})
        for first, *others in zip(*ranks):
            for mark in others:
                self.assertEqual(mark["gradients"], first["gradients"], first["step"])
                self.assertEqual(mark["weights"], first["weights"], first["step"])
                self.assertNotEqual(mark["positions"], first["positions"])


class Fp16(AmpTest):
    def test_it_works_on_the_cpu_and_records_its_scale(self) -> None:
        run = trained("stage 4", *tiny(precision="fp16"))
        self.assertEqual((run.header["precision"], run.result["precision"]), ("fp16", "fp16"))
        skipped = run.result["skipped_steps"]
        self.assertLess(skipped, run.result["steps"])
        self.assertEqual(run.result["loss_scale"], 65536 / 2**skipped)
        self.assertGreater(distance(run, trained("stage 4", *tiny(), *FP32), is_weight), 1e-6)

    def test_it_says_that_it_is_slow_where_it_is_emulated(self) -> None:
        names = ("avx512_fp16", "amx_fp16", "fphp")
        if cpu_has(*names):
            self.skipTest(f"this CPU has one of {', '.join(names)}: fp16 is not emulated")
        said = [line for line in trained("stage 4", *tiny(precision="fp16")).done.errors
                if "fp16 is emulated" in line]
        self.assertEqual(len(said), 1, said)  # by rank 0 alone
        self.assertIn("correct and slow", said[0])


@functools.cache
def saved() -> Path:
    """What `--save` without a path leaves, after two steps in fp16."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    done = launch(*WAYS["stage 4"]().command, *tiny(precision="fp16"), "--save", cwd=folder)
    if done.code != 0:
        raise AssertionError(done.stderr)
    (path,) = folder.iterdir()
    return path


def saved_state() -> dict[str, Any]:
    with safe_open(saved(), framework="pt") as file:
        return json.loads(file.metadata()["scaler"])


class Checkpoint(AmpTest):
    FP16 = tiny(precision="fp16")

    def written(self, state: str) -> Path:
        """A file of Python with these weights and this state of a scaler."""
        path = Path(tempfile.mkdtemp(dir=FOLDER)) / "edited.safetensors"
        save_file(load_file(saved()), path, {"scaler": state})
        return path

    def go_on(self, **changes: float) -> Run:
        """Two steps from a state of the scaler with these changes."""
        path = self.written(json.dumps(saved_state() | changes))
        return trained("stage 4", *self.FP16, "--load", path)

    def test_it_has_a_name_of_its_own(self) -> None:
        self.assertEqual(saved().name, "ddp_checkpoint.safetensors")

    def test_python_loads_the_weights_into_its_own_network(self) -> None:
        keys = ConvNet().load_state_dict(load_file(saved()), strict=True)
        self.assertEqual((keys.missing_keys, keys.unexpected_keys), ([], []))

    def test_python_loads_the_scaler(self) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        scaler.load_state_dict(saved_state())
        self.assertEqual(scaler.state_dict(), saved_state())
        expected = trained("stage 4", *self.FP16).result["loss_scale"]
        self.assertEqual(scaler.get_scale(), expected)

    def test_a_run_goes_on_from_the_scale_in_the_file(self) -> None:
        result = self.go_on(scale=1024.0, _growth_tracker=5).result
        self.assertEqual((result["loss_scale"], result["skipped_steps"]), (1024, 0))

    def test_it_goes_on_from_the_count_of_good_steps_too(self) -> None:
        result = self.go_on(scale=1024.0, _growth_tracker=1999).result
        self.assertEqual((result["loss_scale"], result["skipped_steps"]), (2048, 0))

    def test_a_scale_that_is_too_large_skips_steps_and_shrinks(self) -> None:
        run = self.go_on(scale=2.0**60)
        self.assertEqual((run.result["steps"], run.result["skipped_steps"]), (2, 2))
        self.assertEqual(run.result["loss_scale"], 2.0**58)
        before, after = load_file(saved()), load_file(run.weights)
        for name in before:  # statistics of BatchNorm move with each forward
            self.assertEqual(torch.equal(before[name], after[name]), is_weight(name), name)

    def test_stages_four_and_zero_evaluate_it_alike(self) -> None:
        flags = tiny(epochs=0, load=saved())
        four = trained("stage 4", *flags, *FP32)
        zero = trained("stage 0", *flags)
        for run in (four, zero):
            ours, theirs = load_file(run.weights), load_file(saved())
            self.assertEqual(sorted(ours), sorted(theirs))
            self.assertTrue(all(torch.equal(ours[name], theirs[name]) for name in ours))
        self.expect_equal(four, zero)

    def test_a_damaged_scaler_is_refused_and_named(self) -> None:
        for state in ("{", "[]", '{"scale": 1.0}', json.dumps(saved_state() | {"scale": -1.0})):
            with self.subTest(state):
                path = self.written(state)
                way = one_rank(0, 1, free_port(), program=STAGE4)
                self.refused(f"{path}: expected", way, *self.FP16, "--quiet", "--load", path,
                             code=3)


class Profile(AmpTest):
    def header(self, *flags: object) -> dict[str, Any]:
        return trained("stage 4", *flags, "--threads", 1, "--limit-train", 64,
                       "--limit-test", 32).header

    def test_it_is_the_run_of_the_tutorial(self) -> None:
        run = trained("stage 4", "--profile", "ddp-practice", "--threads", 1, "--limit-train", 192,
                      "--limit-test", 32)
        self.assertEqual([run.header[key] for key in ("recipe", "epochs", "batch_size", "lr")],
                         ["convnet", 3, 32, 1e-4])
        self.assertEqual(run.header["options"]["--batch-mode"], "per-device")
        self.assertEqual(run.result["steps"], 3 * 192 // (2 * 32))

    def test_flags_beside_it_win_in_any_order(self) -> None:
        profile, others = ("--profile", "ddp-practice"), ("--epochs", 1, "--batch-mode", "global")
        for flags in ((*profile, *others), (*others, *profile)):
            header = self.header(*flags)
            self.assertEqual((header["recipe"], header["epochs"], header["batch_size"]),
                             ("convnet", 1, 32))
            self.assertEqual(header["options"]["--batch-mode"], "global")
        header = self.header("--lr", 0.5, "-b", 16, *profile, "-e", 0, "--recipe", "basicnet")
        self.assertEqual([header[key] for key in ("recipe", "epochs", "batch_size", "lr")],
                         ["basicnet", 0, 16, 0.5])

    def test_without_it_nothing_is_preset(self) -> None:
        header = self.header("--epochs", 0)
        self.assertEqual([header[key] for key in ("recipe", "batch_size", "lr")],
                         ["basicnet", 64, 1e-3])
        self.assertEqual(header["options"]["--batch-mode"], "global")


class Flags(AmpTest):
    NEW = ("--precision auto|fp32|bf16|fp16", "--sync-bn", "--no-sync-bn",
           "--profile none|ddp-practice", "--nprocs", "--init-method",
           "ddp_checkpoint.safetensors")

    def test_help_shows_them(self) -> None:
        text = self.start(alone(STAGE4), "--help")[0].stdout
        for flag in self.NEW:
            self.assertIn(flag, text)

    def test_the_stages_below_refuse_them(self) -> None:
        for stage in (STAGE0, STAGE1, STAGE2, STAGE3):
            for flag, value in (("--precision", "bf16"), ("--profile", "ddp-practice")):
                self.refused(f"{flag}: no such option", Way((stage,)), flag, value)

    def test_unknown_values_are_refused(self) -> None:
        self.refused("--precision: ", alone(STAGE4), "--precision", "bf8")
        self.refused("--profile: ", alone(STAGE4), "--profile", "ddp")

    def test_nprocs_is_refused_where_a_launcher_has_started_the_ranks(self) -> None:
        text = "--nprocs: the ranks have been started by {}; hint: omit --nprocs"
        self.refused(text.format("env"), Way((STAGE4, "--nprocs", 2), {
            "RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}))
        done, folder = self.start(torchrun(program=STAGE4), "--nprocs", 2)
        self.assertNotEqual(done.code, 0)
        self.assertIn(text.format("torchrun"), done.stderr)
        self.assertRegex(done.stderr, r"exitcode *: 2 ")
        self.assertEqual((done.stdout, list(folder.iterdir())), ("", []))


if __name__ == "__main__":
    unittest.main()
