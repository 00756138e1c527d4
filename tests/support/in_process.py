# SPDX-License-Identifier: Apache-2.0
"""Fixtures that call main() of a Python program in this process."""
from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

Start = Callable[..., tuple[int, str, str]]


@pytest.fixture
def start(capfd: pytest.CaptureFixture[str]) -> Start:
    """Returns exit code, output and errors, those of its child processes too."""
    def run(program: ModuleType, *arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = program.main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def output(start: Start) -> Callable[..., str]:
    """The output of a program that succeeds."""
    def run(program: ModuleType, *arguments: object) -> str:
        code, out, err = start(program, *arguments)
        assert (code, err) == (0, "")
        return out

    return run
