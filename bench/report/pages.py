# SPDX-License-Identifier: Apache-2.0
"""Holds the pages that show measured numbers to the records that they come from.

    python bench/report/pages.py             compares
    python bench/report/pages.py --update    writes the tables and pictures again

A page names its record where a table begins, and the table ends at a line of its own:

    <!-- record bench/results/NAME.json --short -->
    <!-- end of the record -->

--short is the table of the seven stages as ./run prints it, --markdown every table. Pictures are
compared only where matplotlib is installed. Exit code: 0 equal, 1 not, 2 a file cannot be read.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from report import colours
from results import Results, ResultsError, read
from table import markdown_text, short_text

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/bench.md")
RECORD = "bench/results/two-cores.json"
PICTURES = "docs/images"
BLOCK = re.compile(r"(<!-- record (\S+) (--short|--markdown) -->\n).*?(<!-- end of the record -->)",
                   re.DOTALL)
CURE = "run python3 bench/report/pages.py --update"


def filled(match: re.Match[str]) -> str:
    begin, path, form, end = match.groups()
    results = read([ROOT / path])
    if form == "--short":
        return f"{begin}```\n{short_text(results)}```\n{end}"
    return f"{begin}\n{markdown_text(results)}\n{end}"


def standalone(svg: str) -> str:
    """A picture of the report as a file: it brings the report's colours with it."""
    style = (f"<style>:root {{ {colours('light')} }} @media (prefers-color-scheme: dark) "
             f"{{ :root {{ {colours('dark')} }} }}</style>")
    text = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return text.replace("</desc>", f"</desc>{style}", 1) + "\n"


def pictures_of(results: Results) -> dict[Path, str]:
    try:
        import pictures
    except ModuleNotFoundError:
        return {}
    found = [pictures.code_picture(results)]
    for recipe in results.recipes():
        found += pictures.recipe_pictures(results, recipe)
    return {ROOT / PICTURES / f"bench-{picture.name}.svg": standalone(picture.svg)
            for picture in found if picture.svg}


def wanted() -> dict[Path, str]:
    pages = {ROOT / page: BLOCK.sub(filled, (ROOT / page).read_text(encoding="utf-8"))
             for page in PAGES}
    return pages | pictures_of(read([ROOT / RECORD]))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Holds pages to the records they show.")
    parser.add_argument("--update", action="store_true", help="write the pages again")
    update = parser.parse_args(arguments).update
    try:
        differ = [path for path, text in wanted().items()
                  if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in differ if update else []:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted()[path], encoding="utf-8")
    except (ResultsError, OSError) as error:
        print(f"pages: {error}", file=sys.stderr)
        return 2
    for path in differ:
        name = path.relative_to(ROOT)
        print(f"{name}: written" if update else f"{name}: differs from its record; {CURE}")
    return 1 if differ and not update else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
