# SPDX-License-Identifier: Apache-2.0
"""records.py, on a repository made here, and record.py."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import record
import records
from records import ROOT

RECORD = {"context": {"commit": "a", "caches": [{"size": 1}]}, "ways": {"x": {"batch": 32}},
          "benchmarks": [{"name": "one", "real_time": 1.5}, {"name": "two", "real_time": 2.0}]}


def test_a_record_has_one_repetition_per_line_and_keeps_its_digits(tmp_path, start) -> None:
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


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")
        self.measured = self.commit("ladder/a.h", "one")
        self.record(self.measured)

    def git(self, *arguments: str) -> str:
        user = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        done = subprocess.run(["git", "-C", self.folder, *user, *arguments], capture_output=True,
                              text=True, timeout=60, check=True)
        return done.stdout.strip()

    def commit(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"Change of {name}")
        return self.git("rev-parse", "--short", "HEAD")

    def record(self, commit: str | None, name: str = "a.json") -> None:
        context = {"date": "2026-01-02"} | ({} if commit is None else {"commit": commit})
        self.commit(f"bench/results/{name}", json.dumps({"context": context}, indent=2))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_record_is_fresh_until_a_source_of_it_changes(repository: Repository, output,
                                                        start) -> None:
    repository.commit("docs/a.md", "a page")
    repository.commit("bench/links/cable.py", "not of the suite")
    assert output(records, "--root", repository.folder) == ""
    for name in ("stage0_single_gpu/main.cpp", "bench/peers/single.py", "mnist/a/b.h"):
        changed = repository.commit(name, "two")
        assert start(records, "--root", repository.folder) == (
            1, f"bench/results/a.json:4: stale: measured at {repository.measured}, and its sources "
            f"changed in {changed} Change of {name}; hint: ./run bench; cp runs/bench.json "
            "bench/results/a.json\n", "")
        repository.record(changed)
        repository.measured = changed
        assert output(records, "--root", repository.folder) == ""


def test_a_record_depends_on_its_own_sources(repository: Repository, start) -> None:
    repository.record(repository.measured, "a.step.json")
    repository.record(repository.measured, "a.links.json")
    changed = repository.commit("bench/links/cable.py", "a longer cable")
    code, out, _ = start(records, "--root", repository.folder)
    assert (code, out.count("\n")) == (1, 1)
    assert f"a.links.json:4: stale: measured at {repository.measured}, and its sources changed " \
           f"in {changed} " in out


@pytest.mark.parametrize("commit, line, words", [
    (None, 1, "it names no commit"), ("", 4, "it names no commit"),
    ("HEAD dirty", 4, "changes that are in no commit"),
    ("HEAD-dirty", 4, "changes that are in no commit"),
    ("elsewhere", 4, "not in the history of HEAD"), ("0123456", 4, "not in the history of HEAD")])
def test_a_commit_that_is_missing_dirty_or_elsewhere_is_stale(commit, line, words, repository,
                                                              start) -> None:
    repository.git("checkout", "--quiet", "-b", "other")
    elsewhere = repository.commit("docs/b.md", "b")
    repository.git("checkout", "--quiet", "main")
    repository.record(commit and commit.replace("HEAD", repository.measured).replace(
        "elsewhere", elsewhere))
    code, out, _ = start(records, "--root", repository.folder)
    assert code == 1 and words in out
    assert out.startswith(f"bench/results/a.json:{line}: stale: ")


def test_a_file_without_sources_or_a_folder_without_records_is_an_error(repository, start) -> None:
    repository.commit("bench/results/a.txt", "?")
    code, out, err = start(records, "--root", repository.folder)
    assert (code, out) == (2, "")
    assert "bench/results/a.txt: a record without sources; hint:" in err
    code, _, err = start(records, "--root", repository.folder / "docs")
    assert code == 2 and "no record" in err


def test_without_git_the_commit_is_unknown(monkeypatch) -> None:
    monkeypatch.setattr(records, "git", lambda *_: (_ for _ in ()).throw(FileNotFoundError("git")))
    assert records.described()["commit"] == "unknown"


def test_the_tier_of_the_pages_begins_with_it() -> None:
    text = (ROOT / "test").read_text(encoding="utf-8")
    assert text.index("== docs ]]; then check_records") < text.index("then tools/setup.sh full")
