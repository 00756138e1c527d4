// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/checkpoint_manifest.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

const std::string kDigest(64, 'a');

CheckpointManifest parse(std::string_view json) {
  return parse_checkpoint_manifest(
      std::span(reinterpret_cast<const std::uint8_t*>(json.data()), json.size()),
      json_data_error("c/manifest.json", "try another"));
}

// A manifest with this text as its files.
std::string with_files(const std::string& files) {
  return R"({"format": "ladder checkpoint", "version": 1, "files": )" + files + "}";
}

std::string with_file(const std::string& name, const std::string& digest) {
  return with_files("{\"" + name + "\": " + digest + "}");
}

std::string with_digest(const std::string& digest) { return with_file("m.bin", digest); }

TEST(CheckpointManifest, ReadsWhatItWritesInTheFormOfTheDocuments) {
  const CheckpointManifest manifest = {{"model.safetensors", {4'800, kDigest}},
                                       {"rng_10.json", {0, std::string(64, '0')}}};
  EXPECT_EQ(parse(make_checkpoint_manifest(manifest)), manifest);
  EXPECT_EQ(parse(make_checkpoint_manifest({})), CheckpointManifest());
  EXPECT_EQ(make_checkpoint_manifest({{"m.bin", {3, kDigest}}}), R"({
  "format": "ladder checkpoint",
  "version": 1,
  "files": {
    "m.bin": {
      "bytes": 3,
      "sha256": ")" + kDigest + R"("
    }
  }
}
)");
}

// What is refused in any JSON from elsewhere is in io/json_test.cpp; here are the form and limits
// of a manifest.
TEST(CheckpointManifest, RefusesEveryOtherForm) {
  const std::string valid = make_checkpoint_manifest({{"m.bin", {3, kDigest}}});
  const std::string format = R"({"format": "ladder checkpoint", "version": )";
  EXPECT_EQ(parse(format + R"(1, "files": {}})"), CheckpointManifest());
  const std::string of_m = R"( of "m.bin" of "files", got )";
  std::vector<std::pair<std::string, std::string>> cases = {
      {valid.substr(0, valid.size() - 2), "valid JSON"},
      {with_digest(R"({"bytes": {"bytes": 1}})"), "JSON of at most 3 levels"},
      {R"({"format": "web app", "version": 1, "files": {}})",
       R"("ladder checkpoint" as "format", got "web app")"},
      {format + R"(2, "files": {}})", R"(1 as "version", got 2)"},
      {R"({"name": "web app"})", R"(only format, version, files, got "name")"},
      {with_digest(R"({"bytes": 1, "files": 2})"), "only bytes, sha256" + of_m + "\"files\""},
      {with_digest(R"({"bytes": -1})"),
       "a whole number from 0 to 2^62 as \"bytes\"" + of_m + "-1; hint: try another"},
      {with_digest("{}"), "a whole number from 0 to 2^62 as \"bytes\"" + of_m + "none"},
      {with_digest(R"({"bytes": 1})"), "a text as \"sha256\"" + of_m + "none"}};
  for (const std::string& digest : {std::string(), std::string(63, 'a'), std::string(65, 'a'),
                                    std::string(64, 'A'), std::string(64, 'g')}) {
    cases.emplace_back(with_digest(R"({"bytes": 1, "sha256": ")" + digest + "\"}"),
                       R"(64 hexadecimal characters as "sha256" of "m.bin")");
  }
  for (const auto& [json, text] : cases) {
    EXPECT_ERROR(parse(json), DataError, "c/manifest.json: expected " + text);
  }
}

TEST(CheckpointManifest, RefusesTooMuch) {
  const std::string valid = make_checkpoint_manifest({{"m.bin", {3, kDigest}}});
  std::string padded = valid;
  padded.resize(kLargestManifest, ' ');
  EXPECT_EQ(parse(padded).size(), 1U);
  EXPECT_ERROR(parse(padded + ' '), DataError, "expected at most 4194304 bytes, got 4194305");

  CheckpointManifest many;
  for (int i = 0; i < 10'000; ++i) many[std::to_string(i)] = {1, kDigest};
  EXPECT_EQ(parse(make_checkpoint_manifest(many)), many);
  many["one"] = {1, kDigest};
  EXPECT_ERROR(parse(make_checkpoint_manifest(many)), DataError, "at most 10000 files, got 10001");
}

TEST(CheckpointManifest, RefusesNamesThatLeadElsewhere) {
  for (const char* name : {"", ".", "..", "../m.bin", "/etc/passwd", "a/b", "a\\\\b", ".hidden",
                           "-rf", "a b", "a\\u0000b", "a\\nb", "\\u00e9", "manifest.json"}) {
    EXPECT_ERROR(parse(with_file(name, R"({"bytes": 1, "sha256": ")" + kDigest + "\"}")), DataError,
                 "expected names of letters, digits, '.', '_' and '-', got \"");
  }
}

TEST(CheckpointManifest, AMessageIsOneShortLineWhateverTheNameHolds) {
  try {
    parse(with_file(std::string(100'000, 'x') + "\\n", "{}"));
    ADD_FAILURE() << "accepted";
  } catch (const DataError& error) {
    EXPECT_LT(std::string(error.what()).size(), 300U);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(IsCheckpointFileName, TakesPortableNames) {
  for (const char* name : {"model.safetensors", "rng_0.json", "A-9", "x", "0", "a..b"}) {
    EXPECT_TRUE(is_checkpoint_file_name(name)) << name;
  }
  EXPECT_TRUE(is_checkpoint_file_name(std::string(255, 'x')));
  EXPECT_FALSE(is_checkpoint_file_name(std::string(256, 'x')));
}

}  // namespace
}  // namespace ladder
