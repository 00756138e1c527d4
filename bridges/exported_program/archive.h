// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace ladder::exported {

// The records of a .pt2 file, which is a ZIP archive. It is read by LibTorch's own reader,
// caffe2/serialize/inline_container.h, and never unpickled.
//
// A file that does not fit is a DataError (exit code 3). Bounds: a directory of 512 KiB; records
// that are stored, not compressed, with the checksum of the archive, and together no larger than
// the file; texts of 64 MiB.
class Archive {
 public:
  explicit Archive(const std::string& path);
  ~Archive();

  const std::string& path() const { return path_; }

  // The bytes of a record, in memory of their own.
  torch::Tensor bytes(const std::string& name);

  // The same as JSON; see parse_untrusted_json.
  nlohmann::json json(const std::string& name);

 private:
  class Bytes;

  std::string path_;
  std::shared_ptr<Bytes> file_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> zip_;
  std::uint64_t left_ = 0;  // bytes that further records may have
};

}  // namespace ladder::exported
