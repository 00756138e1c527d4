# SPDX-License-Identifier: Apache-2.0
"""The pages: their code comes from files, and what they name exists.

tools/pages.sh compares quotes, mdlinkcheck follows links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import page
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = page.pages_of(ROOT)
SECTIONS = {
    "docs/stages": ["The idea", "In numbers", "The diff", "Run it", "Break it", "Exercises",
                    "Remember"],
    "docs/reference": ["Commands", "Output", "What equals what", "Under the hood", "Traps",
                       "Sources"]}
LESSON_WORDS = 1000
COLUMNS = 120
CODE = re.compile(r"`([^`]+)`")
HEADER = re.compile(r"`((?:ladder/\w+|mnist)/\w+\.h)`")
STAGE_COLUMN = re.compile(r"\b(?:line of|in) stage (\d)")
TEST_FILE = re.compile(r"`(tests/[\w/]+\.(?:cpp|py))`|\]\((?:\.\./)*(tests/[\w/]+\.(?:cpp|py))\)")
TEST_NAME = re.compile(r"`(?:([A-Z]\w+)\.)?((?<=\.)[A-Z]\w+|test_\w+)`")
CTEST_NAME = re.compile(r"\btests? `([a-z]+(?:\.\w+)?)`")
CTESTS = (ROOT / "tests/CMakeLists.txt").read_text(encoding="utf-8")
Problems = Iterator[tuple[int, str]]
EXAMPLES = {"a", "b", "images", "model", "module_", "optimizer", "scaler", "set", "true"}


def cells_of(line: str) -> list[str]:
    """Of a row of a table; another line is one cell."""
    row = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]


def by_page(check: Callable[[page.Page], Problems]) -> Callable[[page.Page], None]:
    """A test of each page; the check yields (line number, problem)."""
    @pytest.mark.parametrize("one", PAGES, ids=lambda one: one.name)
    def test(one: page.Page) -> None:
        assert [f"{one.name}:{number + 1}: {text}" for number, text in check(one)] == []
    return test


@by_page
def test_code_comes_from_a_file_that_is_compiled(one: page.Page) -> Problems:
    for block in one.blocks:
        if one.language(block) in ("cpp", "diff") and not block.generated:
            yield block.begin - 1, "put it into a file, and quote that: see tools/page_blocks.py"


def test_the_notebook_shows_each_stage_and_has_no_outputs() -> None:
    notebook = json.loads((ROOT / "docs/ladder.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["id"] for cell in cells if cell["outputs"] or cell["execution_count"]] == []
    shown = re.findall(r'^show\("(\w+)"', "\n".join("".join(cell["source"]) for cell in cells), re.M)
    assert shown == sorted(path.parent.name for path in ROOT.glob("stage*/main.cpp"))


@by_page
def test_lines_are_short(one: page.Page) -> Problems:
    for number, line in one.prose:
        free = line.lstrip().startswith("|") or one.name == "docs/bench.md"
        if len(line) > COLUMNS and not free:
            yield number, f"{len(line)} characters, a line has at most {COLUMNS}"


@by_page
def test_sections_and_words(one: page.Page) -> Problems:
    folder = one.name.rpartition("/")[0]
    wanted = SECTIONS.get(folder, [])
    own = [text for text in one.headings(2) if text in wanted]
    if own != wanted:
        yield 0, f"sections {own}, expected {wanted}, as on the pages of the other stages"
    words = len(re.sub(r"<!--.*?-->", "", "\n".join(one.lines), flags=re.DOTALL).split())
    if folder == "docs/stages" and words > LESSON_WORDS:
        yield 0, f"{words} words, a lesson has at most {LESSON_WORDS}: docs/reference/ has room"


def has_test(text: str, suite: str | None, name: str) -> bool:
    """A test of that name, or a class of tests."""
    start = rf"\w+\(\s*{suite}," if suite else r"def|class|TEST\w*\(\s*\w+,"
    return re.search(rf"\b(?:{start})\s+{name}\b", text) is not None


def has_ctest(name: str) -> bool:
    folder, _, rest = name.partition(".")
    adds = rf"{folder}_test\({rest or name}|(?:program_test|pytest_tests)\({name}|NAME {name}"
    return re.search(rf"\b(?:{adds})\s", CTESTS) is not None


def named_in(cell: str) -> Iterator[tuple[str | None, str]]:
    """Suite and name. Beside a link to a file of tests, all code is a name."""
    for match in TEST_NAME.finditer(cell):
        yield match[1], match[2]
    if TEST_FILE.search(CODE.sub("", cell)):
        names = CODE.findall(re.sub(r"\[[^\]]*\]\([^)]*\)", "", cell))
        yield from ((None, name) for name in names if not TEST_NAME.fullmatch(f"`{name}`"))


@by_page
def test_tests_that_are_named_exist(one: page.Page) -> Problems:
    for number, line in one.prose:
        for cell in cells_of(line):
            files = [ROOT / (name or other) for name, other in TEST_FILE.findall(cell)]
            text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
            for suite, name in named_in(cell):
                if not has_test(text, suite, name):
                    yield number, f"no test {name} in a file that is named beside it"
            for name in CTEST_NAME.findall(cell):
                if not has_ctest(name):
                    yield number, f"tests/CMakeLists.txt adds no test {name}"


def has_code(stage: str, code: str) -> bool:
    """White space does not count; dots stand for anything."""
    [path] = ROOT.glob(f"stage{stage}_*/main.cpp")
    parts = re.split(r"…|\.\.\.", "".join(code.split()))
    return re.search(".*?".join(map(re.escape, parts)),
                     "".join(path.read_text(encoding="utf-8").split())) is not None


@by_page
def test_columns_for_a_stage_quote_it(one: page.Page) -> Problems:
    columns: dict[int, str] | None = None  # of this table, with the stage that they quote
    for number, line in one.prose:
        cells = cells_of(line)
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = {place: match[1] for place, cell in enumerate(cells)
                       if (match := STAGE_COLUMN.search(cell))}
        else:
            for place, stage in columns.items():
                yield from ((number, f"stage {stage} has no '{code}'")
                            for code in CODE.findall(cells[place]) if not has_code(stage, code))


def test_the_glossary_names_what_the_headers_have() -> None:
    for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines():
        cells = cells_of(line)
        if len(cells) != 3 or not (headers := HEADER.findall(cells[2])):
            continue
        text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in headers)
        names = {name for code in CODE.findall(cells[1]) if not code.startswith("--")
                 for name in re.findall(r"[A-Za-z_]\w*", code)}
        assert names <= {*re.findall(r"\w+", text), *EXAMPLES}, line


@pytest.mark.parametrize("main", [*ROOT.glob("stage*/main.cpp"), *ROOT.glob("beyond/*/main.cpp")],
                         ids=lambda main: main.parent.name)
def test_a_program_and_its_readme_name_its_lesson(main: Path) -> None:
    [lesson] = re.findall(r"^// .* \((docs/stages/[\w-]+\.md)\): ", main.read_text(), re.MULTILINE)
    lines = main.with_name("README.md").read_text(encoding="utf-8").splitlines()
    found = dict(re.findall(r"^- \*\*(\w+)\*\*: (.+)", "\n".join(lines), re.MULTILINE))
    assert list(found) == ["Idea", "Lesson", "Diff", "Command"] and f"/{lesson})" in found["Lesson"]
    typed = re.findall(rf"^(?:\$ )?(\./run |build/bin/){main.parent.name}\b",
                       (ROOT / lesson).read_text(encoding="utf-8"), re.MULTILINE)
    # ./run without a name builds the seven stages alone.
    assert main.parent.parent == ROOT or typed[0] == "./run "


def test_the_picture_of_the_ladder_has_the_ideas_of_the_table() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    picture = (ROOT / "docs/images/ladder.svg").read_text(encoding="utf-8")
    texts = re.findall(r'class="(?:title|idea)"[^>]*>([^<]*)<', picture)  # from the top
    assert ([": ".join(texts[place:place + 2]) for place in range(0, len(texts), 2)][::-1]
            == [cells_of(line)[1] for line in lines if re.match(r"\| `stage\w+` ", line)])


def test_the_table_of_layers_is_that_of_cmake() -> None:
    text = (ROOT / "ladder/CMakeLists.txt").read_text(encoding="utf-8")
    layers = re.findall(r"^ladder_layer\((\w+)(?: SHELF)?(?: USES ([a-z ]+[a-z]))?", text,
                        re.MULTILINE)
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    rows = [cells_of(line) for line in text.splitlines() if re.match(r"\| `\w+/` \|", line)]
    assert ({cells[0]: cells[-2].split(", ") for cells in rows}
            == {f"`{name}/`": used.split(" ") for name, used in layers})
    [picture] = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert {name for name, _ in layers} | {"mnist"} == {*re.findall(r"(\w+)/", picture)}
