# SPDX-License-Identifier: Apache-2.0
"""The shared memory of ladder as the backend "ladder" of torch.distributed, for CPU tensors.

    import ladder_distributed  # registers it
    torch.distributed.init_process_group("ladder")  # or "cpu:ladder,cuda:nccl"
"""
from importlib.metadata import requires

import torch
import torch.distributed

BUILT_FOR = requires("ladder_distributed")[0]  # "torch==2.11.0"
if BUILT_FOR != f"torch=={torch.__version__.partition('+')[0]}":
    raise ImportError(
        f"ladder_distributed: expected {BUILT_FOR}, which it was built for, got torch "
        f"{torch.__version__}; hint: pip install --no-build-isolation "
        "--no-deps --force-reinstall ./bridges/torch_distributed")

from ._backend import make  # noqa: E402

torch.distributed.Backend.register_backend("ladder", make, devices=["cpu"])
