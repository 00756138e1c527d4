#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps the stages honest: each is the stage before it plus one idea, and the diffs show it.

    tools/ladder.py [--root DIR] [--check]    compares the stages with the diffs under docs/diffs/
    tools/ladder.py --update                  writes the diffs again; then read `git diff`

Reads every stageN_NAME/main.cpp on disk. Its five functions are in one order, so the diff of
a rung is made function by function: the #include lines that differ, then each function that
differs, whole. The comparison ignores in a main.cpp only:

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
from typing import NamedTuple

FUNCTIONS = ("make_data", "make_model", "train_epoch", "run", "main")
LOOP = "train_epoch"  # which the stage of the Trainer has not
TRAINER_STAGE = "stage6_trainer"
STAGE_LINES = 150  # of a main.cpp, the head comment included
TRAINER_LINES = 60  # of that of the Trainer
RUNG_LINES = 60  # that a stage may add to the one before it
DIFFS = "docs/diffs"
CURE = f"run tools/ladder.py --update, then read git diff {DIFFS}"

STAGE = re.compile(r"stage(0|[1-9]\d*)_[a-z0-9_]+")
REGION = re.compile(r"\s*//\s*#(end)?region\b")
INCLUDE = re.compile(r"#\s*include\b")
# What holds no code: strings, characters, comments to the end of the line.
NO_CODE = re.compile(r'"(?:\\.|[^"\\])*"|' r"'(?:\\.[0-7a-fx]*|[^'\\])'|//.*")
# Lines that are no part of a declaration: preprocessor, a namespace's two ends.
ALONE = re.compile(r"#|\}|(inline )?namespace\b.*\{$")
FUNCTION = re.compile(r"(\w+|operator\W+)\s*\(")
INCLUDES, DECLARATIONS = "includes", "declarations"


class Violation(NamedTuple):
    place: str  # file or file:line
    text: str  # the rule, and what to do

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Line(NamedTuple):
    number: int  # in its file, from 1
    text: str

    def code(self) -> str:
        return NO_CODE.sub(" ", self.text).strip()


class Function(NamedTuple):
    name: str
    line: int


class Row(NamedTuple):
    """A line of a file under docs/diffs/."""

    text: str
    place: str = "the stages"  # file:line, if it is about one line


def compared_lines(text: str) -> list[Line]:
    """The lines of a main.cpp that are compared, in their order."""
    lines = (Line(number, raw.rstrip()) for number, raw in enumerate(text.splitlines(), start=1))
    body = dropwhile(lambda line: not line.text or line.text.startswith("//"), lines)
    return [line for line in body if line.text and not REGION.match(line.text)]


def declarations(lines: list[Line]) -> Iterator[list[Line]]:
    """Cuts the lines at the top level, each piece with the comment above it."""
    piece: list[Line] = []
    depth = 0
    for line in lines:
        piece.append(line)
        code = line.code()
        if not code:
            continue
        alone = depth == 0 and ALONE.match(code)
        if not alone:
            depth += sum(code.count(mark) for mark in "({[") - sum(map(code.count, ")}]"))
        if alone or (depth == 0 and code.endswith((";", "}"))):
            yield piece
            piece = []
    if piece:
        yield piece


def defined_function(piece: list[Line]) -> Function | None:
    """The function that a piece defines: an expression `name(`, and a body without `;`."""
    code = [(line.number, line.code()) for line in piece]
    if not code[-1][1].endswith("}"):
        return None
    found = ((number, FUNCTION.search(text)) for number, text in code)
    return next((Function(match[1], number) for number, match in found if match), None)


class Stage:
    """One stageN_NAME/main.cpp, cut into the parts that are compared with its neighbours."""

    def __init__(self, root: Path, folder: str) -> None:
        self.number = int(STAGE.fullmatch(folder)[1])
        self.folder = folder
        self.name = f"{folder}/main.cpp"
        text = (root / self.name).read_text(encoding="utf-8", errors="replace")
        self.length = len(text.splitlines())
        lines = compared_lines(text)
        includes = list(takewhile(lambda line: INCLUDE.match(line.text), lines))
        self.parts = {INCLUDES: sorted(includes, key=lambda line: line.text)}
        self.functions: list[Function] = []
        self.cut(lines[len(includes):])

    def cut(self, lines: list[Line]) -> None:
        """Lines between two functions belong to the second; lines before the first to neither."""
        label, part = DECLARATIONS, []
        for piece in declarations(lines):
            function = defined_function(piece)
            if function and not self.functions:
                self.parts[DECLARATIONS], part = part, []
            part += piece
            if function:
                self.functions.append(function)
                label = function.name
                self.parts[label], part = part, []
        self.parts[label] = self.parts.get(label, []) + part

    def texts(self, label: str) -> list[str]:
        return [line.text for line in self.parts.get(label, [])]

    def rows(self, label: str, begin: int, end: int, mark: str) -> list[Row]:
        return [Row(mark + line.text, f"{self.name}:{line.number}")
                for line in self.parts.get(label, [])[begin:end]]

    def at(self, line: int, text: str) -> Violation:
        return Violation(f"{self.name}:{line}", text)


