# SPDX-License-Identifier: Apache-2.0
"""Prints what the suite has measured.

    .venv/bin/python bench/report/table.py RESULTS.json...             the stages, for a terminal
    .venv/bin/python bench/report/table.py RESULTS.json... --markdown  the full comparison
    .venv/bin/python bench/report/table.py RECORD.json --links         the costs of links

Exit code: 0, or 2 if a file is not what the suite writes.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import packages  # noqa: F401  first: ends the program if one is missing
from claims import claims_table, speed_claim
from environment import environment_table, honesty, machine_line
from link_tables import links_table
from record import run_program
from results import Results, ResultsError, read
from tables import (
    Table, accuracy_table, check_table, curve_table, feeding_table, more, price_table, recipe_table,
    rival_table, seeds_table, speed_table, stage_table, summary, twin_table,
)
from words import FAILED

TERMINAL = 100  # columns
SHORT_WORDS = {"memory, MB": "mem MB", "equal?": "equal", "accuracy, %": "accuracy, % [95 %]"}
# Tables of all recipes, behind those of each: Markdown and page show those with rows.
FURTHER_TABLES = (feeding_table, accuracy_table, curve_table, check_table, price_table, seeds_table,
                  claims_table, environment_table)


def wrapped(text: str) -> str:
    return textwrap.fill(text, TERMINAL)


def shown(row: list[str]) -> list[str]:
    """A row with nothing but "not run" shows it once."""
    return [row[0], "not run", *[""] * (len(row) - 2)] if set(row[1:]) == {"not run"} else row


def terminal_table(table: Table) -> str:
    """The reason why a row has no numbers replaces its other cells."""
    rows = [[SHORT_WORDS.get(word, word) for word in table.header], *map(shown, table.rows)]
    ends = [next((i for i, cell in enumerate(row) if cell.startswith(f"{FAILED}:")), None)
            for row in rows]
    widths = [max(map(len, column)) for column in zip(*(
        row for row, end in zip(rows, ends) if end is None))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for row, end in zip(rows, ends):
        line = "  ".join(cell.ljust(width) if i < table.texts else cell.rjust(width)
                         for i, (cell, width) in enumerate(zip(row[:end], widths)))
        lines += [line.rstrip()] if end is None else textwrap.wrap(
            row[end], TERMINAL, initial_indent=f"{line}  ", subsequent_indent="    ")
    return "\n".join([*lines, *map(wrapped, table.notes)])


def short_text(results: Results) -> str:
    """The seven stages, and the ratios to Python; of either, what was run."""
    parts = []
    if (stages := stage_table(results)).rows:
        parts.append(terminal_table(stages))
    if stages.rows or results.of_kind("check"):
        parts.append("\n".join(map(wrapped, summary(results))))
    tables = [twin_table(results), rival_table(results),
              *(speed_table(results, one) for one in results.recipes())]
    parts += [f"{table.title}:\n{terminal_table(table)}" for table in tables if table.rows]
    parts.append(wrapped(speed_claim(results)))
    parts = list(filter(None, parts)) or [
        "No row that this table shows was run: --markdown shows all."]
    parts = [results.load_warning, machine_line(results), *parts, *map(wrapped, more(results))]
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_cell(text: str) -> str:
    for sign in "\\|<*":
        text = text.replace(sign, "\\" + sign)
    return text


def markdown_rows(header: Sequence[str], rows: Iterable[Sequence[str]],
                  words: Container[int] = (0,)) -> str:
    """With words, from the left, in these columns and numbers in the others."""
    dashes = ["---" if i in words else "---:" for i in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, dashes, *rows))


def markdown_table(table: Table) -> str:
    header, *rows = ([*map(markdown_cell, row)] for row in (table.header, *table.rows))
    return "\n\n".join([f"## {table.title}", markdown_rows(header, rows, range(table.texts)),
                        *map(markdown_cell, table.notes)])


def markdown_text(results: Results) -> str:
    claims, limits = ("\n".join(f"- {markdown_cell(line)}" for line in lines if line) for lines in (
        [*summary(results), speed_claim(results)], honesty(results)))
    tables = [stage_table(results), twin_table(results), rival_table(results),
              *(recipe_table(results, recipe) for recipe in results.recipes()),
              *(make(results) for make in FURTHER_TABLES)]
    parts = [results.load_warning, claims,
             *(markdown_table(table) for table in tables if table.rows),
             "## Limits of these numbers", limits, *more(results)]
    return "\n\n".join(filter(None, parts)) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Prints what the suite has measured.")
    parser.add_argument("results", nargs="+", help="JSON of build/bin/suite")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="the stages (the default)")
    form.add_argument("--markdown", action="store_true", help="the full comparison")
    form.add_argument("--links", action="store_true", help="record of bench/links/links.py")
    options = parser.parse_args(arguments)
    try:
        if options.links:
            record = json.loads(Path(options.results[0]).read_text(encoding="utf-8"))
            text = terminal_table(links_table(record)) + "\n"
        else:
            text = (markdown_text if options.markdown else short_text)(read(options.results))
    except (ResultsError, OSError, ValueError) as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    run_program(main)
