# SPDX-License-Identifier: Apache-2.0
"""Tests under pytest import from tools/ and from tests/support/."""
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
from tests.support.in_process import output, start  # noqa: E402, F401 fixtures


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Removed with its checkpoints after the test; pytest's own would stay."""
    with tempfile.TemporaryDirectory(prefix="ladder-test-") as folder:
        yield Path(folder)
