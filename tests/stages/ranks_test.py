# SPDX-License-Identifier: Apache-2.0
"""What two ranks print, write, save and load, and the flags that only several ranks have."""
from __future__ import annotations

import atexit
import functools
import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import launch, records  # noqa: E402
from tests.support.ways import (STAGE0, STAGE1, STAGE4, Run, Way, alone, by_hand,  # noqa: E402
                                distance, mpirun, small, spawned, torchrun, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-ranks-"))
atexit.register(shutil.rmtree, FOLDER)

WAYS = {
    "stage 0": lambda: alone(STAGE0),
    "stage 1": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
    "stage 2": spawned,
    "stage 2, 3 ranks": lambda: spawned(3),
    "stage 4": lambda: spawned(2, "--precision", "fp32", program=STAGE4),
    "torchrun": torchrun,
    "by hand": by_hand,
    "mpirun": mpirun,
}


@functools.cache
def trained(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


class RanksTest(unittest.TestCase):
    def refused(self, text: str, *flags: object, way: Way | None = None, code: int = 2) -> None:
        """Expects one line on the standard error, before anything is trained or written."""
        way = way or spawned()
        folder = Path(tempfile.mkdtemp(dir=FOLDER))
        done = launch(*way.command, *flags, cwd=folder, environment=way.environment)
        self.assertEqual((done.code, done.stdout, len(done.errors)), (code, "", 1), done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(list(folder.iterdir()), [])


class Output(RanksTest):
    def test_only_rank_zero_prints_and_records(self) -> None:
        for way in ("stage 2", "stage 2, 3 ranks", "stage 4", "by hand", "mpirun", "torchrun"):
            with self.subTest(way):
                run = trained(way, *small())
                self.assertEqual(len(run.done.lines), 2, run.done.stdout)
                self.assertRegex(run.done.lines[0], r"^Accuracy: \d+\.\d\d$")
                self.assertRegex(run.done.lines[1], r"^time elapsed: \d+\.\d\d seconds$")
                self.assertEqual([record["record"] for record in run.records],
                                 ["run", "epoch", "result"])
                self.assertEqual(run.header["rank"], 0)
                self.assertEqual(run.done.stderr.count("epoch 1/1 10/10"), 1)
                self.assertEqual(sorted(path.name for path in run.folder.iterdir()),
                                 ["a.jsonl", "a.safetensors"])

    def test_quiet_ranks_say_nothing_else(self) -> None:
        for way in ("stage 1", "stage 2", "stage 4", "by hand"):
            self.assertEqual(trained(way, *small("--quiet")).done.stderr, "", way)

    def test_convnet_prints_the_lines_of_its_tutorial_once(self) -> None:
        lines = trained("stage 2", *small(recipe="convnet", epochs=2)).done.lines
        self.assertEqual(lines[:3], ["begin training of epoch 1/2", "begin training of epoch 2/2",
                                     "begin testing"])
        self.assertEqual(len(lines), 5, lines)

    def test_a_line_says_how_the_ranks_met(self) -> None:
        for way, launcher in (("stage 2", "spawn"), ("torchrun", "torchrun"), ("by hand", "env")):
            run = trained(way, *small())
            self.assertRegex(run.done.stderr, rf"rank 0 of 2, .* by {launcher} .*backend shm")
            self.assertEqual((run.header["world_size"], run.header["backend"]), (2, "shm"))


class Fingerprints(RanksTest):
    def test_all_ranks_hold_the_same_weights_after_each_step(self) -> None:
        for recipe, way in (("basicnet", "stage 2"), ("convnet", "stage 2, 3 ranks")):
            flags = small(recipe=recipe, fingerprint=1)
            run = trained(way, *flags)
            ranks = [records(run.folder / f"a.rank{rank}.jsonl")
                     for rank in range(run.result["world_size"])]
            self.assertEqual({len(marks) for marks in ranks}, {run.result["steps"]})
            for marks in zip(*ranks):
                self.compare(marks)

    def compare(self, marks: tuple[dict, ...]) -> None:
        first, step = marks[0], marks[0]["step"]
        for rank, mark in enumerate(marks):
            self.assertEqual((mark["rank"], mark["step"]), (rank, step))
            self.assertEqual(mark["gradients"], first["gradients"], step)
            # Running statistics are those of the own images until the next forward.
            for name, digest in first["weights"].items():
                if "running" not in name:
                    self.assertEqual(mark["weights"][name], digest, (step, rank, name))
        self.assertEqual(len({mark["positions"] for mark in marks}), len(marks))

    def test_the_fingerprint_changes_nothing(self) -> None:
        marked = trained("stage 2", *small(fingerprint=1, recipe="basicnet"))
        self.assertEqual(marked.result["weights_sha256"],
                         trained("stage 2", *small()).result["weights_sha256"])


class Checkpoint(RanksTest):
    def test_python_reads_the_plain_names(self) -> None:
        for way in ("stage 1", "stage 2"):
            names = sorted(load_file(trained(way, *small()).weights))
            self.assertEqual(names, sorted(
                f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2")
                for kind in ("weight", "bias")))

    def evaluate(self, way: str, path: Path, saved: Run) -> None:
        run = trained(way, *small(epochs=0, load=path))
        for field in ("weights_sha256", "correct", "seen"):
            self.assertEqual(run.result[field], saved.result[field], (way, field))
        self.assertAlmostEqual(run.result["eval_loss"], saved.result["eval_loss"], places=6)

    def test_every_stage_evaluates_what_two_ranks_saved(self) -> None:
        saved = trained("stage 2", *small())
        for way in ("stage 0", "stage 1", "stage 2", "stage 4", "by hand"):
            self.evaluate(way, saved.weights, saved)

    def test_names_with_the_prefix_of_a_wrapper_load_too(self) -> None:
        saved = trained("stage 2", *small())
        path = FOLDER / "wrapped.safetensors"
        save_file({f"module.{name}": tensor for name, tensor in load_file(saved.weights).items()},
                  path)
        for way in ("stage 0", "stage 1", "stage 2"):
            self.evaluate(way, path, saved)

    def test_loading_continues_training(self) -> None:
        saved = trained("stage 2", *small())
        run = trained("stage 2", *small(load=saved.weights))
        self.assertLess(run.records[1]["train_loss"], saved.records[1]["train_loss"] / 2)

    def test_a_checkpoint_of_another_network_is_refused_by_all(self) -> None:
        saved = trained("stage 2", *small())
        done = launch(*spawned().command, *small(recipe="convnet", load=saved.weights),
                      cwd=FOLDER)
        self.assertEqual((done.code, done.stdout), (3, ""), done.stderr)
        self.assertIn("a tensor fc.bias, got none", done.stderr)


class Traces(RanksTest):
    """What a trace shows of a step: where the all-reduces of gradients lie.

    Of the gradients come two. One more says whether all losses are finite (in the last step, the
    trace ends before it); in some steps another one asks whether a rank was told to stop.
    """

    def events(self, path: Path) -> list[dict]:
        return [event for event in json.loads(path.read_text())["traceEvents"]
                if event.get("ph") == "X"]

    def test_gradients_travel_while_backward_runs(self) -> None:
        run = trained("stage 2", *small(trace="trace.json", backend="gloo"))
        for name in ("trace.json", "trace.rank1.json"):
            with self.subTest(name):
                self.check_overlap(self.events(run.folder / name))

    def check_overlap(self, events: list[dict]) -> None:
        # Steps carry no name. Each begins with the first of its two convolutions.
        starts = sorted(event["ts"] for event in events if event["name"] == "aten::conv2d")[::2]
        self.assertEqual(len(starts), 5)
        for begin, end in zip(starts, [*starts[1:], float("inf")]):
            step = [event for event in events if begin <= event["ts"] < end]
            sums = [event for event in step if event["name"] == "gloo:all_reduce"]
            convolutions = [event["ts"] + event["dur"] for event in step if event["name"] ==
                            "autograd::engine::evaluate_function: ConvolutionBackward0"]
            self.assertIn(len(sums), (2, 3, 4))
            self.assertEqual(len(convolutions), 2)
            self.assertLess(min(event["ts"] for event in sums), max(convolutions))

    def test_in_shared_memory_nothing_travels(self) -> None:
        run = trained("stage 2", *small(trace="trace.json"))
        names = [event["name"] for event in self.events(run.folder / "trace.json")]
        self.assertIn(names.count("c10d::allreduce_"), range(14, 21))
        self.assertEqual(names.count("gloo:all_reduce"), 0)

    def test_it_changes_nothing(self) -> None:
        traced = trained("stage 2", *small(trace="trace.json"))
        self.assertEqual(traced.result["weights_sha256"],
                         trained("stage 2", *small()).result["weights_sha256"])


class Flags(RanksTest):
    def test_two_ranks_train_the_same_over_sockets_and_in_shared_memory(self) -> None:
        for recipe in ("basicnet", "convnet"):
            sockets = trained("stage 2", *small(recipe=recipe, backend="gloo"))
            self.assertEqual(sockets.header["backend"], "gloo")
            self.assertEqual(sockets.result["weights_sha256"],
                             trained("stage 2", *small(recipe=recipe)).result["weights_sha256"])

    def test_replicas_can_be_compared_while_training(self) -> None:
        checked = trained("stage 2, 3 ranks", *small(check_replicas=2))
        self.assertEqual(checked.result["weights_sha256"],
                         trained("stage 2, 3 ranks", *small()).result["weights_sha256"])

    def test_nprocs_zero_means_two_without_a_gpu(self) -> None:
        run = train(alone(spawned().command[0], "--nprocs", 0), *small(limit_train=64),
                    parent=FOLDER)
        self.assertEqual(run.result["world_size"], 2)

    def test_numbers_out_of_range_are_refused(self) -> None:
        program = spawned().command[0]
        for text, *flags in (("expected a number >= 0, got -1", "--nprocs", -1),
                             ("--nprocs: expected 0 to 256, got 300", "--nprocs", 300),
                             ("--master-port: expected 0 to 65535, got 70000", "--master-port",
                              70000),
                             ("expected a number >= 0, got -1", "--master-port", -1),
                             ("expected a number >= 1, got 0", "--timeout", 0)):
            self.refused(text, *flags, way=alone(program))

    def test_the_rate_grows_only_with_the_batch(self) -> None:
        self.refused("--scale-lr: in global mode the batch does not grow", "--scale-lr", "linear")


class LearningRate(RanksTest):
    PER_DEVICE = small(batch_mode="per-device", limit_train=128)

    def test_it_is_the_given_one_unless_told(self) -> None:
        self.assertEqual(trained("stage 2", *self.PER_DEVICE).header["lr"], 1e-3)

    def test_it_grows_with_the_ranks(self) -> None:
        for rule, factor in (("linear", 2.0), ("sqrt", 2.0 ** 0.5)):
            run = trained("stage 2", *self.PER_DEVICE, "--scale-lr", rule)
            self.assertAlmostEqual(run.header["lr"], 1e-3 * factor, places=12, msg=rule)
            given = trained("stage 2", *self.PER_DEVICE, "--lr", repr(run.header["lr"]))
            self.assertEqual(run.result["weights_sha256"], given.result["weights_sha256"])

    def test_a_schedule_lowers_it_after_thirty_epochs(self) -> None:
        tiny = functools.partial(small, limit_train=8, batch_size=8, limit_test=8)
        before = trained("stage 2", *tiny(epochs=30))
        plain = trained("stage 2", *tiny(epochs=31))
        scheduled = trained("stage 2", *tiny(epochs=31, scheduler="step"))
        # A step of AdamW is proportional to the learning rate.
        self.assertAlmostEqual(distance(scheduled, before) / distance(plain, before), 0.1, places=3)
        self.assertGreater(distance(plain, before), 0)


if __name__ == "__main__":
    unittest.main()
