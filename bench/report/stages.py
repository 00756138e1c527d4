# SPDX-License-Identifier: Apache-2.0
"""The picture of the README: what each stage takes, and beside it the same training in Python.

pages.py draws it from the record of the bench, as docs/images/stages.svg.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape

from environment import machine_line
from equality import WRONG, verdict_for
from intervals import Interval
from marks import inverse
from results import Results, ResultsError, Row, Setup
from tables import name_text, unusual
from words import BAD, INK, MUTED, STAGES, Colour, colour_of, is_twin, significant, twin_of

RECIPE = "basicnet"
WIDTH, LEFT, RIGHT, TOP = 760.0, 172.0, 218.0, 10.0
PAIR, BAR = 36.0, 14.0  # from stage to stage, and from a bar to its twin's
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


def span(row: Row) -> Interval:
    time = row.seconds()
    return time.interval or Interval(time.value, time.value)


def words_of(results: Results, row: Row) -> tuple[str, Colour]:
    """What stands behind a bar, and is told to those who do not see the picture."""
    setup = row.key.setup
    note = name_text(setup, row).removeprefix(setup.program)
    time = f"{significant(row.seconds().value)} s{note}"
    if is_twin(setup.program):
        return time, INK
    if verdict_for(results, RECIPE, setup.program).state == WRONG:
        return f"{time}, {WRONG}", BAD
    faster = inverse(results.ratio_to_twin(setup))
    return f"{time}, {faster.text(lambda value: f'{value:.2f}')} × as fast", INK


def text(x: float, y: float, words: str, colour: Colour = INK, anchor: str = "start") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="11.5" text-anchor="{anchor}" '
            f'fill="var(--{colour.name})">{escape(words)}</text>')


def bar(row: Row, y: float, scale: float) -> str:
    """From nothing to the time, and a whisker over its interval."""
    program = row.key.setup.program
    colour = f"var(--{colour_of(program).name})"
    low, high = (LEFT + end * scale for end in span(row))
    return (f'<rect x="{LEFT:.1f}" y="{y:.1f}" width="{row.seconds().value * scale:.1f}" '
            f'height="{BAR - 2:.1f}" stroke="{colour}" stroke-width="1.2" '
            f'fill="{"none" if is_twin(program) else colour}"/>'
            f'<path d="M{low:.1f} {y + 3:.1f}v6m0 -3H{high:.1f}m0 -3v6" fill="none" '
            f'stroke="var(--{INK.name})"/>')


def name_of(setup: Setup, y: float) -> list[str]:
    how = f"{setup.world} x {setup.threads}, {setup.precision}"
    return [text(LEFT - 8, y + 11, setup.program, INK, "end"),
            text(LEFT - 8, y + 25, how, MUTED, "end")]


def picture(results: Results) -> str:
    pairs = [paired(results, stage) for stage in STAGES]
    scale = (WIDTH - LEFT - RIGHT) / max(span(row).high for pair in pairs for row in pair)
    parts, told = [], []
    for place, pair in enumerate(pairs):
        y = TOP + place * PAIR
        parts += name_of(pair[0].key.setup, y)
        for row, top in zip(pair, (y, y + BAR)):
            words, colour = words_of(results, row)
            end = LEFT + max(span(row).high, row.seconds().value) * scale
            parts += [bar(row, top, scale), text(end + 6, top + 10, words, colour)]
            told.append(f"{row.key.setup.program}: {words}")
    bottom = TOP + len(pairs) * PAIR + 10
    parts += [text(LEFT, bottom, LEGEND), text(LEFT, bottom + 16, machine_line(results), MUTED)]
    return (f'<svg viewBox="0 0 {WIDTH:.0f} {bottom + 26:.0f}" role="img" font-family="sans-serif" '
            'aria-labelledby="stages-title stages-desc"><title id="stages-title">The seven stages '
            'beside their twins in Python</title><desc id="stages-desc">'
            f'{escape("; ".join(told))}</desc>' + "".join(parts) + "</svg>")
