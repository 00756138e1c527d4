# SPDX-License-Identifier: Apache-2.0
"""Names of the programs, the colours that go with them, and how numbers are written."""

import math
from typing import NamedTuple

STAGES, TWINS, IDEAS = zip(  # a stage, its twin, and what is new in them
    ("stage0_single_gpu", "python_single", "single"),
    ("stage1_data_parallel", "python_data_parallel", "DataParallel"),
    ("stage2_ddp_spawn", "python_ddp_spawn", "DDP spawn"),
    ("stage3_ddp_torchrun", "python_ddp_torchrun", "DDP torchrun"),
    ("stage4_ddp_amp", "python_ddp_amp", "DDP AMP"),
    ("stage5_accelerator", "python_accelerate", "Accelerator"),
    ("stage6_trainer", "python_trainer", "Trainer"),
)
BEYOND = {"zero_redundancy": "python_zero_redundancy", "pipeline": "python_pipeline",  # and twins
          "fully_sharded": "python_fully_sharded", "cuda_graph": "python_cuda_graph"}
USUAL = "libtorch_usual"  # LibTorch as its tutorials use it
# No stages and no twins: each with the number of the stage that it resembles.
OPPONENTS = {USUAL: 0, "python_jax": 0, "python_fabric": 5, "python_lightning": 6}
TUNED = ("python_tuned", "python_tuned_compile",  # no twins: Python tuned for speed
         "python_tuned_graph", "python_tuned_compile_graph")

TEST_IMAGES = 10_000
# Recipes of the claims alone: they are no section of the page.
HF_DEFAULTS = "basicnet-hf-defaults"
DDP_PRACTICE = "convnet-ddp-practice"

PHASES = ("data", "forward", "backward", "communication", "optimizer")

NOT_RUN = "not run"
NOT_MEASURED = "not measured"
TWIN_NOT_RUN = "twin not run"
FAILED = "failed"


class Colour(NamedTuple):
    """One colour of the page: its CSS name, and what it is on a light and on a dark page."""

    name: str
    light: str
    dark: str


# A stage and its twin share a colour (filled, and outlined). Hues that colour-blind readers keep
# apart, each at least 3:1 against the page, light or dark.
STAGE_COLOURS = (
    Colour("stage0", "#53565b", "#afb2b7"),
    Colour("stage1", "#ba833d", "#f2a91a"),
    Colour("stage2", "#2d8fce", "#71c1f7"),
    Colour("stage3", "#19845d", "#0bb381"),
    Colour("stage4", "#cc5500", "#f07a35"),
    Colour("stage5", "#0b508c", "#4a86d8"),
    Colour("stage6", "#b75490", "#c67ebb"),
)
# The parts of a step come in an order, so they are steps from light to dark of one scale.
PHASE_COLOURS = (
    Colour("phase0", "#440153", "#f4e61e"),
    Colour("phase1", "#3b5189", "#6ccd5a"),
    Colour("phase2", "#208f8b", "#1f9e88"),
    Colour("phase3", "#5bc762", "#4a6a9c"),
    Colour("phase4", "#dcd018", "#8a4fa0"),
)
INK = Colour("ink", "#1f2429", "#e8eaed")
MUTED = Colour("muted", "#5c646d", "#a9b1ba")
GRID = Colour("grid", "#dfe3e8", "#343a41")
BAD = Colour("bad", "#b3121d", "#ff8a80")
PAPER = Colour("paper", "#fefefe", "#16191d")
PANEL = Colour("panel", "#f4f6f8", "#1e2227")
ALL_COLOURS = (*STAGE_COLOURS, *PHASE_COLOURS, INK, MUTED, GRID, BAD, PAPER, PANEL)


def theme() -> str:
    """CSS variables of all colours, for light and dark."""
    light, dark = (" ".join(f"--{colour.name}: {getattr(colour, place)};" for colour in ALL_COLOURS)
                   for place in ("light", "dark"))
    return (f":root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}")


def stage_of(program: str) -> int:
    """The number of a stage, or of that of a twin or opponent; behind them for other programs."""
    if program in OPPONENTS:
        return OPPONENTS[program]
    return next((place for place, pair in enumerate(zip(STAGES, TWINS)) if program in pair),
                len(STAGES))


def is_python(program: str) -> bool:
    return program.startswith("python_")


def twin_of(program: str) -> str | None:
    return TWINS[STAGES.index(program)] if program in STAGES else BEYOND.get(program)


def rival_of(program: str, precision: str) -> str | None:
    """The stage that a program without a twin is compared with."""
    if program in TUNED:
        return STAGES[0 if precision == "fp32" else 4]
    return STAGES[OPPONENTS[program]] if program in OPPONENTS else None


def colour_of(program: str) -> Colour:
    place = stage_of(program)
    return STAGE_COLOURS[place] if place < len(STAGE_COLOURS) else MUTED


def idea_of(program: str) -> str:
    """A program's name for a picture: "2 DDP spawn", or "py DDP spawn" for its twin."""
    place = stage_of(program)
    if program == USUAL:
        return "LibTorch, usual"
    if place == len(STAGES) or program in OPPONENTS:
        return program.replace("python_", "py ").replace("_", " ")
    return f"{'py' if is_python(program) else place} {IDEAS[place]}"


def number(value: float | None, digits: int = 1) -> str:
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    return number(value, 0)


def megabytes(value: float | None) -> str:
    return number(value and value / 1e6, 0)


def significant(value: float, digits: int = 3) -> str:
    """Three digits that count, and never a power of ten: 0.0123, 1.23, 12.3, 1234."""
    if value == 0:
        return "0"
    after_point = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, after_point)}f}"


def percent(value: float) -> str:
    return f"{value:.2f}"
