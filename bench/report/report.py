# SPDX-License-Identifier: Apache-2.0
"""Writes what the suite has measured as one HTML page, which needs no network and no scripts.

    .venv/bin/python bench/report/report.py RESULTS.json... -o report.html

Exit code: 0, or 2 if no file is what the suite writes or the page cannot be written.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import packages  # noqa: F401  first: checks the packages and sets the path
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

import pictures
from claims import headline, speed_claim
from drawing import Picture
from environment import honesty, machine_line
from link_model import cables
from link_pictures import bandwidth_picture, scale_picture, trace_picture
from link_tables import fits_table, links_table, speed_table
from record import run_program
from results import Results, ResultsError, read
from scale import scale_tables
from table import FURTHER_TABLES
from tables import Table, more, recipe_table, rival_table, stage_table, summary, twin_table
from words import FAILED, NOT_MEASURED, NOT_RUN, colour_of, is_python, theme

LONG = 40  # letters from which a cell is broken into lines

Section = tuple[str, list[Table | list[Picture | None]]]  # with its title


def cell_class(text: str, words: bool) -> Markup:
    classes = ["words"] if words else []
    if text.startswith(("WRONG", FAILED)):
        classes.append("bad")
    elif text in (NOT_RUN, NOT_MEASURED):
        classes.append("none")
    if len(text) > LONG:
        classes.append("long words")
    return Markup(f' class="{" ".join(classes)}"' if classes else "")


def link_sections(record: Mapping[str, Any]) -> list[Section]:
    """Of a record of bench/links/links.py: what links cost, and what ranks cost."""
    tables = [links_table(record), fits_table(record)]
    if not cables(record):
        return [("Links", tables)]
    drawn = [trace_picture(record)] if record.get("traces") else []
    return [("Links", [[*drawn, bandwidth_picture(record)], *tables]),
            ("Cost at scale",
             [[scale_picture(record)], speed_table(record), *scale_tables(record)])]


def sections(results: Results, links: Mapping[str, Any] | None) -> list[Section]:
    """In the order of the page, each with the parts that have something to show."""
    found: list[Section] = [
        ("The seven stages", [stage_table(results), [pictures.summary_picture(results)]])]
    found += [(table.title, [table]) for table in (twin_table(results), rival_table(results))]
    for recipe in results.recipes():
        table = recipe_table(results, recipe)
        found.append((table.title, [pictures.recipe_pictures(results, recipe), table]))
    found += link_sections(links) if links is not None else []
    found += [(table.title, [table]) for table in (make(results) for make in FURTHER_TABLES)]
    shown = [(title, [part for part in parts
                      if (part.rows if isinstance(part, Table) else any(part))])
             for title, parts in found]
    return [(title, parts) for title, parts in shown if parts]


def page(results: Results, links: Mapping[str, Any] | None = None) -> str:
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True,
                            trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    first = headline(results)
    claims = summary(results)  # of equality, which is in the headline, come the details last
    claims = [*claims[1:], speed_claim(results), *claims[:1]]
    return templates.get_template("page.html").render(
        title="Seven ways to train: what each costs", theme=theme(), machine=machine_line(results),
        warning=results.load_warning, headline=first,
        claims=[line for line in claims if line not in ("", first)],
        stages=pictures.stages_picture(results), sections=sections(results, links),
        limits=honesty(results), more=more(results), cell_class=cell_class, colour_of=colour_of,
        is_python=is_python)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes the suite's results as one HTML page.")
    parser.add_argument("results", nargs="+", help="JSON of build/bin/suite")
    parser.add_argument("--links", type=Path, help="record of bench/links/links.py")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page")
    options = parser.parse_args(arguments)
    inputs = filter(None, (*options.results, options.links))
    try:
        if options.output.resolve() in [Path(name).resolve() for name in inputs]:
            raise ResultsError(f"{options.output}: is read: name another file with -o")
        links = json.loads(options.links.read_text(encoding="utf-8")) if options.links else None
        options.output.write_text(page(read(options.results), links), encoding="utf-8")
    except (ResultsError, OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"report: {options.output}")
    return 0


if __name__ == "__main__":
    run_program(main)
