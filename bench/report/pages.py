# SPDX-License-Identifier: Apache-2.0
"""Holds the pages that show measured numbers to the records that they come from.

    .venv/bin/python bench/report/pages.py             compares
    .venv/bin/python bench/report/pages.py --update    writes the tables and pictures again

A page names its record, or several that are read as one, where a table begins, and the table ends
at a line of its own:

    <!-- record bench/results/NAME.json --short -->
    <!-- end of the record -->

--short is the table of the seven stages as ./run prints it, --markdown every table but those of
exact sums, with headings of the third level, --targets the targets of speed, --speed the speed
against Python. --price and --seeds are the tables of exact sums. --links, --model and --scale are
tables of a record of bench/links/links.py: what was measured, the model for more ranks, the cost at
scale. --step, --pipeline, --divided and --scaling are the tables of measured.py. RECORD_PICTURES
are drawn from one record each, stages.svg is the picture of the README, and bench-NAME.svg are
those of the report that a page shows, of the records of docs/bench.md. The line below a table has
the commits of the record's rows.

A number within a sentence is a row and what of it, or two rows and their ratio; the third form is
the commits of the rows of a record of the suite. RECORD_VALUES has those of other records. A line
may end anywhere within the marker:

    <!-- value bench/results/NAME.json full/RECIPE/PROGRAM/world:2/... seconds -->12.3<!-- end -->
    <!-- value bench/results/NAME.json slice/... over slice/... -->1.07<!-- end -->
    <!-- value bench/results/NAME.json commit -->b8dd5d9<!-- end -->

Exit code: 0 equal, 1 not, 2 a file cannot be read or a page names no record.
"""

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import packages  # noqa: F401  first: checks the packages and sets the path
import link_pictures
import link_tables
import measured
import pictures
import scale
from claims import speed_claim, targets_table, twins_claim
from drawing import Picture
from environment import measured_at
from intervals import median_of
from record import run_program
from results import EXACT_KINDS, Results, ResultsError, Row, read, read_key
from table import markdown_cell, markdown_table, markdown_text, short_text
from tables import Table, price_table, seeds_table
from words import megabytes, number, percent

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/bench.md", "docs/cluster.md", "docs/performance.md",
         "docs/same-weights.md")
RECORD = "bench/results/two-cores.json"
STEP_RECORD = "bench/results/two-cores.step.json"
LINKS_RECORD = "bench/results/two-cores.links.json"
RECORD_PICTURES: tuple[tuple[str, Callable[[Mapping[str, Any]], Picture]], ...] = (
    (LINKS_RECORD, link_pictures.trace_picture), (LINKS_RECORD, link_pictures.scale_picture),
    (LINKS_RECORD, link_pictures.bandwidth_picture), (STEP_RECORD, measured.step_picture),
    ("bench/results/two-cores.gradients.json", measured.gradients_picture),
    ("bench/results/two-cores.updates.json", measured.updates_picture),
    ("bench/results/two-cores.pipeline.json", measured.pipeline_picture),
    ("bench/results/two-cores.divided.json", measured.units_picture),
    ("bench/results/two-cores.scaling.json", measured.scaling_picture))
PICTURES = "docs/images"
VALUE = re.compile(r"(<!-- value\s+(\S+)\s+([^>]*?)\s+-->)[^<]*(<!-- end -->)")
MARKER = re.compile(r"<!-- (?:record|value)\s+(\S+)")
WHOLE = re.compile(r"<!-- record (\S+(?: [^-\s]\S*)*) --markdown -->")
HEADING = re.compile(r"^## ", re.MULTILINE)
SHOWN = re.compile(r"images/(bench-[\w-]+)\.svg")
COLUMNS = 120
LINK_TABLES = {
    "--links": lambda record: [link_tables.links_table(record), link_tables.fits_table(record)],
    "--model": lambda record: [link_tables.speed_table(record)],
    "--scale": scale.scale_tables}
