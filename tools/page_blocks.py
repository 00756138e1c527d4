#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the pages: quoted code equals its source, and links and names exist.

    tools/docs_sync.py [--root DIR]    compares
    tools/docs_sync.py --update        writes the snippets and help texts again

A line above a fenced block names its source; each block of C++ or of a diff has one:

    <!-- snippet: FILE#NAME -->    the lines between `#region NAME` and `#endregion NAME`, whole
    <!-- snippet: FILE -->         the whole file
    <!-- quote: FILE -->           lines in the order of the file; `...` or a blank line marks a gap.
                                   Of a diff the file has the new side
    <!-- help: PROGRAM -->         what build/bin/PROGRAM --help prints, once it is built

Besides, of all pages: a relative link leads to a file, and its #anchor to a heading there; a test
that is named exists, in a file that is named beside it; in a table, code under "line of stage N" or
"in stage N" is in that stage; lines have at most 120 characters. Lessons (docs/stages/) and reference
pages (docs/reference/) have the sections that a reader of the others expects, in their order, and a
lesson at most 1,000 words; a name in the middle column of docs/glossary.md is in a header of the
right one.

Each violation is one line with file, rule and fix. Exit code: 0 none, 1 some, 2 a file cannot be
read or written.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

SECTIONS = {
    "docs/stages": ["The idea", "In numbers", "The diff", "Run it", "Break it", "Exercises"],
    "docs/reference": ["Commands", "Output", "What equals what", "Under the hood", "Traps", "Sources"]}
LESSON_WORDS = 1000
COLUMNS = 120
GENERATED = "docs/bench.md"
CURE = "run tools/docs_sync.py --update"
SOURCE = re.compile(r"<!-- (snippet|quote|help): (\S+) -->")
MARK = re.compile(r"(?://|#) #(end)?region\s+(\S+)\s*$")
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
HEADING = re.compile(r"(#{1,6}) (.+)")
LEFT_OUT = "..."
GLOSSARY = "docs/glossary.md"
HEADER = re.compile(r"`((?:ladder/\w+|mnist)/\w+\.h)`")
CODE = re.compile(r"`([^`]+)`")
STAGE_COLUMN = re.compile(r"\b(?:line of|in) stage (\d)")
TEST_FILE = re.compile(r"`(tests/[\w/]+\.(?:cpp|py))`|\]\((?:\.\./)*(tests/[\w/]+\.(?:cpp|py))\)")
TEST_NAME = re.compile(r"`(?:([A-Z]\w+)\.)?((?<=\.)[A-Z]\w+|test_\w+)`")
CTESTS = "tests/CMakeLists.txt"
CTEST_NAME = re.compile(r"\btests? `([a-z]+(?:\.\w+)?)`")
EXAMPLES = {"a", "b", "images", "model", "module_", "optimizer", "scaler", "set", "true"}


class Violation(NamedTuple):
    place: str  # file:line
    text: str  # the rule, and what to do

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class SourceError(Exception):
    """What a block names is not there."""


class Block(NamedTuple):
    """A fenced block: its lines are lines[begin:end] of the page."""

    begin: int
    end: int
    source: str  # the line above it that is not blank
    named: int  # the place of that line


class Page:
    def __init__(self, root: Path, path: Path) -> None:
        self.root = root
        self.path = path
        self.name = path.relative_to(root).as_posix()
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.blocks = list(blocks_of(self.lines))
        fenced = {number for block in self.blocks
                  for number in range(block.begin - 1, block.end + 1)}
        self.prose = [(number, line) for number, line in enumerate(self.lines)
                      if number not in fenced]

    def at(self, number: int, text: str) -> Violation:
        return Violation(f"{self.name}:{number + 1}", text)

    def language(self, block: Block) -> str:
        return self.lines[block.begin - 1].strip().lstrip("`~").strip()

    def headings(self) -> list[tuple[int, str]]:
        """Level and text, outside of blocks."""
        found = (HEADING.fullmatch(line) for _, line in self.prose)
        return [(len(match[1]), match[2].strip()) for match in found if match]


