# SPDX-License-Identifier: Apache-2.0
"""The picture of the README: time of each stage beside that of the same training in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure

from drawing import Bar, Picture, axes_of, draw_bar
from environment import machine_line
from equality import WRONG, is_wrong
from marks import inverse
from results import Results, ResultsError, Row, Setup
from tables import name_text, unusual
from words import INK, MUTED, STAGES, colour_of, is_twin, significant, twin_of

RECIPE = "basicnet"
WIDTH, PAIR = 760.0, 36.0  # points; from stage to stage
SIDE = 0.21  # from the middle of a pair to the middle of a bar
LEGEND = "Seconds for 200 steps of BasicNet, with 95 % intervals. Filled: C++; outlined: Python."


def paired(results: Results, stage: str) -> tuple[Row, Row]:
    """A stage as it is meant to run, and its twin that was started alike."""
    found = [setup for setup in results.setups(RECIPE, ("slice",)) if setup.program == stage
             and setup.width == 1 and results.ratio_to_twin(setup)]
    if found:
        setup = min(found, key=unusual)
        twin = replace(setup, program=twin_of(stage))
        return results.row("slice", setup), results.row("slice", twin)
    raise ResultsError(f"the picture of the stages: expected {stage} and {twin_of(stage)} in rows "
                       f"slice/{RECIPE} with as many processes and threads, got none")


def bar_of(results: Results, row: Row) -> Bar:
    """Its text is the description of the picture too."""
    setup, twin = row.key.setup, is_twin(row.key.setup.program)
    note = name_text(setup, row).removeprefix(setup.program)
    text = f"{significant(row.seconds().value)} s{note}"
    wrong = not twin and is_wrong(results, setup)
    if wrong:
        text += f", {WRONG}"
    elif faster := inverse(results.ratio_to_twin(setup)):  # None of a twin
        text += f", {faster.text(lambda value: f'{value:.2f}')} × as fast"
    return Bar(setup.program, colour_of(setup.program), twin, row.seconds(), text, wrong=wrong)


def draw(pairs: Sequence[tuple[Setup, Sequence[Bar]]], machine: str) -> Figure:
    figure, axes = axes_of(PAIR * (len(pairs) + 1.2), WIDTH)
    names = axes.get_yaxis_transform()
    for place, (setup, bars) in enumerate(pairs):
        for bar, side in zip(bars, (-SIDE, SIDE)):
            draw_bar(axes, place + side, bar, 0.33, 11.5)
        how = f"{setup.world} x {setup.threads}, {setup.precision}"
        for text, side, colour in ((setup.program, -SIDE, INK), (how, SIDE, MUTED)):
            axes.text(-0.012, place + side, text, transform=names, ha="right", va="center",
                      fontsize=11.5, color=colour.light)
    for line, colour in enumerate((INK, MUTED)):
        axes.text(0, len(pairs) - 0.25 + 0.45 * line, (LEGEND, machine)[line], transform=names,
                  va="center", fontsize=11.5, color=colour.light)
    # The words behind the bars need room.
    axes.set(xlim=(0, 1.5 * max(bar.end for _, bars in pairs for bar in bars)),
             ylim=(len(pairs) + 0.6, -0.5))
    axes.set_axis_off()
    return figure


def picture(results: Results) -> Picture:
    pairs = []
    for stage in STAGES:
        rows = paired(results, stage)
        pairs.append((rows[0].key.setup, [bar_of(results, row) for row in rows]))
    description = "; ".join(f"{bar.label}: {bar.text}" for _, bars in pairs for bar in bars)
    return Picture("stages", "The seven stages beside their twins in Python", description,
                   partial(draw, pairs, machine_line(results)))
