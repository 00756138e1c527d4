# SPDX-License-Identifier: Apache-2.0
"""Images of the test set with their labels, and a picture of those that a program got wrong."""

from __future__ import annotations

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
MOST = 60  # images in the picture
SIZE = 28  # pixels of an image
COLUMNS = 6


class Digit(NamedTuple):
    index: int
    label: int
    prediction: int
    pixels: numpy.ndarray


def idx(path: Path, head: int, shape: tuple[int, ...]) -> numpy.ndarray:
    """The items of an IDX file, whose head is so many bytes long."""
    content = gzip.decompress(path.read_bytes())
    items = int.from_bytes(content[4:8], "big")
    expected = head + items * int(numpy.prod(shape))
    if len(content) != expected:
        raise ResultsError(f"{path}: expected {expected} bytes, got {len(content)}; hint: git "
                           "checkout data/mnist")
    return numpy.frombuffer(content, numpy.uint8, offset=head).reshape(items, *shape)


@functools.cache
def test_set(folder: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Pixels and labels."""
    return (idx(folder / "t10k-images-idx3-ubyte.gz", 16, (SIZE, SIZE)),
            idx(folder / "t10k-labels-idx1-ubyte.gz", 8, ()))


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
    pixels, labels = test_set(DATA)
    return [digit_of(words, pixels, labels) for words in misclassified.split(",")]


def draw(digits: Sequence[Digit]) -> Figure:
    rows = -(-len(digits) // COLUMNS)
    figure = figure_of(76.0 * rows, WIDTH)
    grid = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes in grid:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, digit in zip(grid, digits):
        axes.imshow(digit.pixels, cmap="gray", vmin=0, vmax=255, interpolation="none")
        axes.set_xlabel(f"{digit.label} → {digit.prediction}")
    return figure
