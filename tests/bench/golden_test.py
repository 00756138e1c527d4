# SPDX-License-Identifier: Apache-2.0
"""All tables of made-up results, as golden/ has them.

After a change that is meant: GOLDEN=write .venv/bin/python -m pytest tests/bench/golden_test.py,
then read the diff. Figures of the made-up results can be worked out by hand: times jitter, so a
median is 1.01 of the time in sample_results.py, and twins take 2.1 times as long.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import link_tables
import pytest
import sample_links
import sample_results as made
import scale
import table

FOLDER = Path(__file__).parent / "golden"
WRONG = {("stage3_ddp_torchrun", 2): "c" * 64, ("stage4_ddp_amp", 1): "c" * 64}


def links() -> str:
    record = sample_links.record()
    tables = (link_tables.links_table(record), link_tables.fits_table(record),
              link_tables.model_table(record), link_tables.speed_table(record),
              *scale.scale_tables(record))
    return "\n\n".join(map(table.terminal_table, tables)) + "\n"


TEXTS: dict[str, Callable[[], str]] = {
    "sample.md": lambda: table.markdown_text(made.sample_results()),
    "sample.txt": lambda: table.short_text(made.sample_results()),
    "short.md": lambda: table.markdown_text(made.results(*made.short()["benchmarks"])),
    "short.txt": lambda: table.short_text(made.results(*made.short()["benchmarks"])),
    "wrong.txt": lambda: table.short_text(made.sample_results(weights=WRONG)),
    "exact.md": lambda: table.markdown_text(made.results(*made.exact_sums()["benchmarks"])),
    "links.txt": links,
}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    text, path = TEXTS[name](), FOLDER / name
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert name in ("links.txt", *filter(lambda one: one.endswith(".md"), TEXTS)) or max(
        map(len, text.splitlines())) <= table.TERMINAL
