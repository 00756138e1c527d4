#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each stage is the stage before it plus one idea, and that the pages show it.

    tools/ladder.py [--root DIR]    compares the stages with docs/diffs/, and with the tables of
                                    lines in README.md and docs/reference/6-trainer.md
    tools/ladder.py --update        writes diffs and tables; then read `git diff`

Each stageN_NAME/main.cpp has the same functions in the same order, so a rung is compared function
by function: the #include lines that differ, then each function that differs, whole. The comparison
ignores in a main.cpp only:

  - the comment at the head of the file, up to the first line that is neither comment nor blank;
  - blank lines, spaces at the end of a line, and the markers `// #region` and `// #endregion`;
  - the order of the #include lines at the top.

A line that is changed, lost, doubled or moved in one stage changes the diffs on both sides.
Each violation is one line with file, rule and fix. Exit code: 0 none, 1 some, 2 a file cannot
be read or written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import dropwhile, takewhile, zip_longest
from pathlib import Path

FUNCTIONS = ["make_data", "make_model", "train_epoch", "run", "main"]
TRAINER_STAGE = "stage6_trainer"  # has no train_epoch
STAGE_LINES = 150  # of a main.cpp, the head comment included
TRAINER_LINES = 60  # of that of the Trainer
RUNG_LINES = 60  # that a stage may add to the one before it
DIFFS = "docs/diffs"
FIRST_PAGE, TRAINER_PAGE = "README.md", "docs/reference/6-trainer.md"
CURE = "run tools/ladder.py --update, then read git diff"

STAGE = re.compile(r"stage(\d)_[a-z0-9_]+")
REGION = re.compile(r"\s*//\s*#(end)?region\b")
# clang-format begins the head of a function, and ends its body, at the left margin.
HEAD = re.compile(r"(?![\s/]).*?(\w+|operator\W+)\(")
END = re.compile(r"\}|\S.*\{.*\}")
INCLUDES, DECLARATIONS = "includes", "declarations"


