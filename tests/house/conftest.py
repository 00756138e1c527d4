# SPDX-License-Identifier: Apache-2.0
"""The tests import from tools/ and from tests/support/."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
