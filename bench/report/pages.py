# SPDX-License-Identifier: Apache-2.0
"""Holds the pages that show measured numbers to the records that they come from.

    python bench/report/pages.py             compares
    python bench/report/pages.py --update    writes the tables and pictures again

A page names its record where a table begins, and the table ends at a line of its own:

    <!-- record bench/results/NAME.json --short -->
    <!-- end of the record -->

--short is the table of the seven stages as ./run prints it, --markdown every table, with headings
of the third level, --marks how near the targets are, --speed the speed against Python. --price and
--seeds are the tables of exact.py. --links, --model and --scale are tables of a record of
bench/links/links.py: what was measured, the model for more ranks, the cost at scale; its pictures are
images/links.svg and images/scale.svg. --step is the table of a record of step.py, whose picture is
images/step.svg. images/stages.svg is the picture of the README, by stages.py, and
images/micro-batches.svg one that shows no record, by exact.py. Other pictures are those of the report that a page shows; they are compared only where matplotlib
is installed. Exit code: 0 equal, 1 not, 2 a file cannot be read or a page names no record.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path

import exact
import link_pictures  # scale.py is in the folder above
import link_tables
import scale
import stages
import step
from claims import speed_claim
from environment import machine_line
from report import colours
from marks import marks_text
from results import Results, ResultsError, read
from table import markdown_cell, markdown_table, markdown_text, short_text
from tables import Table

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/bench.md", "docs/cluster.md", "docs/performance.md",
         "docs/same-weights.md")
RECORD = "bench/results/two-cores.json"
STEP_RECORD = "bench/results/two-cores.step.json"
LINKS_RECORD = "bench/results/two-cores.links.json"
PICTURES = "docs/images"
BLOCK = re.compile(r"(<!-- record (\S+) (--short|--markdown|--step|--marks|--speed|--price|--seeds"
                   r"|--links|--model|--scale) -->\n).*?(<!-- end of the record -->)", re.DOTALL)
HEADING = re.compile(r"^## ", re.MULTILINE)
SHOWN = re.compile(r"images/bench-([\w-]+)\.svg")
HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<!-- SPDX-License-Identifier: Apache-2.0 -->
"""
COLUMNS = 120
LINK_TABLES = {
    "--links": lambda record: [link_tables.links_table(record), link_tables.fits_table(record)],
    "--model": lambda record: [link_tables.model_table(record), link_tables.speed_table(record)],
    "--scale": scale.scale_tables}
CURE = "run python3 bench/report/pages.py --update"


def one_table(table: Table, results: Results) -> str:
    """Without its heading, with the machine below."""
    return table_lines(table, "", markdown_cell(machine_line(results)))


def table_lines(table: Table, *more: str) -> str:
    """Without its heading."""
    if not table.rows:
        return "Not measured yet."
    _, _, *lines = markdown_table(table).split("\n")
    lines += more
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, COLUMNS)
                     for line in lines)


def filled(match: re.Match[str]) -> str:
    begin, path, form, end = match.groups()
    if form == "--step":
        return f"{begin}\n{step.table(json.loads((ROOT / path).read_text()))}\n{end}"
    if form in LINK_TABLES:
        record = json.loads((ROOT / path).read_text())
        tables = [f"{table.title}:\n\n{table_lines(table)}" for table in LINK_TABLES[form](record)]
        return f"{begin}\n" + "\n\n".join(tables) + f"\n\n{end}"
    results = read([ROOT / path])
    if form in ("--price", "--seeds"):
        table = exact.price_table if form == "--price" else exact.seeds_table
        return f"{begin}\n{one_table(table(results), results)}\n\n{end}"
    if form == "--marks":
        return f"{begin}\n{marks_text(results)}\n{end}"
    if form == "--speed":
        claim = textwrap.fill(speed_claim(results) or "Not measured.", COLUMNS)
        return f"{begin}\n{claim}\n\n{end}"
    if form == "--short":
        return f"{begin}```\n{short_text(results)}```\n{end}"
    return f"{begin}\n{HEADING.sub('### ', markdown_text(results))}\n{end}"


def standalone(svg: str) -> str:
    """A picture of the report as a file: it brings the report's colours with it."""
    style = (f"<style>:root {{ {colours('light')} }} @media (prefers-color-scheme: dark) "
             f"{{ :root {{ {colours('dark')} }} }}</style>")
    text = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return HEAD + text.replace("</desc>", f"</desc>{style}", 1) + "\n"


def pictures_of(shown: set[str]) -> dict[Path, str]:
    """The files of those pictures that are shown."""
    if not shown:
        return {}
    try:
        import pictures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return {}
    results = read([ROOT / RECORD])
    found = pictures.code_pictures(results)
    for recipe in results.recipes():
        found += pictures.recipe_pictures(results, recipe)
    drawn = {picture.name: picture.svg for picture in found}
    for name in sorted(shown - set(drawn)):
        raise ResultsError(f"images/bench-{name}.svg: {RECORD} has no such picture; it has "
                           + ", ".join(sorted(drawn)))
    return {ROOT / PICTURES / f"bench-{name}.svg": standalone(drawn[name])
            for name in sorted(shown)}


def page_text(page: str) -> str:
    text, blocks = BLOCK.subn(filled, (ROOT / page).read_text(encoding="utf-8"))
    if not blocks:
        raise ResultsError(f"{page}: expected <!-- record NAME.json --short --> and <!-- end of "
                           "the record -->, found no such lines")
    return text


def wanted() -> dict[Path, str]:
    """What the pages and their pictures have to hold."""
    pages = {ROOT / page: page_text(page) for page in PAGES}
    shown = {name for text in pages.values() for name in SHOWN.findall(text)}
    links = json.loads((ROOT / LINKS_RECORD).read_text())
    drawn = {"stages.svg": stages.picture(read([ROOT / RECORD])),
             "micro-batches.svg": exact.picture(),
             "links.svg": link_pictures.trace_picture(links),
             "scale.svg": link_pictures.scale_picture(links),
             "step.svg": step.picture(json.loads((ROOT / STEP_RECORD).read_text()))}
    files = {ROOT / PICTURES / name: standalone(svg) for name, svg in drawn.items()}
    return pages | pictures_of(shown) | files


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Holds pages to the records they show.")
    parser.add_argument("--update", action="store_true", help="write the pages again")
    update = parser.parse_args(arguments).update
    try:
        differ = {path: text for path, text in wanted().items()
                  if not path.exists() or path.read_text(encoding="utf-8") != text}
        for path, text in differ.items() if update else ():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except (ResultsError, OSError) as error:
        print(f"pages: {error}", file=sys.stderr)
        return 2
    for path in differ:
        name = path.relative_to(ROOT)
        print(f"{name}: written" if update else f"{name}: differs from its record; {CURE}")
    return 1 if differ and not update else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
