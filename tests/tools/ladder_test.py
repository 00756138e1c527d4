# SPDX-License-Identifier: Apache-2.0
"""tools/ladder.py on three small stages made here, and the loops of two real ones."""
from __future__ import annotations

import difflib
import re
from pathlib import Path

import ladder
import pytest

from tests.support.files import write
from tests.support.in_process import Start
from tests.support.programs import ROOT

STAGE0 = """\
// Stage 0: one device.
#include <memory>

namespace {

// All of it is in memory.
Data make_data(const Options& options) { return {.train = DataLoader(options.data_root)}; }

std::shared_ptr<Model> make_model(const Options& options,
                                  const torch::Device& device) {
  const auto twice = [](int n) { return 2 * n; };
  return std::make_shared<BasicNet>();
}

void train_epoch(Model& model, DataLoader& loader) {
  for (const Batch& batch : loader) model.loss(batch).backward();
}

void run(const Options& options) {
  auto model = make_model(options);
  prepare(1);
  prepare(2);
  prepare(3);
  train_epoch(*model, make_data(options).train);
}

}  // namespace

int main(int argc, char** argv) { return ladder::run_main(argc, argv, run); }
"""
WRAP = "  model = std::make_shared<DataParallel>(model);\n"
STAGE1 = STAGE0.replace("0: one device", "1: replicas").replace(
    "  train_epoch(*", WRAP + "  train_epoch(*").replace("<memory>\n", "<memory>\n#include <set>\n")
STAGE2 = STAGE1.replace("1: replicas", "2: ranks").replace(WRAP, "  spawn(model);\n")
STAGES = {"stage0_a": STAGE0, "stage1_b": STAGE1, "stage2_c": STAGE2}
FIRST, SECOND = "docs/diffs/stage0-to-stage1.diff", "docs/diffs/stage1-to-stage2.diff"
ORDER = "expected make_data, make_model, train_epoch, run, main, in this order"


class Tree:
    def __init__(self, root: Path, start: Start) -> None:
        self.root, self.start = root, start
        (root / "docs/diffs").mkdir(parents=True)
        for stage, text in STAGES.items():
            self.write(stage, text)
        self.check("--update")

    def write(self, stage: str, text: str) -> None:
        write(self.root / stage / "main.cpp", text)

    def check(self, *flags: str) -> list[str]:
        """The violations."""
        code, output, _ = self.start(ladder, "--root", self.root, *flags)
        *violations, last = output.splitlines()
        assert (code, last) == (int(bool(violations)), f"ladder: {len(violations)} violations")
        return violations


@pytest.fixture
def tree(tmp_path: Path, start: Start) -> Tree:
    return Tree(tmp_path, start)


def test_a_diff_has_whole_functions_and_the_tables_count_code(tree: Tree) -> None:
    assert tree.check() == []
    diff = (tree.root / FIRST).read_text()
    assert diff.startswith("--- stage0_a/main.cpp\n+++ stage1_b/main.cpp\n@@")
    begin = " void run(const Options& options) {\n   auto model = make_model(options);\n"
    assert f"\n{begin}   prepare(1);\n" in diff and f"\n+{WRAP}" in diff
    assert ladder.changed_lines(tree.root) == {
        "stage0_a": [19], "stage1_b": [f"[+1 -0]({FIRST})"], "stage2_c": [f"[+1 -1]({SECOND})"]}
    assert ladder.added_and_removed(tree.root)["stage2_c"] == [
        31, "+1", "-1", "[stage1-to-stage2.diff](stage1-to-stage2.diff)"]
    assert ladder.lengths(tree.root)["stage1_b"] == [31, 20]


