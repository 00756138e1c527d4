#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python twin of stage 1: one process, torch.nn.DataParallel.

    .venv/bin/python bench/peers/data_parallel.py

PyTorch's DataParallel divides a batch over GPUs only. Without one it calls the module alone: one
replica, as the result says. So with --threads 1 its final weights equal, bit for bit, those of
`stage1_data_parallel --device-ids cpu --math reference --threads 1`, and those of single.py.
"""

from __future__ import annotations

import os
import sys

import torch
from common import make_parser, parse_options
from single import run
from torch import nn


def main() -> None:
    options = parse_options(make_parser("The Python twin of stage 1: DataParallel."))
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before the first call into CUDA
    torch.set_num_threads(options.threads)
    replicas = max(1, len(nn.DataParallel(nn.Identity()).device_ids))
    if replicas == 1:
        print("no GPU: DataParallel runs the module alone, with one replica", file=sys.stderr)
    run(options, "peer_data_parallel", nn.DataParallel, replicas=replicas)


if __name__ == "__main__":
    main()
