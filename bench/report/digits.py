# SPDX-License-Identifier: Apache-2.0
"""Images of the test set with their labels, and a picture of those that a program got wrong."""

from __future__ import annotations

import base64
import functools
import gzip
import struct
import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from results import ResultsError
from words import INK

DATA = Path(__file__).resolve().parents[2] / "data" / "mnist"
MOST = 60  # images in the picture
SIZE = 28  # pixels of an image
WIDTH, COLUMNS, CELL, TEXT = 360.0, 6, 60.0, 16.0  # points


class Digit(NamedTuple):
    index: int
    label: int
    prediction: int
    pixels: bytes


@functools.cache
def test_set(folder: Path) -> tuple[bytes, bytes]:
    """Pixels and labels of the two IDX files."""
    found = []
    for name, head in (("t10k-images-idx3-ubyte.gz", 16), ("t10k-labels-idx1-ubyte.gz", 8)):
        with gzip.open(folder / name) as file:
            content = file.read()
        items = struct.unpack(">i", content[4:8])[0]
        each = SIZE * SIZE if head == 16 else 1
        if len(content) != head + items * each:
            raise ResultsError(f"{folder / name}: expected {head + items * each} bytes, got "
                               f"{len(content)}; hint: git checkout data/mnist")
        found.append(content[head:])
    return found[0], found[1]


def digit_of(words: str, pixels: bytes, labels: bytes) -> Digit:
    """INDEX:PREDICTION of a record."""
    index, _, prediction = words.partition(":")
    if not (index.isdigit() and prediction.isdigit() and int(index) < len(labels)):
        raise ResultsError(f"misclassified: expected INDEX:PREDICTION with an index below "
                           f"{len(labels)}, got '{words}'")
    place = int(index)
    if labels[place] == int(prediction):
        raise ResultsError(f"misclassified: test image {place} is a {prediction}, as predicted; "
                           "hint: is data/mnist the data of the record?")
    return Digit(place, labels[place], int(prediction),
                 pixels[place * SIZE * SIZE:(place + 1) * SIZE * SIZE])


def read(misclassified: str) -> list[Digit]:
    """Of INDEX:PREDICTION,INDEX:PREDICTION,...; empty without the data."""
    if not DATA.is_dir():
        return []
    pixels, labels = test_set(DATA)
    return [digit_of(words, pixels, labels) for words in misclassified.split(",")]


def png(pixels: bytes) -> bytes:
    """A square image in 8 bits of grey."""
    rows = b"".join(b"\0" + pixels[row * SIZE:(row + 1) * SIZE] for row in range(SIZE))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", SIZE, SIZE, 8, 0, 0, 0, 0)),
             (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts)


def cell(place: int, digit: Digit) -> str:
    x, y = place % COLUMNS * CELL, place // COLUMNS * (CELL + TEXT)
    image = base64.b64encode(png(digit.pixels)).decode()
    return (f'<image x="{x + 4:.0f}" y="{y + 2:.0f}" width="{CELL - 8:.0f}" '
            f'height="{CELL - 8:.0f}" style="image-rendering: pixelated" '
            f'href="data:image/png;base64,{image}"><title>test image {digit.index}</title></image>'
            f'<text x="{x + CELL / 2:.0f}" y="{y + CELL + 7:.0f}" font-size="12" '
            f'text-anchor="middle" fill="var(--{INK.name})">{digit.label} → {digit.prediction}'
            "</text>")


def picture(name: str, title: str, description: str, digits: Sequence[Digit]) -> str:
    height = -(-len(digits) // COLUMNS) * (CELL + TEXT)
    return (f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" font-family="sans-serif" '
            f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}'
            f'</title><desc id="{name}-desc">{escape(description)}</desc>'
            + "".join(cell(place, digit) for place, digit in enumerate(digits)) + "</svg>")
