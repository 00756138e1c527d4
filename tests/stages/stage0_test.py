# SPDX-License-Identifier: Apache-2.0
"""Stage 0 from the command line: output, files, refusals and exit codes, one case of each kind.

The flags, the data files and the records have tests of their own in tests/mnist.
"""
from __future__ import annotations

import functools
import gzip
import re
import signal
from pathlib import Path

import pytest

from tests.support.programs import (DATA, ROOT, Launched, records, require_refused, run,
                                    shown_on_terminal, temporary_folder)
from tests.support.ways import STAGE0, Run, alone, endless, small, train

FOLDER = temporary_folder("stage0")


@functools.cache
def trained(*flags: object, **changes: object) -> Run:
    """Ten steps, unless the flags differ."""
    return train(alone(STAGE0), *small(*flags, **changes), parent=FOLDER)


def plain() -> Run:
    return trained(fingerprint=3)


def test_basicnet_ends_with_accuracy_and_time() -> None:
    assert re.fullmatch(r"Accuracy: \d+\.\d\d\ntime elapsed: \d+\.\d\d seconds\n",
                        plain().done.stdout)


def test_convnet_prints_the_lines_of_its_tutorial_and_saves_under_its_name(tmp_path: Path) -> None:
    flags = small("--save", "--metrics", "a.jsonl", recipe="convnet", limit_train=320, epochs=2)
    done = run(STAGE0, *flags, cwd=tmp_path)
    assert re.fullmatch("begin training of epoch 1/2\nbegin training of epoch 2/2\nbegin testing\n"
                        r"Accuracy is \d+\.\d\d%" "\n" r"time elapsed: \d+\.\d\d seconds" "\n",
                        done.stdout)
    weights, metrics = tmp_path / "origin_checkpoint.safetensors", tmp_path / "a.jsonl"
    assert set(tmp_path.iterdir()) == {metrics, weights}
    assert [record["record"] for record in records(metrics)] == ["run", "epoch", "epoch", "result"]
    # So that metrics which cannot be written, or a signal during the test, cost no weights.
    assert weights.stat().st_mtime_ns < metrics.stat().st_mtime_ns


def test_a_file_gets_a_progress_line_for_each_tenth() -> None:
    progress = [line for line in plain().done.errors if line.startswith("epoch 1/1")]
    assert len(progress) == 10, progress
    assert re.search(r"10/10 .*loss \d+\.\d+ .*samples/s", progress[-1])


def test_a_terminal_gets_a_bar_on_one_line() -> None:
    shown = shown_on_terminal(STAGE0, *small(batch_size=16, limit_train=160, limit_test=50))
    assert any("10/10" in text and "eta" in text.lower() for text in shown.split("\r")), shown
    assert shown.count("epoch 1/1 ") == shown.count("\repoch 1/1 ")


def test_quiet_leaves_only_the_results() -> None:
    done = trained("--quiet", augment="shift").done
    assert (done.stderr, len(done.lines)) == ("", 2)


@pytest.mark.parametrize("flag, texts", [
    ("--help", ("--recipe", "--fingerprint")),
    ("--version", ("ladder", "libtorch       2.11.0", "onednn", "openssl", "fmt", "nlohmann-json",
                   "zlib", "cli11"))])
def test_help_and_versions_go_to_the_standard_output(flag: str, texts: tuple[str, ...]) -> None:
    done = run(STAGE0, flag)
    assert (done.code, done.stderr) == (0, "")
    assert [text for text in texts if text not in done.stdout] == []


def test_metrics_hold_a_header_epochs_and_a_result() -> None:
    header, _, result = plain().records
    assert header["options"]["--epochs"] == "1"
    assert header["versions"]["libtorch"] == "2.11.0"
    assert header["parameters"] == 1199882
    assert list(result) == [
        "record", "stage", "recipe", "world_size", "precision", "device", "epochs", "steps",
        "accuracy", "correct", "seen", "train_loss", "eval_loss", "train_seconds",
        "total_seconds", "first_step_at", "warm_up_seconds", "samples_per_second",
        "peak_rss_bytes", "sent_bytes", "read_bytes", "weights_sha256", "misclassified"]
    assert len(result["misclassified"]) == result["seen"] - result["correct"]
    assert result["sent_bytes"] == 0
    assert result["read_bytes"][0] > 11_000_000  # MNIST, compressed
    assert (result["steps"], result["seen"], result["epochs"]) == (10, 500, 1)
    assert result["accuracy"] == pytest.approx(result["correct"] / 5)
    assert plain().done.lines[0] == f"Accuracy: {result['accuracy']:.2f}"
    assert result["peak_rss_bytes"] > 100_000_000


