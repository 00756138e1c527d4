# SPDX-License-Identifier: Apache-2.0
"""Which rows of a record still stand for the sources: a small project in a repository of its own."""
from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest
import record
import records
import rows
import sentinel
from sources import token_hash
from states import read_states, write_states
from tests.support.files import write

STAGE, SOURCE = "stage0_single_gpu/main.cpp", "ladder/optim/adam.cpp"
ADDED = "ladder/kernels/add_adam.cpp"
FILES = {
    STAGE: '#include "ladder/optim/adam.h"\n#include "mnist/main.h"\nint main() { step(); }\n',
    "ladder/optim/adam.h": "// Adam.\nvoid step();\n",
    SOURCE: '#include "ladder/optim/adam.h"\nvoid step() { check("eps", 1e-8); }\n',
    ADDED: '#include "ladder/optim/adam.h"\nextern "C" const bool ladder_add_adam;\n',
    "ladder/CMakeLists.txt": "add_library(ladder adam.cpp)\ntarget_compile_options(ladder -O2)\n",
    "mnist/main.h": "void run_main();\n", "mnist/main.cpp": 'auto help = "step size";\n',
    "bench/peers/single.py": "from common import step\n", "bench/peers/common.py": "step = 1\n",
    "requirements.txt": "torch==2.11.0\n"}
NAME = "slice/basicnet/{}/world:1/precision:fp32/threads:1/iterations:1/repeats:2/manual_time"


@pytest.fixture(name="project")
def make_project(tmp_path: Path) -> Path:
    """Two rows, of stage 0 and its twin, that were measured at its first commit."""
    for name, text in FILES.items():
        write(tmp_path / name, text)
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    path = tmp_path / "bench/results/two-cores.json"
    path.parent.mkdir()
    head = git(tmp_path, "describe", "--always")
    record.write_record(path, {
        "context": {"commit": head, "cpu": "other", "usable_cpus": "1", "kernel": "other"},
        "benchmarks": [{"run_name": NAME.format(program), "real_time": 2.0 + seconds}
                       for program in ("stage0_single_gpu", "python_single") for seconds in (0, 1)]})
    all_rows = records.Records(tmp_path)
    all_rows.state(head)
    all_rows.write_states()
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "change")


@pytest.mark.parametrize(("name", "one", "other", "equal"), [
    ("a.cpp", "int a = 1; // one\n", "int  a=1; /* two */", True),
    ("a.cpp", 'f("a" "b");', 'f("another\\" text");', True),
    ("a.cpp", 'f(R"x(a ")" )x");', 'f("");', True),
    ("a.cpp", "int a = 1'000;", "int a = 1'001;", False),
    ("a.cpp", '#include "a.h"', '#include "b.h"', False),
    ("a.cpp", "f('a');", "f('b');", False),
    ("a.py", 'def f():  # c\n    """Doc."""\n    return "a"\n', "def f():\n\n    return ''\n", True),
    ("a.py", "f(1,\n  2)\n", "f(1, 2)\n", True),
    ("a.py", "if a:\n    b\nc\n", "if a:\n    b\n    c\n", False),
    ("a.py", "a = 1e-3\n", "a = 1e-4\n", False),
])
def test_comments_spaces_and_strings_do_not_count(name: str, one: str, other: str,
                                                  equal: bool) -> None:
    assert (token_hash(name, one) == token_hash(name, other)) == equal


@pytest.mark.parametrize(("name", "text", "stale"), [
    (SOURCE, FILES[SOURCE].replace('"eps"', '"--eps"') + "// A comment.\n", []),
    ("mnist/main.cpp", "int another;\n", []),
    ("README.md", "text", []),
    (SOURCE, FILES[SOURCE].replace("1e-8", "1e-7"), ["stage0_single_gpu"]),
    (STAGE, None, ["stage0_single_gpu"]),
    (ADDED, FILES[ADDED] + "int another;\n", ["stage0_single_gpu"]),
    ("ladder/CMakeLists.txt", "target_compile_options(ladder -O3)\n", ["stage0_single_gpu"]),
    ("bench/peers/common.py", "step = 2\n", ["python_single"]),
    ("requirements.txt", "torch==2.12.0\n", ["stage0_single_gpu", "python_single"]),
])
def test_a_row_is_stale_if_a_token_of_its_program_changed(
        project: Path, name: str, text: str | None, stale: list[str]) -> None:
    if text is None:
        (project / name).unlink()
    else:
        write(project / name, text)
    assert [row.program for row in records.Records(project).stale] == stale


def test_no_commit_of_the_history_is_needed(project: Path) -> None:
    shutil.rmtree(project / ".git")
    git(project, "init", "-q")
    commit(project)
    assert records.main(["--root", str(project)]) == 0


