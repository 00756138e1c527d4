# SPDX-License-Identifier: Apache-2.0
"""tools/ladder.py on a small ladder made here, each time with one thing wrong."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import ladder  # noqa: E402

STAGE0 = """\
// SPDX-License-Identifier: Apache-2.0
// Stage 0: one device.
#include <memory>

#include "mnist/main.h"

namespace {

struct Data {
  DataLoader train;
};

// All of it lies in memory.
Data make_data(const RunOptions& options) {
  return {.train = DataLoader(options.data_root)};
}

std::shared_ptr<Model> make_model(const RunOptions& options,
                                  const torch::Device& device) {
  return std::make_shared<BasicNet>();
}

// One pass over the training set.
void train_epoch(Model& model, DataLoader& loader) {
  for (const Batch& batch : loader) {
    model.loss(batch).backward();
    optimizer.step();
  }
}

void run(const RunOptions& options) {
  auto model = make_model(options);
  train_epoch(*model, make_data(options).train);
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
    STAGE0, ("Stage 0: one device.\n", "Stage 1: many devices.\n//\n// Fast.\n"),
    ("#include <memory>\n", '#include <memory>\n#include "ladder/parallel.h"\n'),
    ("  train_epoch(*model", "  model = std::make_shared<DataParallel>(model);  // replicas\n"
                            "  train_epoch(*model"))
STAGE2 = edited(
    STAGE1, ("    optimizer.step();\n", "    // Every rank waits here.\n    model.sync();\n"
                                        "    optimizer.step();\n"),
    ("  model = std::make_shared<DataParallel>(model);  // replicas\n", ""),
    ("All of it lies", "Each rank has it"))
STAGES = {"stage0_a": STAGE0, "stage1_b": STAGE1, "stage2_c": STAGE2}
FIRST = "docs/diffs/stage0-to-stage1.diff"
SECOND = "docs/diffs/stage1-to-stage2.diff"
DIFF = """\
--- stage0_a/main.cpp
+++ stage1_b/main.cpp
@@ includes @@
+#include "ladder/parallel.h"
@@ run @@
 void run(const RunOptions& options) {
   auto model = make_model(options);
+  model = std::make_shared<DataParallel>(model);  // replicas
   train_epoch(*model, make_data(options).train);
 }
"""
TABLES = {
    "docs/diffs/README.md": """
| `stage0_a` | 38 |  |  |  |
| `stage1_b` | 42 | +2 | -0 | [stage0-to-stage1.diff](stage0-to-stage1.diff) |
| `stage2_c` | 43 | +3 | -2 | [stage1-to-stage2.diff](stage1-to-stage2.diff) |
""",
    "README.md": f"""
| `stage0_a` | the idea | 38 | a page |
| `stage1_b` | | [+2 -0]({FIRST}) | |
| `stage2_c` | | [+3 -2]({SECOND}) | |
| `stages/` | | | |
""",
    "docs/reference/6-trainer.md": """
| `stage0_a` | 38 | 23 | | |
| `stage1_b` | 42 | 24 | the rest | |
| `stage2_c` | 43 | 24 | |
"""}
CURE = "; run tools/ladder.py --update, then read git diff"
ORDER = "expected make_data, make_model, train_epoch, run, main, in this order: move anything"


class LadderTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        for folder, text in STAGES.items():
            self.write(f"{folder}/main.cpp", text)
        for name, text in TABLES.items():
            self.write(name, re.sub(r"\| (\d+|\[[^|]*) \|", "| |", text))
        self.assertEqual(self.run_tool("--update")[0], 0)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def edit(self, folder: str, *changes: tuple[str, str]) -> None:
        self.write(f"{folder}/main.cpp", edited(STAGES[folder], *changes))

    def files(self) -> dict[str, str]:
        return {path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8")
                for path in self.root.glob("**/*.*")}

    def run_tool(self, *arguments: str) -> tuple[int, list[str]]:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = ladder.main(["--root", str(self.root), *arguments])
        return code, output.getvalue().splitlines()

    def expect(self, *violations: str, flag: str | None = None) -> None:
        """The beginnings of the lines that a run prints."""
        code, lines = self.run_tool(*[flag] if flag else [])
        lines = [line for line in lines if not line.startswith(("wrote ", "removed "))]
        self.assertEqual(code, 1 if violations else 0, lines)
        self.assertEqual(lines.pop(), f"ladder: {len(violations)} violations", lines)
        self.assertEqual([line[:len(wanted)] for line, wanted in zip(lines, violations)],
                         list(violations))

    def test_writes_a_diff_with_each_changed_function_and_the_tables(self) -> None:
        files = self.files()
        self.assertEqual(files[FIRST], DIFF)
        self.assertIn("@@ make_data @@\n-// All of it lies in memory.\n"
                      "+// Each rank has it in memory.\n Data make_data(", files[SECOND])
        self.assertTrue(files.pop("docs/diffs/README.md").endswith(
            TABLES["docs/diffs/README.md"]))
        self.assertEqual(files["README.md"], TABLES["README.md"])
        self.assertEqual(files["docs/reference/6-trainer.md"], TABLES["docs/reference/6-trainer.md"])

