# SPDX-License-Identifier: Apache-2.0
"""A Markdown page of the project: its fenced blocks, prose and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HEADING = re.compile(r"(#{1,6}) (.+)")
GAP = "..."  # in a quote or an output: omitted lines
PAGES = ("*.md", "docs/**/*.md", "bench/*.md", "examples/*.md", "exercises/*.md",
         "exercises/*/*.md", "stage*/*.md", "beyond/*/*.md", "tests/*.md", "tests/*/*.md")


class Block(NamedTuple):
    """A fenced block: its lines are lines[begin:end] of the page."""

    begin: int
    end: int
    source: str  # the line above it that is not blank

    @property
    def generated(self) -> bool:
        """Output of cog, which tools/pages.sh writes."""
        return self.source.endswith("]]] -->")


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

    def language(self, block: Block) -> str:
        return self.lines[block.begin - 1].strip().lstrip("`~").strip()

    def headings(self, level: int) -> list[str]:
        found = (HEADING.fullmatch(line) for _, line in self.prose)
        return [match[2].strip() for match in found if match and len(match[1]) == level]


def blocks_of(lines: Sequence[str]) -> Iterator[Block]:
    opened: int | None = None
    fence = above = ""
    for number, line in enumerate(lines):
        text = line.strip()
        if opened is None and (match := re.match(r"(`{3,}|~{3,})", text)):
            opened, fence = number + 1, match[1]
        elif opened is not None and text == fence:
            yield Block(opened, number, above)
            opened, above = None, ""
        elif opened is None and text:
            above = text


def pages_of(root: Path, names: Sequence[str] = PAGES) -> list[Page]:
    """In the order of the names, which may be patterns."""
    return [Page(root, path) for name in names for path in sorted(root.glob(name))]
