#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each stage is the stage before it plus one idea, and that docs/diffs/ shows it.

    tools/ladder.py             compares the stages with docs/diffs/
    tools/ladder.py --update    writes docs/diffs/; tools/pages.sh does this and the pages too

Each stageN_NAME/main.cpp has the same functions in the same order, so `git diff` shows the step
from one stage to the next function by function, each changed one whole. The diffs and stage 0
determine all stages: a line that is changed in one of them changes the diffs on both sides.

The programs of beyond/ follow the same rules. Each is one stage, named in its head comment, plus one
idea.

Code lines are those that are neither blank nor a comment nor an #include. Each violation is one
line with file, rule and fix. Exit code: 0 none, 1 some.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = ["make_data", "make_model", "train_epoch", "run", "main"]
TRAINER_STAGE = "stage6_trainer"  # has no train_epoch
STAGE_LINES = 150  # of a main.cpp, the head comment included
TRAINER_LINES = 60  # of that of the Trainer
STEP_LINES = 60  # code lines that a stage may add to the one before it
CURE = "run tools/pages.sh, then read git diff"

# clang-format begins the head of a function at the left margin.
FUNCTION = re.compile(r"^[A-Za-z][\w:<>,&* ]*?\b(\w+|operator\W+)\([^;{}]*\) \{", re.MULTILINE)
BASE = re.compile(r"^// [^:\n]*: stage (\d)", re.MULTILINE)  # in the head of a program of beyond/
NO_CODE = re.compile(r"\s*(//|#|$)")
# Neither the settings of a user nor of a system change the diffs.
GIT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
       "LC_ALL": "C"}
DIFF = ["git", "diff", "--no-index", "--no-color", "--no-ext-diff", "--no-prefix", "--patience",
        "--function-context"]


def stages_of(root: Path) -> list[str]:
    """Names of the folders, in their order."""
    return sorted(path.parent.name for path in root.glob("stage*/main.cpp"))


def main_of(root: Path, stage: str) -> str:
    return (root / stage / "main.cpp").read_text(encoding="utf-8")


def bases_of(root: Path) -> dict[str, str]:
    """The programs of beyond/, each with its stage; "" without one."""
    stages = {stage[:len("stage0")]: stage for stage in stages_of(root)}
    found = {}
    for path in sorted(root.glob("beyond/*/main.cpp")):
        program = f"beyond/{path.parent.name}"
        named = BASE.search(main_of(root, program))
        found[program] = stages.get(f"stage{named[1]}", "") if named else ""
    return found


def pairs_of(root: Path) -> list[tuple[str, str]]:
    """Each program but the first, behind the one that its diff begins with."""
    beyond = [(stage, program) for program, stage in bases_of(root).items() if stage]
    return [*pairwise(stages_of(root)), *beyond]


def code_lines(lines: list[str]) -> int:
    return sum(not NO_CODE.match(line) for line in lines)


def diff_name(old: str, new: str) -> str:
    end = new.partition("_")[0] if new.startswith("stage") else Path(new).name
    return f"docs/diffs/{old.partition('_')[0]}-to-{end}.diff"


def diff_of(root: Path, old: str, new: str) -> str:
    """From `---` on: the lines before name hashes of the files."""
    command = [*DIFF, f"{old}/main.cpp", f"{new}/main.cpp"]
    done = subprocess.run(command, cwd=root, env=GIT, capture_output=True, text=True, check=False)
    return done.stdout[done.stdout.find("--- "):]


def changes(diff: str) -> tuple[int, int]:
    """Code lines that are added and removed."""
    lines = diff.split("\n")[2:]
    added, removed = ([line[1:] for line in lines if line.startswith(sign)] for sign in "+-")
    return code_lines(added), code_lines(removed)


def wanted_diffs(root: Path) -> dict[str, str]:
    """By name, what each file in docs/diffs/ has to be."""
    return {diff_name(*pair): diff_of(root, *pair) for pair in pairs_of(root)}


# Values for tables: cells by stage.


def length_of(root: Path, program: str) -> list[object]:
    """Lines, and code lines."""
    lines = main_of(root, program).splitlines()
    return [len(lines), code_lines(lines)]


def lengths(root: Path) -> dict[str, list[object]]:
    return {stage: length_of(root, stage) for stage in stages_of(root)}


def changed_lines(root: Path) -> dict[str, list[object]]:
    """Code lines of the first stage; of the others the changes, linked from the project's root."""
    first = stages_of(root)[0]
    return {first: length_of(root, first)[1:]} | {
        program: ["[+{} -{}]({})".format(*changes(diff), name)]
        for (_, program), (name, diff) in zip(pairs_of(root), wanted_diffs(root).items())}


def added_and_removed(root: Path) -> dict[str, list[object]]:
    """For docs/diffs/README.md."""
    cells = {stage: lines[:1] for stage, lines in lengths(root).items()}
    for (_, program), (name, diff) in zip(pairs_of(root), wanted_diffs(root).items()):
        added, removed = changes(diff)
        cells[program] = [length_of(root, program)[0], f"+{added}", f"-{removed}",
                          f"[{Path(name).name}]({Path(name).name})"]
    return cells


# Checks.


def check_stages(root: Path) -> Iterator[str]:
    for number, stage in enumerate(stages_of(root)):
        if not stage.startswith(f"stage{number}_"):
            yield f"{stage}: expected stage{number}_NAME; number the stages from 0, without gaps"
    for program, stage in bases_of(root).items():
        if not stage:
            yield f"{program}/main.cpp: names no stage; begin with `// Idea: stage N with …`"
    for stage in [*stages_of(root), *bases_of(root)]:
        text = main_of(root, stage)
        found = FUNCTION.findall(text)
        trainer = stage == TRAINER_STAGE
        wanted = [name for name in FUNCTIONS if not (trainer and name == "train_epoch")]
        if found != wanted:
            yield (f"{stage}/main.cpp: has {', '.join(found)}; expected {', '.join(wanted)}, in "
                   "this order: move anything else into ladder/ or mnist/")
        lines, most = len(text.splitlines()), TRAINER_LINES if trainer else STAGE_LINES
        if lines > most:
            yield (f"{stage}/main.cpp: {lines} lines, expected at most {most}; move what is not "
                   "its lesson into ladder/ or mnist/")


def check_diffs(root: Path, diffs: dict[str, str]) -> Iterator[str]:
    for name, diff in diffs.items():
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != diff:
            yield f"{name}: differs from the stages; {CURE}"
        if changes(diff)[0] > STEP_LINES:
            yield (f"{name}: adds {changes(diff)[0]} code lines, expected at most {STEP_LINES}; "
                   "move a part into ladder/ or mnist/")
    for path in sorted((root / "docs/diffs").glob("*.diff")):
        if path.relative_to(root).as_posix() not in diffs:
            yield f"{path.relative_to(root)}: of no two stages; remove it"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="default: this checkout")
    parser.add_argument("--update", action="store_true", help="write docs/diffs/")
    options = parser.parse_args(arguments)
    diffs = wanted_diffs(options.root)
    for name, diff in diffs.items() if options.update else ():
        (options.root / name).write_text(diff, encoding="utf-8")
    violations = [*check_stages(options.root), *check_diffs(options.root, diffs)]
    print(*violations, f"ladder: {len(violations)} violations", sep="\n")
    return 1 if violations or not diffs else 0


if __name__ == "__main__":
    sys.exit(main())
