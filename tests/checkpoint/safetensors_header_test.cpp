// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/safetensors_header.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_files.h"

namespace ladder {
namespace {

using Shape = std::vector<std::int64_t>;

SafetensorsHeader parse(const Bytes& file) {
  return parse_safetensors_header(file, file.size(), "m.st");
}

SafetensorsHeader parse(std::string_view json, std::size_t data_bytes) {
  return parse(safetensors_file(json, data_bytes));
}

constexpr std::string_view kTwoTensors =
    R"({"__metadata__":{"format":"pt"},)"
    R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"I64","shape":[],"data_offsets":[24,32]}}  )";

TEST(ParseSafetensorsHeader, ReadsMetadataAndEntries) {
  const auto header = parse(kTwoTensors, 32);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(header.entries.size(), 2U);
  EXPECT_EQ(header.entries[0].name, "w");
  EXPECT_EQ(header.entries[0].dtype, "F32");
  EXPECT_EQ(header.entries[0].shape, (Shape{2, 3}));
  EXPECT_EQ(header.entries[0].begin, 0U);
  EXPECT_EQ(header.entries[0].end, 24U);
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_EQ(header.entries[1].shape, Shape{});
  EXPECT_EQ(header.entries[1].begin, 24U);
  EXPECT_EQ(header.entries[1].end, 32U);
  EXPECT_EQ(header.data_offset, 8 + kTwoTensors.size());
}

TEST(ParseSafetensorsHeader, NeedsNoMoreThanTheBytesUpToTheDataPart) {
  Bytes file = safetensors_file(kTwoTensors, 32);
  const std::uint64_t size = file.size();
  const auto end = safetensors_header_end(std::span(file).first(8), size, "m.st");
  EXPECT_EQ(end, 8 + kTwoTensors.size());
  EXPECT_ERROR(parse_safetensors_header(std::span(file).first(100), size, "m.st"), DataError,
               fmt::format("m.st: expected {} bytes up to the end of the header, got 100", end));
  file.resize(end);
  EXPECT_EQ(parse_safetensors_header(file, size, "m.st").entries.size(), 2U);
}

// safetensors 0.8.0 wrote the first one: save() of four numpy arrays, one of them empty.
TEST(ParseSafetensorsHeader, ReturnsEntriesInTheOrderOfTheirBytes) {
  const auto header = parse(
      R"({"__metadata__":{"format":"np"},"steps":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("conv1.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("empty":{"dtype":"F16","shape":[0,4],"data_offsets":[32,32]},)"
      R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[32,35]}}     )",
      35);
  EXPECT_EQ(header.data_offset, 288U);
  ASSERT_EQ(header.entries.size(), 4U);
  EXPECT_EQ(header.entries[1].name, "conv1.weight");
  EXPECT_EQ(header.entries[2].shape, (Shape{0, 4}));
  EXPECT_EQ(header.entries[3].end, 35U);
  const auto backwards = parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                               R"("b":{"data_offsets":[0,2],"shape":[2],"dtype":"BOOL"}})",
                               3);
  EXPECT_EQ(backwards.entries.at(0).name, "b");
  EXPECT_EQ(backwards.entries.at(1).name, "a");
}

// One tensor "w" of this dtype and shape, at these bytes.
std::string one_tensor(const std::string& dtype, const std::string& shape, std::size_t end,
                       std::size_t begin = 0) {
  return fmt::format(R"({{"w":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}}}})", dtype,
                     shape, begin, end);
}

TEST(ParseSafetensorsHeader, KnowsTheSizeOfEveryDtypeAndNoOther) {
  const std::map<std::string, std::size_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"I16", 2},  {"U16", 2}, {"I32", 4}, {"U32", 4},
      {"I64", 8},  {"U64", 8}, {"F16", 2}, {"BF16", 2}, {"F32", 4}, {"F64", 8}};
  for (const auto& [dtype, size] : sizes) {
    const std::size_t bytes = 24 * size;
    EXPECT_EQ(parse(one_tensor(dtype, "4,6", bytes), bytes).entries[0].dtype, dtype);
  }
  EXPECT_ERROR(parse(one_tensor("F8_E4M3", "4,6", 24), 24), DataError,
               R"(m.st: expected a known dtype for "w", got "F8_E4M3")");
}

