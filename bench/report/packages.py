# SPDX-License-Identifier: Apache-2.0
"""Ends a program of the report in one line if a package is missing; sets the import path."""

import importlib.util
import sys
from pathlib import Path

MISSING = [name for name in ("jinja2", "matplotlib", "numpy", "pandas", "scipy")
           if importlib.util.find_spec(name) is None]

if MISSING:
    sys.exit(f"{Path(sys.argv[0]).stem}: this Python lacks {', '.join(MISSING)}; hint: "
             "tools/setup.sh bench")

BENCH = Path(__file__).resolve().parents[1]
sys.path += [str(BENCH), str(BENCH / "measure"), str(BENCH / "records")]
