# SPDX-License-Identifier: Apache-2.0
"""What must be equal when stages, launchers and numbers of ranks change, and how close."""
from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import free_port  # noqa: E402
from tests.support.ways import (CPU, STAGE0, STAGE1, STAGE2, STAGE3, STAGE4, Run,  # noqa: E402
                                Way, accelerate, alone, by_hand, distance, mpirun, one_rank,
                                require_equal_weights, small, spawned, torchrun, train)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-world-"))
atexit.register(shutil.rmtree, FOLDER)

# The last of the 21 batches has two images: with four ranks, two of them have none of it.
UNEVEN = small(limit_train=1282)


def with_init_method(url: str, world: int = 2) -> Way:
    """Ranks by hand that meet at `url`: the place in --init-method, the numbers in flags."""
    script = f'for r in $(seq {world}); do "$@" --rank $((r-1)) --world-size {world} & done; ' \
             f'for r in $(seq {world}); do wait -n || exit; done'
    return Way(("bash", "-c", script, "bash", STAGE3, "--init-method", url,
                *CPU))


WAYS = {
    "stage 0": lambda: alone(STAGE0),
    "stage 1": lambda: alone(STAGE1, "--device-ids", "cpu"),
    "stage 1 on two": lambda: alone(STAGE1, "--device-ids", "cpu,cpu"),
    "stage 1 on three": lambda: alone(STAGE1, "--device-ids", "cpu,cpu,cpu"),
    "stage 1 on four": lambda: alone(STAGE1, "--device-ids", "cpu,cpu,cpu,cpu"),
    "stage 2 alone": lambda: spawned(1),
    "stage 2 alone, gloo": lambda: alone(STAGE2, "--nprocs", 1, "--backend", "gloo"),
    "stage 3 alone": lambda: one_rank(0, 1, free_port()),
    "stage 3 alone, gloo": lambda: one_rank(0, 1, free_port(), "--backend", "gloo"),
    "stage 2": spawned,
    "stage 2, 3 ranks": lambda: spawned(3),
    "stage 2, 4 ranks": lambda: spawned(4),
    "stage 4 alone": lambda: spawned(1, program=STAGE4),
    "stage 4": lambda: spawned(program=STAGE4),
    "stage 4, 3 ranks": lambda: spawned(3, program=STAGE4),
    "stage 4, 4 ranks": lambda: spawned(4, program=STAGE4),
    "torchrun": torchrun,
    "mpirun": mpirun,
    "by hand": by_hand,
    "by hand, 3 ranks": lambda: by_hand(3),
    "by hand, 4 ranks": lambda: by_hand(4),
    "accelerate": accelerate,
    "tcp": lambda: with_init_method(f"tcp://127.0.0.1:{free_port()}"),
    "file": lambda: with_init_method(f"file://{tempfile.mkdtemp(dir=FOLDER)}/store"),
}


