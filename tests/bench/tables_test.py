# SPDX-License-Identifier: Apache-2.0
"""tables.py and environment.py: what rows, cells and notes say."""
from __future__ import annotations

from pathlib import Path

import pytest
import sample_results as made
from environment import environment_table
from results import Results, read
from tables import (
    Table, accuracy_table, recipe_table, stage_cells, stage_table, summary, twin_table,
)


@pytest.fixture(scope="module")
def sample() -> Results:
    return made.sample_results()


def row_of(table: Table, *start: str) -> dict[str, str]:
    """By column, of the row that begins so."""
    [row] = [row for row in table.rows if tuple(row[:len(start)]) == start]
    return dict(zip(table.header, row, strict=True))


def test_a_device_that_was_measured_has_its_memory_in_a_column() -> None:
    rows = made.slices("basicnet", "stage2_ddp_spawn", 5.0, 2, 1, device_peak_bytes=7.31e8)
    found = recipe_table(made.results(*rows), "basicnet")
    assert found.header[-2:] == ("device memory, MB", "sent per step, bytes")
    assert found.rows[0][-2:] == ["731", "9600000"]


def test_a_device_other_than_the_cpu_is_named() -> None:
    rows = made.slices("basicnet", "stage0_single_gpu", 1.0, 1, 2, label="device=cuda:0")
    rows += made.slices("basicnet", "python_single", 2.0, 1, 2)
    row = row_of(recipe_table(made.results(*rows), "basicnet"), "stage0_single_gpu (cuda:0)")
    assert row["time / twin's [95 %]"] == "other device"


def test_some_failed_repetitions_are_told_beside_the_numbers() -> None:
    rows = made.slices("basicnet", "stage0_single_gpu", 5, 1, 2)
    rows[1] |= {"error_occurred": True, "error_message": "killed by signal 9"}
    found = recipe_table(made.results(*rows), "basicnet")
    assert found.rows[0][4] == "5.03 [4.90, 6.50]"
    assert any("1 of 5 failed: killed by signal 9" in note for note in found.notes)


def test_a_failed_run_is_shown_and_not_replaced_by_another_recipe_or_setup() -> None:
    results = made.results(
        made.full("convnet", "stage4_ddp_amp", 9, 2, 1, 9841, precision="bf16"),
        made.full("basicnet", "stage4_ddp_amp", 9, 1, 2, 9841),
        made.failed("full", "basicnet", "stage4_ddp_amp", 2, 1, "bf16"))
    assert list(stage_cells(results, 4).values())[:4] == [
        "stage4_ddp_amp", "2 x 1", "bf16", "failed: " + made.REASON]


def test_a_recipe_says_how_it_was_trained() -> None:
    rows = [made.full("basicnet", name, 9, 1, 2, 9841) for name in made.STAGES[5:]]
    line = "Batch 64 over all processes, learning rate 0.001, 9380 updates."

    def notes() -> list[str]:
        return recipe_table(made.results(*rows), "basicnet").notes

    rows[1]["lr"] = 0.0010000000474974513  # the same in 32 bits
    assert line in notes()
    rows[1]["steps"] = 938
    assert notes()[:2] == [f"stage5_accelerator: {line}",
                           f"stage6_trainer: {line.replace('9380', '938')}"]
    for row in rows:
        del row["lr"]
    assert "Batch" not in " ".join(notes())


def test_two_files_give_the_tables_of_one(sample: Results, tmp_path: Path) -> None:
    bench = [row for row in made.sample()["benchmarks"] if not (
        row["name"].startswith("full/") and "/seed:" in row["name"])]
    files = [made.write(tmp_path / "a.json", {"context": made.CONTEXT, "benchmarks": bench}),
             made.write(tmp_path / "b.json", made.whole())]
    for make in (accuracy_table, twin_table):
        assert make(read(files)).rows == make(sample).rows
    alone = read(files[:1])
    assert stage_table(alone).rows == []
    assert "Fastest: stage4_ddp_amp (2 x 1, bf16)" in " ".join(summary(alone))


def test_times_of_two_recipes_are_not_compared() -> None:
    rows = [*made.checks("basicnet", {}), *made.checks("convnet", {}),
            made.full("basicnet", "stage0_single_gpu", 20.0, 1, 2, 9841),
            made.full("convnet", "stage6_trainer", 3.0, 1, 2, 9155)]
    assert ("Fastest: stage0_single_gpu (1 x 2, fp32), 20.0 s (one run each)."
            in summary(made.results(*rows)))


def test_what_is_not_known_to_be_equal_is_not_praised() -> None:
    rows = [made.full("basicnet", "stage0_single_gpu", 10.0, 1, 2, 9841)]
    assert not any(":" in line for line in summary(made.results(*rows)))


# --- environment ------------------------------------------------------------------------


def test_load_and_stolen_ticks_are_those_of_each_file(tmp_path: Path) -> None:
    row = made.entry("slice", "basicnet", "stage0_single_gpu", real_time=1.0)
    files = [made.write(tmp_path / name, {"context": context, "benchmarks": [{**row, **more}]})
             for name, context, more in (
                 ("a.json", made.CONTEXT, {"steal_ticks": 40, "load": 2.0}),
                 ("b.json", made.CONTEXT, {}), ("c.json", {}, {"steal_ticks": 40}))]
    rows = {name: cells for name, *cells in environment_table(read(files)).rows}
    assert rows["stolen ticks while measuring"] == ["23", "0", "not recorded"]
    assert rows["load while measuring"] == ["2.00 to 2.00", "not recorded", "not recorded"]
