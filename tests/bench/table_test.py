# SPDX-License-Identifier: Apache-2.0
"""table.py: what a terminal shows, and Markdown."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sample_links
import sample_results as made
import table

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


def test_slices_alone_are_a_table_too(shown: Shown) -> None:
    lines = shown(made.slices("convnet", "stage0_single_gpu", 2.0, 1, 2))
    assert lines[2] == "Recipe convnet, 200 steps:"
    assert lines[3].endswith("% of floor") and lines[5] == ""


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

