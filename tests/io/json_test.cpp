// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Json = nlohmann::json;

const JsonRefusal kRefuse = json_data_error("a.json", "try another");

Json parse(std::string_view text, const JsonLimits& limits = {}) {
  return parse_untrusted_json(text, kRefuse, limits);
}

std::string nested(int levels) {
  const auto count = static_cast<std::size_t>(levels);
  return std::string(count, '[') + std::string(count, ']');
}

TEST(ParseUntrustedJson, BuildsTheSameDocumentAsTheLibrary) {
  for (const std::string text :
       {R"({"a":[1,-2,2.5,"x",true,null,{},[]],"b":{"a":{"c":"é\n"}},"":18446744073709551615})",
        R"([[],[[1],{"a":[2]}],3])", "[]", "{}", "7", "\"x\"", "null", " [ 1 , 2 ] "}) {
    EXPECT_EQ(parse(text), Json::parse(text)) << text;
  }
}

TEST(ParseUntrustedJson, RefusesTextThatIsNotJsonWithItsPosition) {
  for (const std::string_view text : {"", "[", "[1", "[1,]", "{\"a\":}", "{} {}", "nul", "{a:1}",
                                      "// x", "\x80", "\"\xff\"", "[NaN]"}) {
    EXPECT_ERROR(parse(text), DataError, "a.json: expected valid JSON, got an error at byte ");
  }
  EXPECT_ERROR(parse("[1e999]"), DataError,
               "expected valid JSON, got a number that no double holds");
  EXPECT_ERROR(parse("{\n\"a\": 1,\n}"), DataError,
               "a.json: expected valid JSON, got an error at byte 11, line 3; hint: try another");
  EXPECT_ERROR(parse(std::string_view("[]\0x", 4)), DataError,
               "a.json: expected valid JSON, got a zero byte at byte 3");
}

TEST(ParseUntrustedJson, RefusesTextAboveTheLimitOfBytes) {
  EXPECT_EQ(parse("[1]", {.max_bytes = 3}), Json::array({1}));
  EXPECT_ERROR(parse("[1] ", {.max_bytes = 3}), DataError,
               "a.json: expected at most 3 bytes, got 4");
}

TEST(ParseUntrustedJson, RefusesDeepDocumentsBeforeTheyAreBuilt) {
  EXPECT_EQ(parse(nested(16)), Json::parse(nested(16)));
  EXPECT_ERROR(parse(nested(17)), DataError,
               "a.json: expected JSON of at most 16 levels, got more");
  EXPECT_ERROR(parse(R"({"a":{"b":{}}})", {.max_depth = 2}), DataError, "at most 2 levels");
  // The text is never closed: a parser that reads on would report its end.
  EXPECT_ERROR(parse(std::string(10'000'000, '[')), DataError, "at most 16 levels");
}

TEST(ParseUntrustedJson, RefusesAKeyTwiceInOneObject) {
  EXPECT_ERROR(parse(R"({"a":1,"b":{"a":1},"a":1})"), DataError,
               R"(a.json: expected every key once, got "a" twice)");
  EXPECT_ERROR(parse(R"([{"a":[{"b":1,"\u0062":1}]}])"), DataError, R"(got "b" twice)");
  EXPECT_NO_THROW(parse(R"([{"a":{"a":1}},{"a":1}])"));
}

TEST(ReadUntrustedJson, ReadsAFileUpTo64MiB) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.json", "[1]");
  EXPECT_EQ(read_untrusted_json(path), Json::array({1}));
  std::filesystem::resize_file(path, std::uintmax_t{64} << 20);  // by zeros
  EXPECT_ERROR(
      read_untrusted_json(path), DataError,
      path + ": expected valid JSON, got a zero byte at byte 4; hint: the file is damaged");
  std::filesystem::resize_file(path, (std::uintmax_t{64} << 20) + 1);
  EXPECT_ERROR(read_untrusted_json(path), DataError,
               path + ": expected at most 67108864 bytes, got 67108865");
  EXPECT_ERROR(read_untrusted_json(folder.file("none.json")), DataError,
               "none.json: expected a readable file, got none; hint: check the path: ls ");
}

// The object of `text`, read with " of b" at the end of each expectation.
template <typename Read>
auto read(const std::string& text, Read read_one) {
  const Json json = Json::parse(text);
  return read_one(JsonReader(json, kRefuse, " of b"));
}

TEST(JsonReader, RefusesWhatIsNotAnObject) {
  for (const std::string text : {"[]", "null", "7", "\"x\""}) {
    EXPECT_ERROR(JsonReader(Json::parse(text), kRefuse), DataError,
                 "a.json: expected an object, got " + text + "; hint: try another");
  }
}

TEST(JsonReader, ReadsValuesOfTheirForm) {
  const Json json = Json::parse(R"({"count":3,"number":-2.5,"whole":4,"yes":true,"text":"x",
      "numbers":[1,2.5],"counts":[0,4611686018427387904],"object":{"count":5},"null":null})");
  const JsonReader reader(json, kRefuse);
  EXPECT_EQ(reader.count("count"), 3);
  EXPECT_EQ(reader.number("number"), -2.5);
  EXPECT_EQ(reader.number("whole", 4.0), 4.0);
  EXPECT_TRUE(reader.boolean("yes"));
  EXPECT_EQ(reader.text("text"), "x");
  EXPECT_EQ(reader.array("numbers").size(), 2U);
  EXPECT_EQ(reader.numbers("numbers", 2), (std::vector<double>{1.0, 2.5}));
  EXPECT_EQ(reader.counts("counts"), (std::vector<std::int64_t>{0, std::int64_t{1} << 62}));
  EXPECT_EQ(reader.object("object").count("count"), 5);
  EXPECT_EQ(reader.value("text"), "x");
  EXPECT_TRUE(reader.value("none").is_null());
  EXPECT_TRUE(reader.contains("null"));
  EXPECT_FALSE(reader.contains("none"));
}