def test_a_commit_without_a_state_is_read_from_git(project: Path) -> None:
    (project / "bench/results/sources.json").unlink()
    assert not records.Records(project).stale
    path = project / "bench/results/two-cores.json"
    path.write_text(path.read_text().replace(git(project, "describe", "--always", "HEAD~"),
                                             "0000000"))
    stale = records.Records(project).stale
    assert list(stale.values()) == [["sources of 0000000, which is not in this clone"]] * 2


def test_the_table_and_that_changes_in_no_commit_are_not_measured(project: Path, start) -> None:
    write(project / SOURCE, "int b;\n")
    code, out, _ = start(records, "--root", project)
    lines = out.splitlines()
    assert (code, lines[1].split()) == (1, ["two-cores.json", "2", "1", "0", "1", "0.1"])
    assert lines[2] == f"changed: {SOURCE}: rows of stage0_single_gpu"
    code, _, err = start(records, "--root", project, "--measure")
    assert code == 2 and "hint: git commit" in err


def test_records_of_other_machines_do_not_hinder_the_others(
        project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project / SOURCE, "int b;\n")
    content = json.loads((project / "bench/results/two-cores.json").read_text())
    write(project / "bench/results/two-cores.step.json", json.dumps(content))
    content["context"] |= {"gpu": "a GPU of none"}
    write(project / "bench/results/gpu.json", json.dumps(content))
    commit(project)

    def measure(_: Path, *command: str) -> None:
        if command[-1].endswith(".json"):
            Path(command[-1]).write_text(json.dumps(content))

    with (patch.object(records, "run", side_effect=measure) as run,
          patch.object(records.Record, "needs_gpu", property(
              lambda self: self.path.name == "gpu.json"))):
        records.measure(records.Records(project))
        table = records.shown(records.Records(project))
    assert [Path(call.args[-1]).name for call in run.call_args_list[1:]] == ["two-cores.step.json"]
    assert capsys.readouterr().out.startswith("two-cores.json: left as it is, measured on another")
    assert table[1].startswith("gpu.json") and table[1].endswith("which this machine has not")


def test_what_a_measurement_writes_is_no_change_of_the_sources(project: Path) -> None:
    write(project / "bench/results/two-cores.step.json", "{}")
    git(project, "add", "-A")
    assert rows.commit_of(project) == git(project, "rev-parse", "--short", "HEAD")
    write(project / SOURCE, "int b;\n")
    assert rows.commit_of(project).endswith("-dirty")


@pytest.mark.parametrize(("weights", "sent", "counts", "reason"), [
    (("aa", "aa"), (2000, 2019), (100, 101), ""),
    (("aa", "ab"), (0, 0), (100, 100), "weights after 20 steps: aa before, ab now"),
    (("aa", "aa"), (2000, 2021), (100, 100), "bytes sent per step: 2,000 before, 2,021 now"),
    (("aa", "aa"), (0, 0), (100, 103), "instructions per step: 1.030 times"),
    (("aa", "aa"), (0, 0), (100, 0), "under callgrind: exit code 1"),
    (("none, exit code 1", "none, exit code 1"), (0, 0), (100, 100),
     "weights after 20 steps: none, exit code 1 before, none, exit code 1 now"),
])
def test_a_changed_program_is_verified_by_weights_and_instructions(
        project: Path, weights: tuple[str, str], sent: tuple[int, int], counts: tuple[int, int],
        reason: str) -> None:
    write(project / SOURCE, "int b;\n")
    commit(project)
    then = Path("then")
    setup = sentinel.setup_of(NAME.format("stage0_single_gpu"))

    def per_step(program: Path, *_: str) -> int:
        if count := counts[program.parent != then]:
            return count
        raise rows.RecordError("under callgrind: exit code 1\nerror: ")

    with patch.multiple(
            sentinel, build=lambda _: None, built=lambda *_: sentinel.Side(then, then),
            trained=lambda _, side, *__: {setup: (weights[side.bin != then],
                                                  sent[side.bin != then])},
            per_step=per_step):
        lines = records.verify(records.Records(project))
    assert [line.partition("manual_time: ")[2] for line in lines] == ([reason] if reason else [])
    again = records.Records(project)
    assert bool(again.stale) == bool(reason)
    assert {row.commit for row in again.rows} == {git(project, "describe", "--always", "HEAD~2")}


def test_a_verified_row_is_compared_with_what_was_measured_again(project: Path) -> None:
    measured = git(project, "describe", "--always", "HEAD~")
    asked = []
    for text in ("int b;\n", "int c;\n"):
        write(project / SOURCE, text)
        commit(project)
        with patch.multiple(sentinel, build=lambda _: None,
                            failures_of=lambda _, __, commit: asked.append(commit) or {}):
            assert not records.verify(records.Records(project))
    assert asked == [measured, measured]


