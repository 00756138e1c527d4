// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

constexpr std::uint64_t kSizeBytes = 8;
constexpr JsonLimits kLimits = {.max_bytes = std::uint64_t{16} << 20, .max_depth = 3};
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kHint = "the file is damaged, or not a safetensors file";

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;  // per element
};
constexpr Dtype kDtypes[] = {{"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"I16", 2}, {"U16", 2},
                             {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},
                             {"I64", 8},  {"U64", 8},  {"F64", 8}};

DataError refused(std::string_view file, std::string_view expected, std::string_view got) {
  return DataError::mismatch(file, expected, got, kHint);
}

void check_length(const TensorEntry& entry, const std::string& file) {
  constexpr std::size_t kMaxDimensions = 64;
  const std::string name = quoted_for_message(entry.name);
  const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const auto& known) { return known.name == entry.dtype; });
  if (dtype == std::end(kDtypes)) {
    throw DataError::mismatch(file, "a known dtype for " + name, quoted_for_message(entry.dtype),
                              "in Python, save tensor.to(torch.float32) in its place, and "
                              "torch.view_as_real(tensor) of a complex one");
  }
  std::uint64_t bytes = dtype->bytes;
  auto strides = static_cast<std::int64_t>(bytes);  // LibTorch computes them of empty tensors too
  bool fits = entry.shape.size() <= kMaxDimensions;
  for (const std::int64_t size : entry.shape) {
    fits &= !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
    fits &= !__builtin_mul_overflow(strides, std::max<std::int64_t>(size, 1), &strides);
  }
  if (!fits) throw refused(file, "a shape that fits 64 bits for " + name, "a larger one");
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    throw refused(file, fmt::format("{} bytes for {}", bytes, name),
                  fmt::format("the range {} to {}", entry.begin, entry.end));
  }
}

void check_layout(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes,
                  const std::string& file) {
  std::uint64_t covered = 0;
  for (const auto& entry : entries) {
    if (entry.begin != covered) {
      throw refused(file,
                    fmt::format("{} to begin at byte {}", quoted_for_message(entry.name), covered),
                    fmt::format("{} (a hole or an overlap)", entry.begin));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw refused(file, fmt::format("a data part of {} bytes", covered),
                  fmt::format("{}", data_bytes));
  }
}

TensorEntry entry_from(const std::string& name, const JsonReader& tensor) {
  tensor.expect_only({"dtype", "shape", "data_offsets"});
  TensorEntry entry{.name = name, .dtype = tensor.text("dtype"), .shape = tensor.counts("shape")};
  const auto offsets = tensor.counts("data_offsets");
  if (offsets.size() != 2) tensor.refuse_value("two offsets", "data_offsets");
  entry.begin = static_cast<std::uint64_t>(offsets[0]);
  entry.end = static_cast<std::uint64_t>(offsets[1]);
  return entry;
}

void read_json(std::string_view text, SafetensorsHeader& header, const std::string& file) {
  if (!text.starts_with('{')) {
    throw refused(file, "a header that begins with '{'",
                  text.empty()
                      ? "an empty one"
                      : fmt::format("byte 0x{:02x}", static_cast<std::uint8_t>(text.front())));
  }
  const auto refuse = json_data_error(file, kHint);
  const auto json = parse_untrusted_json(text, refuse, kLimits);
  const JsonReader root(json, refuse);
  for (const auto& item : json.items()) {
    const JsonReader object = root.object(item.key());
    if (item.key() != kMetadataKey) {
      header.entries.push_back(entry_from(item.key(), object));
      check_length(header.entries.back(), file);
      continue;
    }
    for (const auto& line : item.value().items()) {
      header.metadata[line.key()] = object.text(line.key());
    }
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
}

}  // namespace

std::uint64_t safetensors_header_end(std::span<const std::uint8_t> prefix, std::uint64_t file_size,
                                     const std::string& name) {
  if (prefix.size() < kSizeBytes || file_size < kSizeBytes) {
    throw refused(name, "at least 8 bytes",
                  fmt::format("{}", std::min<std::uint64_t>(prefix.size(), file_size)));
  }
  std::uint64_t size = 0;
  for (std::size_t i = kSizeBytes; i-- > 0;) size = size << 8 | prefix[i];
  if (size > kLimits.max_bytes) {
    throw refused(name, fmt::format("a header of at most {} bytes", kLimits.max_bytes),
                  fmt::format("{}", size));
  }
  if (size > file_size - kSizeBytes) {
    throw refused(name, fmt::format("a header inside the file of {} bytes", file_size),
                  fmt::format("one of {} bytes", size));
  }
  return kSizeBytes + size;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::uint8_t> prefix,
                                           std::uint64_t file_size, const std::string& name) {
  const std::uint64_t end = safetensors_header_end(prefix, file_size, name);
  if (prefix.size() < end) {
    throw refused(name, fmt::format("{} bytes up to the end of the header", end),
                  fmt::format("{}", prefix.size()));
  }
  SafetensorsHeader header;
  header.data_offset = end;
  const auto json = prefix.subspan(kSizeBytes, end - kSizeBytes);
  read_json({reinterpret_cast<const char*>(json.data()), json.size()}, header, name);
  check_layout(header.entries, file_size - end, name);
  return header;
}

namespace {

// JSON is UTF-8, and replacing bytes could make two names one.
void require_tensor_name(const std::string& name) {
  bool is_text = name != kMetadataKey;
  try {
    nlohmann::json(name).dump();
  } catch (const nlohmann::json::type_error&) {
    is_text = false;
  }
  if (is_text) return;
  throw UsageError::malformed("safetensors", "tensor names in UTF-8 other than __metadata__",
                              quoted_for_message(name), "register the tensor under another name");
}

}  // namespace

std::string make_safetensors_header(const std::map<std::string, std::string>& metadata,
                                    const std::vector<TensorEntry>& entries) {
  using Json = nlohmann::ordered_json;
  Json::object_t object;  // operator[] would compare each name with all before it
  if (!metadata.empty()) object.emplace_back(kMetadataKey, metadata);
  for (const auto& entry : entries) {
    require_tensor_name(entry.name);
    object.emplace_back(entry.name,
                        Json({{"dtype", entry.dtype},
                              {"shape", entry.shape},
                              {"data_offsets", Json::array({entry.begin, entry.end})}}));
  }
  std::string text = json_text(Json(std::move(object)));
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kLimits.max_bytes) {
    throw UsageError::out_of_range("safetensors header", text.size(),
                                   fmt::format("at most {} bytes", kLimits.max_bytes),
                                   "save the tensors in several files");
  }
  std::string size;
  for (std::size_t i = 0; i < kSizeBytes; ++i) size += static_cast<char>(text.size() >> (8 * i));
  return size + text;
}

}  // namespace ladder
