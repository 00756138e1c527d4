# SPDX-License-Identifier: Apache-2.0
"""Tests under pytest import from tools/ and from tests/support/."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
from tests.support.in_process import output, start  # noqa: E402, F401 fixtures