def test_a_record_of_another_program_is_verified_by_rows_that_this_machine_can_run(
        project: Path) -> None:
    content = json.loads((project / "bench/results/two-cores.json").read_text())
    content["context"] |= {"gpu": "a GPU of none"}
    write(project / "bench/results/gpu.json",
          json.dumps(content).replace("threads:1/", "threads:16/"))
    write(project / "bench/measure/step.py", "")
    commit(project)
    head = git(project, "describe", "--always")
    write(project / "bench/results/two-cores.step.json", json.dumps({"commit": head}))
    write(project / SOURCE, "int b;\n")
    commit(project)
    with (patch.multiple(
            sentinel, build=lambda _: None, per_step=lambda *_: 100,
            built=lambda *_: sentinel.Side(Path(), Path()),
            trained=lambda _, __, ___, names: {
                sentinel.setup_of(name): ("aa", 0) for name in names if "threads:1/" in name}),
          patch.object(records.Record, "needs_gpu", property(
              lambda self: self.path.name == "gpu.json"))):
        assert not records.verify(records.Records(project))


def test_both_sides_would_run_with_another_library(project: Path) -> None:
    write(project / "requirements.txt", "torch==2.12.0\n")
    commit(project)
    with patch.multiple(sentinel, build=lambda _: None, built=None):
        lines = records.verify(records.Records(project))
    assert [line.partition("manual_time: ")[2] for line in lines] == ["another version of torch"] * 2


@pytest.mark.parametrize(("twin", "code", "seconds", "error"), [
    ({"real_time": 5.0}, 0, [4.0, 5.0], ""),
    ({"real_time": 0.0, "error_message": "not run: no package"}, 0, [2.0, 3.0, 4.0],
     "two-cores.json: not measured: "),
    ({"real_time": 0.0, "error_message": "exit code 1"}, 1, [2.0, 3.0, 4.0],
     "manual_time: exit code 1"),
])
def test_a_row_that_failed_costs_no_other_one(project: Path, twin: dict[str, object], code: int,
                                              seconds: list[float], error: str) -> None:
    names = [NAME.format(program) for program in ("stage0_single_gpu", "python_single")]
    fresh = [{"run_name": names[0], "real_time": 4.0}, {"run_name": names[1], **twin}]

    def suite(_: Path, *command: str) -> None:
        out = command[-1].partition("--benchmark_out=")[2]
        Path(out).write_text(json.dumps({"benchmarks": fresh}))
        if code:
            raise records.RecordError(f"{command[0]}: exit code {code}")

    measured = records.Records(project)
    [record_of_suite] = measured.records
    with patch.object(records, "run", side_effect=suite):
        try:
            records.measure_suite(measured, record_of_suite, measured.rows, "now")
        except records.RecordError as raised:
            assert error and error in str(raised)
        else:
            assert not error
    again = records.Records(project)
    assert sorted(one["real_time"] for row in again.rows for one in row.entries) == seconds


RECORD = {"context": {"commit": "a", "caches": [{"size": 1}]}, "ways": {"x": {"batch": 32}},
          "benchmarks": [{"name": "one", "real_time": 1.5}, {"name": "two", "real_time": 2.0}]}


def test_a_record_has_one_repetition_per_line_and_keeps_its_digits(tmp_path: Path, start) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORD).replace("1.5", "1.50000e+00"), encoding="utf-8")
    assert start(record, path) == (0, "", "")
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == RECORD
    assert '\n  {"name": "one", "real_time": 1.50000e+00},\n' in text
    assert '\n  "commit": "a",\n' in text and '\n   {"size": 1}\n' in text
    path.write_text("{", encoding="utf-8")
    assert start(record, path)[0] == 2
    assert path.read_text(encoding="utf-8") == "{"


def test_a_commit_is_written_as_what_differs_from_one_above_it(tmp_path: Path) -> None:
    path = tmp_path / "sources.json"
    states = {"b": {"x": "1", "y": "2", "z": "3"}, "a": {"x": "1", "y": "4"}, "c": {"y": "4"}}
    write_states(path, {name: states[name] for name in "ba"})
    before = path.read_text().splitlines()
    write_states(path, states)
    lines = path.read_text().splitlines()
    assert lines[:len(before) - 2] == before[:-2]
    assert lines[-2] == ' "c": {"based on": "a", "x": null}'
    assert read_states(path) == states
    del states["a"]  # its last row was measured again
    write_states(path, states)
    assert read_states(path) == states
    path.write_text(json.dumps({"c": {"based on": "a"}}))
    with pytest.raises(ValueError, match="c is based on a, which is not above it"):
        read_states(path)


def test_a_file_of_no_kind_or_a_folder_without_records_is_an_error(project: Path, start) -> None:
    assert start(records, "--root", project / "ladder")[0] == 2
    (project / "bench/results/two-cores.json").write_text("{}")
    code, _, error = start(records, "--root", project)
    assert code == 2 and "two-cores.json: not a record: KeyError" in error


def test_without_git_the_commit_is_unknown() -> None:
    with patch.object(rows, "git", side_effect=FileNotFoundError("git")):
        assert rows.described()["commit"] == "unknown"
