# SPDX-License-Identifier: Apache-2.0
"""tools/first_difference on small files made here."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import runpy
import tempfile
import unittest
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "first_difference"))


def record(step: int, rank: int = 0) -> dict:
    return {
        "step": step,
        "epoch": 1,
        "rank": rank,
        "positions": "aaaa000000000001",
        "loss": "bbbb000000000001",
        "loss_value": 0.5,
        "gradients": {"conv2.weight": "cccc000000000001", "conv1.weight": "cccc000000000002"},
        "weights": {"conv2.weight": "dddd000000000001", "conv1.weight": "dddd000000000002"},
    }


def exact_record(step: int, rank: int, world: int) -> dict:
    """Of four micro-batches, dealt to the ranks as ShardedBatchSampler does."""
    count, more = divmod(4, world)
    begin = rank * count + min(rank, more)
    own = range(begin, begin + count + (rank < more))
    return record(step, rank) | {
        "positions": f"aaaa{own}",
        "loss": f"bbbb{own}",
        "loss_value": sum((2.0**31 + k) * 2.0**-32 for k in own),
        "world_size": world,
        "micro_batch": 16,
        "positions_of_micro_batches": [f"eeee00000000000{k}" for k in own],
    }


def exact_run(world: int, steps: int = 2) -> list[list[dict]]:
    """The records of each rank."""
    return [[exact_record(step, rank, world) for step in range(1, steps + 1)]
            for rank in range(world)]


class FirstDifferenceTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def write(self, name: str, records: list[dict]) -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
        return str(path)

    def run_tool(self, a: str, b: str) -> tuple[int, str]:
        with (contextlib.redirect_stdout(io.StringIO()) as output,
              contextlib.redirect_stderr(output)):
            code = TOOL["main"]([a, b])
        return code, output.getvalue().strip()

    def compare(self, a: list[dict], b: list[dict]) -> tuple[int, str]:
        return self.run_tool(self.write("a.jsonl", a), self.write("b.jsonl", b))

    def test_equal_runs_have_no_difference(self) -> None:
        records = [record(step) for step in range(1, 61)]
        self.assertEqual(
            self.compare(records, records), (0, "no difference in 60 records of 1 rank")
        )

    def test_names_step_rank_and_tensor(self) -> None:
        other = record(17)
        other["gradients"]["conv2.weight"] = "9999"
        self.assertEqual(
            self.compare([record(16), record(17)], [record(16), other]),
            (1, "step 17, rank 0, gradient of conv2.weight: cccc000000000001 in A, 9999 in B"),
        )

    def test_the_earliest_step_wins_whatever_the_order_of_the_lines(self) -> None:
        early, late = record(2), record(9)
        early["weights"]["conv1.weight"] = late["positions"] = "9999"
        code, line = self.compare([record(9), record(2)], [late, early])
        self.assertEqual((code, line[:37]), (1, "step 2, rank 0, weight of conv1.weigh"))

    def test_within_a_step_the_order_of_the_record_counts(self) -> None:
        everything = record(1)
        expected = ["positions", "loss", "gradient of conv2.weight", "gradient of conv1.weight",
                    "weight of conv2.weight", "weight of conv1.weight"]
        everything["positions"] = everything["loss"] = "9999"
        for kind in ("gradients", "weights"):
            everything[kind] = dict.fromkeys(everything[kind], "9999")
        for entry in expected:
            code, line = self.compare([record(1)], [everything])
            self.assertIn(f"rank 0, {entry}: ", line)
            self.cure(everything, entry)
        self.assertEqual(self.compare([record(1)], [everything])[0], 0)

    @staticmethod
    def cure(broken: dict, entry: str) -> None:
        if " of " in entry:
            kind, tensor = entry.split(" of ")
            broken[kind + "s"][tensor] = record(1)[kind + "s"][tensor]
        else:
            broken[entry] = record(1)[entry]

    def test_a_cause_on_one_rank_comes_before_its_effect_on_all(self) -> None:
        a = [record(1, rank) for rank in (0, 1)]
        b = copy.deepcopy(a)
        b[1]["positions"] = "9999"
        for each in b:
            each["gradients"]["conv2.weight"] = "8888"
        for side, records in (("a", a), ("b", b)):
            for rank in (0, 1):
                self.write(f"{side}.rank{rank}.jsonl", [records[rank]])
        code, line = self.run_tool(str(self.folder / "a"), str(self.folder / "b"))
        self.assertEqual((code, line.split(":")[0]), (1, "step 1, rank 1, positions"))

    def test_a_prefix_means_all_its_ranks(self) -> None:
        for side in "ab":
            for rank in range(3):
                self.write(f"{side}.rank{rank}.jsonl", [record(1, rank), record(2, rank)])
        self.assertEqual(
            self.run_tool(str(self.folder / "a"), str(self.folder / "b")),
            (0, "no difference in 6 records of 3 ranks"),
        )

    def test_the_loss_is_shown_with_its_value(self) -> None:
        other = record(1)
        other.update(loss="9999", loss_value=0.75)
        self.assertIn("loss: bbbb000000000001 (0.5) in A, 9999 (0.75) in B",
                      self.compare([record(1)], [other])[1])

    def test_the_spelling_of_the_loss_value_does_not_count(self) -> None:
        other = record(1)
        other["loss_value"] = 0.500001
        self.assertEqual(self.compare([record(1)], [other])[0], 0)

    def test_a_tensor_that_only_one_run_has_is_a_difference(self) -> None:
        other = record(1)
        del other["weights"]["conv1.weight"]
        code, line = self.compare([record(1)], [other])
        self.assertEqual(code, 1)
        self.assertIn("weight of conv1.weight: dddd000000000002 in A, nothing in B", line)

    def test_runs_of_different_length_are_compared_as_far_as_both_go(self) -> None:
        a = [record(step) for step in (1, 2, 3)]
        code, line = self.compare(a, a[:2])
        self.assertEqual(code, 0)
        self.assertIn("no difference in 2 records of 1 rank; A has 1 more", line)

    def test_different_k_are_compared_at_common_steps(self) -> None:
        code, line = self.compare(
            [record(s) for s in (2, 4, 6)], [record(s) for s in (3, 6)]
        )
        self.assertEqual(code, 0)
        self.assertIn("no difference in 1 record of 1 rank", line)

    def test_no_common_step_is_unusable(self) -> None:
        code, line = self.compare([record(2)], [record(3)])
        self.assertEqual(code, 2)
        self.assertIn("no step is in both runs", line)

    def test_a_missing_file_is_unusable(self) -> None:
        code, line = self.run_tool(self.write("a.jsonl", [record(1)]), str(self.folder / "b"))
        self.assertEqual(code, 2)
        self.assertIn("b: no such file", line)

    def test_a_pipe_is_no_file_of_a_rank(self) -> None:
        os.mkfifo(self.folder / "b.rank0.jsonl")
        code, line = self.run_tool(self.write("a.jsonl", [record(1)]), str(self.folder / "b"))
        self.assertEqual(code, 2)
        self.assertIn("b: no such file", line)

    def test_an_empty_file_is_unusable(self) -> None:
        code, line = self.compare([record(1)], [])
        self.assertEqual(code, 2)
        self.assertIn("b.jsonl: no records", line)

    def test_another_kind_of_file_is_unusable_and_named_with_its_line(self) -> None:
        for line_of_b in ('{"record": "run"}', "not json", "[1]", '{"gradients": 3}',
                          json.dumps(record(1) | {"rank": None}),
                          json.dumps(record(1) | {"step": [1]})):
            (self.folder / "b.jsonl").write_text(line_of_b + "\n", encoding="utf-8")
            a = self.write("a.jsonl", [record(1)])
            code, line = self.run_tool(a, str(self.folder / "b.jsonl"))
            self.assertEqual(code, 2, line)
            self.assertIn("b.jsonl:1: not a fingerprint record", line)

    def test_other_ranks_are_unusable(self) -> None:
        code, line = self.compare([record(1, 0)], [record(1, 1)])
        self.assertEqual(code, 2)
        self.assertIn("A has ranks [0], B has ranks [1]", line)

    # Different numbers of ranks.

    def compare_runs(self, a: list[list[dict]], b: list[list[dict]]) -> tuple[int, str]:
        for side, run in (("a", a), ("b", b)):
            for rank, records in enumerate(run):
                self.write(f"{side}.rank{rank}.jsonl", records)
        return self.run_tool(str(self.folder / "a"), str(self.folder / "b"))

    def test_exact_runs_of_other_world_sizes_are_compared_as_wholes(self) -> None:
        for world in (2, 3, 4, 8):
            code, line = self.compare_runs(exact_run(1), exact_run(world))
            self.assertEqual((code, line), (
                0, f"no difference in 2 steps; 1 rank in A, {world} in B; compared: positions in "
                "the order of the ranks, sum of losses, gradients and weights of all ranks"))

    def test_records_of_a_longer_run_without_a_counterpart_are_counted(self) -> None:
        code, line = self.compare_runs(exact_run(1), exact_run(3, steps=4))
        self.assertEqual(code, 0)
        self.assertIn("; B has 6 more, without a counterpart", line)

    def test_names_what_differs_between_world_sizes(self) -> None:
        whole = exact_run(1)
        cases = (
            ("positions of micro-batch 4",
             lambda run: run[2][1]["positions_of_micro_batches"].__setitem__(0, "9999")),
            ("sum of losses", lambda run: run[0][1].update(loss_value=1.0)),
            ("gradient of conv2.weight",
             lambda run: [rank[1]["gradients"].update({"conv2.weight": "9999"}) for rank in run]),
            ("weight of conv1.weight",
             lambda run: run[1][1]["weights"].update({"conv1.weight": "9999"})),
        )
        for entry, change in cases:
            run = exact_run(3)
            change(run)
            code, line = self.compare_runs(whole, run)
            self.assertEqual((code, line.split(": ")[0]), (1, f"step 2, all ranks, {entry}"))
            self.assertIn("; 1 rank in A, 3 in B; compared: positions in the order", line)

    def test_ranks_that_differ_within_a_run_are_shown(self) -> None:
        run = exact_run(2)
        run[1][0]["weights"]["conv1.weight"] = "9999"
        self.assertIn("dddd000000000002 in A, dddd000000000002 on rank 0, 9999 on rank 1 in B",
                      self.compare_runs(exact_run(1), run)[1])

    def test_the_sum_of_losses_is_not_rounded(self) -> None:
        """2^-32 beside 1.0 is beyond float32, and the order of a float sum is not the ranks'."""
        run = exact_run(4)
        run[3][0]["loss_value"] += 2.0**-32
        code, line = self.compare_runs(exact_run(1), run)
        self.assertEqual((code, line.split(": ")[0]), (1, "step 1, all ranks, sum of losses"))

    def test_losses_that_are_not_finite_are_equal_to_each_other_alone(self) -> None:
        a, b = exact_run(1), exact_run(2)
        a[0][0]["loss_value"] = None
        code, line = self.compare_runs(a, b)
        self.assertEqual(code, 1)
        self.assertIn("sum of losses: not finite in A, 2.", line)
        b[1][0]["loss_value"] = None
        self.assertEqual(self.compare_runs(a, b)[0], 0)

    def test_other_world_sizes_with_sums_in_float_are_refused(self) -> None:
        fast = [[record(1, rank)] for rank in (0, 1)]
        for a, b, name in ((fast, exact_run(3), "A"), (exact_run(1), fast, "B")):
            code, line = self.compare_runs(a, b)
            self.assertEqual(code, 2)
            self.assertIn(f"{name} has sums in float", line)
            self.assertIn("hint: train both with --sums exact", line)
            for path in self.folder.iterdir():
                path.unlink()

    def test_other_micro_batches_are_refused(self) -> None:
        run = exact_run(2)
        for rank in run:
            for line in rank:
                line["micro_batch"] = 8
        fast = [[record(step, rank) for step in (1, 2)] for rank in (0, 1)]
        for a, b, sums in ((exact_run(1), run, "exact sums over micro-batches of 16"),
                           (exact_run(2), run, "exact sums over micro-batches of 16"),
                           (fast, run, "float sums")):
            code, line = self.compare_runs(a, b)
            self.assertEqual(code, 2)
            self.assertIn(f"A has {sums}, B has exact sums over micro-batches of 8", line)
            self.assertIn("hint: train both with the same --sums and --micro-batch", line)
            for path in self.folder.iterdir():
                path.unlink()

    def test_a_run_without_the_files_of_all_ranks_is_refused(self) -> None:
        one_of_three = exact_run(3)[0]
        a = self.write("a.rank0.jsonl", exact_run(1)[0])
        self.write("b.rank0.jsonl", one_of_three)
        self.write("b.rank1.jsonl", exact_run(3)[1])
        code, line = self.run_tool(a, str(self.folder / "b"))
        self.assertEqual(code, 2)
        self.assertIn("B has files of ranks [0, 1], of a world size of 3", line)
        self.assertIn("hint: give NAME up to .rankR.jsonl", line)

    def test_single_files_of_other_world_sizes_are_refused(self) -> None:
        a = self.write("a.rank0.jsonl", exact_run(1)[0])
        code, line = self.run_tool(a, self.write("b.rank0.jsonl", exact_run(3)[0]))
        self.assertEqual(code, 2)
        self.assertIn("B has files of ranks [0], of a world size of 3; hint: give NAME", line)


if __name__ == "__main__":
    unittest.main()