    def test_every_line_of_a_stage_counts(self) -> None:
        """Loses, doubles, edits and moves each line in turn; only includes may change places."""
        tried = list(drifts(STAGE1))
        self.assertGreater(len(tried), 100)
        for what, text in tried:
            self.write("stage1_b/main.cpp", text)
            found = self.run_tool()[1]
            if not found[0].startswith("stage1_b/main.cpp: has "):  # other functions
                self.assertIn(FIRST, " ".join(found), what)
                self.assertIn(SECOND, " ".join(found), what)

    def test_what_does_not_count(self) -> None:
        self.edit("stage1_b", ("// Fast.", "// Faster."),
                  ('#include <memory>\n#include "ladder/parallel.h"\n\n#include "mnist/main.h"\n',
                   '#include "ladder/parallel.h"\n#include "mnist/main.h"\n#include <memory>\n\n'))
        self.expect()
        self.edit("stage1_b", ("  // replicas\n", "  // replicas  \n// #endregion wrap\n"),
                  ("  auto model", "  // #region wrap  \n  auto model"))
        self.expect("docs/diffs/README.md:12: stale: expected '| `stage1_b` | 44 | +2 | -0 ",
                    "docs/reference/6-trainer.md:3: stale: ")

    def test_stale_files(self) -> None:
        files = self.files()
        for name, old, new, violation in (
                (FIRST, "+  model", "+  modell",
                 ":8: stale: expected '+  model = std::make_shared<DataParallel>(model);  // "
                 "replicas', got '+  modell = std::make_shared<DataParallel>(model);  // replicas'"
                 + CURE),
                (FIRST, " void", "  void", ":6: stale: expected ' void"),
                (FIRST, "\n }\n", "\n }", ":11: stale: expected '', got 'the end of the file'"),
                (SECOND, files[SECOND], "", ":1: stale: expected '--- stage1_b/main.cpp', got ''"),
                ("docs/diffs/README.md", "| 38 |", "| 37 |", ":11: stale: expected '| `stage0_a`"),
                ("README.md", "+3 -2", "+3 -1", ":4: stale: expected '| `stage2_c` | | [+3 -2](do"),
                ("docs/reference/6-trainer.md", "24 | the", "25 | the", ":3: stale: expected '| `st")):
            with self.subTest(name, new=new):
                self.write(name, edited(files[name], (old, new)))
                self.expect(name + violation)
                self.write(name, files[name])
        self.write("docs/diffs/stage2-to-stage3.diff", "")
        self.expect(f"docs/diffs/stage2-to-stage3.diff: belongs to no rung{CURE}")

    def test_an_update_writes_what_is_stale_and_nothing_else(self) -> None:
        files = self.files()
        self.edit("stage1_b", ("    optimizer.step();\n", ""))
        self.write("docs/diffs/stage7-to-stage8.diff", "")
        (self.root / FIRST).unlink()
        self.assertEqual(self.run_tool()[0], 1)
        self.assertFalse((self.root / FIRST).exists())
        self.assertEqual(self.run_tool("--update"), (0, [
            "wrote docs/diffs/README.md", f"wrote {FIRST}", f"wrote {SECOND}", "wrote README.md",
            "wrote docs/reference/6-trainer.md", "removed docs/diffs/stage7-to-stage8.diff",
            "ladder: 0 violations"]))
        self.write("stage1_b/main.cpp", STAGE1)
        self.assertEqual(self.run_tool("--update")[0], 0)
        self.assertEqual(self.files(), files)
        self.assertEqual(self.run_tool("--update"), (0, ["ladder: 0 violations"]))

    def test_stages_are_numbered_without_gaps_and_otherwise_nothing_is_written(self) -> None:
        self.write("stage1_other/main.cpp", STAGE1)
        self.expect("stage1_other: expected stage2_NAME; number the stages from 0, without gaps",
                    "stage2_c: expected stage3_NAME", flag="--update")
        for name in ("stage1_other", "stage1_b"):
            (self.root / name / "main.cpp").unlink()
        self.expect("stage2_c: expected stage1_NAME", flag="--update")
        self.assertEqual(self.files()[FIRST], DIFF)
        for name in ("stage0_a", "stage2_c"):
            (self.root / name / "main.cpp").unlink()
        self.expect(f"{self.root}: no stageN_NAME/main.cpp; is --root the project's root?")

    def test_the_five_functions_in_their_order_and_no_other(self) -> None:
        start, end = STAGE1.index("// One pass"), STAGE1.index("void run")
        loop = STAGE1[start:end]
        for found, *changes in (
                ("make_data, make_model, run, train_epoch, main", (loop, ""),
                 ("}  // namespace", f"{loop}}}  // namespace")),
                ("make_data, make_model, train_epoch, train, main", ("void run(", "void train(")),
                ("make_data, make_model, train_epoch, run, run, main",
                 ("void run(", "void run() { run({}); }\nvoid run(")),
                ("make_data, make_model, twice, train_epoch, run, main",
                 ("// One pass", "template <typename T>\nT\ntwice(const T& number,\n      "
                  "int times = {}) {\n  return 2 * number;\n}\n// One pass")),
                ("make_data, make_model, operator==, train_epoch, run, main",
                 ("// One pass", "bool operator==(Data a, Data b) { return true; }\n// One pass"))):
            with self.subTest(found):
                self.edit("stage1_b", *changes)
                self.expect(f"stage1_b/main.cpp: has {found}; {ORDER}")

