# SPDX-License-Identifier: Apache-2.0
"""The pieces of code on docs/library.md, docs/same-weights.md and the pages of stages 4 to 6 run.

tools/pages.sh compares them with what the pages show.
"""
from tests.support.programs import BIN, launch


def test_the_pieces_of_code_run() -> None:
    done = launch(BIN / "page_pieces", environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 0, done.stderr
    assert done.lines == ["seen 64",  # 32 of each rank
                          f"sent {4 * (784 * 8 + 8 + 8 * 10 + 10)} bytes",  # of MyNet
                          "two ranks equal one: 1", *done.lines[3:]]
