# SPDX-License-Identifier: Apache-2.0
"""Python in this process, to compare C++ with: import this before torch.

PyTorch then has its kernels without vector instructions, whose bits are those of every x86-64 CPU,
and the modules of bench/peers can be imported, behind those of the script's own folder.
"""
from __future__ import annotations

import os
import sys

from tests.support.programs import PEERS

os.environ["ATEN_CPU_CAPABILITY"] = "default"
sys.path.append(str(PEERS))