    def test_types_constants_and_declarations_are_no_functions(self) -> None:
        for text in ("void run(const RunOptions& options);\n",
                     "struct More {\n  int size() const { return 1; }\n};\n",
                     "const std::vector<int> kSizes{f(1),\n                              2};\n",
                     "const auto kTwice = [](int n) {\n  return 2 * n;\n};\n",
                     "#if defined(X)\nint x = f(1);\n#endif\n",
                     "}  // namespace\n\nnamespace more {\n"):
            for folder in STAGES:
                self.edit(folder, ("// One pass", f"{text}\n// One pass"))
            self.assertEqual(self.run_tool("--update")[1][-1], "ladder: 0 violations", text)

    def test_lengths(self) -> None:
        for lines in (60, 61):  # three of STAGE2
            more = "".join(f"  step({n});\n" for n in range(lines - 3))
            self.edit("stage2_c", ("  return std::make", f"{more}  return std::make"))
            self.expect(*["stage2_c/main.cpp: adds 61 lines to stage1_b, expected at most 60; move "
                          "a part into ladder/ or mnist/"] * (lines - 60), flag="--update")
        for length in (150, 151):
            comment = "// More.\n" * (length + 1 - len(STAGE2.splitlines()))
            self.edit("stage2_c", ("// Fast.\n", comment))
            self.expect(*["stage2_c/main.cpp: 151 lines, expected at most 150; move what is not "
                          "its lesson into ladder/ or mnist/"] * (length - 150), flag="--update")

    def test_the_trainer_has_no_loop_and_sixty_lines(self) -> None:
        for number in range(3, 6):
            self.write(f"stage{number}_more/main.cpp", STAGE2)
        start, end = STAGE2.index("// One pass"), STAGE2.index("void run")
        for length in (60, 61):
            text = edited(STAGE2, (STAGE2[start:end], ""))
            comment = "// More.\n" * (length + 1 - len(text.splitlines()))
            self.write("stage6_trainer/main.cpp", edited(text, ("// Fast.\n", comment)))
            self.expect(*["stage6_trainer/main.cpp: 61 lines, expected at most 60"] * (length - 60),
                        flag="--update")
        self.write("stage6_trainer/main.cpp", STAGE2)
        self.expect("stage6_trainer/main.cpp: has make_data, make_model, train_epoch, run, main; "
                    "expected make_data, make_model, run, main, in this order")

    def test_a_missing_page_is_an_error_of_its_own(self) -> None:
        (self.root / "README.md").unlink()
        with contextlib.redirect_stderr(io.StringIO()) as error:
            self.assertEqual(self.run_tool()[0], 2)
        self.assertIn("README.md", error.getvalue())


def drifts(text: str) -> Iterator[tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    counted = [i for i, line in enumerate(lines) if line.strip() and not line.startswith("// S")
               and line not in ("//\n", "// Fast.\n")]
    yield "a line more", f"{text}// The end.\n"
    for i, following in zip(counted, [*counted[1:], None]):
        line = lines[i]
        yield f"without {line}", "".join(lines[:i] + lines[i + 1:])
        yield f"twice {line}", "".join(lines[:i] + [line] + lines[i:])
        yield f"with a comment {line}", "".join(
            lines[:i] + [line.rstrip("\n") + "  // x\n"] + lines[i + 1:])
        if following and not (line.startswith("#") and lines[following].startswith("#")):
            swapped = lines.copy()
            swapped[i], swapped[following] = lines[following], line
            if lines[following] != line:
                yield f"one line down {line}", "".join(swapped)


class AcceleratorTest(unittest.TestCase):
    def test_the_loop_of_stage_5_is_that_of_stage_0_but_for_these_lines(self) -> None:
        old, new = ([line.strip() for line in ladder.Stage(ROOT, folder).parts["train_epoch"]]
                    for folder in ("stage0_single_gpu", "stage5_accelerator"))
        old, new = old[old.index("model.train();"):], new[new.index("model.train();"):]
        self.assertEqual(sorted(line for line in difflib.ndiff(old, new) if line[0] in "+-"), [
            # Accumulation, reported to the monitor, and checkpoints; the tutorial's line is
            # backward; and there is no device in the loop.
            "+ accelerator.backward(loss);",
            "+ const auto accumulation = accelerator.accumulate(model);",
            "+ for (const Batch& batch : loader) {",
            "+ if (monitor.every(options.checkpointing_steps)) accelerator.save_state();",
            "+ monitor.step(batch, loss, accelerator.sync_gradients());",
            "- const Batch batch = cpu_batch.to(device);",
            "- for (const Batch& cpu_batch : loader) {",
            "- loss.backward();",
            "- monitor.step(batch, loss);"])


if __name__ == "__main__":
    unittest.main()
