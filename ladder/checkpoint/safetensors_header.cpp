// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "ladder/checkpoint/quoted.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kSizeBytes = 8;
constexpr std::uint64_t kLargestHeader = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;  // of one element
};
constexpr Dtype kDtypes[] = {{"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"I16", 2}, {"U16", 2},
                             {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},
                             {"I64", 8},  {"U64", 8},  {"F64", 8}};

DataError refused(std::string_view file, std::string_view expected, std::string_view got) {
  return DataError::mismatch(file, expected, got, "the file is damaged, or not a safetensors file");
}

std::uint64_t element_bytes(const TensorEntry& entry, const std::string& file) {
  for (const auto& dtype : kDtypes) {
    if (dtype.name == entry.dtype) return dtype.bytes;
  }
  throw refused(file, "a known dtype for " + in_quotes(entry.name), in_quotes(entry.dtype));
}

void check_length(const TensorEntry& entry, const std::string& file) {
  constexpr std::size_t kMostDimensions = 64;
  std::uint64_t bytes = element_bytes(entry, file);
  auto strides = static_cast<std::int64_t>(bytes);  // a 0 hides no other size
  bool fits = entry.shape.size() <= kMostDimensions;
  for (const std::int64_t size : entry.shape) {
    fits &= !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
    fits &= !__builtin_mul_overflow(strides, std::max<std::int64_t>(size, 1), &strides);
  }
  if (!fits) {
    throw refused(file, "a shape that fits 64 bits for " + in_quotes(entry.name), "a larger one");
  }
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    throw refused(file, fmt::format("{} bytes for {}", bytes, in_quotes(entry.name)),
                  fmt::format("the range {} to {}", entry.begin, entry.end));
  }
}

void check_layout(const SafetensorsHeader& header, std::uint64_t data_bytes,
                  const std::string& file) {
  std::vector<const TensorEntry*> by_place;
  for (const auto& entry : header.entries) by_place.push_back(&entry);
  std::sort(by_place.begin(), by_place.end(), [](const auto* a, const auto* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const auto* entry : by_place) {
    if (entry->begin != covered) {
      throw refused(file, fmt::format("{} to begin at byte {}", in_quotes(entry->name), covered),
                    fmt::format("{} (a hole or an overlap)", entry->begin));
    }
    covered = entry->end;
  }
  if (covered != data_bytes) {
    throw refused(file, fmt::format("a data part of {} bytes", covered),
                  fmt::format("{}", data_bytes));
  }
}

// Receives the JSON piece by piece and accepts exactly the form of a header.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& file) : header_(header), file_(file) {}

  bool null() override { throw unexpected("null"); }
  bool boolean(bool) override { throw unexpected("a truth value"); }
  bool number_integer(std::int64_t) override { throw unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    throw unexpected("a number that is not whole or too large");
  }
  bool binary(Json::binary_t&) override { throw unexpected("binary data"); }

  bool number_unsigned(std::uint64_t number) override {
    constexpr std::uint64_t kLargestSize = std::numeric_limits<std::int64_t>::max();
    if (place_ == Place::kShape && number <= kLargestSize) {
      entry().shape.push_back(static_cast<std::int64_t>(number));
    } else if (place_ == Place::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry().begin : entry().end) = number;
    } else {
      throw unexpected(fmt::format("{}", number));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = text;
    } else if (place_ == Place::kTensor && key_ == "dtype") {
      entry().dtype = text;
    } else {
      throw unexpected("a text");
    }
    return true;
  }

  bool key(std::string& key) override {
    const bool known = key == "dtype" || key == "shape" || key == "data_offsets";
    if (place_ == Place::kTensor && !known) {
      throw refused(file_, "only dtype, shape and data_offsets for " + in_quotes(entry().name),
                    in_quotes(key));
    }
    auto& keys = place_ == Place::kRoot ? root_keys_ : inner_keys_;
    if (!keys.insert(key).second) throw refused(file_, "every key once", in_quotes(key) + " twice");
    key_ = key;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot) {
      inner_keys_.clear();
      offsets_ = 0;
      place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
      if (place_ == Place::kTensor) header_.entries.emplace_back().name = key_;
    } else {
      throw unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (inner_keys_.size() != 3) {
        throw refused(file_, "dtype, shape and data_offsets for " + in_quotes(entry().name),
                      fmt::format("{} of them", inner_keys_.size()));
      }
      check_length(entry(), file_);
    }
    place_ = Place::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    const bool array_here = place_ == Place::kTensor && key_ != "dtype";
    if (!array_here) throw unexpected("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2) throw unexpected(fmt::format("{}", offsets_));
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw refused(file_, "valid JSON in the header",
                  fmt::format("an error at its byte {}", position));
  }

 private:
  enum class Place { kOutside, kRoot, kMetadata, kTensor, kShape, kOffsets };

  TensorEntry& entry() { return header_.entries.back(); }

  std::string expected_here() {
    switch (place_) {
      case Place::kOutside:
        return "an object";
      case Place::kRoot:
        return "an object for " + in_quotes(key_);
      case Place::kMetadata:
        return "a text for metadata " + in_quotes(key_);
      case Place::kTensor:
        return fmt::format("{} for {} of {}", key_ == "dtype" ? "a text" : "an array", key_,
                           in_quotes(entry().name));
      case Place::kShape:
        return "sizes of 0 or more in the shape of " + in_quotes(entry().name);
      case Place::kOffsets:
        return "two offsets for " + in_quotes(entry().name);
    }
    return {};
  }

  DataError unexpected(std::string_view got) { return refused(file_, expected_here(), got); }

  SafetensorsHeader& header_;
  const std::string& file_;
  Place place_ = Place::kOutside;
  std::string key_;  // the last one read
  std::set<std::string> root_keys_;
  std::set<std::string> inner_keys_;  // of the object inside the root
  int offsets_ = 0;                   // of this tensor, so far
};

void read_json(std::span<const std::uint8_t> json, SafetensorsHeader& header,
               const std::string& file) {
  if (json.empty() || json.front() != '{') {
    throw refused(file, "a header that begins with '{'",
                  json.empty() ? "an empty one" : fmt::format("byte 0x{:02x}", json.front()));
  }
  // The JSON library takes a zero byte for the end of its input.
  const auto zero = std::find(json.begin(), json.end(), 0);
  if (zero != json.end()) {
    throw refused(file, "text in the header",
                  fmt::format("a zero byte at its byte {}", zero - json.begin() + 1));
  }
  HeaderReader reader(header, file);
  Json::sax_parse(json.begin(), json.end(), &reader);
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
  if (size > kLargestHeader) {
    throw refused(name, fmt::format("a header of at most {} bytes", kLargestHeader),
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
  read_json(prefix.subspan(kSizeBytes, end - kSizeBytes), header, name);
  check_layout(header, file_size - end, name);
  return header;
}

std::string make_safetensors_header(const std::map<std::string, std::string>& metadata,
                                    const std::vector<TensorEntry>& entries) {
  Json json = Json::object();
  if (!metadata.empty()) json[std::string(kMetadataKey)] = metadata;
  for (const auto& entry : entries) {
    json[entry.name] = {{"dtype", entry.dtype},
                        {"shape", entry.shape},
                        {"data_offsets", Json::array({entry.begin, entry.end})}};
  }
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string size;
  for (std::size_t i = 0; i < kSizeBytes; ++i) size += static_cast<char>(text.size() >> (8 * i));
  return size + text;
}

}  // namespace ladder