# Records of one program, and what a page shows of them.
RECORD_TABLES = {"--step": measured.step_table, "--pipeline": measured.pipeline_table,
                 "--divided": measured.divided_table, "--scaling": measured.scaling_table,
                 "--python-times": measured.python_times_table,
                 "--python-faults": measured.python_faults_table,
                 "--python-twins": measured.python_twins_table}
ONE_TABLE = {"--price": price_table, "--seeds": seeds_table, "--targets": targets_table}
FORMS = "|".join(("--short", "--markdown", "--speed", *ONE_TABLE, *LINK_TABLES, *RECORD_TABLES))
BLOCK = re.compile(rf"(<!-- record (\S+(?: [^-\s]\S*)*) ({FORMS}) -->\n)"
                   r".*?(<!-- end of the record -->)", re.DOTALL)
CURE = "run .venv/bin/python bench/report/pages.py --update"

MEASURES: dict[str, Callable[[Row], str]] = {
    "seconds": lambda row: number(row.seconds().value),
    "ms_per_step": lambda row: number(median_of(row.step_ms).value),
    "samples_per_second": lambda row: number(row.counter("samples_per_second"), 0),
    "accuracy": lambda row: percent(row.accuracy().value),
    "memory": lambda row: megabytes(row.counter("peak_rss_bytes")),
    "data_ms": lambda row: number(row.counter("phase_data_ms")),
    "device_memory": lambda row: megabytes(row.counter("device_peak_bytes")),
}
# A number of a record that is no result of the suite.
RECORD_VALUES: dict[str, Callable[..., str]] = {
    "links": link_tables.link_value, "step": measured.speed_value,
    "updates": measured.update_value}


def table_lines(table: Table, *more: str) -> str:
    """Without its heading."""
    lines = [*markdown_table(table).split("\n")[2:], *more] if table.rows else ["Not measured yet."]
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, COLUMNS)
                     for line in lines)


def record_text(form: str, record: Mapping[str, Any]) -> str:
    """What a page shows of a record that is no result of the suite."""
    if form in RECORD_TABLES:
        threads = f"{record['threads']} thread{'s' * (record['threads'] > 1)}"
        machine = record["machine"]
        return (f"{RECORD_TABLES[form](record)}\n\nMeasured at commit {record['commit']}: "
                f"{machine['cpu']}, {machine['cpus']} CPUs, load before "
                f"{machine['load_before']:.1f}; {threads}{' per rank' * (form != '--step')}.")
    tables = [f"{table.title}:\n\n{table_lines(table)}" for table in LINK_TABLES[form](record)]
    if form != "--links":  # whose notes end so
        tables.append(textwrap.fill(link_tables.machine_text(record), COLUMNS))
    return "\n\n".join(tables)


def results_text(form: str, results: Results) -> str:
    below = textwrap.fill(measured_at(results), COLUMNS)
    if form in ONE_TABLE:
        return table_lines(ONE_TABLE[form](results), "", markdown_cell(measured_at(results)))
    if form == "--speed":
        claims = " ".join(filter(None, [speed_claim(results), twins_claim(results)]))
        return f"{textwrap.fill(claims or 'Not measured.', COLUMNS)}\n{below}"
    # Exact sums have a page of their own.
    results.rows = {key: row for key, row in results.rows.items() if key.kind not in EXACT_KINDS}
    return f"{HEADING.sub('### ', markdown_text(results))}\n{below}"


def filled(match: re.Match[str]) -> str:
    begin, paths, form, end = match.groups()
    if form in RECORD_TABLES or form in LINK_TABLES:
        return f"{begin}\n{record_text(form, json.loads((ROOT / paths).read_text()))}\n\n{end}"
    results = read([ROOT / path for path in paths.split()])
    if form == "--short":
        return f"{begin}```\n{short_text(results)}```\n{end}"
    return f"{begin}\n{results_text(form, results)}\n\n{end}"


def row_of(results: Results, name: str) -> Row:
    key, _ = read_key(name)
    row = results.rows.get(key)
    if row is None or not row.good:
        raise ResultsError(f"value: the record has no row {name}")
    return row


