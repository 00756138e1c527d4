# SPDX-License-Identifier: Apache-2.0
"""Output, files, checkpoints and traces of two ranks, and the flags for several ranks alone."""
from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import records  # noqa: E402
from tests.support.ways import (STAGE0, STAGE1, STAGE4, Run, alone, by_hand, distance,  # noqa: E402
                                small, spawned, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-ranks-"))
atexit.register(shutil.rmtree, FOLDER)

WAYS = {
    "stage 0": lambda: alone(STAGE0),
    "stage 1": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
    "stage 2": spawned,
    "stage 2, 1 rank": lambda: spawned(1),
    "stage 2, 3 ranks": lambda: spawned(3),
    "stage 3": by_hand,
    "stage 4": lambda: spawned(2, "--precision", "fp32", program=STAGE4),
}


@functools.cache
def trained(way: str, *flags: object, **changes: object) -> Run:
    return train(WAYS[way](), *small(*flags, **changes), parent=FOLDER)


def plain() -> Run:
    return trained("stage 2")


def marked() -> Run:
    """In shared memory, with all that looks at a run."""
    return trained("stage 2", fingerprint=1, trace="trace.json", check_replicas=2)


def over_sockets() -> Run:
    return trained("stage 2", backend="gloo", trace="trace.json")


def convnet_on_three() -> Run:
    return trained("stage 2, 3 ranks", recipe="convnet", limit_train=320, epochs=2, fingerprint=1)


class Output(unittest.TestCase):
    def test_only_rank_zero_prints_and_records(self) -> None:
        for way in ("stage 2", "stage 3", "stage 4"):
            with self.subTest(way):
                run = trained(way)
                self.assertEqual(len(run.done.lines), 2, run.done.stdout)
                self.assertRegex(run.done.lines[0], r"^Accuracy: \d+\.\d\d$")
                self.assertRegex(run.done.lines[1], r"^time elapsed: \d+\.\d\d seconds$")
                self.assertEqual([record["record"] for record in run.records],
                                 ["run", "epoch", "result"])
                self.assertEqual(run.header["rank"], 0)
                self.assertEqual(run.done.stderr.count("epoch 1/1 10/10"), 1)
                self.assertEqual(sorted(path.name for path in run.folder.iterdir()),
                                 ["a.jsonl", "a.safetensors"])

    def test_convnet_prints_the_lines_of_its_tutorial_once(self) -> None:
        lines = convnet_on_three().done.lines
        self.assertEqual(lines[:3], ["begin training of epoch 1/2", "begin training of epoch 2/2",
                                     "begin testing"])
        self.assertEqual(len(lines), 5, lines)

    def test_a_line_names_launcher_and_backend(self) -> None:
        for way, launcher in (("stage 2", "spawn"), ("stage 3", "env")):
            run = trained(way)
            self.assertRegex(run.done.stderr, rf"rank 0 of 2, .* by {launcher} .*backend shm")
            self.assertEqual((run.header["world_size"], run.header["backend"]), (2, "shm"))


class Fingerprints(unittest.TestCase):
    def test_all_ranks_hold_the_same_weights_after_each_step(self) -> None:
        for run in (marked(), convnet_on_three()):
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


class Checkpoint(unittest.TestCase):
    def evaluate(self, way: str, path: Path) -> Run:
        """Loads and saves, without a step."""
        return trained(way, "--quiet", epochs=0, load=path)

    def wrapped(self) -> Path:
        """The weights of `plain()` under the names that PyTorch's wrappers give them."""
        path = FOLDER / "wrapped.safetensors"
        tensors = load_file(plain().weights)
        save_file({f"module.{name}": tensor for name, tensor in tensors.items()}, path)
        return path

    def test_every_stage_evaluates_and_saves_what_two_ranks_saved(self) -> None:
        for way, path in (("stage 0", plain().weights), ("stage 1", self.wrapped()),
                          ("stage 2", self.wrapped()), ("stage 3", plain().weights),
                          ("stage 4", plain().weights)):
            with self.subTest(way):
                run = self.evaluate(way, path)
                for field in ("weights_sha256", "correct", "seen"):
                    self.assertEqual(run.result[field], plain().result[field], field)
                self.assertAlmostEqual(run.result["eval_loss"], plain().result["eval_loss"],
                                       places=6)
                self.assertEqual(run.done.stderr, "")  # quiet
                self.check_names(run.weights)

    def check_names(self, path: Path) -> None:
        """Python reads the names of the network without a wrapper."""
        self.assertEqual(sorted(load_file(path)), sorted(
            f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2")
            for kind in ("weight", "bias")))


class Traces(unittest.TestCase):
    """The all-reduces within a step.

    Two are of gradients; in some steps another one checks for a signal to stop. That all losses are
    finite is checked after ten steps, or five of an epoch that has no more, when the trace has ended.
    """

    def events(self, path: Path) -> list[dict]:
        return [event for event in json.loads(path.read_text())["traceEvents"]
                if event.get("ph") == "X"]

    def test_gradients_travel_while_backward_runs(self) -> None:
        for name in ("trace.json", "trace.rank1.json"):
            with self.subTest(name):
                self.check_overlap(self.events(over_sockets().folder / name))

    def check_overlap(self, events: list[dict]) -> None:
        # Steps carry no name. Each begins with the first convolution.
        starts = sorted(event["ts"] for event in events
                        if event["name"] == "ladder::first_conv2d")
        self.assertEqual(len(starts), 5)
        for begin, end in zip(starts, [*starts[1:], float("inf")]):
            step = [event for event in events if begin <= event["ts"] < end]
            sums = [event for event in step if event["name"] == "gloo:all_reduce"]
            convolutions = [event["ts"] + event["dur"] for event in step
                            if re.match(r"autograd::.*(FirstConv2d|ConvReluMaxPool)",
                                        event["name"])]
            self.assertIn(len(sums), (2, 3))
            self.assertEqual(len(convolutions), 2)
            begun = [event["ts"] for event in step if event["name"] == "c10d::allreduce_"]
            self.assertLess(min(begun), min(convolutions))

    def test_in_shared_memory_nothing_travels(self) -> None:
        names = [event["name"] for event in self.events(marked().folder / "trace.json")]
        self.assertIn(names.count("c10d::allreduce_"), range(10, 16))
        self.assertEqual(names.count("gloo:all_reduce"), 0)


class Flags(unittest.TestCase):
    def test_two_ranks_train_the_same_over_sockets_and_in_shared_memory(self) -> None:
        self.assertEqual(over_sockets().header["backend"], "gloo")
        self.assertEqual(over_sockets().result["weights_sha256"], plain().result["weights_sha256"])

    def test_fingerprints_traces_and_checks_of_replicas_change_nothing(self) -> None:
        self.assertEqual(marked().result["weights_sha256"], plain().result["weights_sha256"])

    def test_the_learning_rate_grows_with_the_ranks_on_request(self) -> None:
        per_device = {"batch_mode": "per-device", "limit_train": 128}
        run = trained("stage 2", scale_lr="linear", **per_device)
        self.assertEqual(run.header["lr"], 2e-3)
        given = trained("stage 2", lr=2e-3, **per_device)
        self.assertEqual(run.result["weights_sha256"], given.result["weights_sha256"])

    def test_a_schedule_lowers_the_learning_rate_after_thirty_epochs(self) -> None:
        tiny = functools.partial(trained, "stage 2, 1 rank", limit_train=8, batch_size=8,
                                 limit_test=8)
        before, after, scheduled = tiny(epochs=30), tiny(epochs=31), tiny(epochs=31,
                                                                         scheduler="step")
        # A step of AdamW is proportional to the learning rate.
        self.assertAlmostEqual(distance(scheduled, before) / distance(after, before), 0.1, places=3)
        self.assertGreater(distance(after, before), 0)


if __name__ == "__main__":
    unittest.main()
