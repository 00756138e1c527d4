// SPDX-License-Identifier: Apache-2.0
#include "bridges/exported_program/archive.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "bridges/exported_program/schema.h"
#include "ladder/core/error.h"
#include "ladder/io/json.h"
#include "ladder/io/regular_file.h"

namespace ladder::exported {
namespace {

constexpr std::uint64_t kDirectoryBytes = std::uint64_t{1} << 19;
constexpr int kJsonLevels = 64;

// The checksum of ZIP.
std::uint32_t crc32(std::span<const std::uint8_t> bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      entries.at(i) = i;
      for (int bit = 0; bit < 8; ++bit) {
        entries.at(i) = (entries.at(i) >> 1) ^ (entries.at(i) % 2 == 0 ? 0U : 0xEDB88320U);
      }
    }
    return entries;
  }();
  std::uint32_t sum = ~0U;
  for (const auto byte : bytes) sum = (sum >> 8) ^ table[(sum ^ byte) & 0xFFU];
  return ~sum;
}

// The errors of LibTorch's reader, the first line of each, become DataErrors.
template <typename Call>
void guarded(const std::string& path, const std::string& what, const Call& call) {
  try {
    call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    throw DataError::mismatch(path, what, quoted_for_message(text.substr(0, text.find('\n'))),
                              kExportAgain);
  }
}

}  // namespace

// The file for LibTorch's reader. That unpacks a record of the archive's version while it opens the
// archive, whatever its size is: a limit of the bytes read until then limits it too.
class Archive::Bytes : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Bytes(const std::string& path) : file_(open_data_file(path)) {}

  std::size_t size() const override { return file_.bytes; }

  // Returns 0 if it fails, because its caller is C.
  std::size_t read(std::uint64_t from, void* to, std::size_t count,
                   const char* /*what*/) const override {
    if (count > left_) return 0;
    left_ -= count;
    return read_at(file_, from, std::span(static_cast<std::byte*>(to), count)) == 0 ? count : 0;
  }

  void lift_limit() { left_ = std::numeric_limits<std::uint64_t>::max(); }

  // `Number` at a position of the file, least significant byte first; 0 beyond its end.
  template <typename Number>
  Number number_at(std::uint64_t from) const {
    Number number{};
    read_at(file_, from, std::as_writable_bytes(std::span(&number, 1)));
    return number;
  }

 private:
  RegularFile file_;
  mutable std::uint64_t left_ = kDirectoryBytes;
};

Archive::Archive(const std::string& path)
    : path_(path), file_(std::make_shared<Bytes>(path)), left_(file_->size()) {
  guarded(path, "an archive of torch.export", [&] {
    zip_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(std::shared_ptr<Bytes>(file_));
  });
  file_->lift_limit();
}

Archive::~Archive() = default;

torch::Tensor Archive::bytes(const std::string& name) {
  const auto require = [&](bool fits, std::string_view expected, std::string_view got) {
    if (fits) return;
    throw DataError::mismatch(fmt::format("{}: record {}", path_, quoted_for_message(name)),
                              expected, got, kExportAgain);
  };
  constexpr std::uint16_t kHasDescriptor = 8;        // behind the record, as LibTorch writes it
  constexpr int kFlags = 6, kMethod = 8, kSum = 14;  // positions in a local header
  torch::Tensor content;
  guarded(path_, "record " + name, [&] {
    const auto header = zip_->getRecordHeaderOffset(name);
    require(file_->number_at<std::uint16_t>(header + kMethod) == 0, "stored", "compressed");
    const std::uint64_t size = zip_->getRecordSize(name);
    require(size <= left_, fmt::format("at most {} bytes", left_), fmt::format("{}", size));
    left_ -= size;
    content = torch::empty({static_cast<std::int64_t>(size)}, torch::kUInt8);
    zip_->getRecord(name, content.mutable_data_ptr(), size);
    const bool behind = (file_->number_at<std::uint16_t>(header + kFlags) & kHasDescriptor) != 0;
    const auto sum = file_->number_at<std::uint32_t>(
        behind ? zip_->getRecordOffset(name) + size + sizeof(std::uint32_t) : header + kSum);
    const auto own = crc32({content.const_data_ptr<std::uint8_t>(), size});
    require(own == sum, fmt::format("checksum {:08x}", sum), fmt::format("{:08x}", own));
  });
  return content;
}

nlohmann::json Archive::json(const std::string& name) {
  const auto content = bytes(name);
  const std::string_view text(static_cast<const char*>(content.const_data_ptr()), content.nbytes());
  return parse_untrusted_json(text, json_data_error(path_ + ": " + name, kExportAgain),
                              {.max_depth = kJsonLevels});
}

}  // namespace ladder::exported
