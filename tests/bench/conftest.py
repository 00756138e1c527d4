# SPDX-License-Identifier: Apache-2.0
"""What the tests of the bench share: programs that are started in this process."""
from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

Start = Callable[..., tuple[int, str, str]]


@pytest.fixture
def start(capsys: pytest.CaptureFixture[str]) -> Start:
    """Calls main() of a program; returns exit code, output and errors."""
    def run(program: ModuleType, *arguments: object) -> tuple[int, str, str]:
        code = program.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def output(start: Start) -> Callable[..., str]:
    """The output of a program that succeeds."""
    def run(program: ModuleType, *arguments: object) -> str:
        code, out, err = start(program, *arguments)
        assert (code, err) == (0, "")
        return out

    return run
