# SPDX-License-Identifier: Apache-2.0
"""What is claimed: our speed against Python's, and the numbers that the source tutorials print."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from marks import all_cpus, fastest_tuned, inverse, ratio
from results import Results, Row
from tables import Cells, Table, accuracy_text, cells, counter, plain_table
from words import (
    DDP_PRACTICE, HF_DEFAULTS, NOT_MEASURED, NOT_RUN, STAGES, TWINS, count, number, rung,
)


def speed_claim(results: Results) -> str:
    """Stage 0 against the fastest tuned Python of the record, else its twin; "" without either."""
    stage0, twin = (all_cpus(results, "basicnet", program) for program in (STAGES[0], TWINS[0]))
    tuned = fastest_tuned(results, stage0)
    faster = inverse(ratio(results, stage0, tuned or twin))
    if faster is None:
        return ""
    name = f"the fastest tuned Python program ({tuned.program})" if tuned else "its Python twin"
    return (f"BasicNet, fp32, {stage0.threads} threads: stage 0 trains "
            f"{faster.text(lambda value: f'{value:.2f}')} times as fast as {name}.")


def twins_claim(results: Results) -> str:
    """The range of all stages against their own twins, by recipe; "" without any."""
    found: dict[str, list[float]] = {}
    for setup in results.beside_twins():
        if faster := inverse(results.ratio_to_twin(setup)):
            found.setdefault(setup.recipe, []).append(faster.value)
    if not found:
        return ""
    ranges = [f"{min(values):.1f} to {max(values):.1f} times ({recipe})"
              for recipe, values in found.items()]
    return (f"Each stage trains {' and '.join(ranges)} as fast as its Python twin with the same "
            "number of processes, threads and bits.")


class Claim(NamedTuple):
    what: str
    value: str
    recipe: str
    program: str  # ours; its twin is the one of the same place
    world: int
    ours: Callable[[Row], str]
    precision: str = "fp32"


def loss(value: float | None) -> str:
    return number(value, 4)


def seconds(row: Row) -> str:
    """What the program itself prints at its end, as the tutorials do."""
    elapsed = row.counter("total_seconds")
    return NOT_MEASURED if elapsed is None else f"{elapsed:.2f} s"


CLAIMS = (
    Claim("ConvNet, 3 epochs with tests, 1 GPU: accuracy", "91.55 %", "convnet",
          "stage0_single_gpu", 1, accuracy_text),
    Claim("ConvNet, 3 epochs with tests, 1 GPU: time", "22.72 s", "convnet", "stage0_single_gpu", 1,
          seconds),
    Claim("ConvNet, 3 epochs with tests, 2 GPUs, DDP, 16 bits: accuracy", "89.21 %", DDP_PRACTICE,
          "stage4_ddp_amp", 2, accuracy_text, "bf16"),
    Claim("ConvNet, 3 epochs with tests, 2 GPUs, DDP, 16 bits: time", "30.82 s", DDP_PRACTICE,
          "stage4_ddp_amp", 2, seconds, "bf16"),
    Claim("BasicNet, Trainer: steps", "938", HF_DEFAULTS, "stage6_trainer", 1,
          counter("steps", count)),
    Claim("Trainer: training loss, steps 1 to 500", "0.8757", HF_DEFAULTS, "stage6_trainer", 1,
          counter("logged_loss", loss)),
    Claim("BasicNet, Trainer: validation loss", "0.2826", HF_DEFAULTS, "stage6_trainer", 1,
          counter("eval_loss", loss)),
)


def row_for(results: Results, claim: Claim, program: str) -> Row | None:
    """The whole run that the claim is about, with the most threads."""
    rows = [row for row in results.of_kind("full") if
            (row.key.setup.recipe, row.key.setup.program, row.key.setup.world,
             row.key.setup.precision, row.key.setup.width)
            == (claim.recipe, program, claim.world, claim.precision, 1)]
    return max(rows, key=lambda row: (not row.error, row.key.setup.threads), default=None)


def claim_cells(results: Results, claim: Claim) -> Cells:
    found = {"claim": claim.what, "tutorial": claim.value}
    twin = TWINS[rung(claim.program)]
    for column, program in (("C++ here", claim.program), ("Python here", twin)):
        [text] = cells(row_for(results, claim, program), {column: claim.ours}).values()
        found[column] = text if text == NOT_RUN else f"{text} ({program})"
    return found


def claims_table(results: Results) -> Table:
    """Without rows if none of the claims' rows was run."""
    rows = [claim_cells(results, claim) for claim in CLAIMS]
    if all(set(list(row.values())[2:]) == {NOT_RUN} for row in rows):
        rows = []
    notes = ["The tutorials ran on GPUs, ours on the machine below. Time is what the program "
             "prints at its end. With two ranks each takes a batch of its own, as there: the "
             "updates are half as many, and docs/reference/4-ddp-amp.md shows the cost. The "
             "Trainer has the defaults of transformers (--profile hf-defaults). Seeds and order of "
             "the images are not the tutorials'. An accuracy is the mean over the seeds, or of one "
             "run.",
             "The tutorial's run had SyncBatchNorm and 16 bits on two GPUs; here 16 bits are "
             "bfloat16, and PyTorch has no SyncBatchNorm on a CPU, so the twin goes without."]
    return plain_table("Claims of the source tutorials", rows, notes)
