// SPDX-License-Identifier: Apache-2.0
#include "mnist/idx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "ladder/core/error.h"

namespace mnist {
namespace {

using namespace ladder;

constexpr std::uint32_t kImagesMagic = 0x00000803;
constexpr std::uint32_t kLabelsMagic = 0x00000801;

std::string_view kind_of(std::uint32_t magic) {
  if (magic == kImagesMagic) return " (images)";
  if (magic == kLabelsMagic) return " (labels)";
  return "";
}

std::uint32_t big_endian(const std::vector<std::uint8_t>& bytes, std::size_t offset) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | bytes[offset + i];
  return value;
}

std::size_t header_bytes(std::size_t dimensions) { return 4 + 4 * dimensions; }

void check_magic(const std::vector<std::uint8_t>& bytes, std::uint32_t magic,
                 const std::string& name) {
  const std::size_t header = header_bytes(magic & 0xff);
  if (bytes.size() < header) {
    throw DataError::mismatch(name, fmt::format("a header of {} bytes", header),
                              fmt::format("a file of {} bytes", bytes.size()),
                              "fetch the file again");
  }
  const std::uint32_t got = big_endian(bytes, 0);
  if (got == magic) return;
  throw DataError::mismatch(
      name, fmt::format("magic number 0x{:08x}{}", magic, kind_of(magic)),
      fmt::format("0x{:08x}{}", got, kind_of(got)),
      kind_of(got).empty() ? "this is no IDX file of bytes" : "images and labels were exchanged");
}

std::vector<std::uint32_t> sizes_of(const std::vector<std::uint8_t>& bytes, std::size_t dimensions,
                                    const std::string& name) {
  std::vector<std::uint32_t> sizes;
  for (std::size_t i = 0; i < dimensions; ++i) sizes.push_back(big_endian(bytes, header_bytes(i)));
  if (std::find(sizes.begin(), sizes.end(), 0U) != sizes.end()) {
    throw DataError::mismatch(name, "sizes above 0", fmt::format("{}", fmt::join(sizes, " x ")),
                              "fetch the file again");
  }
  return sizes;
}

std::uint64_t file_bytes(const std::vector<std::uint32_t>& sizes, const std::string& name) {
  std::uint64_t items = 1;
  bool fits = true;
  for (const std::uint32_t size : sizes) fits &= !__builtin_mul_overflow(items, size, &items);
  fits &= !__builtin_add_overflow(items, header_bytes(sizes.size()), &items);
  if (fits) return items;
  throw DataError::mismatch(name, "sizes that a file can hold",
                            fmt::format("{}", fmt::join(sizes, " x ")), "fetch the file again");
}

// Checks the header and the length, and leaves the items alone in `bytes`.
std::vector<std::uint32_t> strip_header(std::vector<std::uint8_t>& bytes, std::uint32_t magic,
                                        const std::string& name) {
  check_magic(bytes, magic, name);
  const auto sizes = sizes_of(bytes, magic & 0xff, name);
  const std::uint64_t wanted = file_bytes(sizes, name);
  const std::uint64_t got = bytes.size();
  if (got != wanted) {
    throw DataError::mismatch(name, fmt::format("{} bytes for {}", wanted, fmt::join(sizes, " x ")),
                              got < wanted
                                  ? fmt::format("{} (truncated, {} missing)", got, wanted - got)
                                  : fmt::format("{} ({} after the last item)", got, got - wanted),
                              "fetch the file again");
  }
  bytes.erase(bytes.begin(),
              bytes.begin() + static_cast<std::ptrdiff_t>(header_bytes(sizes.size())));
  return sizes;
}

}  // namespace

IdxImages parse_idx_images(std::vector<std::uint8_t> bytes, const std::string& name) {
  const auto sizes = strip_header(bytes, kImagesMagic, name);
  return {sizes[0], sizes[1], sizes[2], std::move(bytes)};
}

IdxLabels parse_idx_labels(std::vector<std::uint8_t> bytes, const std::string& name) {
  strip_header(bytes, kLabelsMagic, name);
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](auto label) { return label > 9; });
  if (bad != bytes.end()) {
    throw DataError::mismatch(name, "labels 0 to 9",
                              fmt::format("{} at item {}", *bad, bad - bytes.begin()),
                              "the networks have ten classes");
  }
  return {std::move(bytes)};
}

}  // namespace mnist