TEST(ParseSafetensorsHeader, RefusesAHeaderOfAnotherSizeOrBeginning) {
  for (std::size_t size = 0; size < 8; ++size) {
    EXPECT_ERROR(parse(Bytes(size)), DataError,
                 "m.st: expected at least 8 bytes, got " + std::to_string(size));
  }
  EXPECT_ERROR(parse(Bytes(20, 0xff)), DataError, "got 18446744073709551615");
  Bytes file = safetensors_file("{}", 0);
  file[0] = 3;
  EXPECT_ERROR(parse(file), DataError, "a header inside the file of 10 bytes, got one of 3 bytes");
  EXPECT_ERROR(parse("", 0), DataError, "a header that begins with '{', got an empty");
  EXPECT_ERROR(parse(" {}", 0), DataError, "a header that begins with '{', got byte 0x20");
  const Bytes above_16_mib = {0x01, 0, 0, 0x01, 0, 0, 0, 0};
  EXPECT_ERROR(parse_safetensors_header(above_16_mib, 1ULL << 40, "m.st"), DataError,
               "a header of at most 16777216 bytes, got 16777217");
  std::string json = "{}";
  json.resize(16'777'216, ' ');
  EXPECT_TRUE(parse(json, 0).entries.empty());
}

// A header whose only tensor "w" has these values.
std::string with_values(const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

// What is refused in any JSON from elsewhere is in io/json_test.cpp: text that is no JSON, keys
// that occur twice, values of another kind.
TEST(ParseSafetensorsHeader, RefusesAnotherFormOfHeader) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}x", "valid JSON, got an error at byte "},
      {R"({"w":{"shape":[[0]]}})", "JSON of at most 3 levels, got more"},
      {R"({"w":null})", R"(an object as "w", got null)"},
      {R"({"__metadata__":{"a":1}})", R"(a text as "a" of "__metadata__", got 1)"},
      {with_values("1", "[]", "[0,0]"), R"(a text as "dtype" of "w", got 1)"},
      {with_values("\"U8\"", "[-1]", "[0,0]"),
       R"(an array of whole numbers from 0 to 2^62 as "shape" of "w", got [-1])"},
      {with_values("\"U8\"", "[0]", "{}"),
       R"(an array of whole numbers from 0 to 2^62 as "data_offsets" of "w", got {})"},
      {with_values("\"U8\"", "[0]", "[0]"), R"(two offsets as "data_offsets" of "w", got [0])"},
      {with_values("\"U8\"", "[0]", "[0,1,2]"), R"(two offsets as "data_offsets" of "w", got [0,)"},
      {R"({"w":{"device":"cpu"}})", R"(only dtype, shape, data_offsets of "w", got "device")"},
      {R"({"w":{"dtype":"U8","shape":[0]}})",
       R"(an array of whole numbers from 0 to 2^62 as "data_offsets" of "w", got none)"}};
  for (const auto& [json, message] : cases) {
    EXPECT_ERROR(parse(json, 0), DataError, "m.st: expected " + message);
  }
}

TEST(ParseSafetensorsHeader, RefusesALengthThatIsNotShapeTimesDtype) {
  EXPECT_ERROR(parse(one_tensor("F32", "4,6", 95), 95), DataError,
               R"(m.st: expected 96 bytes for "w", got the range 0 to 95)");
  EXPECT_ERROR(parse(one_tensor("U8", "1", 0, 1), 1), DataError,
               R"(m.st: expected 1 bytes for "w", got the range 1 to 0)");
}