def cut(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Functions by name. Lines between two belong to the second, lines behind the last to main."""
    part: list[str] = []
    for line in lines:
        part.append(line)
        if END.fullmatch(line) and (heads := list(filter(None, map(HEAD.match, part)))):
            yield heads[-1][1], part
            part = []
    yield "", part


def divide(part: list[str]) -> tuple[list[str], list[str]]:
    """The declarations before the first function, and that function with its comment."""
    begin = max((number for number, line in enumerate(part) if HEAD.match(line)), default=0)
    while begin and part[begin - 1].startswith("//"):
        begin -= 1
    return part[:begin], part[begin:]


class Stage:
    """One stageN_NAME/main.cpp, cut into the parts that are compared with its neighbours."""

    def __init__(self, root: Path, folder: str) -> None:
        self.folder = folder
        self.name = f"{folder}/main.cpp"
        text = (root / self.name).read_text(encoding="utf-8")
        lines = [line.rstrip() for line in text.splitlines()]
        self.length = len(lines)
        self.code = sum(1 for line in lines if line and not line.lstrip().startswith(("//", "#")))
        body = dropwhile(lambda line: not line or line.startswith("//"), lines)
        compared = [line for line in body if line and not REGION.match(line)]
        includes = list(takewhile(lambda line: line.startswith("#include"), compared))
        *functions, (_, rest) = cut(compared[len(includes):])
        self.functions = [name for name, _ in functions]
        self.parts = {INCLUDES: sorted(includes)} | dict(functions)
        if functions:
            first = self.functions[0]
            self.parts[DECLARATIONS], self.parts[first] = divide(self.parts[first])
            self.parts[self.functions[-1]] += rest


def marked(old: list[str], new: list[str]) -> Iterator[str]:
    """All lines of both, as a unified diff marks them."""
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (f" {line}" for line in new[k:m])
        else:
            yield from (f"-{line}" for line in old[i:j])
            yield from (f"+{line}" for line in new[k:m])


class Rung:
    """The step from one stage to the next."""

    def __init__(self, number: int, old: Stage, new: Stage) -> None:
        self.old, self.new = old, new
        self.file = f"stage{number}-to-stage{number + 1}.diff"
        self.lines = [f"--- {old.name}", f"+++ {new.name}"]
        for label in (INCLUDES, DECLARATIONS, *FUNCTIONS):
            one, other = old.parts.get(label, []), new.parts.get(label, [])
            if one != other:
                # The order of includes does not count, so unchanged ones are no difference.
                self.lines += [f"@@ {label} @@", *(line for line in marked(one, other)
                                                   if label != INCLUDES or line[0] != " ")]
        self.added, self.removed = (sum(line[0] == mark for line in self.lines[2:])
                                    for mark in "+-")


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def diffs_page(stages: list[Stage], rungs: list[Rung]) -> str:
    """docs/diffs/README.md."""
    counts = [("", "", "")] + [(f"+{rung.added}", f"-{rung.removed}", f"[{rung.file}]({rung.file})")
                               for rung in rungs]
    return "\n".join([
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "# Differences between consecutive stages",
        "",
        "`tools/ladder.py --update` writes this folder; every test run compares it with the",
        "stages. A diff shows the `#include` lines that differ and the whole of each function that",
        "differs, without blank lines and the comment at the head of the file. A stage adds at",
        f"most {RUNG_LINES} lines; a `main.cpp` has at most {STAGE_LINES}, "
        f"that of stage 6 at most {TRAINER_LINES}.",
        "",
        row("stage", "lines", "added", "removed", "diff"),
        row("---", "---:", "---:", "---:", "---"),
        *(row(f"`{stage.folder}`", stage.length, *some) for stage, some in zip(stages, counts)),
        ""])


def with_cells(text: str, begin: int, cells: dict[str, list[object]]) -> str:
    """A page, with these cells in the rows of the stages, from column `begin` on (the first: 1)."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        found = line.split("|")
        own = cells.get(found[1].strip(" `"), []) if line.startswith("| `stage") else []
        found[begin:begin + len(own)] = [f" {cell} " for cell in own]
        lines[number] = "|".join(found)
    return "\n".join(lines)


def wanted_files(root: Path, stages: list[Stage], rungs: list[Rung]) -> dict[str, str]:
    """By name, what each written file has to be."""
    files = {f"{DIFFS}/README.md": diffs_page(stages, rungs)}
    files |= {f"{DIFFS}/{rung.file}": "\n".join([*rung.lines, ""]) for rung in rungs}
    lines: dict[str, list[object]] = {stages[0].folder: [stages[0].length]}
    for rung in rungs:
        lines[rung.new.folder] = [f"[+{rung.added} -{rung.removed}]({DIFFS}/{rung.file})"]
    code = {stage.folder: [stage.length, stage.code] for stage in stages}
    for name, column, cells in ((FIRST_PAGE, 3, lines), (TRAINER_PAGE, 2, code)):
        files[name] = with_cells((root / name).read_text(encoding="utf-8"), column, cells)
    return files


def surplus(root: Path, wanted: dict[str, str]) -> list[str]:
    names = (path.relative_to(root).as_posix() for path in sorted((root / DIFFS).glob("*.diff")))
    return [name for name in names if name not in wanted]


def check_files(root: Path, wanted: dict[str, str]) -> Iterator[str]:
    for name, text in wanted.items():
        path = root / name
        found = path.read_text(encoding="utf-8") if path.is_file() else ""
        pairs = zip_longest(text.split("\n"), found.split("\n"), fillvalue="the end of the file")
        stale = ((place, *pair) for place, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
        for place, now, then in list(stale)[:1]:
            yield f"{name}:{place}: stale: expected '{now}', got '{then}'; {CURE}"
    for name in surplus(root, wanted):
        yield f"{name}: belongs to no rung; {CURE}"


def update(root: Path, wanted: dict[str, str]) -> None:
    (root / DIFFS).mkdir(parents=True, exist_ok=True)
    for name in [one.partition(":")[0] for one in check_files(root, wanted)]:
        if name in wanted:
            (root / name).write_text(wanted[name], encoding="utf-8")
        else:
            (root / name).unlink()
        print(f"{'wrote' if name in wanted else 'removed'} {name}")


def check_stage(stage: Stage, number: int) -> Iterator[str]:
    """Number and functions. What fails here is not compared."""
    if stage.folder[5] != str(number):
        yield f"{stage.folder}: expected stage{number}_NAME; number the stages from 0, without gaps"
    wanted = [name for name in FUNCTIONS
              if name != "train_epoch" or stage.folder != TRAINER_STAGE]
    if stage.functions != wanted:
        yield (f"{stage.name}: has {', '.join(stage.functions)}; expected {', '.join(wanted)}, in "
               "this order: move anything else into ladder/ or mnist/")


def check_lengths(stages: list[Stage], rungs: list[Rung]) -> Iterator[str]:
    for stage in stages:
        most = TRAINER_LINES if stage.folder == TRAINER_STAGE else STAGE_LINES
        if stage.length > most:
            yield (f"{stage.name}: {stage.length} lines, expected at most {most}; move what is not "
                   "its lesson into ladder/ or mnist/")
    for rung in rungs:
        if rung.added > RUNG_LINES:
            yield (f"{rung.new.name}: adds {rung.added} lines to {rung.old.folder}, expected at "
                   f"most {RUNG_LINES}; move a part into ladder/ or mnist/")


def check_tree(root: Path, write: bool) -> list[str]:
    """The violations."""
    folders = sorted(path.parent.name for path in root.glob("stage*/main.cpp"))
    stages = [Stage(root, folder) for folder in folders if STAGE.fullmatch(folder)]
    violations = [one for number, stage in enumerate(stages) for one in check_stage(stage, number)]
    if violations or not stages:
        return violations or [f"{root}: no stageN_NAME/main.cpp; is --root the project's root?"]
    rungs = [Rung(number, *pair) for number, pair in enumerate(zip(stages, stages[1:]))]
    wanted = wanted_files(root, stages, rungs)
    if write:
        update(root, wanted)
    return [*check_lengths(stages, rungs), *check_files(root, wanted)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--root", type=Path, default=here, help="default: this checkout")
    parser.add_argument("--update", action="store_true", help="write diffs and tables")
    options = parser.parse_args(arguments)
    try:
        violations = check_tree(options.root, options.update)
    except OSError as error:
        print(f"ladder: {error}", file=sys.stderr)
        return 2
    print(*violations, f"ladder: {len(violations)} violations", sep="\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