def test_seed_and_augmentation_change_the_weights_and_workers_do_not() -> None:
    shifted, with_workers, of_seed_2, first = (run.result["weights_sha256"] for run in (
        trained("--quiet", augment="shift"),
        trained("--pin-memory", augment="shift", num_workers=3), trained(seed=2), plain()))
    assert with_workers == shifted
    assert len({shifted, of_seed_2, first}) == 3


def test_every_third_step_has_a_fingerprint_beside_the_metrics() -> None:
    marks = records(plain().folder / "a.rank0.jsonl")
    assert [mark["step"] for mark in marks] == [3, 6, 9]
    assert list(marks[0]["gradients"]) == [f"{layer}.{kind}" for layer in (
        "conv1", "conv2", "fc1", "fc2") for kind in ("weight", "bias")]


def test_a_run_from_another_folder_finds_the_data() -> None:
    done = run(STAGE0, *small(epochs=0, limit_test=50), cwd=Path("/"))
    assert done.code == 0, done.stderr


def test_saved_weights_evaluate_to_the_same_result_and_continue_training() -> None:
    evaluated = trained(epochs=0, load=plain().weights).result
    for field in ("weights_sha256", "correct", "eval_loss"):
        assert evaluated[field] == plain().result[field], field
    first, second = plain().records[1], trained(load=plain().weights).records[1]
    assert second["train_loss"] < first["train_loss"] / 2


def test_another_set_in_the_same_format_is_accepted_as_unknown(tmp_path: Path) -> None:
    """One pixel of the first test image differs."""
    for path in DATA.glob("*.gz"):
        (tmp_path / path.name).symlink_to(path)
    images = tmp_path / "t10k-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(images.read_bytes()))
    content[16] ^= 1
    images.unlink()
    images.with_suffix("").write_bytes(content)
    done = run(STAGE0, *small("--data-root", tmp_path, limit_train=64, limit_test=50))
    assert done.code == 0, done.stderr
    assert "MNIST train, 60000 images, tested on unknown set (sha256 of images" in done.stderr


@pytest.mark.parametrize("code, text, flags", [
    (2, "did you mean --epochs?", ("--epoch", "3")),
    (2, "--help lists all flags", ("--epochs",)),
    (2, "a?b", ("--recipe", "a\nb")),  # the message has no line break
    (3, "nowhere", ("--metrics", "a.jsonl", "--data-root", "nowhere", "--quiet"))])
def test_a_refusal_is_one_line_and_leaves_the_record_of_the_last_run(
        tmp_path: Path, code: int, text: str, flags: tuple[object, ...]) -> None:
    metrics = tmp_path / "a.jsonl"
    metrics.write_text("of the last run\n")
    done = run(STAGE0, *flags, cwd=tmp_path)
    require_refused(done, code, text)
    assert done.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == [metrics]
    assert metrics.read_text() == "of the last run\n"


def test_a_gpu_that_is_not_there() -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    require_refused(run(STAGE0, "--gpu", "0,1"), 2, "this machine has no GPU")


def test_fewer_threads_than_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP's own variables decide; half of the work would be left undone."""
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    require_refused(run(STAGE0, "--threads", 2, "--quiet"), 2,
                    "threads: expected OpenMP to start 2, it starts 1; hint: ")


def test_a_loss_that_is_not_finite_ends_the_run_and_saves_nothing(tmp_path: Path) -> None:
    done = run(STAGE0, *small("--metrics", "a.jsonl", "--fingerprint", 1, "--save",
                              "a.safetensors", lr=1e30), cwd=tmp_path)
    assert (done.code, done.stdout) == (5, ""), done.stderr
    found = re.search(r"error: epoch 1, step (\d): expected a finite loss, got -?(nan|inf)",
                      done.stderr)
    assert found, done.stderr
    # The bad step has its fingerprint.
    assert records(tmp_path / "a.rank0.jsonl")[-1]["step"] == int(found[1])
    assert list(tmp_path.glob("*.safetensors*")) == []


def test_control_c_ends_the_program_as_shells_expect() -> None:
    with Launched(*alone(STAGE0).command, *endless()) as started:
        started.wait_until_training(60)
        started.process.send_signal(signal.SIGINT)
        done = started.finish(60)
    assert (done.code, done.stdout) == (-signal.SIGINT, ""), done.stderr
    assert re.search(r"SIGINT: stopped after step \d+; nothing saved", done.stderr)


def test_the_run_script_lists_the_known_stages_for_an_unknown_one() -> None:
    done = run(ROOT / "run", "stage9")
    assert done.code == 2 and STAGE0.name in done.stderr, done.stderr
