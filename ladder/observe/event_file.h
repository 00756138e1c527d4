// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "ladder/io/appended_file.h"

namespace ladder {

// A file for TensorBoard: `tensorboard --logdir FOLDER` shows all such files below FOLDER.
//
// It is a sequence of records, each an Event in Protocol Buffers:
//
//     bytes  content
//     8      N, the length of the event, least significant byte first
//     4      masked CRC-32C of those 8 bytes
//     N      the event: its time, its step, and a summary of tags with their values
//     4      masked CRC-32C of the event
//
// Each record is passed to the operating system before the function returns, so a run that dies
// leaves all records up to then. Files are never reopened: a resumed run creates another file in
// the same folder, and TensorBoard shows the files of a folder as one run.
//
// Sources: tensorflow/core/lib/io/record_writer, tensorboard/compat/proto/{event,summary}.proto,
// tensorboard/plugins/hparams/plugin_data.proto.
class EventFile {
 public:
  // Creates `folder`/events.out.tfevents.SECONDS.HOST.PROCESS.COUNT. Throws SystemError.
  explicit EventFile(const std::string& folder);

  const std::string& path() const { return file_.path(); }

  // For a resumed run: TensorBoard omits the points from `step` on that the folder has so far.
  void continue_from(std::int64_t step);

  // One point per curve. TensorBoard stores float32.
  void scalars(const std::map<std::string, double>& values, std::int64_t step);

  // Markdown for the TEXT tab, under `tag`.
  void text(const std::string& tag, std::string_view markdown);

  // The hyper-parameters of the run for the HPARAMS tab; `values` is a flat object. The tab shows
  // the run as running until hparams_end().
  void hparams(const nlohmann::ordered_json& values);
  void hparams_end();

 private:
  void write_event(std::int64_t step, std::string_view summary);
  void write_record(std::string_view event);

  AppendedFile file_;
};

// CRC-32C (Castagnoli) of RFC 3720.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace ladder
