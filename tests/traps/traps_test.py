# SPDX-License-Identifier: Apache-2.0
"""Every demonstration of build/bin/traps: effect, guard, time, and its block in docs/traps.md.

Computed numbers are compared exactly. Measured ones have wide bounds, because last digits depend on
the CPU's vector kernels. The page is compared with the output as tools/docs_walk.py does.
"""
from __future__ import annotations

import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import docs_walk  # noqa: E402
from tests.support.programs import BIN, FULL, ROOT, Launched, run  # noqa: E402

SECONDS = 30
WAITING = ("fork-after-threads", "test-on-rank-0")  # for seconds, and without computing
PAGE = "docs/traps.md"


class Shown(dict[tuple[str, str], list[str]]):
    """The lines of a demonstration: values by side and label."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        for line in lines:
            side, label, value = re.split(r" {2,}", line, maxsplit=2)
            self.setdefault((side, label), []).append(value)

    def one(self, side: str, label: str) -> str:
        [value] = self[side, label]
        return value

    def number(self, side: str, label: str) -> float:
        return float(re.match(r"[-+.\de]+", self.one(side, label))[0])


def shown_by_command() -> dict[str, tuple[str, ...]]:
    """The output of each command on the page."""
    [page] = docs_walk.pages_of(ROOT, [PAGE])
    return {command.text: command.shown for command in docs_walk.commands_of(page, SECONDS)}


class Traps(unittest.TestCase):
    PAGE = shown_by_command()
    waiting: dict[str, Launched] = {}

    @classmethod
    def setUpClass(cls) -> None:
        """Starts the demonstrations that wait, in parallel with the others."""
        for name in WAITING:
            cls.waiting[name] = Launched(BIN / "traps", name)
            cls.addClassCleanup(cls.waiting[name].kill_all)

    def show(self, name: str) -> Shown:
        with self.waiting.get(name) or Launched(BIN / "traps", name) as started:
            done = started.finish(SECONDS)
        self.assertEqual((done.code, done.stderr), (0, ""), done.stdout)
        shown = docs_walk.trimmed(self.PAGE[f"build/bin/traps {name}"])
        found = docs_walk.difference(docs_walk.comparable(shown), docs_walk.comparable(done.lines))
        self.assertIsNone(found, f"{PAGE} shows for {name}:\n" + "\n".join(shown) +
                          "\nIt prints:\n" + done.stdout)
        return Shown(done.lines[1:])

    def test_raw_model_forward(self) -> None:
        shown = self.show("raw-model-forward")
        self.assertEqual(shown.one("mistake", "steps"), "100")
        self.assertGreater(shown.number("mistake", "distance between ranks"), 0.01)
        self.assertEqual(shown.one("guard", "distance between ranks"), "0")
        self.assertIn("tensor", shown.one("guard", "error without the wrapper"))

    def test_no_sampler(self) -> None:
        shown = self.show("no-sampler")
        self.assertEqual(shown.one("mistake", "images read"), "6400 of 3200")
        self.assertEqual(shown.one("mistake", "same weights as one rank"), "yes")
        self.assertEqual(shown.one("guard", "images read"), "3200 of 3200")
        self.assertEqual([shown.one(side, "world size of the loader")
                          for side in ("mistake", "guard")], ["1", "2"])

    def test_accuracy_divided(self) -> None:
        shown = self.show("accuracy-divided")
        parts = [shown.number("mistake", f"accuracy on rank {rank}") for rank in (0, 1)]
        whole = shown.number("guard", "accuracy")
        self.assertAlmostEqual(sum(parts), whole, delta=0.011)  # three roundings
        self.assertLess(max(parts), 0.6 * whole)
        self.assertEqual(shown.one("guard", "images seen"), "2000")
        self.assertIn("expected 2000 samples, each counted once, got 1000",
                      shown.one("guard", "error"))

    @unittest.skipUnless(FULL, "evaluates the whole test set three times, with LADDER_FULL")
    def test_padded_evaluation(self) -> None:
        shown = self.show("padded-evaluation")
        self.assertEqual((shown.one("mistake", "images counted"),
                          shown.one("mistake", "counted with drop_last"),
                          shown.one("guard", "images counted")), ("10003", "9996", "10000"))
        self.assertIn("got 10003", shown.one("guard", "error"))
        self.assertIn("got 9996", shown.one("guard", "error with drop_last"))

    def test_test_on_rank_0(self) -> None:
        shown = self.show("test-on-rank-0")
        waited = shown.number("mistake", "waited, seconds")
        self.assertTrue(2.5 <= waited <= 8, waited)
        self.assertIn("all_reduce on rank 0 of 2", shown.one("guard", "error"))
        self.assertEqual(shown.one("guard", "images seen, both ranks"), "1000")

    def test_divide_before_wait(self) -> None:
        shown = self.show("divide-before-wait")
        self.assertEqual(shown.one("mistake", "elements wrong"), "1179648 of 1179648")
        for label in ("elements wrong with wait()", "elements wrong, all_reduce"):
            self.assertEqual(shown.one("guard", label), "0 of 1179648")

    def test_no_set_epoch(self) -> None:
        shown = self.show("no-set-epoch")
        self.assertEqual(shown.one("mistake", "images at equal positions"), "60000 of 60000")
        self.assertLess(shown.number("guard", "images at equal positions"), 20)
        self.assertEqual(shown.one("guard", "prepared loader advances"), "yes")

    def test_batch_64_by_7(self) -> None:
        shown = self.show("batch-64-by-7")
        self.assertEqual([shown.one("mistake", label) for label in
                          ("images per rank", "images per step", "steps per epoch")],
                         ["9 9 9 9 9 9 9", "63", "953"])
        self.assertEqual([shown.one("guard", label) for label in
                          ("images per rank", "images per step", "steps per epoch")],
                         ["10 9 9 9 9 9 9", "64", "938"])

    def test_scheduler_too_fast(self) -> None:
        shown = self.show("scheduler-too-fast")
        self.assertEqual((shown.one("mistake", "steps per step() call"),
                          shown.one("mistake", "rates of epochs 1 to 6")),
                         ("2", "0.1 0.01 0.001 0.0001 1e-05 1e-06"))
        self.assertEqual((shown.one("guard", "steps per step() call"),
                          shown.one("guard", "rates of epochs 1 to 6")),
                         ("1", "0.1 0.1 0.01 0.01 0.001 0.001"))

    def test_scheduler_on_rank_0(self) -> None:
        shown = self.show("scheduler-on-rank-0")
        self.assertEqual(shown.one("mistake", "rates in epoch 3"), "0.0005 0.05")
        self.assertEqual(shown.one("guard", "rates in epoch 3"), "0.0005 0.0005")
        self.assertGreater(shown.number("mistake", "distance between ranks"), 1e-4)
        self.assertEqual(shown.one("guard", "distance between ranks"), "0")
        self.assertIn("replicas, tensor", shown.one("guard", "error"))

    def test_plain_backward(self) -> None:
        shown = self.show("plain-backward")
        self.assertAlmostEqual(shown.number("mistake", "times too large"), 4.0, delta=0.01)
        self.assertIn("replace loss.backward()", shown.one("guard", "error with --debug"))

    def test_per_device_batch(self) -> None:
        shown = self.show("per-device-batch")
        wrong = shown.number("mistake", "per device: accuracy")
        self.assertEqual(shown.one("mistake", "per device: steps"), "100")
        for mode, steps, rate in (("global", "200", "0.001"), ("scaled", "100", "0.002")):
            self.assertEqual((shown.one("guard", f"{mode}: steps"),
                              shown.one("guard", f"{mode}: learning rate")), (steps, rate))
            self.assertGreater(shown.number("guard", f"{mode}: accuracy"), wrong + 1)

    def test_same_noise(self) -> None:
        shown = self.show("same-noise")
        self.assertEqual(shown.one("mistake", "equal shifts on both ranks"), "3200 of 3200")
        chance = shown.number("guard", "equal shifts on both ranks")
        self.assertTrue(64 <= chance <= 256, chance)  # a 25th is 128
        self.assertEqual(shown.one("guard", "equal shifts, same image"), "10 of 10")

    def test_module_prefix(self) -> None:
        shown = self.show("module-prefix")
        self.assertEqual(shown.one("mistake", "first name in the file"), "module.conv1.bias")
        self.assertEqual(shown.one("mistake", "tensors found by name"), "0 of 8")
        self.assertEqual(shown.one("guard", "first name in the file"), "conv1.bias")
        self.assertEqual(shown.one("guard", "tensors found by name"), "8 of 8")

    def test_sync_bn_after_wrap(self) -> None:
        shown = self.show("sync-bn-after-wrap")
        self.assertGreater(shown.number("mistake", "gradient's distance"), 0.01)
        self.assertLess(shown.number("guard", "gradient's distance"), 1e-5)
        self.assertEqual(shown.one("guard", "layers converted"), "2")
        self.assertIn("the model is wrapped already", shown.one("guard", "error"))

    def test_unscale_twice(self) -> None:
        shown = self.show("unscale-twice")
        self.assertAlmostEqual(shown.number("mistake", "times too small") / 65536, 1, delta=0.01)
        self.assertIn("unscale_ twice", shown.one("guard", "error"))

    def test_fork_after_threads(self) -> None:
        shown = self.show("fork-after-threads")
        self.assertGreaterEqual(shown.number("mistake", "threads before the fork"), 2)
        self.assertEqual(shown.one("mistake", "child process computes"),
                         "no: killed after 3 seconds")
        self.assertIn("threads, of which a rank would have one", shown.one("guard", "error"))

    def test_mean_of_means(self) -> None:
        shown = self.show("mean-of-means")
        self.assertNotEqual(shown.one("mistake", "loss of 1025 images"),
                            shown.one("guard", "loss of 1025 images"))
        self.assertGreater(shown.number("mistake", "gradient of 2 + 1 images"), 0.01)
        self.assertLess(shown.number("guard", "gradient of 2 + 1 images"), 1e-5)
        self.assertIn("expected a finite loss, got", shown.one("guard", "error of an empty mean"))

    def test_nproc_per_nodes(self) -> None:
        shown = self.show("nproc-per-nodes")
        self.assertEqual((shown.one("mistake", "exit code"),
                          shown.one("guard", "exit code, correct flag")), ("2", "0"))
        self.assertIn("--nproc_per_nodes", shown.one("mistake", "error of torchrun"))
        self.assertIn("--nproc-per-nodes: no such option", shown.one("guard",
                                                                     "error of stage 2"))
        self.assertIn("torchrun", shown.one("guard", "error without a launcher"))

    def test_two_are_not_one(self) -> None:
        shown = self.show("two-are-not-one")
        for side in ("mistake", "guard"):
            weights = {shown.one(side, "weights of 1 rank")}
            for count in (2, 3):
                digest, apart = shown.one(side, f"weights of {count} ranks").split(", distance ")
                weights.add(digest)
                distance = float(apart)
                if side == "guard":
                    self.assertEqual(distance, 0)
                else:
                    self.assertTrue(1e-8 <= distance <= 1e-1, distance)
            self.assertEqual(len(weights), {"mistake": 3, "guard": 1}[side])


class List(unittest.TestCase):
    def stages(self) -> dict[str, int]:
        """The stage of each demonstration, in the order of the list."""
        done = run("traps", "list")
        self.assertEqual((done.code, done.stderr), (0, ""))
        matches = [re.match(r"([\w-]+) +stage (\d)  \S", line) for line in done.lines]
        return {match[1]: int(match[2]) for match in matches if match}

    def test_every_demonstration_has_a_test_a_file_and_a_section_on_the_page(self) -> None:
        stages = self.stages()
        names = list(stages)
        self.assertEqual(len(names), 20)
        self.assertEqual(sorted(stages.values()), list(stages.values()))
        files = {name.replace("-", "_") for name in names}
        helpers = {"main", "all_traps", "ranks", "report"}
        self.assertEqual({path.stem for path in ROOT.glob("traps/*.cpp")}, files | helpers)
        self.assertEqual({name for name in dir(Traps) if name.startswith("test_")},
                         {f"test_{file}" for file in files})
        self.assertEqual(self.sections(), list(stages.items()))

    def sections(self) -> list[tuple[str, int]]:
        """The demonstrations on the page, each with the stage of the heading above it."""
        page = (ROOT / PAGE).read_text(encoding="utf-8")
        found: list[tuple[str, int]] = []
        stage = -1
        for number, name in re.findall(r"^(?:## Stage (\d)\b.*|### ([\w-]+))$", page, re.MULTILINE):
            if name:
                found.append((name, stage))
            else:
                stage = int(number)
        return found

    def test_an_unknown_name_is_refused_with_the_nearest_one(self) -> None:
        done = run("traps", "no-samples")
        self.assertEqual((done.code, done.stdout), (2, ""))
        self.assertIn("did you mean no-sampler?", done.stderr)

    def test_without_a_name_it_prints_its_usage(self) -> None:
        for arguments, code in (((), 2), (("--help",), 0), (("list", "more"), 2)):
            done = run("traps", *arguments)
            self.assertEqual(done.code, code)
            self.assertIn("usage: traps list", done.stdout)


if __name__ == "__main__":
    unittest.main()
