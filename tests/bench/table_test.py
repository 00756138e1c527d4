# SPDX-License-Identifier: Apache-2.0
"""table.py: what a terminal shows, and Markdown."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sample_links
import sample_results as made
import table
from tables import MORE

Shown = Callable[..., list[str]]


@pytest.fixture
def shown(tmp_path, output) -> Shown:
    """The lines that the program prints about some rows, or a file's content."""
    def run(content: list | dict[str, Any], form: str = "--short") -> list[str]:
        if isinstance(content, list):
            content = {"context": made.CONTEXT, "benchmarks": content}
        return output(table, made.write(tmp_path / "a.json", content), form).splitlines()

    return run


def line_of(lines: list[str], begin: str) -> str:
    return next(line for line in lines if line.startswith(begin))


def test_has_the_seven_stages_and_the_ratios_in_at_most_100_columns(shown: Shown) -> None:
    lines = shown(made.sample())
    assert max(map(len, lines)) <= 100
    for stage, world in zip(made.STAGES, "1222222"):
        words = line_of(lines, stage).split()
        assert words[1:4] == [world, "x", "1" if world == "2" else "2"]
        assert "10000" in words and "yes" in words
    first = line_of(lines, "stage0")
    assert all(text in first for text in ("26.5", "98.41 [98.16, 98.66]", "610", "118"))
    assert ("All seven stages have equal weights at equal world size: 20 steps, fp32, one thread "
            "per process.") in lines
    assert line_of(lines, "Fastest:") == ("Fastest: stage4_ddp_amp (2 x 1, bf16), 3.13 [3.04, 4.03]"
                                          " seconds for 200 steps.")
    ratios = lines[lines.index("Each stage beside its twin:"):]
    assert re.search(r"1 x 2 +fp32( +0\.\d+ \[0\.\d+, 0\.\d+\]){2}$", line_of(ratios, "stage0"))
    speeds = lines[lines.index("Recipe basicnet, 200 steps:"):]
    assert re.search(r"1 x 2 +fp32 +[\d.]+ \[[\d.]+, [\d.]+\] +[\d.]+$", line_of(speeds, "stage0"))
    assert not any(line.startswith("python_") for line in speeds)


def test_slices_alone_are_a_table_too(shown: Shown) -> None:
    lines = shown(made.slices("convnet", "stage0_single_gpu", 2.0, 1, 2))
    assert lines[2] == "Recipe convnet, 200 steps:"
    assert lines[3].endswith("% of floor") and lines[5] == ""


def test_the_table_of_the_short_tier_ends_with_the_command_that_measures_the_rest(shown) -> None:
    text = " ".join(shown(made.short()))
    assert text.endswith(f" {MORE}") and "not run" not in text
    assert ("Fastest: stage4_ddp_amp (2 x 1, bf16), 15.2 s (one run each).") in text
    assert MORE not in " ".join(shown(made.sample()))


def test_a_file_without_runs_and_slices_says_so(shown: Shown) -> None:
    assert (shown(made.checks("basicnet", {}))[2]
            == "No row that this table shows was run: --markdown shows all.")


def test_a_twin_that_failed_is_not_one_that_was_not_run(shown: Shown) -> None:
    lines = shown([*made.slices("basicnet", "stage0_single_gpu", 2.0, 1, 2),
                   *made.slices("basicnet", "python_single", 2.0, 1, 2, error_occurred=True,
                                error_message="exit code 1")])
    assert line_of(lines, "stage0").endswith("twin failed")


def test_a_gpu_beside_a_cpu_is_named_and_not_the_fastest(shown: Shown) -> None:
    content = made.sample()
    for row in content["benchmarks"]:
        if "/stage1_" in row["name"] and row["name"].startswith(("full", "slice")):
            row["label"] = "device=cuda:0"
            row["real_time"] /= 100
    lines = shown(content)
    assert line_of(lines, "stage1_data_parallel (cuda:0)")
    assert "stage1" not in line_of(lines, "Fastest:")


