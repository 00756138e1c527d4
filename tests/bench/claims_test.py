# SPDX-License-Identifier: Apache-2.0
"""claims.py: what is claimed, and how near the targets are."""
from __future__ import annotations

import re

import pytest
import sample_results as made
from claims import headline, speed_claim, targets_table, twins_claim

STAGE0, TWIN = "stage0_single_gpu", "python_single"
EAGER, COMPILED = "python_tuned", "python_tuned_compile"


def slices(program: str, seconds: float, threads: int = 2) -> list[made.Entry]:
    return made.slices("basicnet", program, seconds, 1, threads)


TUNED = [
    *slices(STAGE0, 2.0), *slices(EAGER, 7.0), *slices(COMPILED, 6.0),
    *slices(EAGER, 0.1, threads=1)]  # on fewer threads
TWINS = [*slices(STAGE0, 2.0), *slices(TWIN, 5.0), *slices("stage5_accelerator", 2.1)]


def test_targets_that_were_not_measured_have_no_row() -> None:  # docs/performance.md has all
    assert [row[0] for row in targets_table(made.results(*TWINS)).rows] == [
        "BasicNet, fp32: stage 0, time over the floor of arithmetic",
        "BasicNet, fp32: stage 0 against its Python twin, 200 steps",
        "BasicNet: stage 5 over stage 0"]


@pytest.mark.parametrize("rows, claim", [
    (TUNED, r"BasicNet, fp32, 2 threads: stage 0 trains 3\.00 \[2\.\d\d, 3\.\d\d\] times as fast "
            r"as the fastest tuned Python program \(python_tuned_compile\)\."),
    (TWINS, r".* stage 0 trains 2\.50 \[.*\] times as fast as its Python twin\."),
    (slices(STAGE0, 2.0), ""), (slices(TWIN, 5.0), "")])
def test_the_claim_is_about_tuned_python_else_the_twin(rows: list, claim: str) -> None:
    assert re.fullmatch(claim, speed_claim(made.results(*rows)))


def test_what_has_other_weights_has_no_speed() -> None:
    rows = made.short()["benchmarks"]
    rows[4]["seen"] = 9999  # stage 4, the fastest
    assert headline(made.results(*rows)).startswith("WRONG stages: 1 of 7.")
    assert twins_claim(made.results(*rows)).startswith("Each stage trains 11.2 to 12.3 times (b")


def test_a_program_beyond_the_seven_is_no_stage() -> None:
    beyond = [*slices("cuda_graph", 1.0), *slices("python_cuda_graph", 9.0)]
    assert "trains 2.5 to 2.5 times" in twins_claim(made.results(*TWINS, *beyond))