def blocks_of(lines: Sequence[str]) -> Iterator[Block]:
    opened: int | None = None
    fence = above = ""
    named = 0
    for number, line in enumerate(lines):
        text = line.strip()
        if opened is None and (match := re.match(r"(`{3,}|~{3,})", text)):
            opened, fence = number + 1, match[1]
        elif opened is not None and text == fence:
            yield Block(opened, number, above, named)
            opened, above = None, ""
        elif opened is None and text:
            above, named = text, number


def dedented(lines: Sequence[str]) -> list[str]:
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[depth:] for line in lines]


def region(root: Path, name: str) -> list[str]:
    """The lines of FILE#NAME, or of FILE, without markers, moved to the left."""
    file, _, wanted = name.partition("#")
    lines = source_lines(root, file)
    if not wanted:
        return [line for line in lines if not MARK.search(line)]
    marks = [(number, match) for number, line in enumerate(lines)
             if (match := MARK.search(line)) and match[2] == wanted]
    if [match[1] for _, match in marks] != [None, "end"]:
        raise SourceError(f"{file} has no one region {wanted}: mark it by `#region {wanted}` and "
                          f"`#endregion {wanted}`")
    (begin, _), (end, _) = marks
    return dedented([line.rstrip() for line in lines[begin + 1:end] if not MARK.search(line)])


def source_lines(root: Path, file: str) -> list[str]:
    try:
        return (root / file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}; name a file from the project's root") from error