// Numbers that a program puts into a document are signed, and may be NaN, unlike those of a text.
TEST(JsonReader, ReadsDocumentsThatAProgramBuilds) {
  const Json json = {{"count", 3}, {"negative", -1}, {"nan", std::nan("")}};
  const JsonReader reader(json, kRefuse);
  EXPECT_EQ(reader.count("count"), 3);
  EXPECT_ERROR(reader.count("negative"), DataError, R"(as "negative", got -1)");
  EXPECT_ERROR(reader.number("nan"), DataError, R"(a number as "nan", got null)");
}

TEST(JsonReader, RefusesEveryOtherForm) {
  const auto expect_refused = [](const std::string& value, auto read_one, const std::string& text) {
    EXPECT_ERROR(read("{\"a\":" + value + "}", read_one), DataError,
                 "a.json: expected " + text + " as \"a\" of b, got " + value + "; hint: ");
  };
  const auto count = [](const JsonReader& reader) { reader.count("a"); };
  for (const char* value : {"-1", "1.0", "true", "\"1\"", "null", "[]", "4611686018427387905",
                            "9223372036854775808", "18446744073709551615"}) {
    expect_refused(value, count, "a whole number from 0 to 2^62");
  }
  for (const char* value : {"true", "\"1\"", "null", "[1]"}) {
    expect_refused(value, [](const auto& reader) { reader.number("a"); }, "a number");
  }
  expect_refused("-0.5", [](const auto& reader) { reader.number("a", 0.0); }, "a number >= 0");
  expect_refused("1", [](const auto& reader) { reader.boolean("a"); }, "true or false");
  expect_refused("1", [](const auto& reader) { reader.text("a"); }, "a text");
  expect_refused("{}", [](const auto& reader) { reader.array("a"); }, "an array");
  for (const char* value : {"1", "[]", "[1]", "[1,2,3]", "[1,\"2\"]", "[1,null]"}) {
    expect_refused(
        value, [](const auto& reader) { reader.numbers("a", 2); }, "an array of 2 numbers");
  }
  for (const char* value : {"1", "[-1]", "[1,0.5]", "[[1]]"}) {
    expect_refused(
        value, [](const auto& reader) { reader.counts("a"); },
        "an array of whole numbers from 0 to 2^62");
  }
  expect_refused("[]", [](const auto& reader) { reader.object("a"); }, "an object");
}

TEST(JsonReader, NamesAMissingValueAndAnUnknownKey) {
  EXPECT_ERROR(read("{}", [](const auto& reader) { reader.text("a"); }), DataError,
               R"(a.json: expected a text as "a" of b, got none)");
  const auto only = [](const auto& reader) { reader.expect_only({"a", "c"}); };
  EXPECT_NO_THROW(read(R"({"c":1})", only));
  EXPECT_ERROR(read(R"({"c":1,"d":2})", only), DataError,
               R"(a.json: expected only a, c of b, got "d")");
}

TEST(JsonReader, NamesTheObjectsAroundAValue) {
  EXPECT_ERROR(read(R"({"x":{"a":1}})", [](const auto& reader) { reader.object("x").text("a"); }),
               DataError, R"(a.json: expected a text as "a" of "x" of b, got 1)");
}

TEST(JsonReader, ReportsThroughTheGivenFunction) {
  const Json json = {{"a", 1}};
  const JsonReader reader(json, [](const std::string& expected, const std::string& got) {
    throw UsageError::malformed("kwargs", expected, got, "such as {}");
  });
  EXPECT_ERROR(reader.text("a"), UsageError, R"(kwargs: expected a text as "a", got '1')");
  EXPECT_ERROR(reader.refuse("this", "that"), UsageError, "kwargs: expected this, got 'that'");
}

TEST(JsonText, ReplacesWhatIsNoUtf8AndKeepsTheOrderOfKeys) {
  EXPECT_EQ(json_text(Json({{"b", "\xc3\xa9\xff"}, {"a", 1}})),
            "{\"a\":1,\"b\":\"\xc3\xa9\xef\xbf\xbd\"}");
  EXPECT_EQ(json_text(nlohmann::ordered_json({{"b", 2}, {"a", 1}}), 1),
            "{\n \"b\": 2,\n \"a\": 1\n}");
}

TEST(QuotedForMessage, IsOneShortLineOfAscii) {
  EXPECT_EQ(quoted_for_message("a\n\"b\""), R"("a\n\"b\"")");
  EXPECT_EQ(quoted_for_message("\xc3\xa9\x7f"), R"("\u00e9\u007f")");
  EXPECT_EQ(quoted_for_message("\xff"), R"("\ufffd")");
  EXPECT_EQ(quoted_for_message(std::string(1000, 'x')), '"' + std::string(80, 'x') + '"');
  EXPECT_EQ(json_for_message(Json::parse(R"(["é",{}])")), R"(["\u00e9",{}])");
  EXPECT_EQ(json_for_message(std::string(1000, 'x')).size(), 80U);
}

}  // namespace
}  // namespace ladder
