# SPDX-License-Identifier: Apache-2.0
"""pictures.py, drawing.py, digits.py and words.py: pictures and their colours."""
from __future__ import annotations

import itertools
import math
from unittest.mock import patch

import digits
import numpy
import pictures
import pytest
import sample_results as made
from drawing import DOT, HIGH, LETTER, Dot, box_around, draw_dots, label_shifts
from intervals import Estimate
from matplotlib.colors import to_rgb
from matplotlib.transforms import Bbox
from results import ResultsError
from words import ALL_COLOURS, INK, PAPER, PHASE_COLOURS, STAGE_COLOURS


def test_labels_lie_within_the_frame_and_over_no_dot_and_no_other() -> None:
    frame = Bbox.from_extents(0, 0, 300, 200)
    dots = [(20.0 + 6 * place, 100.0 + place % 3) for place in range(20)]
    labels = [f"py{place % 7} bf16" for place in range(20)]
    boxes = [box_around(x + right, y + up, LETTER * len(label), HIGH)
             for (x, y), (right, up), label in zip(dots, label_shifts(dots, labels, frame), labels)]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.count_overlaps([other])
    for box in boxes:
        assert frame.contains(*box.min) and frame.contains(*box.max)
        assert not box.count_overlaps([box_around(x, y, 2 * DOT, 2 * DOT) for x, y in dots])


@pytest.mark.parametrize("words, reason", [("10000:1", "index below 10000"),
                                           ("a", "INDEX:PREDICTION"), ("0:7", "a 7, as predicted")])
def test_what_does_not_fit_the_data_is_refused(words: str, reason: str) -> None:
    with pytest.raises(ResultsError, match=reason):
        digits.read(words)


def test_without_label_or_data_there_is_no_picture(tmp_path) -> None:
    assert pictures.digits_picture(made.results(*made.short()["benchmarks"]), "basicnet") is None
    sample = made.results(*reversed(made.whole_rows("basicnet", 1.0, 9841)))
    drawn = pictures.digits_picture(sample, "basicnet")
    assert (drawn.svg.count("<image"), drawn.svg.count(" → ")) == (20, 20)
    assert "62 of 10,000; the first 20, and 42 more." in drawn.caption
    assert "misclassified with seed 1:" in drawn.caption  # whichever ran first
    assert drawn.description.startswith("image 0: 7 as 8; image 1: 2 as 3; ")
    with patch.object(digits, "DATA", tmp_path / "none"):
        assert pictures.digits_picture(sample, "basicnet") is None


def test_a_step_of_each_stage_stands_beside_that_of_its_twin() -> None:
    wrong = pictures.stages_picture(made.sample_results(weights={(made.STAGES[3], 2): "c" * 64}))
    assert wrong.description.startswith("stage0_single_gpu: 27.3 ms, 2.10 [1.63, 2.70] × as fast; ")
    assert "stage3_ddp_torchrun: 28.3 ms, WRONG; python_ddp_torchrun: 59" in wrong.description
    assert wrong.description.count("× as fast") == 6 and "95 % intervals" in wrong.caption
    short = pictures.stages_picture(made.results(*made.short()["benchmarks"]))
    assert short.description.startswith("stage0_single_gpu: 2.68 ms, 11.2 × as fast; ")
    assert short.description.endswith("ms; python_trainer: failed") and "one run" in short.caption
    rows = [row for row in made.short()["benchmarks"] if "/python" not in row["name"]]
    assert pictures.stages_picture(made.results(*rows)) is None


@pytest.mark.parametrize("ends", [(15, 17), (15, 22), (20, 90), (40, 500), (40, 2000)])
def test_labels_of_a_logarithmic_axis_do_not_touch(ends: tuple[int, int]) -> None:
    dots = [Dot("0", INK, False, Estimate(end), Estimate(98 + end / 1000)) for end in ends]
    figure = draw_dots(("seconds", "%"), {"": dots}, [])
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()
             if label.get_text() and label.get_window_extent().count_overlaps([figure.bbox])]
    assert len(boxes) > 2
    assert all(left.x1 + 4 < right.x0 for left, right in itertools.pairwise(boxes))


# What the three kinds of colour-blindness make of linear red, green and blue: Machado, Oliveira
# and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
EYES = {
    "all three": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
               (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                 (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = numpy.array(((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)))
WHITE = (0.9505, 1.0, 1.0890)


def linear(colour: str) -> numpy.ndarray:
    parts = numpy.array(to_rgb(colour))
    return numpy.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return (TO_XYZ @ linear(colour))[1]


def seen_as(colour: str, eye: str) -> tuple[float, float, float]:
    """CIE Lab, where distances are about those that one sees."""
    shares = (TO_XYZ @ EYES[eye] @ linear(colour)).clip(0) / WHITE
    x, y, z = numpy.where(shares > 0.008856, numpy.cbrt(shares), 7.787 * shares + 16 / 116)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("place", ["light", "dark"])
def test_programs_stand_out_from_the_page_and_colour_blind_readers_keep_them_apart(place) -> None:
    colours = [getattr(colour, place) for colour in STAGE_COLOURS]
    assert min(contrast(colour, getattr(PAPER, place)) for colour in colours) >= 3.0
    for (first, second), eye in itertools.product(itertools.combinations(colours, 2), EYES):
        assert math.dist(seen_as(first, eye), seen_as(second, eye)) >= 15, (first, second, eye)


def test_no_two_names_share_a_colour() -> None:
    # The pictures are drawn in the light ones, which then become names.
    assert len({colour.light for colour in ALL_COLOURS}) == len(ALL_COLOURS)


def test_the_parts_of_a_step_go_from_dark_to_light() -> None:
    light, dark = ([luminance(getattr(colour, place)) for colour in PHASE_COLOURS]
                   for place in ("light", "dark"))
    assert light == sorted(light) and dark == sorted(dark, reverse=True)


def test_another_library_is_named_in_the_picture_of_time_and_accuracy() -> None:
    results = made.sample_results()
    rows = [row for row in results.of_kind("full") if row.setup.recipe == "basicnet"]
    labels = {row.setup.program: pictures.dot_of(results, row).label for row in rows}
    assert labels["python_lightning"] == "lightning" and labels["python_trainer"] == "py6"
