# SPDX-License-Identifier: Apache-2.0
"""results.py: names of rows, files, repetitions and seeds."""
from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
import report
import sample_results as made
import scale
import table
from environment import environment_table, honesty, machine_line, measured_at
from pytest import approx
from results import ResultsError, Setup, read, read_key

STAGE, TWIN = "stage0_single_gpu", "python_single"
STOPPED = "The run was stopped: rows are missing."


@pytest.mark.parametrize("name", ["", "slice", "slice/basicnet", f"loader/basicnet/{STAGE}",
                                  f"slice/basicnet/{STAGE}/world:two"])
def test_refuses_a_name_that_says_less(name: str) -> None:
    with pytest.raises(ResultsError):
        read_key(name)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"context": {}}',
                                  '{"context": {}, "benchmarks": []}', None])
def test_a_file_that_is_none_is_one_line_and_exit_code_2(text, tmp_path, start) -> None:
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    for command in ((table, path), (report, path, "-o", tmp_path / "a.html"), (scale, path)):
        code, out, err = start(*command)
        assert (code, out, len(err.splitlines())) == (2, "", 1), err


def test_repetitions_of_two_files_are_one_row(tmp_path: Path) -> None:
    both = [*made.slices("basicnet", STAGE, 1.0, 1, 2), *made.slices("basicnet", TWIN, 2.0, 1, 2)]
    alone = made.slices("basicnet", STAGE, 10.0, 1, 2)
    results = read([made.write_rows(tmp_path / name, rows)
                    for rows, name in ((both, "a.json"), (alone, "b.json"))])
    setup = Setup("basicnet", STAGE, 1, "fp32", 2)
    assert len(results.row("slice", setup).good) == 10
    pooled = median([seconds * jitter for seconds in (1, 10) for jitter in made.JITTER])
    assert results.ratio_to_twin(setup).value == approx(pooled / (2 * median(made.JITTER)))


@pytest.mark.parametrize("end", ["", ",", ",\n", "\n"])
def test_a_file_that_was_cut_off_between_rows_is_read_as_far_as_it_goes(end, tmp_path) -> None:
    rows = made.slices("basicnet", STAGE, 1.0, 1, 2)
    whole = made.write_rows(tmp_path / "a.json", rows)
    assert STOPPED not in honesty(read([whole]))
    text = whole.read_text(encoding="utf-8")
    whole.write_text(text.removesuffix("]}") + end, encoding="utf-8")
    results = read([whole])
    assert len(results.of_kind("slice")[0].good) == 5
    assert STOPPED in honesty(results)
    assert "stopped_early" not in str(environment_table(results).rows)
    whole.write_text(text[:-20], encoding="utf-8")
    with pytest.raises(ResultsError, match="a.json: expected the JSON"):
        read([whole])


def test_load_and_stolen_ticks_are_those_of_each_file(tmp_path: Path) -> None:
    row = made.entry("slice", "basicnet", STAGE, real_time=1.0)
    files = [made.write(tmp_path / name, {"context": context, "benchmarks": [{**row, **more}]})
             for name, context, more in (
                 ("a.json", made.CONTEXT, {"steal_ticks": 40, "load": 2.0}),
                 ("b.json", made.CONTEXT, {}), ("c.json", {}, {"steal_ticks": 40}))]
    rows = {name: cells for name, *cells in environment_table(read(files)).rows}
    assert rows["stolen ticks while measuring"] == ["23", "0", "not recorded"]
    assert rows["load while measuring"] == ["2.00 to 2.00", "not recorded", "not recorded"]


def test_rows_that_were_measured_again_have_their_commits_in_the_report(tmp_path: Path) -> None:
    again, *others = made.slices("basicnet", STAGE, 1.0, 1, 2)
    for commits, rows in (("aaa1111", [again, *others]),
                          ("aaa1111 and bbb2222", [*others, again | {"commit": "bbb2222"}]),
                          ("bbb2222", [again | {"commit": "bbb2222"}])):
        path = made.write_rows(tmp_path / "a.json", rows, commit="aaa1111")
        found = read([path, path])
        assert f"; commit {commits}; load" in machine_line(found)
        assert measured_at(found).startswith(f"Measured at commit {commits}: Sample CPU")
        assert ["commit", commits, "same"] in environment_table(found).rows
        assert any("measured again" in note for note in honesty(found)) == ("and" in commits)
