# SPDX-License-Identifier: Apache-2.0
"""pages.py, in a folder of its own."""
from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from unittest.mock import patch

import measure_test as measured
import pages
import pytest
import sample_links
import sample_results as made
from tests.support.files import write

BLOCKS = {"README.md": "two-cores.json --speed", "docs/bench.md": "two-cores.json --markdown",
          "docs/cluster.md": "two-cores.links.json --links",
          "docs/performance.md": "two-cores.step.json --step",
          "docs/same-weights.md": "exact.json --price"}
ROW = "slice/basicnet/stage2_ddp_spawn/world:2/precision:fp32/threads:1"
VALUE = f"<!-- value {pages.RECORD} {ROW}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pages with records; one shows a picture of the report."""
    for name, record in ((pages.RECORD, made.sample()), (pages.STEP_RECORD, measured.step_record()),
                         (pages.LINKS_RECORD, sample_links.record()),
                         ("bench/results/exact.json", made.exact_sums())):
        write(tmp_path / name, json.dumps(record))
    for name in ("divided", "gradients", "updates", "pipeline", "scaling"):
        shutil.copy(pages.ROOT / f"bench/results/two-cores.{name}.json", tmp_path / "bench/results")
    for page, record in BLOCKS.items():
        shown = "![Time](images/bench-time-basicnet.svg)" * (page == "README.md")
        write(tmp_path / page, f"before\n{shown}\n<!-- record bench/results/{record} -->\nold\n"
                               "<!-- end of the record -->\nafter\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path


def test_writes_tables_and_pictures_and_finds_what_differs_from_them(root: Path, start) -> None:
    code, out, err = start(pages)
    assert (code, err) == (1, "")
    assert (f"README.md:4: differs from its record {pages.RECORD}; {pages.CURE}\n"
            "  page  : old\n  record: \n") in out
    assert start(pages, "--update")[0] == 0
    with patch.object(pages, "wanted", wraps=pages.wanted) as wanted:
        assert start(pages) == (0, "", "")
    assert wanted.call_count == 1
    text = {page: (root / page).read_text(encoding="utf-8") for page in BLOCKS}
    commit = ("\nMeasured at commit b1aeebe dirty: Sample CPU of nobody, 2 CPUs, GPU none.\n\n"
              "<!-- end")
    for page, *words in (
            ("README.md", "before\n![Time]", "-->\nafter\n", commit,
             "\n\nBasicNet, fp32, 2 threads: stage 0 trains 1.48 ["),
            ("docs/bench.md", commit, "\n### Claims of the source tutorials\n"),
            ("docs/same-weights.md", commit, "--price -->\n\n| ranks | sums | ms per step"),
            ("docs/performance.md", "\nMeasured at commit abc1234: Made Up, 2 CPUs, load before 0.2; "
                                    "2 threads.\n"),
            ("docs/cluster.md", "| 1 Gbit/s | plain | 40.0 [40.0, 40.0] | 4.80 | 32.0 | 32.0 to "
                                "42.0 | inside |")):
        assert all(word in text[page] for word in words), page
    images = root / "docs" / "images"
    assert {path.name for path in images.iterdir()} == {
        "bandwidth.svg", "bench-time-basicnet.svg", "fully-sharded.svg", "gradients.svg",
        "links.svg", "pipeline.svg", "scale.svg", "scaling.svg", "stages.svg", "step.svg",
        "updates.svg"}
    lines = text["docs/bench.md"].split("\n")
    line = next(place for place, line in enumerate(lines) if "91.55 %" in line)
    was, lines[line] = lines[line], lines[line].replace("91.55 %", "91.56 %")
    write(root / "docs/bench.md", "\n".join(lines))
    write(images / "step.svg", "<svg/>")
    code, out, _ = start(pages)
    assert (code, out.splitlines()) == (1, [
        f"docs/bench.md:{line + 1}: differs from its record {pages.RECORD}; {pages.CURE}",
        f"  page  : {lines[line]}", f"  record: {was}",
        f"docs/images/step.svg:1: differs from its record; {pages.CURE}"])


def test_a_number_within_a_sentence_comes_from_its_row(root: Path, start) -> None:
    page = write(root / "docs/4.md",
                 "".join(f"<!-- value {pages.LINKS_RECORD} 1gbit {what} -->9<!-- end --> "
                         for what in ("alpha", "beta", 4, "plain"))
                 + f"A step takes {VALUE} ms_per_step -->9<!-- end --> ms, {VALUE} over "
                 f"{ROW.replace('2/prec', '1/prec')} -->9<!-- end --> of one process, in "
                 f"{VALUE} memory -->9<!-- end --> MB, at <!-- value {pages.RECORD} commit -->"
                 "9<!-- end -->.\n")
    start(pages, "--update")
    text = page.read_text(encoding="utf-8")
    assert (re.sub("<!--.*?-->", "", text)
            == "10 3840 15.1 40.0 A step takes 28.0 ms, 0.52 of one process, in 1180 MB, at b1aeebe "
               "dirty.\n")
    write(page, text.replace("1180", "1181"))
    code, out, _ = start(pages)
    assert (code, out.splitlines()[0]) == (
        1, f"docs/4.md:1: differs from its record {pages.RECORD}; {pages.CURE}")


@pytest.mark.parametrize("old, new, words", [
    ("<!-- record", "<!-- rekord", "README.md: expected"),
    ("time-basicnet", "time-x", "images/bench-time-x.svg"),
    ("two-cores.json", "none.json", "none.json"),
    *(("before", f"<!-- value {pages.RECORD} {words} -->9<!-- end -->", reason)
      for words, reason in ((f"{ROW} weight", "one of seconds, ms_per_step"),
                            (f"{ROW} over", "expected ROW over ROW"),
                            (ROW.replace("world:2", "world:9") + " seconds", "has no row")))])
def test_a_page_without_its_record_row_or_picture_is_named(old, new, words, root, start) -> None:
    readme = root / "README.md"
    write(readme, readme.read_text(encoding="utf-8").replace(old, new))
    code, out, err = start(pages, "--update")
    assert (code, out) == (2, "") and words in err
