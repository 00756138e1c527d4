# SPDX-License-Identifier: Apache-2.0
"""All tables of made-up results, as golden/ has them: of whole measurements and of odd ones.

After a change that is meant: GOLDEN=write .venv/bin/python -m pytest tests/bench/golden_test.py,
then read the diff; a new text begins as an empty file. Figures of the made-up results can be worked
out by hand: times jitter, so a median is 1.01 of the time in sample_results.py, and twins take 2.1
times as long.
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
STAGE0, TWIN = made.STAGES[0], made.TWINS[0]
EXACT = made.exact_sums()["benchmarks"]


def links() -> str:
    record = sample_links.record()
    tables = (link_tables.links_table(record), link_tables.fits_table(record),
              link_tables.speed_table(record), *scale.scale_tables(record))
    return "\n\n".join(map(table.terminal_table, tables)) + "\n"


def devices() -> list[made.Entry]:
    """Two stages on a GPU, which is neither compared with a CPU nor the fastest; cuda:0 is compared
    with cuda, and cpu:0 with cpu. Slices of few stages: the fastest is that of the whole runs.
    Programs without a whole run have one order with any hash seed."""
    rows = made.short()["benchmarks"]
    rows[1] |= {"label": "device=cuda:0", "real_time": 0.1, "device_peak_bytes": 7.31e8}
    for place, devices in ((0, ("cuda:0", "cpu")), (5, ("cpu:0", "cpu")), (6, ("cuda:0", "cuda"))):
        for program, device in zip((made.STAGES[place], made.TWINS[place]), devices):
            rows += made.slices("basicnet", program, 1.0, 1, 2, label=f"device={device}")
    for program in ("zero_redundancy", "python_pipeline", "pipeline", "python_zero_redundancy"):
        rows += made.slices("basicnet", program, 6.0, 2, 1)
    return rows


def failures() -> list[made.Entry]:
    """No other recipe or set-up stands in for stage 4, and a long reason is broken into lines.
    The check of stage 0 failed: nothing is known of the others."""
    slices = made.slices("basicnet", STAGE0, 5.0, 1, 2)
    slices[1] |= {"error_occurred": True, "error_message": "killed by signal 9"}
    reason = {"error_message": " ".join(["the rank did not answer"] * 12)}
    return [*slices, *made.slices("basicnet", TWIN, 2.0, 1, 2, error_occurred=True,
                                  error_message="exit code 1"),
            made.full("convnet", made.STAGES[4], 9, 2, 1, 9841, precision="bf16"),
            made.full("basicnet", made.STAGES[4], 9, 1, 2, 9841),
            made.failed("full", "basicnet", made.STAGES[4], 2, 1, "bf16"),
            made.failed("check", "basicnet", STAGE0), *made.checks("basicnet")[1:7],
            made.failed("full", "basicnet", made.STAGES[3], 2, 1) | reason]


def recipes() -> list[made.Entry]:
    """Two rates that are the same in 32 bits, other updates, and no rate. The fastest stage is one
    of the first recipe. A claim is about 16 bits, its row is not."""
    rows = [made.full(recipe, stage, 20 if recipe == "basicnet" else 3, 1, 2, correct)
            for recipe, correct in (("basicnet", 9841), ("convnet", 9155))
            for stage in (STAGE0, *made.STAGES[4:])]
    rows[1]["lr"], rows[5]["steps"] = 0.0010000000474974513, 938
    del rows[7]["lr"]
    return [*made.checks("basicnet"), *made.checks("convnet"), *rows,
            made.full("convnet-ddp-practice", made.STAGES[4], 9, 2, 1, 8741)]


# Made-up rows, by the name of the text that has them.
ROWS: dict[str, Callable[[], list[made.Entry]]] = {
    "sample": lambda: made.sample()["benchmarks"],
    "short": lambda: made.short()["benchmarks"],
    "wrong": lambda: made.sample(weights=WRONG)["benchmarks"],
    "exact": lambda: EXACT,
    # A price without that of fast sums, and a seed with one of the two.
    "exact_alone": lambda: [row for row in EXACT if "/micro_batch:8" in row["name"] or (
        "seeds/" in row["name"] and not row["name"].count("seed:2/") * row["name"].count("micro"))],
    "exact_failed": lambda: [row | {"error_occurred": True, "error_message": "no memory"}
                             for row in EXACT],
    "slices": lambda: [*made.checks("convnet"), *made.slices("convnet", STAGE0, 2.0, 1, 2)],
    "checks": lambda: made.checks("basicnet"),
    # The run on all CPUs is the one that is shown. Without checks none is the fastest.
    "threads": lambda: [made.full("basicnet", STAGE0, 10.0 * threads, 1, threads, 9841)
                        for threads in (1, 4, 2)],
    "loaded": lambda: [row | {"load": 20.4} for row in (*made.short()["benchmarks"], *(
        row for program in (STAGE0, TWIN, "libtorch_usual")
        for row in made.slices("basicnet", program, 2.0, 1, 2)))],
    "devices": devices, "failures": failures, "recipes": recipes,
}
NAMES = sorted(path.name for path in FOLDER.iterdir())


def text_of(name: str) -> str:
    if name == "links.txt":
        return links()
    rows, _, form = name.partition(".")
    write = table.markdown_text if form == "md" else table.short_text
    return write(made.results(*ROWS[rows]()))


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    text, path = text_of(name), FOLDER / name
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert name == "links.txt" or name.endswith(".md") or max(
        map(len, text.splitlines())) <= table.TERMINAL


@pytest.mark.parametrize("flags, name", [
    ([], "short.txt"), (["--short"], "short.txt"), (["--markdown"], "short.md")])
def test_the_program_prints_them(flags: list[str], name: str, tmp_path: Path, output) -> None:
    path = made.write_rows(tmp_path / "a.json", ROWS["short"]())
    assert output(table, path, *flags) == (FOLDER / name).read_text(encoding="utf-8")
    links = output(table, made.write(path, sample_links.record()), "--links")
    assert (FOLDER / "links.txt").read_text(encoding="utf-8").startswith(links)