class Hunk(NamedTuple):
    label: str
    rows: list[Row]  # each behind its ' ', '-' or '+'

    def count(self, mark: str) -> int:
        return sum(row.text[0] == mark for row in self.rows)


def marked(old: Stage, new: Stage, label: str) -> list[Row]:
    """All lines of both, as a unified diff marks them."""
    rows = []
    matcher = SequenceMatcher(None, old.texts(label), new.texts(label), autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            rows += new.rows(label, k, m, " ")
        else:
            rows += old.rows(label, i, j, "-") + new.rows(label, k, m, "+")
    return rows


class Rung:
    """The step from one stage to the next."""

    def __init__(self, old: Stage, new: Stage) -> None:
        self.old, self.new = old, new
        self.file = f"stage{old.number}-to-stage{new.number}.diff"
        labels = [label for label in (INCLUDES, DECLARATIONS, *FUNCTIONS)
                  if old.texts(label) != new.texts(label)]
        self.hunks = [Hunk(label, marked(old, new, label)) for label in labels]

    def count(self, mark: str) -> int:
        return sum(hunk.count(mark) for hunk in self.hunks)

    def adds_code(self) -> bool:
        return any(row.text[0] == "+" and Line(0, row.text[1:]).code()
                   for hunk in self.hunks if hunk.label != INCLUDES for row in hunk.rows)

    def rows(self) -> list[Row]:
        rows = [Row(f"--- {self.old.name}"), Row(f"+++ {self.new.name}")]
        for hunk in self.hunks:
            # Their order does not count, so unchanged ones are no difference.
            shown = (row for row in hunk.rows if hunk.label != INCLUDES or row.text[0] != " ")
            rows += [Row(f"@@ {hunk.label} @@"), *shown]
        return rows


def stage_folders(root: Path) -> tuple[list[str], list[Violation]]:
    """The folders of the stages by number, and the violations of their sequence."""
    names = sorted(path.name for path in root.iterdir()
                   if path.is_dir() and path.name.startswith("stage"))
    stages = [name for name in names if STAGE.fullmatch(name)]
    stages.sort(key=lambda name: int(STAGE.fullmatch(name)[1]))
    violations = [Violation(name, "not a stage: a stage is stageN_NAME/main.cpp; "
                                  "rename or remove it")
                  for name in names
                  if name not in stages or not (root / name / "main.cpp").is_file()]
    if not stages:
        return [], [*violations, Violation("stage0_NAME/main.cpp", "no stage on disk; "
                                           "the ladder begins with stage 0")]
    for name, before in zip(stages, [None, *stages]):
        violations += check_number(name, before)
    return stages, violations


def check_number(name: str, before: str | None) -> Iterator[Violation]:
    number = int(STAGE.fullmatch(name)[1])
    wanted = int(STAGE.fullmatch(before)[1]) + 1 if before else 0
    if number < wanted:
        yield Violation(name, f"the number {number} is that of {before} too; "
                              "give each stage a number of its own")
    elif number > wanted:
        yield Violation(name, f"there is no stage {wanted}; stages are numbered from 0 without "
                              "gaps, so add it or renumber")


def check_functions(stage: Stage) -> Iterator[Violation]:
    """The five functions, in their order, and no other."""
    wanted_here = tuple(name for name in FUNCTIONS
                        if name != LOOP or stage.folder != TRAINER_STAGE)
    rule = f"every stage has {', '.join(FUNCTIONS)}, once each and in this order"
    if stage.folder == TRAINER_STAGE:
        rule = f"{TRAINER_STAGE} has {', '.join(wanted_here)}, once each and in this order"
    names = [function.name for function in stage.functions]
    missing = [name for name in wanted_here if name not in names]
    for name in missing:
        yield Violation(stage.name, f"no function {name}; {rule}, so write it")
    for name, line in stage.functions:
        if name not in wanted_here:
            yield stage.at(line, f"{name} is one function too many; {rule}, and nothing beside "
                                 "them: move it into ladder/ or into the function that needs it")
    ours = [function for function in stage.functions if function.name in wanted_here]
    for (name, line), wanted in zip_longest(ours, wanted_here[: len(ours)]):
        if name != wanted and not missing:
            yield stage.at(line, f"{name} is in the wrong order; {rule}, so move it")
            return


def check_length(stage: Stage) -> Iterator[Violation]:
    most = TRAINER_LINES if stage.folder == TRAINER_STAGE else STAGE_LINES
    if stage.length > most:
        yield stage.at(most + 1, f"{stage.length} lines, a stage has at most {most}; "
                                        "move what is not its lesson into ladder/")


def check_rung(rung: Rung) -> Iterator[Violation]:
    added = rung.count("+")
    if added > RUNG_LINES:
        yield Violation(rung.new.name, f"adds {added} lines to {rung.old.folder}, a rung adds at "
                                       f"most {RUNG_LINES}; move a part into ladder/")
    if not rung.adds_code():
        yield Violation(rung.new.name, f"adds no code to {rung.old.folder}; a rung is one idea, "
                                       "so write it or remove the stage")


def table(stages: list[Stage], rungs: list[Rung]) -> list[list[str]]:
    counts = [["", ""]] + [[f"+{rung.count('+')}", f"-{rung.count('-')}"] for rung in rungs]
    return [[stage.folder, str(stage.length), *row] for stage, row in zip(stages, counts)]


def page(stages: list[Stage], rungs: list[Rung]) -> list[Row]:
    """docs/diffs/README.md."""
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "# What each stage adds to the one before it",
        "",
        "Written by `tools/ladder.py --update` and compared with the stages in every test run.",
        "A diff shows the `#include` lines that differ and each function that differs, whole; it",
        "leaves out the comment at the head of the file and blank lines. A rung adds at most",
        f"{RUNG_LINES} lines, a `main.cpp` has at most {STAGE_LINES}, the last {TRAINER_LINES}.",
        "",
        "| stage | lines | added | removed | diff |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    links = ["", *(f"[{rung.file}]({rung.file})" for rung in rungs)]
    for row, link in zip(table(stages, rungs), links):
        lines.append("| " + " | ".join([f"`{row[0]}`", *row[1:], link]) + " |")
    return [Row(line) for line in lines]


def difference(wanted: list[Row], found: str) -> tuple[int, str] | None:
    """The first line that differs: one that a diff adds or removes, before any line around it."""
    end = "the end of the file"
    for marks in (("+", "-"), ("",)):
        rows = [row for row in [*wanted, Row("")] if row.text.startswith(marks)]
        lines = [line for line in enumerate(found.split("\n"), start=1)
                 if line[1].startswith(marks)]
        for now, line in zip_longest(rows, lines):
            now, (number, then) = now or Row(end), line or (len(found.splitlines()), end)
            if now.text != then:
                return number, f"stale: '{now.text}' by {now.place}, '{then}' in the file"
    return None


def check_file(root: Path, name: str, wanted: list[Row]) -> Iterator[Violation]:
    """A committed file against the present stages."""
    path = root / DIFFS / name
    if not path.is_file():
        yield Violation(f"{DIFFS}/{name}", f"missing; {CURE}")
        return
    stale = difference(wanted, path.read_text(encoding="utf-8", errors="replace"))
    if stale:
        yield Violation(f"{DIFFS}/{name}:{stale[0]}", f"{stale[1]}; {CURE}")


def surplus(root: Path, wanted: dict[str, list[Row]]) -> list[Path]:
    folder = root / DIFFS
    present = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in present if path.name not in wanted]


