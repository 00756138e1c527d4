# SPDX-License-Identifier: Apache-2.0
"""Reads what the trackers wrote with the programs that people use: TensorBoard, csv, json."""
from __future__ import annotations

import csv
import math
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import records, settings_helper  # noqa: E402

from tensorboard.backend.event_processing import event_accumulator  # noqa: E402
from tensorboard.compat.proto import event_pb2  # noqa: E402
from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError  # noqa: E402
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New  # noqa: E402
from tensorboard.plugins.hparams import metadata  # noqa: E402
from tensorboard.plugins.hparams.api_pb2 import Status  # noqa: E402

CONFIG = {"lr": 0.001, "batch_size": 64.0, "recipe": "basicnet | ä", "sync_bn": True, "save": None}


class Trackers(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ladder-trackers-")
        cls.addClassCleanup(folder.cleanup)
        settings_helper("track", folder.name)
        cls.run_folder = Path(folder.name) / "basic"
        cls.event_files = sorted(cls.run_folder.glob("events.out.tfevents.*"))
        cls.accumulator = event_accumulator.EventAccumulator(
            str(cls.run_folder), size_guidance={event_accumulator.TENSORS: 0,
                                                event_accumulator.SCALARS: 0})
        cls.accumulator.Reload()

    def test_every_record_has_the_checksums_that_tensorboard_expects(self) -> None:
        for path, count, steps in zip(self.event_files, (63, 55), (range(60), range(50, 100)),
                                      strict=True):
            reader = PyRecordReader_New(str(path))
            events = []
            try:
                while True:
                    reader.GetNext()
                    events.append(event_pb2.Event.FromString(reader.record()))
            except OutOfRangeError:
                pass  # the end; a wrong checksum is a DataLossError
            self.assertEqual(len(events), count)
            self.assertEqual(events[0].file_version, "brain.Event:2")
            logged = [event.step for event in events[3:] if event.summary.value[:1]
                      and event.summary.value[0].tag == "odd"]
            self.assertEqual(logged, list(steps))
            self.assertTrue(all(1.7e9 < event.wall_time < 1e10 for event in events))

    # TensorBoard drops the steps that the resumed run repeats.
    def test_curves(self) -> None:
        loss = self.accumulator.Scalars("train/loss")
        self.assertEqual([point.step for point in loss], list(range(100)))
        for point in loss:
            self.assertAlmostEqual(point.value, 1 / (point.step % 100 + 1), places=6)
        odd = self.accumulator.Scalars("odd")
        self.assertTrue(math.isnan(odd[3].value))
        self.assertEqual(odd[4].value, -1.5)

    def test_configuration_as_text(self) -> None:
        event = self.accumulator.Tensors("config/text_summary")[0]
        table = event.tensor_proto.string_val[0].decode()
        self.assertEqual(table, "|name|value|\n|-|-|\n|lr|0.001|\n|batch_size|64|\n"
                                "|recipe|basicnet \\| ä|\n|sync_bn|true|\n|save|null|\n")
        plugin = self.accumulator.SummaryMetadata("config/text_summary").plugin_data
        self.assertEqual(plugin.plugin_name, "text")

    def test_hyper_parameters_and_only_a_finished_run_counts_as_a_success(self) -> None:
        content = self.accumulator.PluginTagToContent(metadata.PLUGIN_NAME)
        start = metadata.parse_session_start_info_plugin_data(
            content[metadata.SESSION_START_INFO_TAG])
        kinds = {name: value.WhichOneof("kind") for name, value in start.hparams.items()}
        values = {name: None if kinds[name] == "null_value" else getattr(value, kinds[name])
                  for name, value in start.hparams.items()}
        self.assertEqual(values, CONFIG)
        self.assertGreater(start.start_time_secs, 1.7e9)
        end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
        self.assertEqual(end.status, Status.STATUS_SUCCESS)
        self.assertNotIn(b"session_end_info", self.event_files[0].read_bytes())

    def rows(self, name: str) -> list[dict[str, str]]:
        with open(self.run_folder / name, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_csv_and_json_lines(self) -> None:
        loss = {int(row["step"]): float(row["value"]) for row in self.rows("metrics.csv")
                if row["name"] == "train/loss"}
        self.assertEqual(loss, {step: 1 / (step + 1) for step in range(100)})
        config = {row["name"]: row["value"] for row in self.rows("config.csv")}
        self.assertEqual(config, {"lr": "0.001", "batch_size": "64", "recipe": "basicnet | ä",
                                  "sync_bn": "true", "save": "null"})
        logged = records(self.run_folder / "metrics.jsonl")
        self.assertEqual([record["record"] for record in logged],
                         ["run"] + ["log"] * 60 + ["run"] + ["log"] * 50)
        self.assertEqual(logged[0], {"record": "run", "run": "basic", "config": CONFIG})
        self.assertEqual(logged[4], {"record": "log", "step": 3, "odd": None, "train/loss": 0.25})
        self.assertEqual(logged[-1]["train/loss"], 0.01)


if __name__ == "__main__":
    unittest.main()
