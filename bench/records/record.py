# SPDX-License-Identifier: Apache-2.0
"""Writes records of measurements so that a diff shows one repetition per line.

    python3 bench/records/record.py FILE.json...    writes the files again in this form

Each entry of a list of measurements is one line, each key of "context" too. A number keeps its
digits. Needs the standard library alone. Exit code: 0, or 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

WIDTH = 100  # columns of an object on one line


class Number(float):
    """A number that keeps the digits of its file."""

    digits: str

    def __new__(cls, digits: str) -> Number:
        number = super().__new__(cls, digits)
        number.digits = digits
        return number


def one_line(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {one_line(one)}"
                               for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(one_line, value)) + "]"
    return value.digits if isinstance(value, Number) else json.dumps(value)


def several_lines(parts: list[str], brackets: str, indent: int) -> str:
    space = " " * (indent + 1)
    body = ",\n".join(space + part for part in parts)
    return f"{brackets[0]}\n{body}\n{' ' * indent}{brackets[1]}"


def text_of(value: Any, indent: int = 0, expand: bool = True) -> str:
    """Long objects have one key per line, lists of lists or objects one element per line."""
    if isinstance(value, Mapping) and value:
        short = one_line(value)
        if not expand and len(short) <= WIDTH:
            return short
        return several_lines([f"{json.dumps(key)}: {text_of(one, indent + 1, key == 'context')}"
                              for key, one in value.items()], "{}", indent)
    if isinstance(value, list) and any(isinstance(one, (Mapping, list)) for one in value):
        return several_lines([one_line(one) for one in value], "[]", indent)
    return one_line(value)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Whole, or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text_of(record) + "\n", encoding="utf-8")
    part.replace(path)


def new_record(text: str) -> Path:
    """An argument: where a record can be written."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        hint = f"{path}/NAME.json" if path.is_dir() else f"mkdir -p {path.parent}"
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text}; "
                                         f"hint: {hint}")
    return path


def run_program(main: Callable[[list[str]], int]) -> NoReturn:
    """Ends this process as main() does. A damaged record and a full or closed output are one line
    and exit code 2; a pipe without a reader and Ctrl-C end it silently."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        if sys.stdout is None:
            raise OSError("the standard output is closed")
        try:
            code = main(sys.argv[1:])
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = error if isinstance(error, OSError) else f"not what it reads: {error!r}"
        print(f"{Path(sys.argv[0]).stem}: {reason}", file=sys.stderr, flush=True)
        os._exit(2)  # which does not write to the full output again
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(code)


def main(paths: list[str]) -> int:
    try:
        for path in map(Path, paths):
            write_record(path, json.loads(path.read_text(encoding="utf-8"), parse_float=Number))
    except (OSError, ValueError) as error:
        print(f"record: {path}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_program(main)
