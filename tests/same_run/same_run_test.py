# SPDX-License-Identifier: Apache-2.0
"""tools/same_run names the faults of programs, and raises no false alarm for right pairs."""
from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.same_run import recorded_programs as programs
from tests.support.programs import PYTHON, free_port, launch
from tests.support.twins import in_reference_math, trained, twin
from tests.support.ways import (PIPELINE, STAGE0, STAGE1, STAGE3, STAGE4, STAGE5, ZERO_REDUNDANCY,
                                Way, alone, compare_fingerprints, one_rank, small, spawned, train)


@pytest.fixture(name="recordings", scope="module")
def record_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    done = launch(PYTHON, "-W", "ignore", programs.__file__, folder, seconds=600,
                  environment={"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1})
    assert done.code == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", programs.TRIED)
def test_a_faulty_program_is_named_by_its_kind(name: str, recordings: Path) -> None:
    program, options, kind = programs.TRIED[name]
    found = compare_fingerprints(
        programs.path_of(recordings, program, programs.RANKS.get(name, 2), name, options),
        programs.path_of(recordings, program, 1, "", options)).splitlines()
    assert found[-1].startswith(f"{kind}: "), found


def require_no_alarm(a: Path, b: Path) -> None:
    last = compare_fingerprints(a, b).splitlines()[-1]
    assert last.startswith(("rounding: ", "no difference in ")), last


@pytest.mark.parametrize("name", programs.RIGHT)
def test_a_right_pair_of_programs_raises_no_alarm(name: str, recordings: Path) -> None:
    require_no_alarm(*(programs.path_of(recordings, program, world, "", options)
                       for program, world, options in programs.RIGHT[name]))


# --- stages --------------------------------------------------------------------------------------

FOLDER = Path(tempfile.mkdtemp())
CONVNET = ("--recipe", "convnet")
EXACT = ("--sums", "exact")


_recorded: dict[str, Path] = {}


def stage(way: Way, *flags: object) -> Path:
    """Its recording, made once."""
    key = str((way, flags))
    if key not in _recorded:
        named = small("--fingerprint", 1, *flags, limit_train=1280, limit_test=64)
        _recorded[key] = train(way, *named, parent=FOLDER).folder / "a"
    return _recorded[key]


ONE = (alone(STAGE0),)
PAIRS = {
    "2 ranks": ((spawned(2),), ONE), "3 ranks": ((spawned(3),), ONE),
    "3 ranks against 2": ((spawned(3),), (spawned(2),)),
    "2 replicas": ((Way((STAGE1, "--device-ids", "cpu,cpu")),), ONE),
    "exact sums, 2 ranks": ((spawned(2), *EXACT), (spawned(1), *EXACT)),
    "exact sums, 3 ranks": ((spawned(3), *EXACT), (spawned(2), *EXACT)),
    "synchronised BatchNorm": ((spawned(2, program=STAGE4), *CONVNET, "--precision", "fp32"),
                               (*ONE, *CONVNET)),
    "bf16": tuple((spawned(world, program=STAGE4), *CONVNET, "--precision", "bf16")
                  for world in (2, 1)),
    "ZeRO": ((spawned(2, program=ZERO_REDUNDANCY),), ONE),
    "ZeRO against replicas": ((spawned(2, program=ZERO_REDUNDANCY),), (spawned(2),)),
    "pipeline": ((spawned(2, program=PIPELINE),), ONE),
    "accumulation": ((alone(STAGE5, "--gradient-accumulation-steps", 2, "--batch-size", 32),), ONE),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_right_pair_of_stages_raises_no_alarm(name: str) -> None:
    require_no_alarm(*(stage(*side) for side in PAIRS[name]))


def test_a_resumed_run_raises_no_alarm(tmp_path: Path) -> None:
    def of(epochs: int, *flags: object) -> Path:
        way = one_rank(0, 1, free_port(), *flags)
        return train(way, *small("--fingerprint", 1, limit_train=640, limit_test=64, epochs=epochs),
                     parent=tmp_path).folder / "a"

    of(1, "--snapshot", tmp_path / "snapshot")
    require_no_alarm(of(2, "--snapshot", tmp_path / "snapshot"), of(2))


def test_a_stage_and_its_twin_raise_no_alarm(tmp_path: Path) -> None:
    flags = ("--limit-train", 640, "--limit-test", 64)
    ours, theirs = trained(in_reference_math(STAGE0, *flags), twin("single.py", *flags),
                           parent=tmp_path)
    require_no_alarm(ours.stem, theirs.stem)
