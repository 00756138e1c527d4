# SPDX-License-Identifier: Apache-2.0
"""results.py and environment.py: names of rows, and files; what rows say is in golden/."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest
import report
import sample_results as made
import scale
import table
from environment import environment_table, honesty, machine_line, measured_at
from results import ResultsError, read, read_key
from tests.support.programs import ROOT, run

STAGE = "stage0_single_gpu"
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


def test_the_page_does_not_replace_the_results(tmp_path: Path, start) -> None:
    path = made.write_rows(tmp_path / "a.json", made.slices("basicnet", STAGE, 1.0, 1, 2))
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    for arguments in ((path, "-o", tmp_path / "link"), ("b.json", "--links", path, "-o", path)):
        code, _, err = start(report, *arguments)
        assert (code, path.read_bytes()) == (2, before)
        assert "is read: name another file with -o" in err


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


def test_what_is_no_result_does_not_hide_the_others(tmp_path: Path, start) -> None:
    """A stage's last words in another encoding, damaged rows, a damaged file."""
    rows = [*made.slices("basicnet", STAGE, 1.0, 1, 2),
            made.failed("slice", "basicnet", "stage1_data_parallel", reason="caf?")]
    damaged = [3, {}, {"name": 3}, {**rows[0], "time_unit": "min"}, {**rows[0], "real_time": None}]
    path = made.write_rows(tmp_path / "a.json", [*damaged, *rows])
    path.write_bytes(path.read_bytes().replace(b"caf?", b"caf\xe9 \x1b"))
    other = tmp_path / "b.json"
    other.write_bytes(b"\x80")
    for command in ((table,), (table, "--markdown"), (report, "-o", tmp_path / "a.html")):
        code, out, err = start(command[0], path, other, *command[1:])
        assert (code, err.count("is no row of the suite"), err.count("not read: ")) == (0, 5, 6), err
    assert len(read([path]).of_kind("slice")[0].good) == 5


@pytest.mark.parametrize("output, reason", [
    (">/dev/full", "No space left on device"), (">&-", "the standard output is closed")])
def test_a_full_or_closed_output_is_one_line(output, reason, tmp_path: Path) -> None:
    path = made.write(tmp_path / "a.json", made.short())
    recording = tmp_path / "run.jsonl"
    recording.write_text('{"step": 1, "rank": 0, "world_size": 1, "weights": {}, "gradients": {}}\n')
    for program in (f"bench/report/table.py {path}",
                    "exercises/exercise.py", f"tools/same_run {recording} --against {recording}",
                    f"bench/report/report.py {path} -o {tmp_path}/a.html"):
        done = run("/bin/sh", "-c", f"{sys.executable} {ROOT}/{program} {output}")
        assert (done.code, len(done.errors)) == (2, 1) and reason in done.stderr, done


def test_a_file_that_is_given_twice_narrows_no_interval(tmp_path: Path) -> None:
    path = made.write(tmp_path / "a.json", made.short())
    with pytest.raises(ResultsError, match="a.json: given twice"):
        read([path, tmp_path / ".." / tmp_path.name / "a.json"])


def test_files_share_rows_and_each_has_its_load_and_stolen_ticks(tmp_path: Path) -> None:
    row = made.entry("slice", "basicnet", STAGE)
    found = read([made.write(tmp_path / name, {"context": context, "benchmarks": [{**row, **more}]})
                  for name, context, more in (
                      ("a.json", made.CONTEXT, {"real_time": 1, "steal_ticks": 40, "load": 2.0}),
                      ("b.json", made.CONTEXT, {"real_time": 10}),
                      ("c.json", {}, {"real_time": 9, "steal_ticks": 40}))])
    [pooled] = found.of_kind("slice")
    assert pooled.seconds().value == 9
    rows = {name: cells for name, *cells in environment_table(found).rows}
    assert rows["stolen ticks while measuring"] == ["23", "0", "not recorded"]
    assert rows["load while measuring"] == ["2.00 to 2.00", "not recorded", "not recorded"]


def test_rows_that_were_measured_again_have_their_commits_in_the_report(tmp_path: Path) -> None:
    again, *others = made.slices("basicnet", STAGE, 1.0, 1, 2)
    for commits, rows in (("aaa1111", [again, *others]),
                          ("aaa1111 and bbb2222", [*others, again | {"commit": "bbb2222"}]),
                          ("bbb2222", [again | {"commit": "bbb2222"}])):
        found = read([made.write_rows(tmp_path / name, rows, commit="aaa1111")
                      for name in ("a.json", "b.json")])
        assert f"; commit {commits}; load" in machine_line(found)
        assert measured_at(found).startswith(f"Measured at commit {commits}: Sample CPU")
        fields = environment_table(found).rows
        assert ["commit", commits, "same"] in fields
        assert any(row[0] == "stolen ticks while measuring" for row in fields) == (
            "and" not in commits)
        assert any("measured again" in note for note in honesty(found)) == ("and" in commits)


@pytest.mark.parametrize("peak, noted", [("240", False), ("565.1", True)])
def test_files_of_cpus_of_different_speed_are_named(tmp_path: Path, peak: str, noted: bool) -> None:
    rows = made.slices("basicnet", STAGE, 1.0, 1, 2)
    found = read([made.write(tmp_path / name, {"context": made.CONTEXT | more, "benchmarks": rows})
                  for name, more in (("a.json", {}), ("b.json", {"peak_gflops": peak}))])
    assert any("peaks of 228 and 565" in note for note in honesty(found)) == noted
