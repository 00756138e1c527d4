# SPDX-License-Identifier: Apache-2.0
"""The page of bench/report in a real browser: no error, every picture visible, nothing too wide."""
from __future__ import annotations

import json
import os
import re
import subprocess
from html import unescape
from pathlib import Path

import pytest
import report
import sample_links
import sample_results as made

pytestmark = pytest.mark.skipif("LADDER_FULL" not in os.environ, reason="needs LADDER_FULL=1")
BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
           "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
           "--allow-file-access-from-files", "--enable-logging=stderr")  # tools/setup.sh full
# Five of each recipe, the widths of one, the stages, the summary, and three of links.
PICTURES = 16
SMALLEST_TEXT = 8.0  # pixels

# Chromium has no window of 400 pixels: a frame of that width has, and the media queries see it.
FRAME = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>frame</title></head>
<body style="margin: 0"><iframe id="frame" src="report.html"
style="border: 0; width: {width}px; height: 900px"></iframe><script>
addEventListener("load", () => {{
  const view = document.getElementById("frame").contentWindow, inside = view.document;
  const all = (what) => [...inside.querySelectorAll(what)];
  const box = (element) => element.getBoundingClientRect();
  document.body.dataset.found = JSON.stringify({{
    page: [view.innerWidth, inside.documentElement.scrollWidth],
    pictures: all("figure svg").map((svg) => Math.min(box(svg).width, box(svg).height)),
    names: all("tbody th").map((name) => box(name).width),
    letters: all("figure svg text").map((text) => {{
      const matrix = text.getScreenCTM();  // of a turned text, a is 0
      return parseFloat(view.getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
    }}),
    outside: all("figure svg").filter((svg) => [...svg.querySelectorAll("text")].some((text) => {{
      const frame = box(svg), own = box(text);
      return own.left < frame.left - 2 || own.right > frame.right + 2 ||
        own.top < frame.top - 2 || own.bottom > frame.bottom + 2;
    }})).map((svg) => svg.getAttribute("aria-labelledby")),
  }});
}});
</script></body></html>
"""


@pytest.mark.parametrize("width", [1280, 400])
def test_every_picture_can_be_read_and_the_page_is_no_wider_than_the_window(
        width: int, tmp_path: Path) -> None:
    text = report.page(made.sample_results(), sample_links.record())
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width), encoding="utf-8")
    done = subprocess.run(
        [*BROWSER, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         "--virtual-time-budget=20000", frame.as_uri()],
        capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    found = json.loads(unescape(re.search(r'data-found="([^"]*)"', done.stdout)[1]))
    assert found["page"] == [width, width]
    assert len(found["pictures"]) == PICTURES and min(found["pictures"]) > 80
    assert min(found["letters"]) >= SMALLEST_TEXT and found["outside"] == []
    assert min(found["names"]) > 60  # "basicnet" in one line, not one letter per line
