# SPDX-License-Identifier: Apache-2.0
"""bench/report: statistics, verdicts on equality, tables and page, from made-up results."""
from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from html.parser import HTMLParser
from collections import Counter
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "bench" / "report"
sys.path[:0] = [str(REPORT), str(ROOT)]
import digits  # noqa: E402
import exact  # noqa: E402
import lesson_pictures  # noqa: E402
import marks  # noqa: E402
import pages  # noqa: E402
import records  # noqa: E402
import report  # noqa: E402
import stages  # noqa: E402
import step  # noqa: E402
import table  # noqa: E402
import updates  # noqa: E402
from claims import speed_claim, twins_claim  # noqa: E402
from environment import environment_table, honesty  # noqa: E402
from equality import verdict_for  # noqa: E402
from intervals import (  # noqa: E402
    bootstrap, mean_of, median_of, ratio_of, student, wilson, within_noise,
)
from results import Results, ResultsError, Setup, read, read_key  # noqa: E402
from tables import (  # noqa: E402
    MORE, accuracy_table, feeding_table, recipe_table, stage_cells, stage_table, summary,
    twin_table,
)
from tests.bench import sample_links  # noqa: E402
from tests.bench import sample_results as made  # noqa: E402
from words import ALL_COLOURS, PAPER, PHASE_COLOURS, RUNG_COLOURS  # noqa: E402

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class FilesTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def write(self, content: dict[str, Any], name: str = "a.json") -> Path:
        return made.write(self.folder / name, content)

    def read(self, *entries: dict[str, Any]) -> Results:
        return read([self.write({"context": dict(made.CONTEXT), "benchmarks": list(entries)})])

    def start(self, program: ModuleType, *arguments: object) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program.main([str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    def output(self, program: ModuleType, *arguments: object) -> str:
        code, out, err = self.start(program, *arguments)
        self.assertEqual((code, err), (0, ""))
        return out


def step_record() -> dict[str, Any]:
    """What step.py measures, of two made-up traces."""
    steps = {"reference": step.steps_of(made.trace()),
             "fast": step.steps_of(made.trace(
                 pool="torch::autograd::CppNode<ladder::(anonymous namespace)::ReluMaxPool>"))}
    return {"commit": "abc1234", "threads": 2, "length": {math: 10.0 for math in step.MATHS},
            "operations": {math: step.medians(steps[math]) for math in step.MATHS},
            "flame": {math: step.flame(steps[math][0]) for math in step.MATHS}}


class Steps(unittest.TestCase):
    """step.py."""

    def test_a_step_is_what_lies_between_two_optimizers_on_their_thread(self) -> None:
        [first, second] = step.steps_of(made.trace())
        self.assertEqual((first.length, second.length), (10.0, 10.0))
        self.assertEqual([box.name for box in first.boxes],
                         ["aten::conv2d", "wrapper", "aten::_fused_adamw_"])
        self.assertEqual([box.name for box in first.boxes[0].calls], ["aten::mkldnn_convolution"])

    def test_the_time_of_an_operation_is_its_own(self) -> None:
        times = step_record()["operations"]["fast"]
        self.assertEqual({name: round(value, 3) for name, value in times.items()},
                         {"conv2d": 0.2, "mkldnn_convolution": 3.8, "ReluMaxPool backward": 2.0,
                          "_fused_adamw_": 1.0, step.REST: 3.0})

    def test_the_table_has_the_dearest_of_reference_math_first_and_adds_up(self) -> None:
        self.assertEqual(step.table(step_record()).splitlines()[2:], [
            "| `mkldnn_convolution` | 3.80 | 3.80 |",
            "| `max_pool2d_with_indices` | 2.00 |  |",
            "| `_fused_adamw_` | 1.00 | 1.00 |",
            "| `conv2d` | 0.20 | 0.20 |",
            "| `ReluMaxPool backward` |  | 2.00 |",
            f"| {step.REST} | 3.00 | 3.00 |",
            "| **a step** | 10.00 | 10.00 |"])

    def test_a_call_that_only_calls_another_one_is_shown_as_that(self) -> None:
        boxes = step_record()["flame"]["reference"]
        self.assertEqual(boxes, [[0, "mkldnn_convolution", 0.1, 3.8],
                                 [0, "wrapper", 5.0, 2.5], [1, "max_pool2d_with_indices", 5.1, 2.0],
                                 [0, "_fused_adamw_", 9.0, 1.0]])

    def test_the_picture_names_what_is_wide_enough(self) -> None:
        svg = step.picture(step_record())
        for words in ("--math reference: 10.0 ms", "mkldnn_convolution", "ReluMaxPool backward",
                      "max_pool2d_with_indices: 2.00 ms"):
            self.assertIn(words, svg)


def gradients_record() -> dict[str, Any]:
    """What gradients.py counts, of made-up gradients: 1/8 below float16, 1/8 at its end."""
    return {"commit": "abc1234", "counts": {
        "parameters": {"zeros": 5, "bins": {"-50": 1, "-25": 2, "-14": 4, "0": 1}},
        "activations": {"zeros": 0, "bins": {"-26": 1, "-15": 7}}}}


class Gradients(unittest.TestCase):
    """gradients.py and its picture."""

    def test_counts_magnitudes_by_powers_of_two_and_zeros_apart(self) -> None:
        import gradients  # imports PyTorch, which takes seconds
        import torch

        smallest = 2.0 ** -149  # of float32
        counts = gradients.Counts()
        counts.add(torch.tensor([[0.0, -0.0, 1.0, -1.5], [2.0, 1.999, smallest, -0.75]]))
        counts.add(torch.tensor([3.0]))
        counts.add(torch.zeros(2))
        self.assertEqual(counts.record(), {"zeros": 4,
                                           "bins": {"-149": 1, "-1": 1, "0": 3, "1": 2}})

    def test_counts_the_gradients_of_outputs_of_layers_with_parameters(self) -> None:
        import gradients
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
        counts = gradients.Counts()
        gradients.count_outputs(model, counts)
        model(torch.ones(3, 1)).sum().backward()
        self.assertEqual(counts.zeros + counts.bins.total(), 3)

    def test_a_scale_moves_all_shares_to_other_regions(self) -> None:
        names = [region.name for region in lesson_pictures.REGIONS]
        for power, shares in ((0, (0.125, 0.25, 0.625, 0)), (16, (0.125, 0, 0.75, 0.125))):
            found = lesson_pictures.shares(gradients_record()["counts"]["parameters"], power)
            self.assertEqual({region.name: lesson_pictures.region_share(found, region)
                              for region in lesson_pictures.REGIONS}, dict(zip(names, shares)))
        self.assertEqual([lesson_pictures.share_text(share) for share in (0, 1e-6, 0.0123, 1)],
                         ["0 %", "< 0.001 %", "1.2 %", "100 %"])

    def test_the_picture_has_the_shares_before_and_after_the_scale(self) -> None:
        svg = lesson_pictures.gradients_picture(gradients_record())
        self.assertIn("activations rounds to 0 12 %, subnormal 88 %, normal 0 %, inf 0 %; ", svg)
        self.assertIn("× 65,536, in float16: activations rounds to 0 0 %, subnormal 0 %, normal "
                      "100 %, inf 0 %; parameters rounds to 0 12 %, subnormal 0 %, normal 75 %, "
                      "inf 12 %", svg)
        self.assertIn(">2⁻²⁴<", svg)


def updates_record() -> dict[str, Any]:
    """What updates.py writes, of made-up accuracies."""
    curves = {"global": [[375, 12_000, 45.0], [5625, 180_000, 91.03]],
              "per-device": [[188, 12_032, 30.0], [2814, 180_000, 87.4]],
              "per-device, linear": [[188, 12_032, 71.5], [2814, 180_000, 91.0]]}
    return {"commit": "abc1234", "ways": {way: {"batch": 32, "flags": [], "points": points}
                                          for way, points in curves.items()}}


class Updates(unittest.TestCase):
    """updates.py and its picture."""

    def test_a_point_is_an_evaluation_and_the_last_one_counts_once(self) -> None:
        lines = [json.dumps({"record": "run", "run": "a"}),
                 *(json.dumps({"record": "log", "step": step, "eval/accuracy": accuracy,
                               "train/epoch": epoch})
                   for step, accuracy, epoch in ((188, 0.5, 0.2), (938, 0.8394, 1.0))),
                 json.dumps({"record": "log", "step": 938, "train/train_loss": 0.5}),
                 json.dumps({"record": "log", "step": 938, "eval/accuracy": 0.8394,
                             "train/epoch": 1.0})]
        self.assertEqual(updates.points_of(lines), [[188, 12_000, 50.0], [938, 60_000, 83.94]])

    def test_evaluates_after_as_many_images_each_way(self) -> None:
        every = {way.batch: updates.command_of(way, Path("a")) for way in updates.WAYS.values()}
        self.assertEqual({batch: words[words.index("--eval-steps") + 1]
                          for batch, words in every.items()}, {32: "375", 64: "188"})

    def test_the_picture_has_each_way_over_updates_and_images(self) -> None:
        svg = lesson_pictures.updates_picture(updates_record())
        self.assertIn("32 images per rank: 2,814 updates, 87.40 %; ", svg)
        self.assertEqual((svg.count("<circle"), svg.count("stroke-dasharray")), (2 * 3, 3))
        for axis in (">updates<", ">images<", ">180,000<", ">4,000<"):
            self.assertIn(axis, svg)


class Marks(FilesTest):
    """marks.py."""

    def rows(self, *entries: dict[str, Any]) -> dict[str, list[str]]:
        return {mark.what: mark.cells()[1:] for mark in marks.marks(self.read(*entries))}

    def test_a_factor_is_the_time_of_the_twin_over_that_of_the_stage(self) -> None:
        rows = self.rows(*made.slices("basicnet", "stage0_single_gpu", 2.0, 1, 2),
                         *made.slices("basicnet", "python_single", 5.0, 1, 2),
                         *made.slices("basicnet", "stage5_accelerator", 2.1, 1, 2))
        wanted, here, reached = rows["BasicNet, fp32: stage 0 against its Python twin, 200 steps"]
        self.assertEqual((wanted, reached), ("≥ 2.0 ×", "yes"))
        self.assertRegex(here, r"^2\.50 \[1\.\d\d, 3\.\d\d\]$")
        self.assertEqual(rows["BasicNet: stage 5 over stage 0"][2], "no")
        self.assertEqual(rows["BasicNet: stage 6 over stage 0"][1:], ["not run", ""])

    def test_the_opponent_is_the_faster_tuned_program_of_the_same_precision_and_threads(self) -> None:
        stage0, stage4 = "stage0_single_gpu", "stage4_ddp_amp"
        eager, compiled = "python_tuned", "python_tuned_compile"
        rows = [*made.slices("basicnet", stage0, 2.0, 1, 2),
                *made.slices("basicnet", eager, 7.0, 1, 2),
                *made.slices("basicnet", compiled, 6.0, 1, 2),
                *made.slices("basicnet", eager, 0.1, 1, 1),  # on fewer threads
                *made.slices("basicnet", stage4, 1.0, 1, 2, "bf16"),
                *made.slices("basicnet", eager, 2.0, 1, 2, "bf16"),
                *made.slices("basicnet", compiled, 3.0, 1, 2, "bf16"),
                *made.slices("convnet", stage0, 1.0, 1, 2),
                *made.slices("convnet", eager, 2.6, 1, 2),
                made.entry("slice", "convnet", compiled, 1, 2, real_time=0.0, error_occurred=True,
                           error_message=made.NOT_RUN)]
        found = self.rows(*rows)
        for target, *wanted in (
            ("BasicNet, fp32: stage 0", "≥ 3.0 ×", "3.00 [", "yes"),
            ("BasicNet, bf16: stage 4, one rank,", "≥ 2.3 ×", "2.00 [", "no"),
            ("ConvNet, fp32: stage 0", "≥ 2.5 ×", "2.60 [", "yes"),
        ):
            cells = found[f"{target} against the fastest tuned Python"]
            self.assertEqual([cells[0], cells[1][:6], cells[2]], wanted)
        self.assertRegex(speed_claim(self.read(*rows)),
                         r"^BasicNet, fp32, 2 threads: stage 0 trains 3\.00 \[2\.\d\d, 3\.\d\d\] "
                         r"times as fast as the fastest tuned Python program "
                         r"\(python_tuned_compile\)\.$")

    def test_a_record_without_tuned_python_claims_the_twin_else_nothing(self) -> None:
        stage = made.slices("basicnet", "stage0_single_gpu", 2.0, 1, 2)
        twin = made.slices("basicnet", "python_single", 5.0, 1, 2)
        self.assertRegex(speed_claim(self.read(*stage, *twin)),
                         r"stage 0 trains 2\.50 \[.*\] times as fast as its Python twin\.$")
        self.assertEqual(self.rows(*stage, *twin)["BasicNet, fp32: stage 0 against the fastest "
                                                  "tuned Python"][1:], ["not run", ""])
        self.assertEqual(speed_claim(self.read(*stage)), "")
        self.assertEqual(speed_claim(self.read(*twin)), "")

    def test_each_stage_against_its_own_twin_is_a_range_for_each_network(self) -> None:
        rows = [*made.slices("basicnet", "stage0_single_gpu", 2.0, 1, 2),
                *made.slices("basicnet", "python_single", 5.0, 1, 2),
                *made.slices("basicnet", "stage2_ddp_spawn", 2.0, 2, 1),
                *made.slices("basicnet", "python_ddp_spawn", 8.0, 2, 1),
                *made.slices("basicnet", "stage3_ddp_torchrun", 2.0, 2, 1),  # has no twin here
                *made.slices("convnet", "stage0_single_gpu", 2.0, 1, 2),
                *made.slices("convnet", "python_single", 3.0, 1, 2)]
        self.assertEqual(twins_claim(self.read(*rows)),
                         "Each stage trains 2.5 to 4.0 times (basicnet) and 1.5 to 1.5 times "
                         "(convnet) as fast as its Python twin with the same number of processes, "
                         "threads and bits.")
        self.assertEqual(twins_claim(self.read(*rows[:5])), "")

    def test_whole_runs_and_starts_have_no_interval(self) -> None:
        rows = self.rows(*made.slices("convnet", "stage0_single_gpu", 1.0, 1, 2),
                         *made.slices("convnet", "python_single", 1.0, 1, 2),
                         made.full("convnet", "stage0_single_gpu", 20.0, 1, 2, 9200,
                                   startup_seconds=0.5),
                         made.full("convnet", "python_single", 50.0, 1, 2, 9200),
                         made.full("convnet", "stage3_ddp_torchrun", 50.0, 2, 1, 9200,
                                   startup_seconds=9.0))
        self.assertEqual(rows["ConvNet, fp32: stage 0 against its Python twin, whole run"],
                         ["≥ 1.9 ×", "2.50 (one run)", "yes"])
        self.assertEqual(rows["Start of a program to its first step, slowest stage"],
                         ["≤ 1.0 s", "0.50 (one run)", "yes"])

    def test_the_floor_and_one_and_two_ranks(self) -> None:
        rows = self.rows(*made.slices("basicnet", "stage0_single_gpu", 3.9, 1, 2),
                         *made.slices("basicnet", "stage2_ddp_spawn", 6.0, 1, 1),
                         *made.slices("basicnet", "stage2_ddp_spawn", 4.29, 1, 2),
                         *made.slices("basicnet", "stage2_ddp_spawn", 3.0, 2, 1))
        self.assertEqual(rows["BasicNet, fp32: stage 0, time over the floor of arithmetic"][1],
                         "1.01 [0.98, 1.30]")
        self.assertTrue(rows["BasicNet: two ranks × 1 thread against one × 1 thread"][1]
                        .startswith("2.00 ["))
        self.assertTrue(rows["BasicNet: stage 2 with one rank over stage 0"][1]
                        .startswith("1.10 ["))


class ExactSums(FilesTest):
    """exact.py."""

    def setUp(self) -> None:
        super().setUp()
        self.results = read([self.write(made.exact_sums())])

    def test_a_step_stands_beside_the_one_with_sums_in_float(self) -> None:
        rows = exact.price_table(self.results).rows
        self.assertEqual([row[:2] for row in rows], [
            [ranks, sums] for ranks in ("1 x 1", "2 x 1")
            for sums in ("fast", "exact, micro-batch 8", "exact, micro-batch 16",
                         "exact, micro-batch 32")])
        # 6 s of 200 steps are 30 ms; of repetitions that jitter, the median is 1.01 of that.
        self.assertEqual(rows[0][2:], ["30.3 [29.4, 39.0]", "1"])
        self.assertTrue(rows[1][2].startswith("39.4 [") and rows[1][3].startswith("1.30 ["), rows)

    def test_a_row_that_failed_or_has_no_counterpart_says_so(self) -> None:
        entries = made.exact_sums()["benchmarks"]
        alone = self.read(*(one for one in entries if "micro_batch:8" in one["name"]))
        self.assertEqual({row[3] for row in exact.price_table(alone).rows}, {"not run"})
        failed = self.read(*(one | {"error_occurred": True, "error_message": "no memory"}
                             for one in entries))
        self.assertEqual({row[2] for row in exact.price_table(failed).rows}, {"failed: no memory"})
        self.assertEqual(exact.seeds_table(failed).rows, [])

    def test_accuracies_are_compared_seed_by_seed(self) -> None:
        table_of_seeds = exact.seeds_table(self.results)
        self.assertEqual(table_of_seeds.header, ("seed", "fast", "exact, micro-batch 16",
                                                 "difference, points"))
        self.assertEqual(table_of_seeds.rows[0], ["1", "98.41", "98.43", "+0.02"])
        self.assertEqual([row[0] for row in table_of_seeds.rows], ["1", "2", "3", "mean"])
        self.assertEqual(table_of_seeds.rows[3], ["mean", "98.42", "98.42", "+0.00 [-0.05, +0.05]"])

    def test_a_seed_with_one_of_the_two_is_left_out(self) -> None:
        entries = [one for one in made.exact_sums()["benchmarks"]
                   if not ("seed:2" in one["name"] and "micro_batch" in one["name"])]
        self.assertEqual([row[0] for row in exact.seeds_table(self.read(*entries)).rows],
                         ["1", "3", "mean"])

    def test_other_tables_do_not_have_these_rows(self) -> None:
        text = table.markdown_text(self.results)
        self.assertEqual(re.findall("^## (.*)$", text, re.MULTILINE),
                         ["The price of exact sums", "Accuracy of exact sums", "Environment",
                          "Limits of these numbers"])

    def test_the_picture_has_each_micro_batch_once_for_each_number_of_ranks(self) -> None:
        svg = exact.picture()
        for part in "ABCD":
            self.assertEqual(svg.count(f">{part}</text>"), 3)
        self.assertEqual(svg.count("A + B + C + D</text>"), 3)


class StagesPicture(FilesTest):
    """stages.py."""

    def test_each_stage_stands_beside_its_twin_with_what_is_between_them(self) -> None:
        svg = stages.picture(self.read(*made.sample()["benchmarks"]))
        [told] = re.findall('<desc id="stages-desc">(.*?)</desc>', svg)
        pairs = told.split("; ")
        self.assertEqual([words.split(":")[0] for words in pairs],
                         [name for pair in zip(made.STAGES, made.TWINS) for name in pair])
        # Twins take 2.1 times as long; of repetitions that jitter, the median is 1.01 of that.
        self.assertRegex(pairs[0], r"5\.45 s, 2\.10 \[1\.\d\d, 2\.\d\d\] × as fast$")
        self.assertEqual(pairs[1], "python_single: 11.5 s")
        self.assertEqual(pairs[3], "python_data_parallel: 11.6 s (1 replica: no GPU)")
        self.assertEqual((svg.count("<rect"), svg.count('fill="none"/><path')), (14, 7))
        for words in ("Sample CPU of nobody", "2 x 1, bf16", *made.STAGES):
            self.assertIn(words, svg)

    def test_a_stage_with_other_weights_has_no_speed(self) -> None:
        svg = stages.picture(self.read(*made.sample(
            weights={("stage3_ddp_torchrun", 2): "c" * 64})["benchmarks"]))
        self.assertIn("stage3_ddp_torchrun: 5.67 s, WRONG; python_ddp_torchrun", svg)
        self.assertEqual(svg.count("× as fast"), 2 * 6)

    def test_a_stage_without_a_twin_is_named(self) -> None:
        entries = [entry for entry in made.sample()["benchmarks"] if "python_ddp_amp" not in
                   entry["name"]]
        with self.assertRaisesRegex(ResultsError, "expected stage4_ddp_amp and python_ddp_amp"):
            stages.picture(self.read(*entries))


class Pages(FilesTest):
    """pages.py, in a folder of its own."""

    def setUp(self) -> None:
        super().setUp()
        for name in (pages.RECORD, "bench/results/short.json"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            made.write(self.folder / name, made.sample())
        (self.folder / pages.STEP_RECORD).write_text(json.dumps(step_record()))
        (self.folder / pages.LINKS_RECORD).write_text(json.dumps(sample_links.record()))
        blocks = {"README.md": "two-cores.json --speed", "docs/bench.md": "two-cores.json --markdown",
                  "docs/cluster.md": "two-cores.links.json --links",
                  "docs/performance.md": "two-cores.step.json --step",
                  "docs/same-weights.md": "exact.json --price"}
        made.write(self.folder / "bench/results/exact.json", made.exact_sums())
        for page, record in blocks.items():
            (self.folder / page).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / page).write_text(
                "before\n![Time](images/bench-time-basicnet.svg)\n"
                f"<!-- record bench/results/{record} -->\nold\n"
                "<!-- end of the record -->\nafter\n", encoding="utf-8")
        root = patch.object(pages, "ROOT", self.folder)
        root.start()
        self.addCleanup(root.stop)

    def test_writes_tables_and_pictures_and_finds_what_differs_from_them(self) -> None:
        code, out, err = self.start(pages)
        self.assertEqual((code, err), (1, ""))
        self.assertIn(f"README.md:4: differs from its record {pages.RECORD}; {pages.CURE}\n"
                      "  page  : old\n  record: \n", out)
        self.assertEqual(self.start(pages, "--update")[0], 0)
        self.assertEqual(self.start(pages), (0, "", ""))
        readme = (self.folder / "README.md").read_text(encoding="utf-8")
        self.assertTrue(readme.startswith("before\n![Time]") and readme.endswith("-->\nafter\n"))
        self.assertIn("\n\nBasicNet, fp32, 2 threads: stage 0 trains 1.48 [", readme)
        exact_page = (self.folder / "docs/same-weights.md").read_text(encoding="utf-8")
        self.assertIn("--price -->\n\n| ranks | sums | ms per step", exact_page)
        for page in ("README.md", "docs/bench.md", "docs/same-weights.md"):
            self.assertIn("\nMeasured at commit b1aeebe dirty: Sample CPU of nobody, 2 CPUs, GPU "
                          "none.\n\n<!-- end", (self.folder / page).read_text(encoding="utf-8"))
        self.assertIn("\nMeasured at commit abc1234, 2 threads.\n",
                      (self.folder / "docs/performance.md").read_text(encoding="utf-8"))
        cluster = (self.folder / "docs/cluster.md").read_text(encoding="utf-8")
        self.assertIn("| 1 Gbit/s | plain | 40.0 [40.0, 40.0] | 4.80 | 32.0 | 32.0 to 42.0 | inside |",
                      cluster)
        bench = self.folder / "docs" / "bench.md"
        self.assertIn("\n### Claims of the source tutorials\n", bench.read_text(encoding="utf-8"))
        picture = self.folder / "docs" / "images" / "bench-time-basicnet.svg"
        self.assertTrue(picture.read_text(encoding="utf-8").startswith(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<!-- SPDX-License-Identifier: Apache-2.0 -->\n'
            '<svg xmlns="http://www.w3.org/2000/svg"'))
        lines = bench.read_text(encoding="utf-8").split("\n")
        line = next(place for place, line in enumerate(lines) if "91.55 %" in line)
        was, lines[line] = lines[line], lines[line].replace("91.55 %", "91.56 %")
        bench.write_text("\n".join(lines), encoding="utf-8")
        picture.write_text("<svg/>", encoding="utf-8")
        code, out, _ = self.start(pages)
        self.assertEqual((code, out.splitlines()),
                         (1, [f"docs/bench.md:{line + 1}: differs from its record "
                              f"{pages.RECORD}; {pages.CURE}",
                              f"  page  : {lines[line]}", f"  record: {was}",
                              "docs/images/bench-time-basicnet.svg:1: differs from its record; "
                              + pages.CURE]))

    def test_a_number_within_a_sentence_comes_from_its_row(self) -> None:
        page = self.folder / "docs/stages/4.md"
        page.parent.mkdir()
        one = "slice/basicnet/stage2_ddp_spawn/world:2/precision:fp32/threads:1"
        begin = f"<!-- value {pages.RECORD} {one}"
        page.write_text(f"A step takes {begin} ms_per_step -->9<!-- end --> ms, "
                        f"{begin} over {one.replace('2/prec', '1/prec')} -->9<!-- end --> of one "
                        f"process, in {begin} memory -->9<!-- end --> MB.\n", encoding="utf-8")
        self.start(pages, "--update")
        text = re.sub("<!--.*?-->", "", page.read_text(encoding="utf-8"))
        self.assertEqual(text, "A step takes 28.0 ms, 0.52 of one process, in 1180 MB.\n")
        page.write_text(page.read_text(encoding="utf-8").replace("1180", "1181"), encoding="utf-8")
        code, out, _ = self.start(pages)
        self.assertEqual((code, out.splitlines()[0]), (
            1, f"docs/stages/4.md:1: differs from its record {pages.RECORD}; {pages.CURE}"))
        for words, reason in ((f"{one} weight", "one of seconds, ms_per_step"),
                              (one.replace("world:2", "world:9") + " seconds", "has no row"),
                              (f"{one} over", "expected ROW over ROW")):
            page.write_text(f"<!-- value {pages.RECORD} {words} -->9<!-- end -->", encoding="utf-8")
            code, _, err = self.start(pages)
            self.assertEqual(code, 2)
            self.assertIn(reason, err)

    def test_two_records_are_read_as_one(self) -> None:
        made.write(self.folder / "bench/results/whole.json", made.whole())
        bench = self.folder / "docs/bench.md"
        rows = [row for row in made.sample()["benchmarks"] if not row["name"].startswith("full/")]
        made.write(self.folder / pages.RECORD, {"context": made.CONTEXT, "benchmarks": rows})
        bench.write_text(bench.read_text(encoding="utf-8").replace(
            "two-cores.json", "two-cores.json bench/results/whole.json").replace(
            "time-basicnet", "summary"), encoding="utf-8")
        self.assertEqual(self.start(pages, "--update")[0], 0)
        text = bench.read_text(encoding="utf-8")
        self.assertIn("### Accuracy over seeds", text)
        self.assertIn("### Each stage beside its twin", text)
        self.assertTrue((self.folder / "docs/images/bench-summary.svg").exists())

    def test_writes_the_pictures_that_a_page_shows_alone_and_makes_all_once(self) -> None:
        with patch.object(pages, "wanted", wraps=pages.wanted) as wanted:
            self.assertEqual(self.start(pages, "--update")[0], 0)
        self.assertEqual(wanted.call_count, 1)
        self.assertEqual({path.name for path in (self.folder / "docs" / "images").iterdir()},
                         {"bandwidth.svg", "bench-time-basicnet.svg", "links.svg",
                          "micro-batches.svg", "scale.svg", "stages.svg", "step.svg"})

    def test_writes_the_pictures_of_lessons_once_their_records_are_there(self) -> None:
        for name, record in (("gradients.svg", gradients_record()),
                             ("updates.svg", updates_record())):
            path, _ = pages.LESSON_PICTURES[name]
            (self.folder / path).write_text(json.dumps(record))
        self.assertEqual(self.start(pages, "--update")[0], 0)
        for name in pages.LESSON_PICTURES:
            self.assertTrue((self.folder / "docs/images" / name).exists(), name)

    def test_a_page_without_a_record_or_with_an_unknown_picture_is_named(self) -> None:
        readme = self.folder / "README.md"
        text = readme.read_text(encoding="utf-8")
        for other, words in ((text.replace("<!-- record", "<!-- rekord"), "README.md: expected"),
                             (text.replace("time-basicnet", "time-x"), "images/bench-time-x.svg")):
            readme.write_text(other, encoding="utf-8")
            code, out, err = self.start(pages, "--update")
            self.assertEqual((code, out), (2, ""))
            self.assertIn(words, err)

    def test_a_record_that_is_not_there_is_named(self) -> None:
        (self.folder / pages.RECORD).unlink()
        code, _, err = self.start(pages)
        self.assertEqual(code, 2)
        self.assertIn("two-cores.json", err)


class Records(FilesTest):
    """records.py, on a repository made here."""

    def setUp(self) -> None:
        super().setUp()
        self.git("init", "--quiet", "--initial-branch=main")
        self.measured = self.commit("ladder/a.h", "one")
        self.record(self.measured)

    def git(self, *arguments: str) -> str:
        user = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        done = subprocess.run(["git", "-C", self.folder, *user, *arguments], capture_output=True,
                              text=True, timeout=60, check=True)
        return done.stdout.strip()

    def commit(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"Change of {name}")
        return self.git("rev-parse", "--short", "HEAD")

    def record(self, commit: str | None, name: str = "a.json") -> None:
        context = {"date": "2026-01-02"} | ({} if commit is None else {"commit": commit})
        self.commit(f"bench/results/{name}", json.dumps({"context": context}, indent=2))

    def judged(self) -> tuple[int, str]:
        code, out, err = self.start(records, "--root", self.folder)
        self.assertEqual(err, "")
        return code, out

    def test_a_record_is_fresh_until_a_source_of_it_changes(self) -> None:
        self.commit("docs/a.md", "a page")
        self.commit("bench/links/cable.py", "not of the suite")
        self.assertEqual(self.judged(), (0, ""))
        for name in ("stage0_single_gpu/main.cpp", "bench/peers/single.py", "mnist/a/b.h"):
            changed = self.commit(name, "two")
            self.assertEqual(self.judged(), (
                1, f"bench/results/a.json:4: stale: measured at {self.measured}, and its sources "
                f"changed in {changed} Change of {name}; hint: ./run bench; cp runs/bench.json "
                "bench/results/a.json\n"))
            self.record(changed)
            self.assertEqual(self.judged(), (0, ""))
            self.measured = changed

    def test_a_record_depends_on_its_own_sources(self) -> None:
        self.record(self.measured, "a.step.json")
        self.record(self.measured, "a.links.json")
        changed = self.commit("bench/links/cable.py", "a longer cable")
        code, out = self.judged()
        self.assertEqual((code, len(out.splitlines())), (1, 1))
        self.assertIn(f"a.links.json:4: stale: measured at {self.measured}, and its sources "
                      f"changed in {changed} ", out)

    def test_a_commit_that_is_missing_dirty_or_elsewhere_is_stale(self) -> None:
        self.git("checkout", "--quiet", "-b", "other")
        elsewhere = self.commit("docs/b.md", "b")
        self.git("checkout", "--quiet", "main")
        for commit, line, words in ((None, 1, "it names no commit"), ("", 4, "it names no commit"),
                                    (f"{self.measured} dirty", 4, "changes that are in no commit"),
                                    (f"{self.measured}-dirty", 4, "changes that are in no commit"),
                                    (elsewhere, 4, "not in the history of HEAD"),
                                    ("0123456", 4, "not in the history of HEAD")):
            self.record(commit)
            code, out = self.judged()
            self.assertEqual(code, 1)
            self.assertTrue(out.startswith(f"bench/results/a.json:{line}: stale: "), out)
            self.assertIn(words, out)

    def test_a_file_without_sources_or_a_folder_without_records_is_an_error(self) -> None:
        self.commit("bench/results/a.txt", "?")
        code, out, err = self.start(records, "--root", self.folder)
        self.assertEqual((code, out), (2, ""))
        self.assertIn("bench/results/a.txt: a record without sources; hint:", err)
        code, _, err = self.start(records, "--root", self.folder / "docs")
        self.assertEqual(code, 2)
        self.assertIn("no record", err)

    def test_the_tier_of_the_pages_begins_with_it(self) -> None:
        text = (ROOT / "test").read_text(encoding="utf-8")
        self.assertLess(text.index("== docs ]]; then check_records"),
                        text.index("then tools/setup.sh full"))


class Statistics(unittest.TestCase):
    def test_wilson_gives_the_intervals_that_newcombe_published(self) -> None:
        for correct, seen, low, high in ((81, 263, 25.53, 36.62), (15, 148, 6.24, 16.05),
                                         (0, 20, 0.0, 16.11), (1, 29, 0.61, 17.18)):
            self.assertEqual([round(end, 2) for end in wilson(correct, seen)], [low, high])

    def test_wilsons_ends_are_where_the_count_is_just_likely_enough(self) -> None:
        for end in wilson(9155, 10_000):
            share = end / 100
            distance = abs(share - 0.9155) / math.sqrt(share * (1 - share) / 10_000)
            self.assertAlmostEqual(distance, 1.959963984540054, places=9)

    def test_the_interval_of_a_median_is_that_of_all_draws(self) -> None:
        # Of five values, three of five draws are the smallest in 5.8 % of all cases: it is the end.
        self.assertEqual(median_of([5, 1, 4, 2, 3]), (3, (1, 5)))
        # Of nine, five of nine draws are among the lowest two in 3.0 %, the lowest in 0.1 %.
        self.assertEqual(median_of(list(range(1, 10))), (5, (2, 8)))

    def test_a_mean_has_the_interval_of_student(self) -> None:
        mean = mean_of([1.0, 2.0, 3.0])
        self.assertEqual(mean.value, 2.0)
        self.assertAlmostEqual(mean.interval.high, 2 + 4.303 / math.sqrt(3), places=9)
        self.assertEqual(mean_of([5.0]), (5.0, None))
        self.assertIsNone(mean_of([]))
        for freedom, wanted in ((1, 12.706), (10, 2.228), (11, 2.201), (30, 2.042), (100, 1.984)):
            self.assertAlmostEqual(student(freedom), wanted, delta=0.0025)

    def test_the_same_values_give_the_same_interval(self) -> None:
        values = tuple(math.sqrt(prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
        with patch("intervals.DRAWS", 40):  # few enough that other draws give other ends
            first, second = (bootstrap.__wrapped__(values) for _ in range(2))  # not from its memory
        self.assertEqual(first, second)

    def test_one_measurement_has_no_interval_and_none_has_nothing(self) -> None:
        self.assertEqual(median_of([2.5]), (2.5, None))
        self.assertIsNone(median_of([]))

    def test_a_ratio_is_that_of_the_medians_in_whatever_order(self) -> None:
        first, second = [2.0, 3.0, 5.0, 7.0, 11.0], [23.0, 29.0, 31.0, 37.0, 41.0]
        drawn = [Counter(median(draw) for draw in itertools.product(values, repeat=5))
                 for values in (first, second)]  # of all draws there are
        ratios = sorted((one / other, times * other_times) for one, times in drawn[0].items()
                        for other, other_times in drawn[1].items())
        sums = list(itertools.accumulate(times for _, times in ratios))
        ends = [next(ratio for (ratio, _), up_to in zip(ratios, sums) if up_to > share * sums[-1])
                for share in (0.025, 0.975)]
        for other in itertools.islice(itertools.permutations(second), 0, 120, 30):
            ratio = ratio_of(first, other)
            self.assertAlmostEqual(ratio.value, 5 / 31)
            self.assertEqual(list(ratio.interval), ends)

    def test_a_ratio_of_one_run_has_no_interval_and_of_none_is_none(self) -> None:
        self.assertEqual(ratio_of([1.0], [2.0, 2.0]), (0.5, None))
        self.assertIsNone(ratio_of([1.0], []))
        self.assertIsNone(ratio_of([1.0], [0.0]))

    def test_noise_is_what_two_tests_of_10000_images_differ_by(self) -> None:
        self.assertTrue(within_noise((9155, 10_000), (9100, 10_000)))
        self.assertFalse(within_noise((9155, 10_000), (8921, 10_000)))


class Reading(FilesTest):
    def test_a_name_says_what_ran(self) -> None:
        key, seed = read_key("curve/convnet/python_single/world:2/precision:bf16/threads:4/width:2"
                             "/epochs:1/seed:3/variant:dispatch/iterations:1/repeats:5/manual_time")
        self.assertEqual((key.kind, key.epochs, seed), ("curve", 1, 3))
        self.assertEqual(key.setup, Setup("convnet", "python_single", 2, "bf16", 4, 2.0,
                                          variant="dispatch"))

    def test_refuses_a_name_that_says_less(self) -> None:
        for name in ("", "slice", "slice/basicnet", "loader/basicnet/stage0_single_gpu",
                     "slice/basicnet/stage0_single_gpu/world:two"):
            with self.assertRaises(ResultsError, msg=name):
                read_key(name)

    def test_a_file_that_is_none_is_one_line_and_exit_code_2(self) -> None:
        for text in ("", "{", "[]", '{"context": {}}', '{"context": {}, "benchmarks": []}'):
            path = self.folder / "bad.json"
            path.write_text(text, encoding="utf-8")
            for script in ((table, path), (report, path, "-o", self.folder / "a.html")):
                code, out, err = self.start(*script)
                self.assertEqual((code, out, len(err.splitlines())), (2, "", 1), (text, err))
        self.assertEqual(self.start(table, self.folder / "none.json")[0], 2)

    def test_aggregates_are_left_out_and_units_are_seconds(self) -> None:
        one = made.entry("full", "basicnet", "stage0_single_gpu", real_time=1500, time_unit="ms")
        mean = {**one, "run_type": "aggregate", "real_time": 9.0}
        row, = self.read(one, mean).of_kind("full")
        self.assertEqual(row.seconds(), (1.5, None))

    def test_repetitions_of_two_files_are_one_row(self) -> None:
        stage, twin = "stage0_single_gpu", "python_single"
        both = [*made.slices("basicnet", stage, 1.0, 1, 2),
                *made.slices("basicnet", twin, 2.0, 1, 2)]
        alone = made.slices("basicnet", stage, 10.0, 1, 2)
        files = [self.write({"context": made.CONTEXT, "benchmarks": rows}, name)
                 for rows, name in ((both, "a.json"), (alone, "b.json"))]
        results = read(files)
        setup = Setup("basicnet", "stage0_single_gpu", 1, "fp32", 2)
        self.assertEqual(len(results.row("slice", setup).good), 10)
        pooled = median([seconds * jitter for seconds in (1, 10) for jitter in made.JITTER])
        self.assertAlmostEqual(results.ratio_to_twin(setup).value,
                               pooled / (2 * median(made.JITTER)))

    def test_a_file_that_was_cut_off_between_rows_is_read_as_far_as_it_goes(self) -> None:
        rows = made.slices("basicnet", "stage0_single_gpu", 1.0, 1, 2)
        whole = self.write({"context": made.CONTEXT, "benchmarks": rows})
        text = whole.read_text(encoding="utf-8")
        self.assertNotIn("The run was stopped: rows are missing.", honesty(read([whole])))
        cut = self.folder / "cut.json"
        for end in ("", ",", ",\n", "\n"):
            cut.write_text(text.removesuffix("]}") + end, encoding="utf-8")
            results = read([cut])
            self.assertEqual(len(results.of_kind("slice")[0].good), 5)
            self.assertIn("The run was stopped: rows are missing.", honesty(results))
            self.assertNotIn("stopped_early", str(environment_table(results).rows))
        cut.write_text(text[:-20], encoding="utf-8")
        with self.assertRaisesRegex(ResultsError, "cut.json: expected the JSON"):
            read([cut])


class Equality(FilesTest):
    def state(self, weights: dict[tuple[str, int], str], program: str) -> tuple[str, str]:
        results = self.read(*made.checks("basicnet", weights))
        return tuple(verdict_for(results, "basicnet", program))

    def test_all_are_equal(self) -> None:
        for stage in made.STAGES:
            self.assertEqual(self.state({}, stage), ("yes", ""))

    def test_weights_other_than_those_of_stage_0_are_wrong(self) -> None:
        state, reason = self.state({("stage4_ddp_amp", 1): "c" * 64}, "stage4_ddp_amp")
        self.assertEqual(state, "WRONG")
        self.assertIn("stage0_single_gpu at world size 1", reason)

    def test_one_of_six_at_world_size_2_is_wrong_and_the_others_are_not(self) -> None:
        for odd in ("stage1_data_parallel", "stage4_ddp_amp", "stage6_trainer"):
            weights = {(odd, 2): "c" * 64}
            for stage in made.STAGES[1:]:
                expected = "WRONG" if stage == odd else "yes"
                self.assertEqual(self.state(weights, stage)[0], expected, (odd, stage))

    def test_without_stage_0_nothing_is_known(self) -> None:
        results = self.read(made.failed("check", "basicnet", "stage0_single_gpu", 1, 1),
                            *made.checks("basicnet", {})[1:7])
        self.assertEqual(verdict_for(results, "basicnet", "stage0_single_gpu").state, "failed")
        self.assertEqual(verdict_for(results, "basicnet", "stage1_data_parallel").state,
                         "not checked")

    def test_a_test_of_fewer_images_is_wrong(self) -> None:
        results = self.read(*made.checks("basicnet", {}),
                            made.full("basicnet", "stage3_ddp_torchrun", 9, 2, 1, 9800, seen=9999))
        verdict = verdict_for(results, "basicnet", "stage3_ddp_torchrun")
        self.assertEqual(verdict.state, "WRONG")
        self.assertIn("9999 of 10000", verdict.reason)

    def test_a_test_of_no_image_or_of_an_unknown_number_is_wrong(self) -> None:
        for kind, more in (("full", ""), ("curve", "/epochs:1")):
            none = made.full("basicnet", "python_single", 9, 1, 2, 0, kind=kind, more=more, seen=0)
            unknown = {name: value for name, value in none.items() if name != "seen"}
            for row, words in ((none, "saw 0 of 10000"), (unknown, "saw an unknown number of")):
                verdict = verdict_for(self.read(row), "basicnet", "python_single")
                self.assertEqual(verdict.state, "WRONG")
                self.assertIn(words, verdict.reason)

    def accuracy_state(self, program: str, correct: int, base: int = 9155,
                       precision: str = "fp32", recipe: str = "convnet") -> tuple[str, str]:
        results = self.read(*made.checks("convnet", {}),
                            made.full("convnet", made.STAGES[0], 9, 1, 2, base),
                            made.full(recipe, made.STAGES[0], 9, 1, 2, 9999, precision="bf16"),
                            made.full(recipe, program, 9, 2, 1, correct, precision=precision))
        return tuple(verdict_for(results, recipe, program))

    def test_an_accuracy_well_below_that_of_stage_0_is_wrong(self) -> None:
        reason = "its accuracy is 90.00 %, that of stage0_single_gpu 91.55 %"
        for program, precision in (("stage4_ddp_amp", "bf16"), ("python_ddp_amp", "bf16")):
            self.assertEqual(self.accuracy_state(program, 9000, precision=precision),
                             ("WRONG", reason))
        self.assertEqual(self.accuracy_state("stage4_ddp_amp", 9056)[0], "yes")  # 0.99 points
        self.assertEqual(self.accuracy_state("stage4_ddp_amp", 9999)[0], "yes")
        # At 50 %, tests of 10,000 images differ by 1.39 points by chance.
        self.assertEqual(self.accuracy_state("stage4_ddp_amp", 4890, 5000)[0], "yes")
        self.assertEqual(self.accuracy_state("stage4_ddp_amp", 4850, 5000)[0], "WRONG")
        self.assertEqual(self.accuracy_state("stage4_ddp_amp", 8741, recipe="convnet-ddp-practice"),
                         ("not checked", "no check was run"))

    def test_rows_on_two_need_a_check_on_two(self) -> None:
        first = made.checks("basicnet", {})[:7]
        two = made.slices("basicnet", "stage3_ddp_torchrun", 5.0, 2, 1)
        lone = made.entry("check", "basicnet", "stage3_ddp_torchrun", 2, real_time=0.4,
                          label="weights_sha256=" + made.AT_WORLD_2)
        for rows, state in (([], "yes"), (two, "not checked"), ([lone], "not checked")):
            results = self.read(*first, *rows)
            verdict = verdict_for(results, "basicnet", "stage3_ddp_torchrun")
            self.assertEqual(verdict.state, state, verdict)
        self.assertEqual(verdict_for(self.read(*made.checks("basicnet", {}), *two), "basicnet",
                                     "stage3_ddp_torchrun").state, "yes")

    def test_twins_and_recipes_without_checks_are_not_checked(self) -> None:
        for recipe, program in (("basicnet", "python_single"), ("convnet", "stage0_single_gpu")):
            results = self.read(*made.checks("basicnet", {}))
            self.assertEqual(verdict_for(results, recipe, program).state, "not checked")


class TerminalTable(FilesTest):
    def lines(self, content: dict[str, Any]) -> list[str]:
        return self.output(table, self.write(content), "--short").splitlines()

    def line_of(self, lines: list[str], stage: str) -> str:
        return next(line for line in lines if line.startswith(stage))

    def test_has_the_seven_stages_in_at_most_100_columns(self) -> None:
        lines = self.lines(made.sample())
        self.assertLessEqual(max(map(len, lines)), 100)
        for stage, world in zip(made.STAGES, "1222222"):
            words = self.line_of(lines, stage).split()
            self.assertEqual(words[1:4], [world, "x", "1" if world == "2" else "2"])
            self.assertIn("10000", words)
            self.assertIn("yes", words)
        first = self.line_of(lines, "stage0")
        for text in ("26.5", "98.41 [98.16, 98.66]", "610", "118"):
            self.assertIn(text, first)
        self.assertIn("All seven stages have equal weights at equal world size: 20 steps, fp32, "
                      "one thread per process.", lines)

    def test_has_the_ratios_to_python_where_slices_were_run(self) -> None:
        lines = self.lines(made.sample())
        begin = lines.index("Each stage beside its twin:")
        ratio = r" +0\.\d+ \[0\.\d+, 0\.\d+\]"
        self.assertRegex(self.line_of(lines[begin:], "stage0_single_gpu"),
                         f"1 x 2 +fp32{ratio}{ratio}$")
        begin = lines.index("Recipe basicnet, 200 steps:")
        self.assertRegex(self.line_of(lines[begin:], "stage0_single_gpu"),
                         r"1 x 2 +fp32 +[\d.]+ \[[\d.]+, [\d.]+\] +[\d.]+$")
        self.assertFalse(any(line.startswith("python_") for line in lines[begin:]))

    def test_slices_alone_are_a_table_too(self) -> None:
        rows = made.slices("convnet", "stage0_single_gpu", 2.0, 1, 2)
        lines = self.lines({"context": dict(made.CONTEXT), "benchmarks": rows})
        self.assertEqual(lines[2], "Recipe convnet, 200 steps:")
        self.assertTrue(lines[3].endswith("% of floor"), "no column of twins")
        self.assertEqual(lines[5], "", "nothing is said about stages")

    def test_the_table_of_the_short_tier_ends_with_the_command_that_measures_the_rest(self) -> None:
        text = " ".join(self.lines(made.short()))
        self.assertTrue(text.endswith(f" {MORE}"), text)
        self.assertNotIn("not run", text)
        self.assertNotIn(MORE, " ".join(self.lines(made.sample())))

    def test_a_file_without_runs_and_slices_says_so(self) -> None:
        lines = self.lines({"context": dict(made.CONTEXT), "benchmarks": made.checks("basicnet", {})})
        self.assertEqual(lines[2], "No row that this table shows was run: --markdown shows all.")

    def test_a_twin_that_failed_is_not_one_that_was_not_run(self) -> None:
        rows = made.slices("basicnet", "stage0_single_gpu", 2.0, 1, 2)
        rows += made.slices("basicnet", "python_single", 2.0, 1, 2, error_occurred=True,
                            error_message="exit code 1")
        lines = self.lines({"context": dict(made.CONTEXT), "benchmarks": rows})
        self.assertTrue(self.line_of(lines, "stage0").endswith("twin failed"), lines)

    def test_a_gpu_beside_a_cpu_is_named_and_not_the_fastest(self) -> None:
        content = made.sample()
        for row in content["benchmarks"]:
            if "/stage1_" in row["name"] and row["name"].startswith(("full", "slice")):
                row["label"] = "device=cuda:0"
                row["real_time"] /= 100
        lines = self.lines(content)
        self.assertTrue(self.line_of(lines, "stage1_data_parallel (cuda:0)"))
        self.assertNotIn("stage1", self.line_of(lines, "Fastest:"))

    def test_a_row_above_its_floor_says_what_is_wrong(self) -> None:
        results = self.read(*made.slices("basicnet", "stage0_single_gpu", 0.1, 1, 2))
        self.assertTrue(any("above 100 % of its floor" in note for note in honesty(results)))

    def test_shows_the_run_on_all_cpus(self) -> None:
        rows = [made.full("basicnet", "stage0_single_gpu", 10.0 * threads, 1, threads, 9841)
                for threads in (1, 4, 2)]
        lines = self.lines({"context": made.CONTEXT, "benchmarks": rows})
        words = self.line_of(lines, "stage0").split()
        self.assertEqual(words[1:6], ["1", "x", "4", "fp32", "40.0"])

    def test_names_a_wrong_stage_and_does_not_praise_it(self) -> None:
        wrong = self.lines(made.sample(weights={("stage4_ddp_amp", 1): "c" * 64}))
        self.assertLessEqual(max(map(len, wrong)), 100)
        self.assertIn("WRONG", self.line_of(wrong, "stage4").split())
        self.assertIn("its weights differ", " ".join(wrong))
        self.assertTrue(self.line_of(wrong, "Fastest:").startswith("Fastest: stage0_single_gpu"))
        right = self.lines(made.sample())
        self.assertEqual(self.line_of(right, "Fastest:"), "Fastest: stage4_ddp_amp (2 x 1, bf16), "
                         "3.13 [3.04, 4.03] seconds for 200 steps.")

    def test_what_is_not_known_to_be_equal_is_not_praised(self) -> None:
        rows = [made.full("basicnet", "stage0_single_gpu", 10.0, 1, 2, 9841)]
        self.assertEqual([line for line in summary(self.read(*rows)) if ":" in line], [])

    def test_times_of_two_recipes_are_not_compared(self) -> None:
        rows = [*made.checks("basicnet", {}), *made.checks("convnet", {}),
                made.full("basicnet", "stage0_single_gpu", 20.0, 1, 2, 9841),
                made.full("convnet", "stage6_trainer", 3.0, 1, 2, 9155)]
        self.assertIn("Fastest: stage0_single_gpu (1 x 2, fp32), 20.0 s (one run each).",
                      summary(self.read(*rows)))

    def test_without_slices_of_all_the_fastest_is_that_of_one_run_each(self) -> None:
        content = made.sample()
        content["benchmarks"] = [
            row for row in content["benchmarks"]
            if not row["name"].startswith("slice/basicnet/stage0_single_gpu/world:1")]
        lines = self.lines(content)
        self.assertEqual(self.line_of(lines, "Fastest:"),
                         "Fastest: stage4_ddp_amp (2 x 1, bf16), 15.2 s (the median of up to 3 "
                         "runs).")
        self.assertIn("to its end, the median of up to 3 runs;", " ".join(lines))
        self.assertIn("Fastest: stage4_ddp_amp (2 x 1, bf16), 15.2 s (one run each).",
                      self.lines(made.short()))

    def test_a_failed_run_is_shown_and_not_replaced_by_another_recipe_or_setup(self) -> None:
        results = self.read(made.full("convnet", "stage4_ddp_amp", 9, 2, 1, 9841, precision="bf16"),
                            made.full("basicnet", "stage4_ddp_amp", 9, 1, 2, 9841),
                            made.failed("full", "basicnet", "stage4_ddp_amp", 2, 1, "bf16"))
        cells = stage_cells(results, 4)
        self.assertEqual(cells[:4], ["stage4_ddp_amp", "2 x 1", "bf16", "failed: " + made.REASON])

    def test_says_why_a_stage_failed_and_which_did_not_run(self) -> None:
        reason = " ".join(["the rank did not answer"] * 12)
        row = made.failed("full", "basicnet", "stage3_ddp_torchrun", 2, 1)
        content = {"context": made.CONTEXT, "benchmarks": [{**row, "error_message": reason}]}
        lines = self.lines(content)
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertIn(f"failed: {reason}", " ".join(" ".join(lines).split()))
        self.assertEqual(self.line_of(lines, "stage6").split(), ["stage6_trainer", "not", "run"])

    def test_the_same_file_gives_the_same_text(self) -> None:
        path = self.write(made.sample())
        for form in ("--short", "--markdown"):
            self.assertEqual(self.output(table, path, form),
                             self.output(table, path, form))


class Markdown(FilesTest):
    def setUp(self) -> None:
        super().setUp()
        self.text = self.output(table, self.write(made.sample()), "--markdown")

    def rows(self, title: str) -> list[list[str]]:
        part = self.text.split(f"## {title}\n")[1].split("\n## ")[0]
        lines = [line for line in part.splitlines() if line.startswith("| ")]
        cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
        self.assertEqual({len(row) for row in cells}, {len(cells[0])}, title)
        return [[cell.strip() for cell in row] for row in cells[2:]]

    def row(self, title: str, *start: str) -> list[str]:
        found = [row for row in self.rows(title) if row[: len(start)] == list(start)]
        self.assertEqual(len(found), 1, start)
        return found[0]

    def test_every_row_is_there_and_no_cell_is_empty(self) -> None:
        # Stages and twins, LibTorch the usual way; scaling with a row that failed, and tuned Python; scaling with widths, and tuned Python.
        for recipe, more in (("basicnet", 3 + 4), ("convnet", 8 + 2)):
            rows = self.rows(f"Recipe {recipe}")
            self.assertEqual(len(rows), 2 * 18 + 1 + more)
        for title in re.findall(r"^## (.*)$", self.text, re.MULTILINE)[:-1]:
            for row in self.rows(title):
                self.assertNotIn("", row, title)

    def test_a_row_has_its_numbers(self) -> None:
        row = self.row("Recipe basicnet", "stage0_single_gpu", "1", "fp32", "2")
        self.assertEqual(row[4:8], ["5.45 [5.29, 7.02]", "2347", "71.5", "0.476 [0.370, 0.613]"])
        self.assertEqual(row[8:13], ["26.5", "98.41 [98.16, 98.66]", "is stage 0", "10000", "yes"])
        self.assertEqual(row[13:], ["0.72", "610", "0", "118"])

    def test_a_device_that_was_measured_has_its_memory_in_a_column(self) -> None:
        rows = made.slices("basicnet", "stage2_ddp_spawn", 5.0, 2, 1, device_peak_bytes=7.31e8)
        made_table = recipe_table(self.read(*rows), "basicnet")
        place = made_table.header.index("device memory, MB")
        self.assertEqual(made_table.rows[0][place:], ["731", "9600000"])
        self.assertEqual(made_table.header[place + 1:], ("sent per step, bytes",))

    def test_a_twin_and_a_difference_are_named_for_what_they_are(self) -> None:
        twin = self.row("Recipe convnet", "python_trainer", "2", "fp32")
        self.assertEqual((twin[7], twin[10], twin[12], twin[16]),
                         ("is the twin", "-0.18", "not checked", "47"))
        self.assertEqual(self.row("Recipe convnet", "stage1_data_parallel")[10], "-0.03 (noise)")
        self.row("Recipe basicnet", "python_data_parallel (1 replica: no GPU)", "2")
        self.assertEqual(self.row("Recipe convnet", "python_tuned")[7], "not a twin")
        self.assertEqual(self.row("Recipe convnet", "libtorch_usual")[7:9], ["no twin", "not run"])
        self.assertIn("python_tuned and python_tuned_compile are no twins", self.text)

    def test_failed_rows_say_why_and_absent_ones_that_they_did_not_run(self) -> None:
        row = self.row("Recipe basicnet", "stage6_trainer", "4")
        reason = "failed: " + made.REASON.replace("|", "\\|").replace("<", "\\<")
        self.assertEqual(row[4:8], [reason, "failed", "failed", "failed"])
        self.assertEqual(row[8:12], ["not run"] * 4)

    def test_a_program_that_the_machine_cannot_run_has_not_failed(self) -> None:
        row = self.row("Recipe convnet", "python_tuned_compile")
        self.assertEqual(row[4:8], [made.NOT_RUN, *["not run"] * 3])
        self.assertNotIn("failed", row)

    def test_some_failed_repetitions_are_told_beside_the_numbers(self) -> None:
        rows = made.slices("basicnet", "stage0_single_gpu", 5, 1, 2)
        rows[1] |= {"error_occurred": True, "error_message": "killed by signal 9"}
        path = self.write({"context": made.CONTEXT, "benchmarks": rows})
        self.text = self.output(table, path, "--markdown")
        self.assertEqual(self.row("Recipe basicnet", "stage0_single_gpu")[4], "5.03 [4.90, 6.50]")
        self.assertIn("1 of 5 failed: killed by signal 9", self.text)

    def test_claims_stand_beside_ours(self) -> None:
        claims = {row[0]: row[1:] for row in self.rows("Claims of the source tutorials")}
        accuracy = claims["ConvNet, 3 epochs with tests, 1 GPU: accuracy"]
        self.assertEqual(accuracy[0], "91.55 %")
        self.assertIn("91.55 [91.30, 91.80] (stage0_single_gpu)", accuracy[1])
        time = claims["ConvNet, 3 epochs with tests, 2 GPUs, DDP, 16 bits: time"]
        self.assertEqual(time, ["30.82 s", "21.07 s (stage4_ddp_amp)", "39.20 s (python_ddp_amp)"])
        self.assertIn("PyTorch has no SyncBatchNorm on a CPU, so the twin goes without", self.text)
        self.assertEqual(claims["ConvNet, 3 epochs with tests, 1 GPU: time"][2],
                         "6.53 s (python_single)")
        self.assertEqual(claims["BasicNet, Trainer: validation loss"][:2],
                         ["0.2826", "0.0471 (stage6_trainer)"])
        self.assertEqual(claims["Trainer: training loss, steps 1 to 500"][1],
                         "0.8493 (stage6_trainer)")
        self.assertNotIn("Recipe convnet-ddp-practice", self.text)

    def test_claims_are_of_their_precision(self) -> None:
        rows = [made.full("convnet-ddp-practice", "stage4_ddp_amp", 9.0, 2, 1, 8741)]
        self.text = self.output(table, self.write({"context": made.CONTEXT, "benchmarks": rows}),
                                "--markdown")
        self.assertNotIn("Claims of the source tutorials", self.text)

    def test_sections_columns_and_notes_without_a_value_are_left_out(self) -> None:
        self.text = self.output(table, self.write(made.short()), "--markdown")
        self.assertEqual(re.findall("^## (.*)$", self.text, re.MULTILINE),
                         ["The seven stages", "Recipe basicnet", "Equality", "Environment",
                          "Limits of these numbers"])
        self.assertEqual(len(self.rows("Recipe basicnet")[0]), 12, "5 of 17 are gone")
        for words in ("| not run", "not measured", "not recorded", "200 steps leaves", "profiler",
                      "twins follow"):
            self.assertNotIn(words, self.text)
        self.assertTrue(self.text.endswith(f"\n\n{MORE}\n"))

    def test_the_environment_is_whole(self) -> None:
        fields = dict(self.rows("Environment"))
        self.assertEqual(fields["CPU"], "Sample CPU of nobody")
        self.assertEqual(fields["libraries"], "libtorch 2.11.0, onednn 3.7.1")
        self.assertNotIn("frequency governor", fields)  # it was not recorded
        self.assertEqual(fields["Python and its packages"], "torch 2.11.0, accelerate 1.12.0")
        self.assertEqual(fields["environment variables"], "OMP_PROC_BIND close")
        self.assertEqual(fields["compiler flags"], "-O3 -march=native")
        self.assertEqual(fields["measured peak, all CPUs, GFLOP/s bfloat16"], "436.2")
        self.assertEqual(fields["GPU driver"], "none")
        self.assertEqual(fields["load while measuring"], "1.50 to 1.50")
        self.assertEqual(fields["stolen ticks while measuring"], "4")
        self.assertIn("changes that are in no commit", self.text)
        self.assertIn("no GPU", self.text.split("## Limits of these numbers")[1])


class Comparisons(FilesTest):
    """The tables between rows: twins, feeding, and seeds."""

    def setUp(self) -> None:
        super().setUp()
        self.results = self.read(*made.sample()["benchmarks"])

    def test_a_stage_has_a_row_for_each_world_size_and_precision_of_its_twin(self) -> None:
        found = twin_table(self.results)
        self.assertEqual(found.header[3:], ("basicnet / twin's [95 %]", "convnet / twin's [95 %]"))
        self.assertEqual([tuple(row[:3]) for row in found.rows], [
            (stage, f"{how['world']} x {how['threads']}", how["precision"])
            for place, stage in enumerate(made.STAGES) for how in made.setups(place)])
        self.assertTrue(all(row[3].startswith("0.476 [0.") for row in found.rows), found.rows)

    def test_a_wrong_stage_has_no_ratio(self) -> None:
        rows = made.sample(weights={("stage3_ddp_torchrun", 2): "c" * 64})["benchmarks"]
        cells = {row[0]: row[3] for row in twin_table(self.read(*rows)).rows}
        self.assertEqual(cells["stage3_ddp_torchrun"], "WRONG")
        self.assertNotIn("WRONG", cells["stage2_ddp_spawn"])

    def test_variants_stand_below_their_base_and_in_no_table_of_a_recipe(self) -> None:
        rows = feeding_table(self.results).rows
        self.assertEqual([row[4] for row in rows], [
            "sharding", "dispatch", "4 batches per step, no_sync",
            "4 batches per step, all-reduce in each"])
        self.assertEqual((rows[0][6], rows[0][8]), ("1", "not measured"))
        self.assertRegex(rows[1][6], r"^1\.078 \[0\.\d+, 1\.\d+\]$")  # 6.2 s over 5.75
        self.assertEqual(rows[1][7:], ["9800000", "64000", "0"])
        self.assertEqual({row[0] for row in rows}, {"stage5_accelerator"})
        again = [row for row in recipe_table(self.results, "basicnet").rows
                 if row[:4] == ["stage5_accelerator", "2", "fp32", "1"]]
        self.assertEqual(len(again), 1)

    def test_seeds_are_repetitions_and_their_accuracies_are_compared_seed_by_seed(self) -> None:
        rows = {(row[0], row[1]): row for row in accuracy_table(self.results).rows}
        self.assertEqual(len(rows), 2 * 14)
        stage = rows["stage2_ddp_spawn", "basicnet"]
        self.assertEqual(stage[4:8], ["stage3, stage4 bf16 (1 of 3 seeds), stage5, stage6",
                                      "98.45, 98.25, 98.35", "98.35 [98.10, 98.60]",
                                      "+0.00 [-0.09, +0.09]"])
        # By seed +0.14, -0.16 and -0.16 to stage 0: mean -0.06, standard error 0.1.
        self.assertEqual(stage[8], "-0.06 [-0.49, +0.37]")
        self.assertEqual(rows["stage0_single_gpu", "basicnet"][4::4], ["none", "is stage 0"])
        self.assertEqual(rows["python_ddp_torchrun", "basicnet"][4],
                         "python_ddp_spawn, python_ddp_amp bf16 (1 of 3 seeds), "
                         "python_accelerate, python_trainer")
        self.assertIn("three seeds they are 4.3", accuracy_table(self.results).notes[0])

    def test_a_record_without_seeds_has_no_table_of_them(self) -> None:
        self.assertEqual(accuracy_table(self.read(*made.short()["benchmarks"])).rows, [])

    def test_a_run_without_a_seed_is_left_out_beside_those_with_one(self) -> None:
        rows = [made.full("basicnet", made.STAGES[0], 20.0, 1, 2, correct, more=more)
                for correct, more in ((5000, ""), (9800, "/seed:1"), (9900, "/seed:2"))]
        [row] = self.read(*rows).of_kind("full")
        self.assertEqual(row.accuracies(), {1: 98.0, 2: 99.0})
        self.assertEqual(row.accuracy().value, 98.5)
        self.assertAlmostEqual(row.accuracy().interval.high, 98.5 + 12.706 * 0.5, places=9)

    def test_two_files_give_the_tables_of_one(self) -> None:
        bench = [row for row in made.sample()["benchmarks"] if not (
            row["name"].startswith("full/") and "/seed:" in row["name"])]
        files = [self.write({"context": made.CONTEXT, "benchmarks": bench}, "bench.json"),
                 self.write(made.whole(), "whole.json")]
        both = read(files)
        for make in (accuracy_table, twin_table):
            self.assertEqual(make(both).rows, make(self.results).rows)
        alone = read(files[:1])
        self.assertEqual(stage_table(alone).rows, [])
        self.assertIn("Fastest: stage4_ddp_amp (2 x 1, bf16)", " ".join(summary(alone)))


class Digits(FilesTest):
    """digits.py."""

    def test_each_digit_has_its_image_label_and_prediction(self) -> None:
        found = digits.read(made.misclassified())
        self.assertEqual([(one.index, one.label, one.prediction) for one in found[:3]],
                         [(0, 7, 8), (1, 2, 3), (2, 1, 2)])
        image = digits.png(found[0].pixels)
        size = struct.unpack(">II", image[16:24])
        rows = zlib.decompress(image[41:-16])  # behind the heads of IHDR and IDAT
        self.assertEqual((size, len(rows)), ((28, 28), 28 * 29))
        self.assertEqual(rows[29 * 7 + 1:29 * 8], found[0].pixels[28 * 7:28 * 8])

    def test_what_does_not_fit_the_data_is_refused(self) -> None:
        for words, reason in (("10000:1", "index below 10000"), ("a", "INDEX:PREDICTION"),
                              ("0:7", "is a 7, as predicted")):
            with self.assertRaisesRegex(ResultsError, reason):
                digits.read(words)

    def test_without_label_or_data_there_is_no_picture(self) -> None:
        rows = self.read(*made.short()["benchmarks"])
        self.assertIsNone(report.pictures.digits_picture(rows, "basicnet"))
        sample = self.read(*reversed(made.whole()["benchmarks"]))
        drawn = report.pictures.digits_picture(sample, "basicnet")
        self.assertEqual((drawn.svg.count("<image"), drawn.svg.count(" → ")), (60, 60))
        self.assertIn("62 of 10,000; the first 60, and 2 more.", drawn.caption)
        self.assertIn("misclassified with seed 1:", drawn.caption)  # whichever ran first
        self.assertTrue(drawn.description.startswith("image 0: 7 as 8; image 1: 2 as 3; "))
        self.assertEqual(drawn.description.count("image"), 60)
        with patch.object(digits, "DATA", self.folder / "none"):
            self.assertIsNone(report.pictures.digits_picture(sample, "basicnet"))


class Labels(unittest.TestCase):
    """Of the dots in drawing.py."""

    def test_labels_lie_within_the_frame_and_over_no_dot_and_no_other(self) -> None:
        drawing = report.pictures.draw_dots.__globals__
        frame = drawing["Box"](0, 0, 300, 200)
        dots = [(20.0 + 6 * place, 100.0 + place % 3) for place in range(20)]
        labels = [f"py{place % 7} bf16" for place in range(20)]
        centres = drawing["spread_labels"](dots, labels, frame)
        boxes = [drawing["box_at"](*pair) for pair in zip(centres, labels)]
        for one, other in itertools.combinations(boxes, 2):
            self.assertFalse(one.meets(other), (one, other))
        for box in boxes:
            self.assertTrue(0 <= box.left and box.right <= 300 and 0 <= box.bottom
                            and box.top <= 200)
            self.assertFalse(any(box.meets(drawing["Box"](x - 4, y - 4, x + 4, y + 4))
                                 for x, y in dots))


class Notes(FilesTest):
    """What stands beside the numbers."""

    def test_load_and_stolen_ticks_are_those_of_each_file(self) -> None:
        row = made.entry("slice", "basicnet", "stage0_single_gpu", real_time=1.0)
        files = [self.write({"context": context, "benchmarks": [{**row, **more}]}, name)
                 for name, context, more in (
                     ("a.json", made.CONTEXT, {"steal_ticks": 40, "load": 2.0}),
                     ("b.json", made.CONTEXT, {}), ("c.json", {}, {"steal_ticks": 40}))]
        rows = {name: cells for name, *cells in environment_table(read(files)).rows}
        self.assertEqual(rows["stolen ticks while measuring"], ["23", "0", "not recorded"])
        self.assertEqual(rows["load while measuring"],
                         ["2.00 to 2.00", "not recorded", "not recorded"])

    def test_a_recipe_says_how_it_was_trained(self) -> None:
        rows = [made.full("basicnet", name, 9, 1, 2, 9841) for name in made.STAGES[5:]]
        line = "Batch 64 over all processes, learning rate 0.001, 9380 updates."
        self.assertIn(line, recipe_table(self.read(*rows), "basicnet").notes)
        rows[1]["lr"] = 0.0010000000474974513  # the same in 32 bits
        self.assertIn(line, recipe_table(self.read(*rows), "basicnet").notes)
        rows[1]["steps"] = 938
        notes = recipe_table(self.read(*rows), "basicnet").notes
        self.assertIn(f"stage5_accelerator: {line}", notes)
        self.assertIn(f"stage6_trainer: {line.replace('9380', '938')}", notes)
        for row in rows:
            del row["lr"]
        self.assertNotIn("Batch", " ".join(recipe_table(self.read(*rows), "basicnet").notes))

    def test_a_device_other_than_the_cpu_is_named_and_not_compared_with_it(self) -> None:
        stage, twin = "stage0_single_gpu", "python_single"
        for devices, name, ratio in ((("cuda:0", "cpu"), f"{stage} (cuda:0)", "other device"),
                                     (("cuda:0", "cuda"), f"{stage} (cuda:0)", "0.500 [0."),
                                     (("cpu", "cpu"), stage, "0.500 [0."),
                                     (("cpu:0", "cpu"), stage, "0.500 [0.")):
            rows = [row for program, seconds, device in zip((stage, twin), (1.0, 2.0), devices)
                    for row in made.slices("basicnet", program, seconds, 1, 2,
                                           label=f"device={device}")]
            results = self.read(*rows)
            cells = recipe_table(results, "basicnet").rows[0]
            self.assertEqual(cells[0], name)
            known = results.ratio_to_twin(Setup("basicnet", stage, threads=2))
            self.assertEqual(known is None, ratio == "other device")
            self.assertTrue(cells[7].startswith(ratio), cells[7])

    def test_the_words_say_what_was_measured(self) -> None:
        text = " ".join(honesty(self.read(*made.sample()["benchmarks"])))
        for words in ("from the start of the program to its end", "Launcher and parent processes "
                      "are not counted", "--math fast: channels_last", "fused optimizers",
                      "compares more work with less", "steps 5 to 8, rank 0", '"twin not run"',
                      "where the CPU multiplies in bfloat16, else at that in fp32",
                      "Bytes sent per step are counted in the programs", "libtorch_usual is neither",
                      "Without a whole run here: libtorch_usual.", "means over 3 seeds at most"):
            self.assertIn(words, text)
        text = " ".join(honesty(self.read(*made.short()["benchmarks"])))
        for words in ("Bytes sent", "libtorch_usual", "Without a whole run", "seeds at most"):
            self.assertNotIn(words, text)


class PageReader(HTMLParser):
    """Holds a page to being well-formed, and keeps its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


class Page(FilesTest):
    whole = ""  # of made.sample(), for several tests

    def page(self, content: dict[str, Any]) -> tuple[str, PageReader]:
        path = self.folder / "report.html"
        self.output(report, self.write(content), "-o", path)
        return self.read_page(path.read_text(encoding="utf-8"))

    def test_links_have_sections_with_what_was_measured(self) -> None:
        record = sample_links.record()
        path = self.folder / "report.html"
        results, links = self.write(made.sample()), self.folder / "links.json"
        for traced in (True, False):
            with self.subTest(traced=traced):
                links.write_text(json.dumps(record | ({} if traced else {"traces": {}})))
                self.output(report, results, "--links", links, "-o", path)
                text, _ = self.read_page(path.read_text(encoding="utf-8"))
                for title in ("<h2>Links</h2>", "<h2>Cost at scale</h2>", "Epochs over ranks"):
                    self.assertIn(title, text)
                self.assertIn("Speed over bandwidth", text)
                self.assertEqual("Two steps on a cable" in text, traced)
        links.write_text(json.dumps(record | {"links": {}, "traces": {}}))
        self.output(report, results, "--links", links, "-o", path)
        text, _ = self.read_page(path.read_text(encoding="utf-8"))
        self.assertIn("<h2>Links</h2>", text)
        self.assertNotIn("<h2>Cost at scale</h2>", text)
        self.assertNotIn("<h2>Links</h2>", self.sample_page()[0])

    def sample_page(self) -> tuple[str, PageReader]:
        self.write(made.sample())
        Page.whole = Page.whole or self.page(made.sample())[0]
        return self.read_page(Page.whole)

    def read_page(self, text: str) -> tuple[str, PageReader]:
        reader = PageReader()
        reader.feed(text)
        reader.close()
        self.assertEqual(reader.open, [])
        return text, reader

    def test_needs_nothing_from_elsewhere(self) -> None:
        text, reader = self.sample_page()
        text = re.sub(r'"data:image/png;base64,[^"]*"', '"#image"', text)
        self.assertNotRegex(text, r"https?://|//[a-z]|@import|url\((?!#)")
        for tag in ("script", "link", "img", "iframe", "object"):
            self.assertEqual(reader.all(tag), [], tag)
        for name, attributes in reader.elements:
            for value in (attributes.get("src"), attributes.get("href")):
                self.assertTrue(value is None or value.startswith(("#", "data:image/png;base64,")),
                                (name, value))

    def test_has_the_tables_of_the_markdown(self) -> None:
        text, reader = self.sample_page()
        markdown = self.output(table, self.folder / "a.json", "--markdown")
        words = "\n".join(reader.texts)
        for title in re.findall(r"^## (.*)$", markdown, re.MULTILINE):
            self.assertIn(title, words)
        rows = len(re.findall(r"^\| (?!-)", markdown, re.MULTILINE))
        self.assertEqual(len(reader.all("tr")), rows)
        tables = len(re.findall(r"^\| ---", markdown, re.MULTILINE))
        self.assertEqual((text.count('class="box"'), len(reader.all("table"))), (tables, tables))
        self.assertIn(made.REASON, reader.texts[reader.texts.index("failed: " + made.REASON)])

    def test_every_id_is_there_once_and_every_reference_leads_to_one(self) -> None:
        text, reader = self.sample_page()
        ids = [attributes["id"] for _, attributes in reader.elements if attributes.get("id")]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertLessEqual(set(re.findall(r'(?:url\(|href=")#([^)"]+)', text)), set(ids))
        for svg in reader.all("svg"):
            self.assertLessEqual(set(svg["aria-labelledby"].split()), set(ids))

    def test_has_every_picture_with_title_and_description(self) -> None:
        text, reader = self.sample_page()
        found = {figure["id"] for figure in reader.all("figure")}
        kinds = ("time", "accuracy", "scaling", "memory", "phases", "digits")
        recipes = ("basicnet", "convnet")
        expected = {f"picture-{kind}-{recipe}" for kind in kinds for recipe in recipes}
        self.assertEqual(found, expected | {"picture-summary", "picture-code",
                                            "picture-width-convnet"})
        self.assertEqual(len(reader.all("svg")), len(found))
        for svg in reader.all("svg"):
            self.assertEqual(svg["role"], "img")
        self.assertEqual(len(reader.all("desc")), len(found))
        self.assertIn("0 single 1x2: 5.45 s", text)
        self.assertIn("6 Trainer 4x1: failed", text)
        self.assertIn("4 DDP AMP 2x1 bf16: 15.2 s, 98.29 %; py DDP AMP 2x1 bf16: 31.9 s, ", text)
        self.assertIn("steps 5 to 8, rank 0. Data is everything from the optimizer", text)
        self.assertIn("launcher and parent processes are not counted", text)

    def test_pictures_have_the_colours_of_the_page_alone(self) -> None:
        text, _ = self.sample_page()
        colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", text.split("</style>", 1)[1]))
        self.assertEqual(colours, set())

    def test_the_page_of_the_short_tier_has_what_was_measured_alone(self) -> None:
        text, reader = self.page(made.short())
        self.assertEqual({figure["id"] for figure in reader.all("figure")},
                         {"picture-summary", "picture-code", "picture-accuracy-basicnet",
                          "picture-memory-basicnet"})
        self.assertEqual(len(reader.all("h2")), 5)
        self.assertEqual({"Not run.", "not run", "not measured"} & set(reader.texts), set())
        self.assertNotIn("No picture", text)
        self.assertEqual([text for text in reader.texts if text.strip()][-1], MORE)

    def test_a_wrong_stage_is_marked_in_table_and_pictures(self) -> None:
        text, reader = self.page(made.sample(weights={("stage1_data_parallel", 1): "c" * 64}))
        self.assertIn("WRONG", reader.texts)
        self.assertIn("WRONG stages: 1 of 7", text)
        self.assertIn("1 DataParallel 2x1 WRONG", text)

    def test_a_widened_network_has_a_picture_of_its_own(self) -> None:
        rows = []
        for width, factor in ((1, 1.0), (4, 9.0)):
            more = f"/width:{width}"
            rows += made.slices("basicnet", "stage0_single_gpu", factor, 1, 2, more=more)
            rows += made.slices("basicnet", "stage2_ddp_spawn", 0.9 * factor, 2, 1, more=more)
        alone = Setup("basicnet", "stage0_single_gpu", threads=2)
        self.assertEqual(report.pictures.speed_up(self.read(*rows), alone, alone), (1.0, None))
        _, reader = self.page({"context": made.CONTEXT, "benchmarks": rows})
        self.assertIn("picture-width-basicnet", {figure["id"] for figure in reader.all("figure")})

    def test_the_same_file_gives_the_same_page(self) -> None:
        self.assertEqual(self.page(made.sample())[0], self.sample_page()[0])

    def test_nothing_but_failures_is_a_page_too(self) -> None:
        row = made.failed("slice", "basicnet", "stage0_single_gpu", 1, 2)
        text, _ = self.page({"context": made.CONTEXT, "benchmarks": [row]})
        self.assertIn("failed: ", text)


# What the three kinds of colour-blindness make of linear red, green and blue: Machado, Oliveira
# and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
EYES = {
    "all three": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
               (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                 (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.0890)


def times(matrix: tuple, vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def linear(colour: str) -> list[float]:
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    return times(TO_XYZ, linear(colour))[1]


def seen_as(colour: str, eye: str) -> list[float]:
    """CIE Lab, where distances are about those that one sees."""
    shares = [max(0.0, part) / white
              for part, white in zip(times(TO_XYZ, times(EYES[eye], linear(colour))), WHITE)]
    x, y, z = (share ** (1 / 3) if share > 0.008856 else 7.787 * share + 16 / 116
               for share in shares)
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class Programs(FilesTest):
    def test_start_from_any_folder(self) -> None:
        self.write(made.sample())
        for command in (["table.py", "a.json"], ["report.py", "a.json", "-o", "report.html"]):
            command[0] = str(REPORT / command[0])
            done = subprocess.run([sys.executable, *command], cwd=self.folder, capture_output=True,
                                  text=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), command)
            self.assertIn("stage0_single_gpu" if "table" in command[0] else "report.html",
                          done.stdout)
        self.assertIn("</html>", (self.folder / "report.html").read_text(encoding="utf-8"))


class Colours(unittest.TestCase):
    def test_programs_stand_out_from_the_page_in_light_and_in_dark(self) -> None:
        for colour in RUNG_COLOURS:
            self.assertGreaterEqual(contrast(colour.light, PAPER.light), 3.0, colour)
            self.assertGreaterEqual(contrast(colour.dark, PAPER.dark), 3.0, colour)

    def test_colour_blind_readers_keep_the_stages_apart(self) -> None:
        for first, second in itertools.combinations(RUNG_COLOURS, 2):
            for place, eye in itertools.product(("light", "dark"), EYES):
                pair = (seen_as(getattr(colour, place), eye) for colour in (first, second))
                self.assertGreaterEqual(math.dist(*pair), 15, (first, second, eye))

    def test_no_two_names_share_a_colour(self) -> None:
        # The pictures are drawn in the light ones, which then become names.
        self.assertEqual(len({colour.light for colour in ALL_COLOURS}), len(ALL_COLOURS))

    def test_the_parts_of_a_step_go_from_dark_to_light(self) -> None:
        steps = [luminance(colour.light) for colour in PHASE_COLOURS]
        self.assertEqual(steps, sorted(steps))
        steps = [luminance(colour.dark) for colour in PHASE_COLOURS]
        self.assertEqual(steps, sorted(steps, reverse=True))


if __name__ == "__main__":
    unittest.main()
