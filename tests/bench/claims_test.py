# SPDX-License-Identifier: Apache-2.0
"""claims.py: what is claimed, and how near the targets are."""
from __future__ import annotations

import re

import claims
import pytest
import sample_results as made
from claims import claims_table, speed_claim, twins_claim

STAGE0, TWIN, STAGE2 = "stage0_single_gpu", "python_single", "stage2_ddp_spawn"
EAGER, COMPILED = "python_tuned", "python_tuned_compile"


def slices(program: str, seconds: float, world: int = 1, threads: int = 2, precision: str = "fp32",
           recipe: str = "basicnet") -> list[made.Entry]:
    return made.slices(recipe, program, seconds, world, threads, precision)


TUNED = [
    *slices(STAGE0, 2.0), *slices(EAGER, 7.0), *slices(COMPILED, 6.0),
    *slices(EAGER, 0.1, threads=1),  # on fewer threads
    *slices("stage4_ddp_amp", 1.0, precision="bf16"), *slices(EAGER, 2.0, precision="bf16"),
    *slices(COMPILED, 3.0, precision="bf16"),
    *slices(STAGE0, 1.0, recipe="convnet"), *slices(EAGER, 2.6, recipe="convnet"),
    made.entry("slice", "convnet", COMPILED, 1, 2, real_time=0.0, error_occurred=True,
               error_message=made.NOT_RUN)]
WHOLE = [
    *slices(STAGE0, 1.0, recipe="convnet"), *slices(TWIN, 1.0, recipe="convnet"),
    made.full("convnet", STAGE0, 20.0, 1, 2, 9200, startup_seconds=0.5),
    made.full("convnet", TWIN, 50.0, 1, 2, 9200),
    made.full("convnet", "stage3_ddp_torchrun", 50.0, 2, 1, 9200, startup_seconds=9.0)]
RANKS = [*slices(STAGE0, 3.9), *slices(STAGE2, 6.0, 1, 1), *slices(STAGE2, 4.29),
         *slices(STAGE2, 3.0, 2, 1)]
TWINS = [*slices(STAGE0, 2.0), *slices(TWIN, 5.0), *slices("stage5_accelerator", 2.1)]


@pytest.mark.parametrize("rows, what, cells", [
    (TWINS, "BasicNet, fp32: stage 0 against its Python twin, 200 steps",
     r"≥ 2.0 ×|2\.50 \[1\.\d\d, 3\.\d\d\]|yes"),
    (TWINS, "BasicNet: stage 5 over stage 0", r"≤ 1.02 ×|1\.05 \[.*|no"),
    (TWINS, "BasicNet: stage 6 over stage 0", ""),
    (TWINS, "BasicNet, fp32: stage 0 against the fastest tuned Python", ""),
    (TUNED, "BasicNet, fp32: stage 0 against the fastest tuned Python", r"≥ 3.0 ×|3\.00 \[.*|yes"),
    (TUNED, "BasicNet, bf16: stage 4, one rank, against the fastest tuned Python",
     r"≥ 2.3 ×|2\.00 \[.*|no"),
    (TUNED, "ConvNet, fp32: stage 0 against the fastest tuned Python", r"≥ 2.5 ×|2\.60 \[.*|yes"),
    (WHOLE, "ConvNet, fp32: stage 0 against its Python twin, whole run",
     r"≥ 1.9 ×|2\.50 \(one run\)|yes"),
    (WHOLE, "Start of a program to its first step, slowest stage",
     r"≤ 1.0 s|0\.50 \(one run\)|yes"),
    (RANKS, "BasicNet, fp32: stage 0, time over the floor of arithmetic",
     r"≤ 1.25 ×|1\.01 \[0\.98, 1\.30\]|yes"),
    (RANKS, "BasicNet: two ranks × 1 thread against one × 1 thread", r"≥ 1.85 ×|2\.00 \[.*|yes"),
    (RANKS, "BasicNet: stage 2 with one rank over stage 0", r"≤ 1.02 ×|1\.10 \[.*|no")])
def test_targets(rows: list, what: str, cells: str) -> None:
    found = [row[1:] for row in claims.targets_table(made.results(*rows)).rows if row[0] == what]
    for cell, pattern in zip(*found or [[]], cells.split("|") if cells else [], strict=True):
        assert re.fullmatch(pattern, cell), found


@pytest.mark.parametrize("rows, claim", [
    (TUNED, r"BasicNet, fp32, 2 threads: stage 0 trains 3\.00 \[2\.\d\d, 3\.\d\d\] times as fast "
            r"as the fastest tuned Python program \(python_tuned_compile\)\."),
    (TWINS, r".* stage 0 trains 2\.50 \[.*\] times as fast as its Python twin\."),
    (slices(STAGE0, 2.0), ""), (slices(TWIN, 5.0), "")])
def test_the_claim_is_about_tuned_python_else_the_twin(rows: list, claim: str) -> None:
    assert re.fullmatch(claim, speed_claim(made.results(*rows)))


def test_each_stage_against_its_own_twin_is_a_range_for_each_network() -> None:
    rows = [*slices(STAGE0, 2.0), *slices(TWIN, 5.0), *slices(STAGE2, 2.0, 2, 1),
            *slices("python_ddp_spawn", 8.0, 2, 1),
            *slices("stage3_ddp_torchrun", 2.0, 2, 1),  # has no twin here
            *slices(STAGE0, 2.0, recipe="convnet"), *slices(TWIN, 3.0, recipe="convnet")]
    assert twins_claim(made.results(*rows)) == (
        "Each stage trains 2.5 to 4.0 times (basicnet) and 1.5 to 1.5 times (convnet) as fast as "
        "its Python twin with the same number of processes, threads and bits.")
    assert twins_claim(made.results(*rows[:5])) == ""


def test_claims_are_of_their_precision() -> None:
    row = made.full("convnet-ddp-practice", "stage4_ddp_amp", 9.0, 2, 1, 8741)
    assert claims_table(made.results(row)).rows == []
