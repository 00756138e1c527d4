# SPDX-License-Identifier: Apache-2.0
"""Images of the test set with their labels, and a picture of those that a program got wrong."""

import functools
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy
from matplotlib.figure import Figure

from drawing import WIDTH, figure_of
from results import ResultsError

DATA = Path(__file__).resolve().parents[2] / "data" / "mnist"
MOST = 20  # images in the picture
COLUMNS, ROW = 10, 50.0  # images in a row; points from row to row


class Digit(NamedTuple):
    index: int
    label: int
    prediction: int
    pixels: numpy.ndarray


@functools.cache
def idx(path: Path) -> numpy.ndarray:
    """The items of an IDX file: a magic number whose last byte counts the dimensions, which follow
    in four bytes each, and the items in one each."""
    content = gzip.decompress(path.read_bytes())
    shape = numpy.frombuffer(content, ">u4", count=content[3], offset=4)
    if len(content) != (expected := 4 + shape.nbytes + int(shape.prod())):
        raise ResultsError(f"{path}: expected {expected} bytes, got {len(content)}; hint: git "
                           "checkout data/mnist")
    return numpy.frombuffer(content, numpy.uint8, offset=4 + shape.nbytes).reshape(shape)


def digit_of(words: str, pixels: numpy.ndarray, labels: numpy.ndarray) -> Digit:
    """INDEX:PREDICTION of a record."""
    index, _, prediction = words.partition(":")
    if not (index.isdigit() and prediction.isdigit() and int(index) < len(labels)):
        raise ResultsError(f"misclassified: expected INDEX:PREDICTION with an index below "
                           f"{len(labels)}, got '{words}'")
    place = int(index)
    if labels[place] == int(prediction):
        raise ResultsError(f"misclassified: test image {place} is a {prediction}, as predicted; "
                           "hint: is data/mnist the data of the record?")
    return Digit(place, int(labels[place]), int(prediction), pixels[place])


def read(misclassified: str) -> list[Digit]:
    """Of INDEX:PREDICTION,INDEX:PREDICTION,...; empty without the data."""
    if not DATA.is_dir():
        return []
    pixels, labels = (idx(DATA / f"t10k-{kind}.gz")
                      for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return [digit_of(words, pixels, labels) for words in misclassified.split(",")]


def draw(digits: Sequence[Digit]) -> Figure:
    """In one pair of axes: a pair each would take a second."""
    rows = -(-len(digits) // COLUMNS)
    figure = figure_of(ROW * rows, WIDTH)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, COLUMNS), ylim=(rows, 0))
    axes.set_axis_off()
    for place, digit in enumerate(digits):
        x, y = place % COLUMNS, place // COLUMNS
        axes.imshow(digit.pixels, cmap="gray", vmin=0, vmax=255, interpolation="none",
                    extent=(x + 0.06, x + 0.94, y + 0.75, y + 0.05), aspect="auto")
        axes.text(x + 0.5, y + 0.78, f"{digit.label} → {digit.prediction}", ha="center", va="top")
    return figure
