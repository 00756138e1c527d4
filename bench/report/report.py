# SPDX-License-Identifier: Apache-2.0
"""Writes what the suite has measured as one HTML page, which needs no network and no scripts.

    python bench/report/report.py RESULTS.json... -o report.html

Without matplotlib (tools/setup.sh bench installs it) the page has its tables and no pictures.
Exit code: 0, or 2 if a file is not what the suite writes or the page cannot be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from claims import speed_claim
from environment import honesty, machine_line
from link_model import cables
from link_pictures import (  # scale.py is in the folder above
    bandwidth_picture, scale_picture, trace_picture,
)
from link_tables import fits_table, links_table, speed_table
from results import Results, ResultsError, read
from scale import scale_tables
from table import FURTHER_TABLES
from tables import Table, more, recipe_table, stage_table, summary, twin_table
from words import ALL_COLOURS, FAILED, NOT_MEASURED, NOT_RUN, colour_of, is_twin

try:
    import pictures
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    pictures = None

TITLE = "Seven ways to train: what each costs"
NO_PICTURES = "The pictures are left out: matplotlib is not installed; hint: tools/setup.sh bench"
LONG = 40  # letters from which a cell is broken into lines


def colours(place: str) -> str:
    return " ".join(f"--{colour.name}: {getattr(colour, place)};" for colour in ALL_COLOURS)


def style() -> str:
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    variables = (f":root {{ color-scheme: light dark; {colours('light')} }}\n"
                 f"@media (prefers-color-scheme: dark) {{ :root {{ {colours('dark')} }} }}")
    return css.replace("@COLOURS@", variables)


def cell_class(text: str, words: bool) -> str:
    classes = ["words"] if words else []
    if text.startswith(("WRONG", FAILED)):
        classes.append("bad")
    elif text in (NOT_RUN, NOT_MEASURED):
        classes.append("none")
    if len(text) > LONG:
        classes.append("long words")
    return f' class="{" ".join(classes)}"' if classes else ""


def swatch(program: str) -> str:
    """The colour that the program has in the pictures: filled, or outlined for a twin."""
    name = colour_of(program).name
    filled = "" if is_twin(program) else f" background: var(--{name});"
    return f'<span class="swatch" style="border-color: var(--{name});{filled}"></span>'


def row_html(table: Table, place: int) -> str:
    cells = table.rows[place]
    mark = swatch(table.programs[place]) if table.programs else ""
    name = escape(cells[0]).replace("_", "_<wbr>")  # where a narrow window may break it
    parts = [f'<th scope="row">{mark}{name}</th>']
    parts += [f"<td{cell_class(cell, column < table.texts)}>{escape(cell)}</td>"
              for column, cell in enumerate(cells[1:], start=1)]
    return f"<tr>{''.join(parts)}</tr>"


def table_html(table: Table) -> str:
    if not table.rows:
        return ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    header = "".join(f'<th scope="col"{cell_class("", column < table.texts)}>{escape(word)}</th>'
                     for column, word in enumerate(table.header))
    rows = "\n".join(row_html(table, place) for place in range(len(table.rows)))
    return (f'<div class="box" tabindex="0" role="region" aria-label="{escape(table.title)}">'
            f"<table><thead><tr>{header}</tr></thead>\n<tbody>{rows}</tbody></table></div>{notes}")


def section(title: str, *content: str) -> str:
    """Nothing where nothing was measured."""
    if not any(content):
        return ""
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(content) + "</section>"


def figure_html(picture: pictures.Picture) -> str:
    return (f'<figure id="picture-{escape(picture.name)}"><h3>{escape(picture.title)}</h3>'
            f"{picture.svg}<figcaption>{escape(picture.caption)}</figcaption></figure>")


def figures_html(found: list[pictures.Picture]) -> str:
    """Pictures in a grid."""
    drawn = "\n".join(map(figure_html, found))
    return f'<div class="pictures">{drawn}</div>' if drawn else ""


def recipe_html(results: Results, recipe: str) -> str:
    table = recipe_table(results, recipe)
    found = pictures.recipe_pictures(results, recipe) if pictures else []
    return section(table.title, figures_html(found), table_html(table))


def list_html(lines: list[str]) -> str:
    items = "\n".join(f"<li>{escape(line)}</li>" for line in lines)
    return items and f"<ul>{items}</ul>"


def top(results: Results) -> list[str]:
    """The answer: machine, sentences, and one picture of time and accuracy."""
    claims = list(filter(None, [*summary(results), speed_claim(results)]))
    parts = [f"<h1>{escape(TITLE)}</h1>",
             f'<p class="machine">{escape(machine_line(results))}</p>', list_html(claims)]
    if not pictures:
        return [*parts, f'<p class="bad">{escape(NO_PICTURES)}</p>']
    picture = pictures.summary_picture(results)
    return [*parts, figures_html([picture] if picture else [])]


def table_section(table: Table, *more: str) -> str:
    return section(table.title, table_html(table), *more)


def drawing(title: str, svg: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{svg}</figure>"


def link_sections(record: Mapping[str, Any] | None) -> list[str]:
    """Of a record of bench/links/links.py: what links cost, and what ranks cost."""
    if record is None:
        return []
    parts = [table_html(table) for table in (links_table(record), fits_table(record))]
    if not cables(record):
        return [section("Links", *parts)]
    traces = record.get("traces") and drawing("Two steps on a cable", trace_picture(record))
    speeds = drawing("Speed over bandwidth", bandwidth_picture(record))
    ranks = [speed_table(record), *scale_tables(record)]
    return [section("Links", traces or "", speeds, *parts),
            section("Cost at scale", drawing("Epochs over ranks", scale_picture(record)),
                    *map(table_html, ranks))]


def sections(results: Results, links: Mapping[str, Any] | None) -> list[str]:
    """In the order of the page; one that has nothing to show is empty. A new one is a line here."""
    code = figures_html(pictures.code_pictures(results)) if pictures else ""
    return [
        table_section(stage_table(results), code and f"<p></p>\n{code}"),
        table_section(twin_table(results)),
        *(recipe_html(results, recipe) for recipe in results.recipes()),
        *link_sections(links),
        *(table_section(make(results)) for make in FURTHER_TABLES),
        section("Limits of these numbers", list_html(honesty(results))),
    ]


def body(results: Results, links: Mapping[str, Any] | None) -> str:
    last = [f"<p>{escape(line)}</p>" for line in more(results)]
    return "\n".join(filter(None, [*top(results), *sections(results, links), *last]))


def page(results: Results, links: Mapping[str, Any] | None = None) -> str:
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(TITLE)}</title>\n<style>\n{style()}</style></head>\n"
            f"<body><main>\n{body(results, links)}\n</main></body></html>\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes the suite's results as one HTML page.")
    parser.add_argument("results", nargs="+", help="JSON of build/bin/suite")
    parser.add_argument("--links", type=Path, help="record of bench/links/links.py")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page")
    options = parser.parse_args(arguments)
    try:
        links = json.loads(options.links.read_text()) if options.links else None
        options.output.write_text(page(read(options.results), links), encoding="utf-8")
    except (ResultsError, OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"report: {options.output}" + ("" if pictures else f" ({NO_PICTURES})"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