TEST(ParseSafetensorsHeader, RefusesAShapeThatOverflows) {
  const std::string larger = R"(m.st: expected a shape that fits 64 bits for "w", got a larger)";
  std::string many = "0";
  for (int i = 0; i < 64; ++i) many += ",1";
  const std::vector<std::string> shapes = {
      "4294967296,4294967296", "4611686018427387904,2", "4611686018427387904",
      "0,4611686018427387904,4611686018427387904", many};  // a zero makes the product fit
  for (const auto& shape : shapes) {
    EXPECT_ERROR(parse(one_tensor("F32", shape, 0), 0), DataError, larger);
  }
  // 4294967295 · 4294967297 is 2^64 - 1, which is also 0 - 1 in 64 bits: too many to index.
  EXPECT_ERROR(parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                     R"("w":{"dtype":"U8","shape":[4294967295,4294967297],"data_offsets":[1,0]}})",
                     0),
               DataError, larger);
}

// Two tensors of two bytes each, the first of which begins at `first`, the second at `second`.
std::string two_tensors(int first, int second) {
  return fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}},)"
                     R"("b":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}}})",
                     first, first + 2, second, second + 2);
}

TEST(ParseSafetensorsHeader, RefusesHolesOverlapsAndADataPartOfAnotherSize) {
  EXPECT_EQ(parse(two_tensors(0, 2), 4).entries.size(), 2U);
  EXPECT_ERROR(parse(two_tensors(1, 3), 5), DataError, R"("a" to begin at byte 0, got 1)");
  EXPECT_ERROR(parse(two_tensors(0, 3), 5), DataError, R"("b" to begin at byte 2, got 3 (a hole)");
  EXPECT_ERROR(parse(two_tensors(0, 1), 3), DataError, R"(to begin at byte 2, got 1 (a hole or)");
  for (const std::size_t size : {31U, 33U}) {
    EXPECT_ERROR(parse(kTwoTensors, size), DataError,
                 "m.st: expected a data part of 32 bytes, got " + std::to_string(size));
  }
}

TEST(MakeSafetensorsHeader, WritesTheFormatByteForByte) {
  const std::string text = make_safetensors_header(
      {{"format", "pt"}}, {{.name = "w", .dtype = "F32", .shape = {2}, .begin = 0, .end = 8}});
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_EQ(json.size(), 85U);
  EXPECT_EQ(text, std::string("\x58\0\0\0\0\0\0\0", 8) + json + "   ");  // padded to 88
  EXPECT_EQ(make_safetensors_header({}, {}), std::string("\x08\0\0\0\0\0\0\0", 8) + "{}      ");
}

TEST(MakeSafetensorsHeader, KeepsTheOrderAndIsReadBack) {
  std::vector<TensorEntry> entries;
  for (std::uint64_t i = 0; i < 300; ++i) {
    entries.push_back({.name = "layer" + std::to_string(299 - i),
                       .dtype = "BF16",
                       .shape = {3, 1},
                       .begin = 6 * i,
                       .end = 6 * i + 6});
  }
  const std::string text = make_safetensors_header({}, entries);
  EXPECT_EQ(text.size() % 8, 0U);
  const auto header = parse_safetensors_header(bytes_of(text), text.size() + 1800, "m.st");
  EXPECT_EQ(header.data_offset, text.size());
  ASSERT_EQ(header.entries.size(), 300U);
  EXPECT_EQ(header.entries.front().name, "layer299");
  EXPECT_EQ(header.entries[100].begin, 600U);
  EXPECT_EQ(header.entries.back().name, "layer0");
}

TEST(MakeSafetensorsHeader, EscapesMetadataAndRefusesWhatCouldNotBeReadBack) {
  const std::string text = make_safetensors_header({{"quote\"", "line\n"}, {"path", "a\xff"}}, {});
  const auto metadata = parse(bytes_of(text)).metadata;
  EXPECT_EQ(metadata.at("quote\""), "line\n");
  EXPECT_EQ(metadata.at("path"), "a\xef\xbf\xbd") << "what is not UTF-8 is replaced";
  EXPECT_ERROR(make_safetensors_header({{"a", std::string(16'777'216, 'x')}}, {}), UsageError,
               "safetensors header: expected at most 16777216 bytes, got 16777248");
  for (const char* name : {"a\xff", "__metadata__"}) {
    EXPECT_ERROR(make_safetensors_header({}, {{name, "U8", {1}, 0, 1}}), UsageError,
                 "safetensors: expected tensor names in UTF-8 other than __metadata__, got ");
  }
}

}  // namespace
}  // namespace ladder