def check_files(root: Path, wanted: dict[str, list[Row]]) -> Iterator[Violation]:
    for name, rows in wanted.items():
        yield from check_file(root, name, rows)
    for path in surplus(root, wanted):
        cure = CURE if path.suffix == ".diff" else "move it elsewhere"
        yield Violation(f"{DIFFS}/{path.name}", f"belongs to no rung on disk; {cure}")


def update(root: Path, wanted: dict[str, list[Row]]) -> None:
    """Writes the files that differ; of the surplus, it removes diffs alone."""
    (root / DIFFS).mkdir(parents=True, exist_ok=True)
    for name, rows in wanted.items():
        if any(check_file(root, name, rows)):
            text = "".join(f"{row.text}\n" for row in rows)
            (root / DIFFS / name).write_text(text, encoding="utf-8")
            print(f"wrote {DIFFS}/{name}")
    for path in surplus(root, wanted):
        if path.suffix == ".diff":
            path.unlink()
            print(f"removed {DIFFS}/{path.name}")


def print_table(rows: list[list[str]]) -> None:
    width = max(len(row[0]) for row in rows)
    for stage, *numbers in [["stage", "lines", "added", "removed"], *rows]:
        cells = (f"{number:>9}" for number in numbers)
        print(f"{stage:<{width}}{''.join(cells)}".rstrip())


def check_tree(root: Path, write: bool) -> tuple[int, list[Violation]]:
    """The number of stages, and the violations. Stages of the wrong shape are not compared."""
    folders, violations = stage_folders(root)
    if violations:
        return len(folders), violations
    stages = [Stage(root, folder) for folder in folders]
    violations += [violation for stage in stages for violation in check_functions(stage)]
    if violations:
        return len(stages), violations
    rungs = [Rung(old, new) for old, new in zip(stages, stages[1:])]
    wanted = {"README.md": page(stages, rungs)} | {rung.file: rung.rows() for rung in rungs}
    if write:
        update(root, wanted)
    print_table(table(stages, rungs))
    violations += [violation for stage in stages for violation in check_length(stage)]
    violations += [violation for rung in rungs for violation in check_rung(rung)]
    return len(stages), violations + list(check_files(root, wanted))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--root", type=Path, default=here, help="default: this checkout")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only compare: the default")
    mode.add_argument("--update", action="store_true", help=f"write {DIFFS}/ again")
    options = parser.parse_args(arguments)
    try:
        count, violations = check_tree(options.root, options.update)
    except OSError as error:
        print(f"ladder: cannot read the stages and diffs of {options.root}: {error}",
              file=sys.stderr)
        return 2
    for violation in violations:
        print(violation)
    print(f"ladder: {count} stages, {max(count - 1, 0)} rungs, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