def valued(match: re.Match[str]) -> str:
    """A number within a sentence."""
    begin, path, words, end = match.groups()
    if value := RECORD_VALUES.get(path.split(".")[-2]):
        return f"{begin}{value(json.loads((ROOT / path).read_text()), *words.split())}{end}"
    results = read([ROOT / path])
    if words == "commit":
        return f"{begin}{results.contexts[0]['commit']}{end}"
    name, measure, *others = [*words.split(), "", ""]
    row = row_of(results, name)
    if measure == "over" and others[0]:
        other = row_of(results, others[0])
        return f"{begin}{row.seconds().value / other.seconds().value:.2f}{end}"
    if measure not in MEASURES:
        raise ResultsError(f"value: expected ROW over ROW, or ROW and one of "
                           f"{', '.join(MEASURES)}, got '{words}'")
    return f"{begin}{MEASURES[measure](row)}{end}"


def pictures_shown(results: Results, names: set[str]) -> list[Picture]:
    """Those of the report that a page shows."""
    drawn = {f"bench-{picture.name}": picture for picture in pictures.all_pictures(results)}
    for name in sorted(names - set(drawn)):
        raise ResultsError(f"images/{name}.svg: {RECORD} has no such picture; it has "
                           + ", ".join(sorted(drawn)))
    return [replace(drawn[name], name=name) for name in sorted(names)]


def page_text(page: str) -> str:
    text, blocks = BLOCK.subn(filled, (ROOT / page).read_text(encoding="utf-8"))
    text, values = VALUE.subn(valued, text)
    if not blocks and (page in PAGES or not values):
        raise ResultsError(f"{page}: expected <!-- record NAME.json --short --> and <!-- end of "
                           "the record -->, found no such lines")
    return text


def wanted() -> dict[Path, str]:
    """What the pages and their pictures have to hold."""
    others = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.*"))
              if path.suffix in (".md", ".html") and MARKER.search(path.read_text(encoding="utf-8"))]
    pages = {ROOT / page: page_text(page) for page in dict.fromkeys([*PAGES, *others])}
    whole = WHOLE.search((ROOT / "docs/bench.md").read_text(encoding="utf-8"))
    results = read([ROOT / path for path in (whole[1].split() if whole else [RECORD])])
    shown = {name for text in pages.values() for name in SHOWN.findall(text)}
    drawn = [pictures.stages_picture(results, captioned=True), *pictures_shown(results, shown),
             *(draw(json.loads((ROOT / record).read_text())) for record, draw in RECORD_PICTURES)]
    return pages | {ROOT / PICTURES / f"{one.name}.svg": one.file for one in drawn}


def difference(path: Path, text: str) -> str:
    """File and line of the first difference, the record that is meant, and both lines."""
    name = path.relative_to(ROOT)
    if not path.exists():
        return f"{name}: not there; {CURE}"
    pairs = list(zip_longest(path.read_text(encoding="utf-8").split("\n"), text.split("\n"),
                             fillvalue="nothing more"))
    place = next(place for place, (here, there) in enumerate(pairs) if here != there)
    named = MARKER.findall("\n".join(there for _, there in pairs[:place + 1]))
    line = f"{name}:{place + 1}: differs from {' '.join(['its record', *named[-1:]])}; {CURE}"
    here, there = pairs[place]
    return f"{line}\n  page  : {here}\n  record: {there}" if path.suffix == ".md" else line


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Holds pages to the records they show.")
    parser.add_argument("--update", action="store_true", help="write the pages again")
    update = parser.parse_args(arguments).update
    try:
        differ = {path: text for path, text in wanted().items()
                  if not path.exists() or path.read_text(encoding="utf-8") != text}
        lines = [f"{path.relative_to(ROOT)}: written" if update else difference(path, text)
                 for path, text in differ.items()]
        for path, text in differ.items() if update else ():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except (ResultsError, OSError) as error:
        print(f"pages: {error}", file=sys.stderr)
        return 2
    print("".join(f"{line}\n" for line in lines), end="")
    return 1 if differ and not update else 0


if __name__ == "__main__":
    run_program(main)