def help_text(root: Path, program: str) -> list[str] | None:
    """None: the program is not built yet."""
    path = root / "build/bin" / program
    if not path.exists():
        return None
    done = subprocess.run([path, "--help"], check=False, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise SourceError(f"{program} --help: exit code {done.returncode}")
    return done.stdout.replace(f"{root}/", "").rstrip("\n").splitlines()


def pieces_of(quoted: Sequence[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Consecutive lines with their positions; `...` or a blank line separates the groups."""
    piece: list[tuple[int, str]] = []
    for number, line in quoted:
        if line.removesuffix(LEFT_OUT).strip("+- ") not in ("", "//"):
            piece.append((number, line))
            if not line.endswith(LEFT_OUT):
                continue
        if piece:
            yield piece
        piece = []
    if piece:
        yield piece


def stands(line: str, other: str) -> bool:
    return line == other or (line.endswith(LEFT_OUT)
                             and other.startswith(line.removesuffix(LEFT_OUT).rstrip()))


def first_unquoted(quoted: Sequence[tuple[int, str]], lines: Sequence[str]) -> int | None:
    """The index of the first quoted line that does not follow in `lines`, or None."""
    others = [line.strip() for line in lines if line.strip()]
    place = 0
    for piece in pieces_of(quoted):
        most = 0  # lines of the piece that were found one after the other
        for begin in range(place, len(others)):
            held = sum(1 for _ in takewhile(lambda pair: stands(pair[0][1], pair[1]),
                                            zip(piece, others[begin:])))
            most = max(most, held)
            if held == len(piece):
                place = begin + held
                break
        else:
            return piece[most][0]
    return None


def check_quote(page: Page, block: Block, file: str) -> Iterator[Violation]:
    lines = page.lines[block.begin:block.end]
    quoted = [(number, line.strip()) for number, line in enumerate(lines)]
    if page.language(block) == "diff" and not file.endswith(".diff"):  # its new side
        quoted = [(number, line[1:].strip()) for number, line in enumerate(lines)
                  if not line.startswith("-")]
    missing = first_unquoted(quoted, source_lines(page.root, file))
    if missing is not None:
        yield page.at(block.begin + missing, f"{file} has no such line here: "
                      f"'{dict(quoted)[missing]}'; quote it unchanged, in its order, with "
                      f"{LEFT_OUT} for omitted lines")


def wanted_lines(page: Page, block: Block) -> list[str] | None:
    """What a block has to hold; None: that is not compared as a whole, or not yet."""
    match = SOURCE.fullmatch(block.source)
    if match is None or match[1] == "quote":
        return None
    return region(page.root, match[2]) if match[1] == "snippet" else help_text(page.root, match[2])


def check_blocks(page: Page) -> Iterator[Violation]:
    for block in page.blocks:
        match = SOURCE.fullmatch(block.source)
        if match is None:
            if page.language(block) in ("cpp", "diff"):
                yield page.at(block.begin - 1, "nothing holds this block to the code; put it into "
                              "a file that is compiled, and that file's name above")
            continue
        try:
            if match[1] == "quote":
                yield from check_quote(page, block, match[2])
                continue
            wanted = wanted_lines(page, block)
        except SourceError as error:
            yield page.at(block.named, str(error))
            continue
        got = page.lines[block.begin:block.end]
        if wanted is not None and got != wanted:
            place = next((number for number, (one, other) in enumerate(zip(got, wanted))
                          if one != other), min(len(got), len(wanted)))
            yield page.at(block.begin + place, f"differs from {match[2]}; {CURE}")


def anchor(heading: str) -> str:
    """As forges name it: lower case, hyphens for blanks, without other signs."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def check_links(page: Page, pages: dict[Path, Page]) -> Iterator[Violation]:
    for number, line in page.prose:
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, wanted = target.partition("#")
            path = (page.path.parent / file).resolve() if file else page.path
            if not path.exists():
                yield page.at(number, f"the link to {target} leads nowhere; mend or remove it")
            elif wanted and path in pages and wanted not in anchors(pages[path]):
                yield page.at(number, f"{file or 'this page'} has no heading #{wanted}; it has "
                              + ", ".join(sorted(anchors(pages[path]))))


def anchors(page: Page) -> set[str]:
    return {anchor(text) for _, text in page.headings()}


def cells_of(line: str) -> list[str]:
    """Of a row of a table; another line is one cell."""
    row = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]


def has_test(text: str, suite: str | None, name: str) -> bool:
    """A test of that name, or a class of tests."""
    start = rf"\w+\(\s*{suite}," if suite else r"def|class|TEST\w*\(\s*\w+,"
    return re.search(rf"\b(?:{start})\s+{name}\b", text) is not None


def has_ctest(text: str, name: str) -> bool:
    folder, _, rest = name.partition(".")
    return re.search(rf"\b(?:{folder}_test\({rest or name}|program_test\({name}|NAME {name})\s",
                     text) is not None


def tests_of(cell: str) -> Iterator[tuple[str | None, str]]:
    """Suite and name. Beside a link to a file of tests, all code is a name."""
    for match in TEST_NAME.finditer(cell):
        yield match[1], match[2]
    if TEST_FILE.search(CODE.sub("", cell)):
        names = CODE.findall(re.sub(r"\[[^\]]*\]\([^)]*\)", "", cell))
        yield from ((None, name) for name in names if not TEST_NAME.fullmatch(f"`{name}`"))


def wrong_tests(root: Path, cell: str) -> Iterator[str]:
    files = [one or other for one, other in TEST_FILE.findall(cell)]
    try:
        text = "\n".join(line for file in files for line in source_lines(root, file))
        for suite, name in tests_of(cell):
            if not has_test(text, suite, name):
                yield (f"no test {f'{suite}.' * bool(suite)}{name} in "
                       f"{' or '.join(files) or 'a file that is named beside it'}; mend it")
        for name in CTEST_NAME.findall(cell):
            if not has_ctest("\n".join(source_lines(root, CTESTS)), name):
                yield f"{CTESTS} adds no test {name}; mend the name"
    except SourceError as error:
        yield str(error)


def check_tests(page: Page) -> Iterator[Violation]:
    for number, line in page.prose:
        for cell in cells_of(line):
            yield from (page.at(number, text) for text in wrong_tests(page.root, cell))


def stage_text(root: Path, stage: str) -> str:
    """Without white space."""
    return "".join("".join(path.read_text(encoding="utf-8").split())
                    for path in root.glob(f"stage{stage}_*/main.cpp"))


def has_code(text: str, code: str) -> bool:
    parts = re.split(r"…|\.\.\.", "".join(code.split()))
    return re.search(".*?".join(map(re.escape, parts)), text) is not None


def check_stage_cells(page: Page) -> Iterator[Violation]:
    columns: dict[int, str] | None = None  # of this table, with the stage that they quote
    for number, line in page.prose:
        cells = cells_of(line)
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = {place: match[1] for place, cell in enumerate(cells)
                       if (match := STAGE_COLUMN.search(cell))}
        else:
            for place, stage in columns.items():
                text = stage_text(page.root, stage)
                yield from (page.at(number, f"stage {stage} has no '{code}'; quote it unchanged")
                            for code in CODE.findall(cells[place]) if not has_code(text, code))


def check_columns(page: Page) -> Iterator[Violation]:
    for number, line in page.prose:
        if len(line) > COLUMNS and not line.lstrip().startswith("|") and page.name != GENERATED:
            yield page.at(number, f"{len(line)} characters, a line has at most {COLUMNS}; break it")


def check_sections(page: Page) -> Iterator[Violation]:
    wanted = SECTIONS.get(page.name.rpartition("/")[0], [])
    own = [text for level, text in page.headings() if level == 2 and text in wanted]
    if own != wanted:
        yield page.at(0, f"has the sections {', '.join(own)}; expected {', '.join(wanted)}, in "
                      "this order, as the other stages")


def check_length(page: Page) -> Iterator[Violation]:
    words = sum(len(line.split()) for line in page.lines)
    if page.name.startswith("docs/stages/") and words > LESSON_WORDS:
        yield page.at(0, f"{words} words, a lesson has at most {LESSON_WORDS}; move details to "
                      "docs/reference/")


def check_glossary(page: Page) -> Iterator[Violation]:
    for number, line in page.prose:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 3 or not HEADER.search(cells[2]):
            continue
        headers = HEADER.findall(cells[2])
        words: set[str] = set()
        for header in headers:
            try:
                words.update(re.findall(r"\w+", "\n".join(source_lines(page.root, header))))
            except SourceError as error:
                yield page.at(number, str(error))
        names = [name for span in re.findall(r"`([^`]+)`", cells[1]) if not span.startswith("--")
                 for name in re.findall(r"[A-Za-z_]\w*", span)]
        for name in dict.fromkeys(names):
            if name not in words | EXAMPLES:
                yield page.at(number, f"{name} does not stand in {' or '.join(headers)}; "
                              "mend the name or its header")


def pages_of(root: Path) -> dict[Path, Page]:
    paths = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("bench/*.md"),
             *root.glob("examples/*.md"), *root.glob("tests/*/*.md")]
    return {path: Page(root, path) for path in sorted(paths)}


def check(root: Path) -> Iterator[Violation]:
    pages = pages_of(root)
    if not pages:
        yield Violation(".", "no page was found; is --root the project's root?")
    for page in pages.values():
        yield from check_blocks(page)
        yield from check_links(page, pages)
        yield from check_tests(page)
        yield from check_stage_cells(page)
        yield from check_columns(page)
        yield from check_sections(page)
        yield from check_length(page)
        if page.name == GLOSSARY:
            yield from check_glossary(page)


def update(root: Path) -> Iterator[str]:
    """Writes the blocks again that are made from something; yields the pages that changed."""
    for page in pages_of(root).values():
        lines = list(page.lines)
        for block in reversed(page.blocks):
            wanted = wanted_lines(page, block)
            if wanted is not None:
                lines[block.begin:block.end] = wanted
        if lines != page.lines:
            page.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            yield page.name


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1],
                        help="default: this checkout")
    parser.add_argument("--update", action="store_true", help="write snippets and help texts again")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        for name in update(root) if options.update else ():
            print(f"{name}: written")
        violations = list(check(root))
    except (OSError, SourceError) as error:
        print(f"docs_sync: {error}", file=sys.stderr)
        return 2
    for violation in violations:
        print(violation)
    print(f"docs_sync: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