def test_shows_the_run_on_all_cpus(shown: Shown) -> None:
    lines = shown([made.full("basicnet", "stage0_single_gpu", 10.0 * threads, 1, threads, 9841)
                   for threads in (1, 4, 2)])
    assert line_of(lines, "stage0").split()[1:6] == ["1", "x", "4", "fp32", "40.0"]


def test_names_a_wrong_stage_and_does_not_praise_it(shown: Shown) -> None:
    lines = shown(made.sample(weights={("stage4_ddp_amp", 1): "c" * 64}))
    assert max(map(len, lines)) <= 100
    assert "WRONG" in line_of(lines, "stage4").split()
    assert "its weights differ" in " ".join(lines)
    assert line_of(lines, "Fastest:").startswith("Fastest: stage0_single_gpu")


def test_without_slices_of_all_the_fastest_is_that_of_the_whole_runs(shown: Shown) -> None:
    lines = shown([row for row in made.sample()["benchmarks"] if not row["name"].startswith(
        "slice/basicnet/stage0_single_gpu/world:1")])
    assert line_of(lines, "Fastest:") == ("Fastest: stage4_ddp_amp (2 x 1, bf16), 15.2 s (the "
                                          "median of up to 3 runs).")
    assert "to its end, the median of up to 3 runs;" in " ".join(lines)


def test_says_why_a_stage_failed_and_which_did_not_run(shown: Shown) -> None:
    reason = " ".join(["the rank did not answer"] * 12)
    row = made.failed("full", "basicnet", "stage3_ddp_torchrun", 2, 1)
    lines = shown([row | {"error_message": reason}])
    assert max(map(len, lines)) <= 100
    assert f"failed: {reason}" in " ".join(" ".join(lines).split())
    assert line_of(lines, "stage6").split() == ["stage6_trainer", "not", "run"]


def test_links_are_a_table(shown: Shown) -> None:
    lines = shown(sample_links.record(), "--links")
    assert lines[1].split()[:4] == ["1", "Gbit/s", "plain", "40.0"]


# --- Markdown ---------------------------------------------------------------------------


def rows_of(text: str, title: str) -> list[list[str]]:
    part = text.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines()
            if line.startswith("| ")]
    assert len({len(row) for row in rows}) == 1, title
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_row_is_there_and_no_cell_is_empty(shown: Shown) -> None:
    text = "\n".join(shown(made.sample(), "--markdown"))
    # Stages, twins and LibTorch used the usual way; scaling, a row that failed, tuned Python.
    assert len(rows_of(text, "Recipe basicnet")) == 2 * 18 + 1 + 3 + 4
    assert len(rows_of(text, "Recipe convnet")) == 2 * 18 + 1 + 8 + 2
    for title in re.findall(r"^## (.*)$", text, re.MULTILINE)[:-1]:
        assert all("" not in row for row in rows_of(text, title)), title
    assert made.REASON.replace("|", "\\|").replace("<", "\\<") in text
    assert "Recipe convnet-ddp-practice" not in text


def test_sections_columns_and_notes_without_a_value_are_left_out(shown: Shown) -> None:
    text = "\n".join(shown(made.short(), "--markdown"))
    assert re.findall("^## (.*)$", text, re.MULTILINE) == [
        "The seven stages", "Recipe basicnet", "Equality", "Environment",
        "Limits of these numbers"]
    assert len(rows_of(text, "Recipe basicnet")[0]) == 12
    for words in ("| not run", "not measured", "not recorded", "200 steps leaves", "twins follow"):
        assert words not in text
    assert text.endswith(f"\n\n{MORE}")


def test_the_same_file_gives_the_same_text(shown: Shown) -> None:
    for form in ("--short", "--markdown"):
        assert shown(made.sample(), form) == shown(made.sample(), form)