@functools.cache
def trained(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


def trained_again(way: str, *flags: object) -> Run:
    return train(WAYS[way](), *flags, parent=FOLDER)


class WorldTest(unittest.TestCase):
    def expect_equal(self, a: Run, b: Run) -> None:
        require_equal_weights(a, b)
        self.assertEqual(a.result["correct"], b.result["correct"])

    def expect_close(self, a: Run, b: Run, limit: float) -> None:
        apart = distance(a, b)
        print(f"{a.result['world_size']} and {b.result['world_size']} ranks after "
              f"{a.result['steps']} steps: {apart:.1e}")
        self.assertLessEqual(apart, limit)
        self.assertEqual(a.result["steps"], b.result["steps"])


class OneRank(WorldTest):
    """Stages 1, 2 and 3 on one device are stage 0, bit for bit."""

    def compare(self, *flags: object) -> None:
        expected = trained("stage 0", *flags)
        for way in ("stage 1", "stage 2 alone", "stage 2 alone, gloo", "stage 3 alone",
                    "stage 3 alone, gloo"):
            with self.subTest(way):
                run = trained(way, *flags)
                self.assertEqual(run.result["world_size"], 1)
                self.expect_equal(run, expected)
                self.assertEqual(run.result["eval_loss"], expected.result["eval_loss"])

    def test_basicnet(self) -> None:
        self.compare(*small())

    def test_convnet(self) -> None:
        self.compare(*small(recipe="convnet"))


class TwoRanks(WorldTest):
    """Whoever starts the ranks, they end with the same weights."""

    def compare(self, way: str, launcher: str) -> None:
        run = trained(way, *small())
        self.assertEqual(run.result["world_size"], 2)
        self.assertIn(f"by {launcher} (", run.header["launch"])
        self.expect_equal(run, trained("stage 2", *small()))

    def test_torchrun(self) -> None:
        self.compare("torchrun", "torchrun")

    def test_mpirun(self) -> None:
        self.compare("mpirun", "mpirun")

    def test_by_hand(self) -> None:
        self.compare("by hand", "env")

    def test_accelerate(self) -> None:
        self.compare("accelerate", "accelerate")

    def test_meeting_at_an_address(self) -> None:
        self.compare("tcp", "options")

    def test_meeting_in_a_file(self) -> None:
        self.compare("file", "options")

    def test_data_parallel_takes_the_same_steps(self) -> None:
        for recipe in ("basicnet", "convnet"):
            flags = small(recipe=recipe)
            self.expect_equal(trained("stage 1 on two", *flags), trained("stage 2", *flags))

    def test_the_same_command_twice(self) -> None:
        for recipe in ("basicnet", "convnet"):
            flags = small(recipe=recipe)
            self.expect_equal(trained_again("stage 2", *flags), trained("stage 2", *flags))


class ManyRanks(WorldTest):
    """The same global batches, divided otherwise: only the order of sums differs."""

    LIMIT = 2e-3  # with AdamW, which turns last bits of small gradients into whole steps

    def test_two_three_and_four_ranks_stay_close_to_one(self) -> None:
        for way in ("stage 2", "stage 2, 3 ranks", "stage 2, 4 ranks"):
            with self.subTest(way):
                self.expect_close(trained(way, *UNEVEN), trained("stage 0", *UNEVEN), self.LIMIT)

    def test_three_ranks_twice(self) -> None:
        self.expect_equal(trained_again("stage 2, 3 ranks", *UNEVEN),
                          trained("stage 2, 3 ranks", *UNEVEN))

    def test_half_the_batch_on_each_of_two_is_the_whole_batch(self) -> None:
        halves = small(batch_mode="per-device", batch_size=32)
        self.expect_close(trained("stage 2", *halves), trained("stage 0", *small()), self.LIMIT)

    def test_another_global_batch_is_not_close(self) -> None:
        run = trained("stage 2", *small(batch_mode="per-device"))
        self.assertGreater(distance(run, trained("stage 0", *small())), 10 * self.LIMIT)


class Counts(WorldTest):
    def test_every_test_image_counts_once(self) -> None:
        for way in ("stage 1 on two", "stage 2", "stage 2, 3 ranks", "stage 2, 4 ranks"):
            flags = small() if way == "stage 1 on two" else UNEVEN
            result = trained(way, *flags).result
            self.assertEqual(result["seen"], 500, way)
            self.assertIsInstance(result["correct"], int)
            self.assertEqual(result["accuracy"], result["correct"] / 5)

    def test_every_stage_sees_the_whole_test_set_on_one_to_four(self) -> None:
        for way in ("stage 0", "stage 1", "stage 1 on two", "stage 1 on three", "stage 1 on four",
                    "stage 2 alone", "stage 2", "stage 2, 3 ranks", "stage 2, 4 ranks",
                    "stage 3 alone", "by hand", "by hand, 3 ranks", "by hand, 4 ranks",
                    "stage 4 alone", "stage 4", "stage 4, 3 ranks", "stage 4, 4 ranks"):
            run = trained(way, *small(limit_train=64, limit_test=0))
            self.assertEqual(run.result["seen"], 10000, way)

    def test_stage_three_equals_stage_two_on_three_and_four_ranks(self) -> None:
        for ranks in (3, 4):
            self.expect_equal(trained(f"by hand, {ranks} ranks", *UNEVEN),
                              trained(f"stage 2, {ranks} ranks", *UNEVEN))

    def test_an_epoch_counts_the_images_of_all_ranks(self) -> None:
        for way in ("stage 0", "stage 2", "stage 2, 3 ranks", "stage 2, 4 ranks", "stage 4",
                    "stage 4, 3 ranks"):
            epoch = trained(way, *UNEVEN).records[1]
            self.assertEqual((epoch["record"], epoch["steps"], epoch["samples"]),
                             ("epoch", 21, 1282), way)

    def test_the_training_loss_is_that_of_one_rank(self) -> None:
        expected = trained("stage 0", *UNEVEN).records[1]["train_loss"]
        for way in ("stage 2", "stage 2, 3 ranks", "stage 2, 4 ranks"):
            loss = trained(way, *UNEVEN).records[1]["train_loss"]
            self.assertAlmostEqual(loss, expected, places=3, msg=way)

    def test_a_batch_for_each_device_makes_fewer_steps(self) -> None:
        run = trained("stage 2", *small(batch_mode="per-device"))
        self.assertEqual((run.result["steps"], run.records[1]["samples"]), (5, 640))
        # 650 images on three ranks are 217 for each, the last one a repetition: 64, 64, 64, 25.
        run = trained("stage 2, 3 ranks", *small(batch_mode="per-device", limit_train=650))
        self.assertEqual((run.result["steps"], run.records[1]["samples"]), (4, 651))


if __name__ == "__main__":
    unittest.main()
