# SPDX-License-Identifier: Apache-2.0
"""tools/ladder.py on small ladders made here, each with one thing wrong."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import ladder  # noqa: E402

STAGE0 = """\
// SPDX-License-Identifier: Apache-2.0
// Stage 0: one device.
#include <memory>

#include "ladder/nn/model.h"
#include "mnist/main.h"

namespace {

using namespace ladder;

struct Data {
  DataLoader train;
};

// All of it lies in memory.
Data make_data(const RunOptions& options) {
  const auto pick = [&](int size) { return size > 60'000 ? '{' : 'a'; };
  return {.train = DataLoader(options.data_root, {.batch_size = 64})};
}

std::shared_ptr<Model> make_model(const RunOptions& options,
                                  const torch::Device& device) {
  torch::manual_seed(options.seed);
  return std::make_shared<BasicNet>("a \\"{\\" // of no weight");
}

// One pass over the training set.
void train_epoch(Model& model, DataLoader& loader, Optimizer& optimizer) {
  for (const Batch& batch : loader) {
    const auto loss = model.loss(batch);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

void run(const RunOptions& options) {
  auto data = make_data(options);
  auto model = make_model(options);
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    train_epoch(*model, data.train, *optimizer);
  }
}

}  // namespace

int main(int argc, char** argv) { return ladder::run_main(argc, argv, run); }
"""


def edited(text: str, *changes: tuple[str, str]) -> str:
    """Each change finds its place exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


STAGE1 = edited(
    STAGE0,
    ("// Stage 0: one device.\n", "// Stage 1: many devices.\n//\n// Fast.\n"),
    ('"ladder/nn/model.h"\n', '"ladder/nn/model.h"\n#include "ladder/parallel/data_parallel.h"\n'),
    ("  auto model = make_model(options);\n",
     "  auto model = make_model(options);\n"
     "  model = std::make_shared<DataParallel>(model);  // one replica a device\n"),
)
STAGE2 = edited(
    STAGE1,
    ('#include "ladder/parallel/data_parallel.h"\n', '#include "ladder/launch/spawn.h"\n'),
    ("    loss.backward();\n", "    loss.backward();\n    // Every rank waits here.\n"
                              "    model.sync();\n"),
    ("  model = std::make_shared<DataParallel>(model);  // one replica a device\n", ""),
)
STAGES = {
    "stage0_single_gpu": STAGE0,
    "stage1_data_parallel": STAGE1,
    "stage2_ddp_spawn": STAGE2,
}

DIFF = """\
--- stage0_single_gpu/main.cpp
+++ stage1_data_parallel/main.cpp
@@ includes @@
+#include "ladder/parallel/data_parallel.h"
@@ run @@
 void run(const RunOptions& options) {
   auto data = make_data(options);
   auto model = make_model(options);
+  model = std::make_shared<DataParallel>(model);  // one replica a device
   for (int epoch = 1; epoch <= options.epochs; ++epoch) {
     train_epoch(*model, data.train, *optimizer);
   }
 }
"""
TABLE = """\
| stage | lines | added | removed | diff |
| --- | ---: | ---: | ---: | --- |
| `stage0_single_gpu` | 48 |  |  |  |
| `stage1_data_parallel` | 52 | +2 | -0 | [stage0-to-stage1.diff](stage0-to-stage1.diff) |
| `stage2_ddp_spawn` | 53 | +3 | -2 | [stage1-to-stage2.diff](stage1-to-stage2.diff) |
"""
PRINTED = [
    "stage                   lines    added  removed",
    "stage0_single_gpu          48",
    "stage1_data_parallel       52       +2       -0",
    "stage2_ddp_spawn           53       +3       -2",
    "ladder: 3 stages, 2 rungs, 0 violations",
]
BOTH_DIFFS = ["docs/diffs/stage0-to-stage1.diff", "docs/diffs/stage1-to-stage2.diff"]


class LadderTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        for folder, text in STAGES.items():
            self.write(f"{folder}/main.cpp", text)
        code, lines = self.run_tool("--update")
        self.assertEqual(code, 0, lines)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def edit(self, folder: str, *changes: tuple[str, str]) -> None:
        self.write(f"{folder}/main.cpp", edited(STAGES[folder], *changes))

    def remove(self, folder: str) -> None:
        (self.root / folder / "main.cpp").unlink()
        (self.root / folder).rmdir()

    def run_tool(self, *arguments: str) -> tuple[int, list[str]]:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = ladder.main(["--root", str(self.root), *arguments])
        return code, output.getvalue().splitlines()

    def violations(self, *arguments: str) -> list[str]:
        """The lines of a run that finds some, less the table and the summary."""
        code, lines = self.run_tool(*arguments)
        self.assertEqual(code, 1, lines)
        found = [line for line in lines if re.match(r"\S+(:\d+)?: ", line)][:-1]
        self.assertRegex(lines[-1], rf"^ladder: \d stages, \d rungs, {len(found)} violations$")
        return found

    def expect_stale(self, files: list[str], *lines: str) -> None:
        """The diffs named are stale, each at a line that quotes its own of these; no others are.

        Each names the line of a stage too, and it stands there.
        """
        found = [text for text in self.violations() if ".diff:" in text.split(" ")[0]]
        self.assertEqual([text.split(":")[0] for text in found], files)
        for text, line in zip_longest(found, lines, fillvalue=lines[0]):
            self.assertRegex(text, r"^\S+\.diff:\d+: stale: ")
            self.assertIn(line, text)
            shown, stage, number = re.search(r"stale: '(.*?)' by (\w+/main\.cpp):(\d+), ",
                                             text).groups()
            self.assertEqual(shown[1:], self.read(stage).splitlines()[int(number) - 1])
            self.assertIn("run tools/ladder.py --update, then read git diff docs/diffs", text)

    def expect_one(self, *parts: str) -> None:
        found = self.violations()
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])


class DriftTest(LadderTest):
    """The stages agree no more: the diffs on either side of the drift say so."""

    def test_a_shared_line_is_lost(self) -> None:
        self.edit("stage1_data_parallel", ("    optimizer.zero_grad();\n", ""))
        self.expect_stale(BOTH_DIFFS, "optimizer.zero_grad();")

    def test_a_step_is_doubled(self) -> None:
        self.edit("stage1_data_parallel",
                  ("    optimizer.step();\n", "    optimizer.step();\n    optimizer.step();\n"))
        self.expect_stale(BOTH_DIFFS, "optimizer.step();")

    def test_backward_and_step_change_places(self) -> None:
        self.edit("stage1_data_parallel", ("    loss.backward();\n    optimizer.step();\n",
                                           "    optimizer.step();\n    loss.backward();\n"))
        self.expect_stale(BOTH_DIFFS, "'+    optimizer.step();", "'+    loss.backward();")

    def test_a_shared_constant_is_edited(self) -> None:
        self.edit("stage1_data_parallel", (".batch_size = 64", ".batch_size = 32"))
        self.expect_stale(BOTH_DIFFS, "{.batch_size = ")

    def test_an_unrelated_line_is_added(self) -> None:
        self.edit("stage1_data_parallel",
                  ("  auto data = make_data(options);\n",
                   "  auto data = make_data(options);\n  std::puts(\"here\");\n"))
        self.expect_stale(BOTH_DIFFS, "here")

    def test_a_line_of_the_lesson_is_lost(self) -> None:
        self.edit("stage2_ddp_spawn", ("    model.sync();\n", ""))
        self.expect_stale(BOTH_DIFFS[1:], "+    model.sync();")

    def test_the_first_stage_counts_too(self) -> None:
        self.edit("stage0_single_gpu", ("options.seed", "1"))
        self.expect_stale(BOTH_DIFFS[:1], "torch::manual_seed(1);")

    def test_a_comment_within_the_code_is_part_of_the_lesson(self) -> None:
        self.edit("stage2_ddp_spawn", ("// Every rank waits here.", "// All wait here."))
        self.expect_stale(BOTH_DIFFS[1:], "// All wait here.")
        self.edit("stage2_ddp_spawn", ("// One pass over the training set.\n", ""))
        self.expect_stale(BOTH_DIFFS[1:], "// One pass over the training set.")

    def test_what_stands_between_the_functions_counts(self) -> None:
        self.edit("stage1_data_parallel", ("  DataLoader train;\n", "  DataLoader test;\n"))
        self.expect_stale(BOTH_DIFFS, "  DataLoader t")
        self.edit("stage1_data_parallel", ("}  // namespace\n", "}  // namespace\nint epochs;\n"))
        self.expect_stale(BOTH_DIFFS, "int epochs;")
        self.write("stage1_data_parallel/main.cpp", STAGE1 + "// The end.\n")
        self.expect_stale(BOTH_DIFFS, "// The end.")

    def test_an_include_is_lost(self) -> None:
        self.edit("stage1_data_parallel", ("#include <memory>\n", ""))
        self.expect_stale(BOTH_DIFFS, "#include <memory>")

    def test_every_line_of_every_stage_counts(self) -> None:
        """Loses, doubles and moves each line in turn; only includes may change places."""
        tried = 0
        for folder in STAGES:
            for what, text in drifts(STAGES[folder]):
                self.write(f"{folder}/main.cpp", text)
                found = [line for line in self.violations() if "README.md" not in line]
                self.assertNotEqual(found, [], f"{folder}: {what}")
                tried += 1
            self.write(f"{folder}/main.cpp", STAGES[folder])
        self.assertGreater(tried, 250)
        self.assertEqual(self.run_tool()[0], 0)


def drifts(text: str) -> Iterator[tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    counted = [i for i, line in enumerate(lines) if line.strip() and not line.startswith("// S")
               and line not in ("//\n", "// Fast.\n")]
    for i, following in zip(counted, [*counted[1:], None]):
        line = lines[i]
        yield f"without {line}", "".join(lines[:i] + lines[i + 1 :])
        yield f"twice {line}", "".join(lines[:i] + [line] + lines[i:])
        yield f"longer by a comment {line}", "".join(
            lines[:i] + [line.rstrip("\n") + "  // x\n"] + lines[i + 1 :])
        if following and not (line.startswith("#") and lines[following].startswith("#")):
            swapped = lines.copy()
            swapped[i], swapped[following] = lines[following], line
            if lines[following] != line:
                yield f"one line down {line}", "".join(swapped)


class NoDriftTest(LadderTest):
    def test_a_clean_ladder_passes_and_prints_its_table(self) -> None:
        self.assertEqual(self.run_tool(), (0, PRINTED))

    def test_the_diff_shows_what_changed_and_the_whole_function_around_it(self) -> None:
        self.assertEqual(self.read(BOTH_DIFFS[0]), DIFF)

    def test_the_page_holds_the_table(self) -> None:
        self.assertTrue(self.read("docs/diffs/README.md").endswith("\n\n" + TABLE))

    def test_blank_lines_spaces_and_markers_do_not_count(self) -> None:
        self.edit("stage1_data_parallel",
                  ("\n  auto model", "\n  // #region wrap  \n  auto model"),
                  ("replica a device\n", "replica a device  \n// #endregion wrap\n"),
                  ("struct Data {", "\nstruct Data {"))
        found = self.violations()
        self.assertEqual([text.split(": ")[0] for text in found], ["docs/diffs/README.md:12"])
        self.assertIn("| 55 |", found[0])

    def test_the_comment_at_the_head_does_not_count(self) -> None:
        self.edit("stage1_data_parallel", ("// Fast.", "// Faster."))
        self.assertEqual(self.run_tool(), (0, PRINTED))

    def test_the_order_of_includes_does_not_count(self) -> None:
        self.edit("stage1_data_parallel", ("#include <memory>\n\n", ""),
                  ('mnist/main.h"\n', 'mnist/main.h"\n\n#include <memory>\n'))
        self.assertEqual(self.run_tool(), (0, PRINTED))

    def test_a_rung_may_remove_more_than_it_adds(self) -> None:
        loop = STAGE2[STAGE2.index("  for (const Batch") : STAGE2.index("\nvoid run")]
        self.write("stage3_trainer/main.cpp", edited(STAGE2, (loop, "  trainer.train();\n}\n")))
        self.assertEqual(self.run_tool("--update")[0], 0)
        self.assertEqual(self.run_tool()[1][4],
                         "stage3_trainer             46       +1       -8")

    def test_one_stage_is_a_ladder_of_no_rungs(self) -> None:
        self.remove("stage1_data_parallel")
        self.remove("stage2_ddp_spawn")
        code, lines = self.run_tool("--update")
        self.assertEqual((code, lines[-1]), (0, "ladder: 1 stages, 0 rungs, 0 violations"))
        self.assertEqual([path.name for path in (self.root / "docs/diffs").iterdir()],
                         ["README.md"])


class FilesTest(LadderTest):
    """docs/diffs/ holds what the stages say, no less and no more."""

    def test_a_diff_is_stale(self) -> None:
        self.write(BOTH_DIFFS[0], DIFF.replace("+  model", "+  modell"))
        self.expect_one("docs/diffs/stage0-to-stage1.diff:9: stale: '+  model = ",
                        " by stage1_data_parallel/main.cpp:44, '+  modell = ",
                        "run tools/ladder.py --update")

    def test_a_diff_with_a_line_pushed_in(self) -> None:
        self.write(BOTH_DIFFS[0], DIFF.replace(" void run", "  void run"))
        self.expect_one("docs/diffs/stage0-to-stage1.diff:6: stale: ' void", "'  void")

    def test_a_diff_is_cut_off(self) -> None:
        self.write(BOTH_DIFFS[0], DIFF[:-3])
        self.expect_one("docs/diffs/stage0-to-stage1.diff:13: stale: ' }' by "
                        "stage1_data_parallel/main.cpp:48, ''")
        self.write(BOTH_DIFFS[0], DIFF[:-1])
        self.expect_one("stage0-to-stage1.diff:13: stale: '' by the stages, 'the end of the file' "
                        "in the file")

    def test_a_diff_is_missing(self) -> None:
        (self.root / BOTH_DIFFS[1]).unlink()
        self.expect_one("docs/diffs/stage1-to-stage2.diff: missing; run tools/ladder.py --update")

    def test_a_diff_of_no_rung(self) -> None:
        self.write("docs/diffs/stage2-to-stage3.diff", "")
        self.expect_one("docs/diffs/stage2-to-stage3.diff: belongs to no rung on disk; run tools/")

    def test_another_file_among_the_diffs_stays_after_an_update(self) -> None:
        self.write("docs/diffs/notes.md", "mine\n")
        for arguments in ([], ["--update"]):
            found = self.violations(*arguments)
            self.assertEqual(found, ["docs/diffs/notes.md: belongs to no rung on disk; "
                                     "move it elsewhere"])
        self.assertEqual(self.read("docs/diffs/notes.md"), "mine\n")

    def test_the_table_is_stale(self) -> None:
        page = self.read("docs/diffs/README.md")
        self.write("docs/diffs/README.md", page.replace("+3", "+4"))
        self.expect_one("docs/diffs/README.md:13: stale: '| `stage2_ddp_spawn` | 53 | +3 ")

    def test_an_update_mends_all_of_it_once(self) -> None:
        self.edit("stage1_data_parallel", ("    optimizer.zero_grad();\n", ""))
        self.write("docs/diffs/stage7-to-stage8.diff", "")
        self.assertEqual(len(self.violations()), 4)  # the table too
        code, lines = self.run_tool("--update")
        self.assertEqual(code, 0, lines)
        self.assertEqual(lines[:4], [
            "wrote docs/diffs/README.md", *(f"wrote {name}" for name in BOTH_DIFFS),
            "removed docs/diffs/stage7-to-stage8.diff"])
        folder = self.root / "docs/diffs"
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        self.assertEqual(self.run_tool("--update"), self.run_tool())
        after = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        self.assertEqual(before, after)

    def test_without_update_nothing_is_written(self) -> None:
        self.edit("stage1_data_parallel", ("    optimizer.zero_grad();\n", ""))
        (self.root / "docs/diffs/README.md").unlink()
        self.violations()
        self.assertEqual(self.read(BOTH_DIFFS[0]), DIFF)
        self.assertFalse((self.root / "docs/diffs/README.md").exists())


class RowTest(LadderTest):
    """The stages on disk: every one of them, from 0 on."""

    def test_a_stage_in_between_is_missing(self) -> None:
        self.remove("stage1_data_parallel")
        self.expect_one("stage2_ddp_spawn: there is no stage 1; ", "add it or renumber")

    def test_the_first_stage_is_missing(self) -> None:
        self.remove("stage0_single_gpu")
        self.expect_one("stage1_data_parallel: there is no stage 0")

    def test_two_stages_of_one_number(self) -> None:
        self.write("stage1_other/main.cpp", STAGE1)
        self.expect_one("stage1_other: the number 1 is that of stage1_data_parallel too")

    def test_a_stage_more_on_disk_than_in_the_diffs(self) -> None:
        self.write("stage3_torchrun/main.cpp", edited(STAGE2, ("options.seed", "options.seed + 1")))
        found = self.violations()
        self.assertEqual([text.split(": ")[0] for text in found],
                         ["docs/diffs/README.md:14", "docs/diffs/stage2-to-stage3.diff"])

    def test_the_tenth_stage_comes_after_the_ninth(self) -> None:
        for number in range(3, 12):
            text = STAGE2.replace("options.seed", f"options.seed + {number}")
            self.write(f"stage{number}_more/main.cpp", text)
        code, lines = self.run_tool("--update")
        self.assertEqual((code, lines[-1]), (0, "ladder: 12 stages, 11 rungs, 0 violations"))

    def test_a_stage_without_its_program(self) -> None:
        (self.root / "stage3_torchrun").mkdir()
        self.expect_one("stage3_torchrun: not a stage")

    def test_a_folder_that_nearly_has_the_name_of_a_stage(self) -> None:
        for name in ("stage_3", "stage3", "stage03_x", "stage3-x"):
            self.write(f"{name}/main.cpp", STAGE2)
            self.expect_one(f"{name}: not a stage: a stage is stageN_NAME/main.cpp")
            self.remove(name)

    def test_no_stage_at_all(self) -> None:
        for folder in STAGES:
            self.remove(folder)
        self.expect_one("no stage on disk")

    def test_a_broken_row_is_not_written(self) -> None:
        self.remove("stage1_data_parallel")
        self.violations("--update")
        self.assertEqual(self.read(BOTH_DIFFS[0]), DIFF)


class ShapeTest(LadderTest):
    """The five functions, the length of a stage and of a rung."""

    def test_a_rung_that_adds_nothing(self) -> None:
        last = edited(STAGE2, ("// Fast.", "// Slow."),
                      ("#include <memory>\n", "#include <memory>\n#include <vector>\n"),
                      ("  torch::manual", "  // Seeded.\n  torch::manual"))
        for text in (STAGE2, edited(STAGE2, ("    model.sync();\n", "")), last):
            self.write("stage3_same/main.cpp", text)
            found = self.violations("--update")
            self.assertEqual(len(found), 1, found)
            self.assertIn("stage3_same/main.cpp: adds no code to stage2_ddp_spawn", found[0])

    def test_a_rung_over_its_budget(self) -> None:
        for lines in (59, 60):
            more = "".join(f"  step({n});\n" for n in range(lines - 2))
            self.edit("stage2_ddp_spawn", ("  torch::manual", f"{more}  torch::manual"))
            code, output = self.run_tool("--update")
            self.assertEqual(code, lines - 59, output)
        # setUp's rung adds three lines, so these are 60 and 61.
        self.expect_one("stage2_ddp_spawn/main.cpp: adds 61 lines to stage1_data_parallel, "
                        "a rung adds at most 60; move a part into ladder/")

    def test_a_stage_that_is_too_long(self) -> None:
        for length in (150, 151):
            comment = "// More.\n" * (length - len(STAGE2.splitlines()))
            self.edit("stage2_ddp_spawn", ("// Fast.\n", f"// Fast.\n{comment}"))
            self.assertEqual(self.run_tool("--update")[0], length - 150)
        self.expect_one("stage2_ddp_spawn/main.cpp:151: 151 lines, a stage has at most 150")

    def test_the_stage_of_the_trainer_has_no_loop_and_sixty_lines(self) -> None:
        for number in range(3, 6):
            name = f"stage{number}_more"
            self.write(f"{name}/main.cpp",
                       edited(STAGE2, ("    model.sync();\n", f"    model.sync({number});\n")))
        start, end = STAGE2.index("// One pass"), STAGE2.index("void run")
        text = edited(STAGE2, (STAGE2[start:end], ""),
                      ("    train_epoch(*model, data.train, *optimizer);\n",
                       "    Trainer().train();\n"))
        for length in (60, 61):
            comment = "// More.\n" * (length - len(text.splitlines()))
            self.write("stage6_trainer/main.cpp", edited(text, ("// Fast.\n", f"// Fast.\n{comment}")))
            self.assertEqual(self.run_tool("--update")[0], length - 60)
        self.expect_one("stage6_trainer/main.cpp:61: 61 lines, a stage has at most 60")
        self.write("stage6_trainer/main.cpp", edited(STAGE2, ("    model.sync();\n", "")))
        self.run_tool("--update")
        self.expect_one("train_epoch is one function too many; stage6_trainer has make_data, "
                        "make_model, run, main, once each")

    def test_functions_in_the_wrong_order(self) -> None:
        start, end = STAGE1.index("// One pass"), STAGE1.index("void run")
        function = STAGE1[start:end]
        self.edit("stage1_data_parallel", (function, ""), ("}  // namespace", function + "}  // n"))
        self.expect_one("stage1_data_parallel/main.cpp:31: run is in the wrong order; every "
                        "stage has make_data, make_model, train_epoch, run, main, once each")

    def test_a_function_twice(self) -> None:
        self.edit("stage1_data_parallel", ("void run(const RunOptions& options) {",
                                           "void run() { run({}); }\n"
                                           "void run(const RunOptions& options) {"))
        self.expect_one("stage1_data_parallel/main.cpp:42: run is in the wrong order")
        last = STAGE1[STAGE1.index("int main") :]
        self.edit("stage1_data_parallel", (last, last + "int main() {}\n"))
        self.expect_one("stage1_data_parallel/main.cpp:53: main is in the wrong order")

    def test_a_function_is_missing(self) -> None:
        self.edit("stage1_data_parallel", ("void run(", "void train("))
        found = self.violations()
        self.assertEqual(len(found), 2)
        self.assertIn("stage1_data_parallel/main.cpp: no function run; every stage has", found[0])
        self.assertIn("stage1_data_parallel/main.cpp:41: train is one function too many", found[1])

    def test_a_helper_beside_the_five(self) -> None:
        for helper in (
            "int twice(int number) { return 2 * number; }\n",
            "template <typename T>\nT\ntwice(const T& number,\n      int times = {}) {\n"
            "  if (times) {\n    return number;\n  }\n  return 2 * number;\n}\n",
            "bool operator==(const Data& a, const Data& b) { return true; }\n",
        ):
            self.edit("stage1_data_parallel", ("// One pass", f"{helper}\n// One pass"))
            self.expect_one("stage1_data_parallel/main.cpp:3", " is one function too many; ",
                            "move it into ladder/ or into the function that needs it")

    def test_types_constants_and_declarations_are_no_functions(self) -> None:
        for text in (
            "void run(const RunOptions& options);\n",
            "struct More {\n  int size() const { return 1; }\n};\n",
            "const std::vector<int> kSizes{f(1),\n                              2};\n",
            "const auto kTwice = [](int n) {\n  return 2 * n;\n};\n",
            "static_assert(sizeof(int) == 4);\n",
            "#if defined(X)\nint x = f(1);\n#endif\n",
            "}  // namespace\n\nnamespace more {\n",
        ):
            for folder in STAGES:
                self.edit(folder, ("// One pass", f"{text}\n// One pass"))
            code, lines = self.run_tool("--update")
            self.assertEqual(code, 0, lines)


class CommandTest(unittest.TestCase):
    def start(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run([str(ROOT / "tools/ladder.py"), *arguments],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_a_folder_that_is_not_there_is_an_error_of_its_own(self) -> None:
        code, output = self.start("--root", "/nowhere")
        self.assertEqual(code, 2)
        self.assertIn("ladder: cannot read the stages and diffs of /nowhere: ", output)

    def test_an_unknown_option_is_an_error_of_its_own(self) -> None:
        self.assertEqual(self.start("--fix")[0], 2)

    def test_check_is_the_default_by_name(self) -> None:
        self.assertEqual(self.start("--check"), self.start())
        self.assertEqual(self.start("--check", "--update")[0], 2)

    def test_the_stages_of_this_checkout_are_looked_at(self) -> None:
        stages = len(list(ROOT.glob("stage*/main.cpp")))
        summary = self.start()[1].splitlines()[-1]
        self.assertRegex(summary, rf"^ladder: {stages} stages, ")


if __name__ == "__main__":
    unittest.main()