def test_a_diff_that_is_old_edited_lost_or_left_over(tree: Tree) -> None:
    tree.write("stage1_b", STAGE1.replace("#include <set>", "#include <map>"))
    assert tree.check() == [f"{name}: differs from the stages; {ladder.CURE}"
                            for name in (FIRST, SECOND)]
    assert tree.check("--update") == []
    (tree.root / FIRST).write_text("")
    (tree.root / SECOND).unlink()
    (tree.root / "docs/diffs/stage7-to-stage8.diff").touch()
    assert [line.partition(":")[0] for line in tree.check()] == [
        FIRST, SECOND, "docs/diffs/stage7-to-stage8.diff"]


def test_a_program_beyond_the_stages_has_a_diff_against_the_stage_that_it_names(tree: Tree) -> None:
    name = "docs/diffs/stage0-to-cut.diff"
    tree.write("beyond/cut", STAGE0.replace("Stage 0: one device", "Cut: stage 0 in parts").replace(
        "prepare(2)", "cut(2)"))
    assert tree.check() == [f"{name}: differs from the stages; {ladder.CURE}"]
    assert tree.check("--update") == []
    assert ladder.changed_lines(tree.root)["beyond/cut"] == [f"[+1 -1]({name})"]
    assert ladder.added_and_removed(tree.root)["beyond/cut"][0] == 29
    tree.write("beyond/cut", STAGE1.replace("Stage 1:", "Cut: stage 1 in"))
    assert [line.partition(";")[0] for line in tree.check()] == [
        "docs/diffs/stage1-to-cut.diff: differs from the stages",
        f"{name}: of no two stages"]
    tree.write("beyond/cut", STAGE0.replace("Stage 0: one device", "A cut"))
    assert "beyond/cut/main.cpp: names no stage; begin with `// Idea: stage N with …`" in tree.check()


def with_more(steps: int) -> str:
    return STAGE2.replace("  spawn", "  step();\n" * steps + "  spawn")


@pytest.mark.parametrize("stage, text, violation", [
    ("stage1_b", STAGE1.replace("void run", "void other() {\n}\n\nvoid run"),
     f"train_epoch, other, run, main; {ORDER}"),
    ("stage1_b", STAGE1.replace("void run", "bool operator==(Data a, Data b) {\n}\n\nvoid run"),
     "train_epoch, operator==, run, main; "),
    ("stage1_b", STAGE1.replace("void train_epoch", "void train"), "train, run, main; "),
    ("stage4_d", STAGE2, "stage4_d: expected stage3_NAME"),
    ("stage2_c", with_more(59), None),
    ("stage2_c", with_more(60), f"{SECOND}: adds 61 code lines, expected at most 60"),
    ("stage2_c", "// More.\n" * 119 + STAGE2, None),
    ("stage2_c", "// More.\n" * 120 + STAGE2, "151 lines, expected at most 150")])
def test_what_a_stage_must_be(tree: Tree, stage: str, text: str, violation: str | None) -> None:
    tree.write(stage, text)
    violations = tree.check("--update")
    assert len(violations) == int(violation is not None)
    assert violation is None or violation in violations[0]


def test_the_loop_of_stage_5_is_that_of_stage_0_but_for_these_lines() -> None:
    old, new = (re.search(r"^void train_epoch\(.*?^\}", ladder.main_of(ROOT, stage), re.M | re.S)[0]
                for stage in ("stage0_single_gpu", "stage5_accelerator"))
    old, new = ([line.strip() for line in text.partition("model.train();")[2].splitlines()]
                for text in (old, new))
    assert sorted(line for line in difflib.ndiff(old, new) if line[0] in "+-") == [
        # Accumulation, reported to the monitor, and checkpoints; the tutorial's line is backward;
        # and there is no device in the loop.
        "+ accelerator.backward(loss);",
        "+ const auto accumulation = accelerator.accumulate(model);",
        "+ for (const Batch& batch : loader) {",
        "+ if (monitor.every(options.checkpointing_steps)) accelerator.save_state();",
        "+ monitor.step(batch, loss, accelerator.sync_gradients());",
        "- const Batch batch = cpu_batch.to(device);",
        "- for (const Batch& cpu_batch : loader) {",
        "- loss.backward();",
        "- monitor.step(batch, loss);"]
