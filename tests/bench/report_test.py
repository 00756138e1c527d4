# SPDX-License-Identifier: Apache-2.0
"""report.py: the page, its tables and its pictures."""
from __future__ import annotations

import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report
import sample_links
import sample_results as made
import table
from tables import MORE
from tests.support.programs import run
from words import theme

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}
REPORT = Path(report.__file__).parent


class Page(HTMLParser):
    """Holds a page to being well-formed, and keeps its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.text = text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self.open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def figures(self) -> set[str]:
        return {figure["id"].removeprefix("picture-") for figure in self.all("figure")}


@pytest.fixture(scope="module")
def sample() -> Page:
    return Page(report.page(made.sample_results()))


@pytest.fixture
def page(tmp_path, output) -> Callable[..., Page]:
    """Of the program, as its user starts it."""
    def page_of(content: Any, *links: Any) -> Page:
        results, path = made.write(tmp_path / "a.json", content), tmp_path / "a.html"
        more = [word for record in links
                for word in ("--links", made.write(tmp_path / "links.json", record))]
        output(report, results, *more, "-o", path)
        return Page(path.read_text(encoding="utf-8"))

    return page_of


def test_needs_nothing_from_elsewhere(sample: Page) -> None:
    text = re.sub(r'"data:image/png;base64,[^"]*"', '"#image"', sample.text, flags=re.DOTALL)
    text = re.sub(r'\bxmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    for tag in ("script", "link", "img", "iframe", "object"):
        assert sample.all(tag) == [], tag
    for _, attributes in sample.elements:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))


def test_has_the_tables_of_the_markdown(sample: Page) -> None:
    markdown = table.markdown_text(made.sample_results())
    for title in re.findall(r"^## (.*)$", markdown, re.MULTILINE):
        assert title in sample.texts
    assert len(sample.all("tr")) == len(re.findall(r"^\| (?!-)", markdown, re.MULTILINE))
    tables = len(re.findall(r"^\| ---", markdown, re.MULTILINE))
    assert (sample.text.count('class="box"'), len(sample.all("table"))) == (tables, tables)
    assert "failed: " + made.REASON in sample.texts


def test_every_id_is_there_once_and_every_reference_leads_to_one(sample: Page) -> None:
    ids = [attributes["id"] for _, attributes in sample.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', sample.text)) <= set(ids)
    for svg in sample.all("svg"):
        assert set(svg["aria-labelledby"].split()) <= set(ids)


def test_has_every_picture_with_title_and_description(sample: Page) -> None:
    kinds = ("time", "accuracy", "scaling", "phases", "digits")
    expected = {f"{kind}-{recipe}" for kind in kinds for recipe in ("basicnet", "convnet")}
    expected |= {"stages", "summary", "width-convnet"}
    assert sample.figures() == expected
    assert [svg["role"] for svg in sample.all("svg")] == ["img"] * len(expected)
    assert len(sample.all("desc")) == len(expected)
    for words in ("0 single 1x2: 5.45 s", "6 Trainer 4x1: failed",
                  "Filled: C++; outlined: its Python twin. Behind the name",
                  "4 DDP AMP 2x1 bf16: 15.2 s, 98.34 %; py DDP AMP 2x1 bf16: 31.9 s, ",
                  "steps 5 to 8, rank 0. Data is everything from the optimizer"):
        assert words in sample.text


def test_page_and_pictures_have_the_colours_of_the_readers_choice_alone(sample: Page) -> None:
    assert "@media (prefers-color-scheme: dark) { :root {" in sample.text
    assert "\nbody { margin: 0; background: var(--paper); color: var(--ink);" in sample.text
    assert not re.search(r"#[0-9a-fA-F]{6}\b", sample.text.replace(theme(), ""))


def test_the_page_of_the_short_tier_has_what_was_measured_alone(page) -> None:
    found = page(made.short())
    assert found.figures() == {"stages", "summary"}
    places = [found.text.index(part) for part in (  # of a first screen
        "and each stage trains 11.2 to 22.1 times (basicnet)", 'id="picture-stages"',
        "<li>Fastest: ", "<li>Two processes ", "<table>", 'id="picture-summary"')]
    assert places == sorted(places)
    assert len(found.all("h2")) == 5
    assert not {"Not run.", "not run", "not measured"} & set(found.texts)
    assert list(filter(None, found.texts))[-1] == MORE
    captions = re.findall("<figcaption>.*?</figcaption>", found.text)
    assert ["Python" in caption for caption in captions] == [True, False]


def test_a_wrong_stage_is_marked_in_table_and_pictures(sample: Page, page) -> None:
    content = made.sample(weights={("stage1_data_parallel", 1): "c" * 64})
    found = page(content)
    assert "WRONG" in found.texts
    assert "WRONG stages: 1 of 7" in found.text and "1 DataParallel 2x1 WRONG" in found.text
    assert page(content).text == found.text != sample.text  # the same file gives the same page


def test_under_a_load_no_time_is_compared(page) -> None:
    content = made.short()
    for row in content["benchmarks"]:
        row["load"] = 20.4
    found = page(content)
    assert {"stages"} == page(made.short()).figures() - found.figures()
    assert "warning: load 20.4 on 2 CPUs" in found.text and "Python" not in found.texts
    assert found.text.count("All seven stages have equal weights") == 1


def test_nothing_but_failures_is_a_page_too(page) -> None:
    row = made.failed("slice", "basicnet", "stage0_single_gpu", 1, 2)
    assert "failed: " in page({"context": made.CONTEXT, "benchmarks": [row]}).text


@pytest.mark.parametrize("changes, there, absent", [
    ({}, ["Links", "Cost at scale", "Epochs over ranks", "A step on a cable",
          "Speed over bandwidth"], []),
    ({"traces": {}}, ["Cost at scale", "Speed over bandwidth"], ["A step on a cable"]),
    ({"links": {"1gbit": {"not_run": "not run: no tc here"}}, "traces": {}},
     ["Links", "1 Gbit/s: not run: no tc here"], ["Cost at scale"])])
def test_links_have_sections_with_what_was_measured(page, changes, there, absent) -> None:
    found = page(made.short(), sample_links.record() | changes)
    assert set(there) <= set(found.texts) and not set(absent) & set(found.texts)
    assert "Links" not in page(made.short()).texts


@pytest.mark.parametrize("name, flags", [("table", []), ("report", ["-o", "report.html"])])
def test_programs_start_from_any_folder_and_name_missing_packages(
        name: str, flags: list[str], tmp_path: Path) -> None:
    made.write(tmp_path / "a.json", made.short())
    program = (REPORT / f"{name}.py", "a.json", *flags)
    done = run(Path(sys.executable), *program, cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    done = run(Path(sys.executable), "-S", *program, cwd=tmp_path)  # without those of .venv
    assert (done.code, done.stdout) == (1, "")
    assert re.fullmatch(rf"{name}: this Python lacks .*; hint: tools/setup.sh bench\n", done.stderr)
