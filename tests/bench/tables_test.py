# SPDX-License-Identifier: Apache-2.0
"""tables.py and environment.py: what rows, cells and notes say."""
from __future__ import annotations

from pathlib import Path

import pytest
import sample_results as made
from environment import environment_table, honesty
from results import Results, Setup, read
from tables import (
    Table, accuracy_table, feeding_table, recipe_table, stage_cells, stage_table, summary,
    twin_table,
)


@pytest.fixture(scope="module")
def sample() -> Results:
    return made.sample_results()


def row_of(table: Table, *start: str) -> dict[str, str]:
    """By column, of the row that begins so."""
    [row] = [row for row in table.rows if tuple(row[:len(start)]) == start]
    return dict(zip(table.header, row, strict=True))


def test_a_row_has_its_numbers(sample: Results) -> None:
    row = row_of(recipe_table(sample, "basicnet"), "stage0_single_gpu", "1", "fp32", "2")
    assert list(row.values())[4:] == [
        "5.45 [5.29, 7.02]", "2347", "71.5", "0.476 [0.370, 0.613]", "26.5",
        "98.41 [98.16, 98.66]", "is stage 0", "10000", "yes", "0.72", "610", "0", "118"]


@pytest.mark.parametrize("recipe, start, cells", [
    ("convnet", ("python_trainer", "2", "fp32"), {
        "time / twin's [95 %]": "is the twin", "to stage 0, points": "-0.18",
        "equal?": "not checked", "code lines": "47"}),
    ("convnet", ("stage1_data_parallel",), {"to stage 0, points": "-0.03 (noise)"}),
    ("basicnet", ("python_data_parallel (1 replica: no GPU)", "2"), {}),
    ("convnet", ("python_tuned",), {"time / twin's [95 %]": "not a twin"}),
    ("convnet", ("libtorch_usual",), {"time / twin's [95 %]": "no twin",
                                      "whole run, s": "not run"}),
    ("basicnet", ("stage6_trainer", "4"), {
        "200 steps, s [95 %]": "failed: " + made.REASON, "samples/s": "failed",
        "whole run, s": "not run"}),
    # A program that the machine cannot run has not failed.
    ("convnet", ("python_tuned_compile",), {"200 steps, s [95 %]": made.NOT_RUN,
                                            "samples/s": "not run"})])
def test_a_row_says_what_it_is_and_why_it_has_no_numbers(sample, recipe, start, cells) -> None:
    row = row_of(recipe_table(sample, recipe), *start)
    assert row | cells == row


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


def test_a_stage_has_a_row_for_each_world_size_and_precision_of_its_twin(sample) -> None:
    found = twin_table(sample)
    assert found.header[3:] == ("basicnet / twin's [95 %]", "convnet / twin's [95 %]")
    assert [tuple(row[:3]) for row in found.rows] == [
        (stage, f"{how['world']} x {how['threads']}", how["precision"])
        for place, stage in enumerate(made.STAGES) for how in made.setups(place)]
    assert all(row[3].startswith("0.476 [0.") for row in found.rows)


def test_a_wrong_stage_has_no_ratio() -> None:
    found = twin_table(made.sample_results(weights={("stage3_ddp_torchrun", 2): "c" * 64}))
    assert {row[0] for row in found.rows if row[3] == "WRONG"} == {"stage3_ddp_torchrun"}


def test_variants_stand_below_their_base_and_in_no_table_of_a_recipe(sample: Results) -> None:
    rows = feeding_table(sample).rows
    assert [row[4] for row in rows] == ["sharding", "dispatch", "4 batches per step, no_sync",
                                        "4 batches per step, all-reduce in each"]
    assert (rows[0][6], rows[0][8]) == ("1", "not measured")
    assert rows[1][6].startswith("1.078 [")  # 6.2 s over 5.75
    assert rows[1][7:] == ["9800000", "64000", "0"]
    row_of(recipe_table(sample, "basicnet"), "stage5_accelerator", "2", "fp32", "1")


def test_seeds_are_repetitions_and_their_accuracies_are_compared_seed_by_seed(sample) -> None:
    found = accuracy_table(sample)
    assert len(found.rows) == 2 * 14
    # By seed +0.14, -0.16 and -0.16 to stage 0: mean -0.06, standard error 0.1.
    assert list(row_of(found, "stage2_ddp_spawn", "basicnet").values())[4:] == [
        "stage3, stage4 bf16 (1 of 3 seeds), stage5, stage6", "98.45, 98.25, 98.35",
        "98.35 [98.10, 98.60]", "+0.00 [-0.09, +0.09]", "-0.06 [-0.49, +0.37]"]
    stage0 = row_of(found, "stage0_single_gpu", "basicnet")
    assert (stage0["same weights as"], stage0["to stage 0, points [95 %]"]) == ("none",
                                                                               "is stage 0")
    assert accuracy_table(made.results(*made.short()["benchmarks"])).rows == []


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


@pytest.mark.parametrize("field, value", [
    ("CPU", "Sample CPU of nobody"), ("libraries", "libtorch 2.11.0, onednn 3.7.1"),
    ("Python and its packages", "torch 2.11.0, accelerate 1.12.0"),
    ("environment variables", "OMP_PROC_BIND close"), ("compiler flags", "-O3 -march=native"),
    ("measured peak, all CPUs, GFLOP/s bfloat16", "436.2"), ("GPU driver", "none"),
    ("load while measuring", "1.50 to 1.50"), ("stolen ticks while measuring", "4"),
    ("frequency governor", None)])  # it was not recorded
def test_the_environment_is_whole(sample: Results, field: str, value: str | None) -> None:
    assert dict(environment_table(sample).rows).get(field) == value


def test_load_and_stolen_ticks_are_those_of_each_file(tmp_path: Path) -> None:
    row = made.entry("slice", "basicnet", "stage0_single_gpu", real_time=1.0)
    files = [made.write(tmp_path / name, {"context": context, "benchmarks": [{**row, **more}]})
             for name, context, more in (
                 ("a.json", made.CONTEXT, {"steal_ticks": 40, "load": 2.0}),
                 ("b.json", made.CONTEXT, {}), ("c.json", {}, {"steal_ticks": 40}))]
    rows = {name: cells for name, *cells in environment_table(read(files)).rows}
    assert rows["stolen ticks while measuring"] == ["23", "0", "not recorded"]
    assert rows["load while measuring"] == ["2.00 to 2.00", "not recorded", "not recorded"]


def test_notes_are_about_what_was_measured(sample: Results) -> None:
    text = " ".join(honesty(sample))
    short = " ".join(honesty(made.results(*made.short()["benchmarks"])))
    for words in ("Bytes sent per step are counted in the programs", "libtorch_usual is neither",
                  "Without a whole run here: libtorch_usual.", "means over 3 seeds at most",
                  "python_tuned and python_tuned_compile are no twins", "steps 5 to 8, rank 0",
                  '"twin not run"', "The time of 200 steps leaves out"):
        assert words in text and words not in short
    for words in ("from the start of the program to its end", "There was no GPU",
                  "changes that are in no commit", "Launcher and parent processes are not counted"):
        assert words in text and words in short
    fast = made.results(*made.slices("basicnet", "stage0_single_gpu", 0.1, 1, 2))
    assert "above 100 % of its floor" in " ".join(honesty(fast))
