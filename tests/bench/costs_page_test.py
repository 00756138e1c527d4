# SPDX-License-Identifier: Apache-2.0
"""docs/costs.html in a real browser: its formulas are those of bench/, its sliders have keys."""
from __future__ import annotations

import json
import random
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import divided
import link_model
import pipeline
import pytest
from report_page_test import BROWSER, pytestmark  # noqa: F401 needs LADDER_FULL=1 too

from tests.support.programs import ROOT

POINTS = 200
SMALLEST_TEXT = 8.0  # pixels
FRAME = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>frame</title></head>
<body style="margin: 0"><iframe id="frame" src="{page}"
style="border: 0; width: {width}px; height: 900px"></iframe><script>
addEventListener("load", () => {{
  const view = document.getElementById("frame").contentWindow, inside = view.document;
  const model = view.model, sliders = [...inside.querySelectorAll("input, select")];
  const keyed = [...inside.querySelectorAll("input")].filter((slider) => {{
    const text = slider.getAttribute("aria-valuetext");
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowRight"]) {{
      slider.dispatchEvent(new view.KeyboardEvent("keydown", {{ key, cancelable: true }}));
    }}
    return slider.step !== "any" || slider.getAttribute("aria-valuetext") !== text;
  }});
  document.body.dataset.found = JSON.stringify({{
    page: [view.innerWidth, inside.documentElement.scrollWidth],
    sliders: sliders.length,
    bad: sliders.filter((one) => !one.labels.length || one.tabIndex !== 0).length,
    still: [...inside.querySelectorAll("input")].length - keyed.length,
    boxes: [...inside.querySelectorAll("svg")].map((svg) => svg.querySelectorAll("rect").length),
    found: {points}.map((one) => ({{
      reduce: model.allReduce(one.ranks, one.bytes, one.alpha, one.beta),
      step: model.step(one),
      memory: model.memory({{ ranks: one.ranks, weights: {weights}, units: 8, perWeight: 8 }}),
      peak: model.atPeak("ZeRO-2", model.memory(
        {{ ranks: one.ranks, weights: {weights}, units: 8, perWeight: 8 }})["ZeRO-2"]),
      idle: model.idle(one.stages, one.parts),
      ends: [true, false].map((way) => Math.max(
        ...model.schedule(one.stages, one.parts, way).map((box) => box[3] + 1))),
    }})),
  }});
}});
</script></body></html>
"""


def points() -> list[dict[str, float]]:
    draw = random.Random(78)
    return [{"ranks": 2 ** draw.randint(1, 10) + draw.randint(-1, 1) * (place % 3 == 0) or 2,
             "bytes": round(10 ** draw.uniform(4, 10)), "alpha": 10 ** draw.uniform(-6, -2),
             "beta": 10 ** draw.uniform(6, 11), "compute": 10 ** draw.uniform(-4, 2),
             "cap": round(10 ** draw.uniform(6, 9)), "stages": draw.randint(1, 12),
             "parts": draw.randint(1, 32)} for place in range(POINTS)]


def opened(width: int, folder: Path, wanted: list[dict[str, float]]) -> dict[str, Any]:
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(
        page=(ROOT / "docs/costs.html").as_uri(), width=width, points=json.dumps(wanted),
        weights=divided.PARAMETERS), encoding="utf-8")
    done = subprocess.run([*BROWSER, f"--user-data-dir={folder / 'profile'}", "--dump-dom",
                           "--virtual-time-budget=20000", frame.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return json.loads(unescape(re.search(r'data-found="([^"]*)"', done.stdout)[1]))


@pytest.mark.parametrize("width", [1280, 400])
def test_formulas_are_those_of_the_bench_and_sliders_have_keys(width: int, tmp_path: Path) -> None:
    wanted = points()
    page = opened(width, tmp_path, wanted)
    assert page["page"] == [width, width]
    assert (page["sliders"], page["bad"], page["still"]) == (13, 0, 0)
    assert min(page["boxes"]) > 3
    close = pytest.approx
    for one, found in zip(wanted, page["found"], strict=True):
        link = link_model.Link(one["alpha"], one["beta"])
        assert found["reduce"] == close(link.all_reduce(int(one["ranks"]), one["bytes"]))
        step, sizes = found["step"], [message["size"] for message in found["step"]["messages"]]
        assert sum(sizes) == close(one["bytes"])
        # scale.py: computing and all-reduce follow each other.
        assert step["after"] == close(one["compute"] + found["reduce"])
        if one["ranks"] == 2:
            bounds = link_model.predicted("plain", link, one["compute"], sizes)
            assert (step["low"], step["high"]) == (close(bounds.low), close(bounds.high))
        assert step["low"] * (1 - 1e-9) <= step["time"] <= step["high"] * (1 + 1e-9)
        for name, way in (("DDP", "ddp"), ("ZeRO-1", "zero1"), ("ZeRO-2", "zero2"),
                          ("ZeRO-3", "zero3")):
            expected = divided.predicted(way, int(one["ranks"]))
            here = found["memory"][name]
            assert ([here[key] for key in ("weights", "gradients", "state", "sent")]
                    == close([expected[key] for key in ("weights", "gradients", "state",
                                                        "sent_per_step")]))
        expected = divided.predicted("zero2", int(one["ranks"]))
        # The first and last layers of the stack differ from the others.
        assert sum(found["peak"].values()) == close(expected["peak"] - expected["activations"],
                                                    rel=0.01)
        stages, parts = int(one["stages"]), int(one["parts"])
        idle = pipeline.share_if_equal(stages, parts)
        assert found["idle"] == close(idle)
        assert found["ends"] == [close(2 * parts / (1 - idle))] * 2
