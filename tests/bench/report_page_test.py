# SPDX-License-Identifier: Apache-2.0
"""The page of bench/report in a real browser: no error, every picture visible, nothing too wide."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from html import unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "report"), str(ROOT)]
from tests.bench import sample_links  # noqa: E402
from tests.bench import sample_results as made  # noqa: E402
from words import ALL_COLOURS, PAPER  # noqa: E402

BROWSER = "chromium"
SECONDS = 120
WIDTHS = (1280, 400)
# Six of each recipe, the widths of one, the code, the summary, and three of links.
PICTURES = 18
SMALLEST_TEXT = 8.0  # pixels
THEMES = {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}

# Chromium has no window of 400 pixels: a frame of that width has, and the media queries see it.
FRAME = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>frame</title>
<style>body {{ margin: 0 }} iframe {{ border: 0; width: {width}px; height: {height}px }}</style>
</head><body><iframe id="frame" src="{page}"></iframe>
<script>
addEventListener("load", () => {{
  const view = document.getElementById("frame").contentWindow, inside = view.document;
  const size = (element) => {{
    const box = element.getBoundingClientRect();
    return [Math.round(box.width), Math.round(box.height)];
  }};
  document.body.dataset.found = JSON.stringify({{
    width: view.innerWidth,
    page: inside.documentElement.scrollWidth,
    height: inside.documentElement.scrollHeight,
    background: view.getComputedStyle(inside.body).backgroundColor,
    pictures: [...inside.querySelectorAll("figure svg")].map(size),
    names: [...inside.querySelectorAll("tbody th")].map((name) => size(name)[0]),
    letters: [...inside.querySelectorAll("figure svg text")].map((text) => {{
      const matrix = text.getScreenCTM();  // of a turned text, a is 0
      return parseFloat(view.getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
    }}),
    outside: [...inside.querySelectorAll("figure svg")].filter((svg) => {{
      const frame = svg.getBoundingClientRect();
      return [...svg.querySelectorAll("text")].some((text) => {{
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 2 || box.right > frame.right + 2 ||
          box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
      }});
    }}).map((svg) => svg.getAttribute("aria-labelledby")),
    colours: [...new Set([...inside.querySelectorAll(
      "figure svg text, figure svg use, figure svg :not(defs) > path")].flatMap((shape) => {{
        const style = view.getComputedStyle(shape);
        return [style.fill, style.stroke];
      }}))],
  }});
}});
</script></body></html>
"""


def rgb(colour: str) -> str:
    """A colour as a browser tells it."""
    return "rgb({}, {}, {})".format(*(int(colour[i:i + 2], 16) for i in (1, 3, 5)))


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        hint = "hint: tools/setup.sh full"
        assert shutil.which(BROWSER), f"{BROWSER} is not on the PATH; {hint}"
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = Path(os.environ.get("LADDER_SCREENSHOTS", holder.name))
        cls.folder.mkdir(parents=True, exist_ok=True)
        cls.profile = Path(holder.name) / "profile"
        results = made.write(Path(holder.name) / "results.json", made.sample())
        links = Path(holder.name) / "links.json"
        links.write_text(json.dumps(sample_links.record()), encoding="utf-8")
        command = [sys.executable, str(ROOT / "bench/report/report.py"), str(results), "--links",
                   str(links), "-o", str(cls.folder / "report.html")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        assert "left out" not in done.stdout, f"the page has no pictures: {done.stdout}; {hint}"

    def browse(self, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                   "--allow-file-access-from-files", f"--user-data-dir={self.profile}",
                   "--enable-logging=stderr", *flags, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.assertEqual(said, [])
        return done

    def frame(self, width: int, height: int = 900) -> Path:
        path = self.folder / f"frame-{width}.html"
        path.write_text(FRAME.format(width=width, height=height, page="report.html"),
                        encoding="utf-8")
        return path

    def measure(self, width: int, *flags: str) -> dict[str, Any]:
        dom = self.browse(self.frame(width), "--dump-dom", "--virtual-time-budget=20000", *flags)
        found = re.search(r'data-found="([^"]*)"', dom.stdout)
        self.assertIsNotNone(found, dom.stdout[-500:])
        return json.loads(unescape(found[1]))

    def test_the_page_itself_says_nothing_to_the_console(self) -> None:
        dom = self.browse(self.folder / "report.html", "--dump-dom")
        self.assertEqual(dom.stdout.count("<figure"), PICTURES)

    def test_every_picture_is_visible_and_its_letters_can_be_read(self) -> None:
        for width in WIDTHS:
            found = self.measure(width)
            self.assertEqual(len(found["pictures"]), PICTURES)
            for size in found["pictures"]:
                self.assertGreater(min(size), 80, (width, found["pictures"]))
            self.assertGreaterEqual(min(found["letters"]), SMALLEST_TEXT, width)
            self.assertEqual(found["outside"], [], width)

    def test_pictures_have_the_colours_of_the_page_in_light_and_in_dark(self) -> None:
        for place, flags in THEMES.items():
            known = {rgb(getattr(colour, place)) for colour in ALL_COLOURS} | {"none"}
            self.assertLessEqual(set(self.measure(400, *flags)["colours"]), known, place)

    def test_the_page_is_no_wider_than_the_window(self) -> None:
        for width in WIDTHS:
            found = self.measure(width)
            self.assertEqual((found["width"], found["page"]), (width, width))
            self.assertGreater(min(found["names"]), 100, width)  # not one letter a line

    def test_follows_the_readers_choice_of_light_or_dark(self) -> None:
        for place, flags in THEMES.items():
            found = self.measure(400, *flags)["background"]
            self.assertEqual(found, rgb(getattr(PAPER, place)))

    def test_a_screenshot_is_more_than_paper(self) -> None:
        for width in WIDTHS:
            height = self.measure(width)["height"]
            for place, flags in THEMES.items():
                path = self.folder / f"report-{width}-{place}.png"
                self.browse(self.frame(width, height), f"--screenshot={path}",
                            f"--window-size={max(width, 600)},{height}", *flags)
                self.assertGreater(path.stat().st_size, 50_000)


if __name__ == "__main__":
    unittest.main()
