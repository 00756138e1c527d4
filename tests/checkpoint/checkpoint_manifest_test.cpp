// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/checkpoint_manifest.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

TEST(CheckpointManifest, ReadsWhatItWrites) {
  const CheckpointManifest manifest = {{"model.safetensors", {4'800, kDigest}},
                                       {"rng_10.json", {0, std::string(64, '0')}}};
  EXPECT_EQ(parse(make_checkpoint_manifest(manifest)), manifest);
  EXPECT_EQ(parse(make_checkpoint_manifest({})), CheckpointManifest());
}

TEST(CheckpointManifest, TheFormIsTheOneInTheDocuments) {
  EXPECT_EQ(make_checkpoint_manifest({{"m.bin", {3, kDigest}}}),
            "{\n"
            "  \"format\": \"ladder checkpoint\",\n"
            "  \"version\": 1,\n"
            "  \"files\": {\n"
            "    \"m.bin\": {\n"
            "      \"bytes\": 3,\n"
            "      \"sha256\": \"" +
                kDigest +
                "\"\n"
                "    }\n"
                "  }\n"
                "}\n");
}

TEST(CheckpointManifest, AnErrorHasPathExpectedGotAndHint) {
  EXPECT_ERROR(
      parse(with_digest(R"({"bytes": -1})")), DataError,
      "c/manifest.json: expected a whole number from 0 to 2^62 as \"bytes\" of \"m.bin\" of "
      "\"files\", got -1; hint: try another");
}

// What is refused in any JSON from elsewhere is in io/json_test.cpp; here are the form and limits
// of a manifest.
TEST(CheckpointManifest, RefusesWhatIsNotJsonOrTooDeep) {
  const std::string valid = make_checkpoint_manifest({{"m.bin", {3, kDigest}}});
  EXPECT_ERROR(parse(std::string_view(valid).substr(0, valid.size() - 2)), DataError,
               "expected valid JSON");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": {"bytes": 1}})")), DataError, "at most 3 levels");
}

TEST(CheckpointManifest, RefusesAnotherFormatAndAnotherVersion) {
  const auto with = [](const std::string& format, const std::string& version) {
    return R"({"format": )" + format + R"(, "version": )" + version + R"(, "files": {}})";
  };
  const std::string format = R"("ladder checkpoint")";
  EXPECT_EQ(parse(with(format, "1")), CheckpointManifest());
  EXPECT_ERROR(parse(R"({"format": "ladder checkpoint", "version": 1})"), DataError,
               R"(expected an object as "files", got none)");
  EXPECT_ERROR(parse(with(R"("web app")", "1")), DataError,
               R"(expected "ladder checkpoint" as "format", got "web app")");
  EXPECT_ERROR(parse(with(format, "2")), DataError, R"(expected 1 as "version", got 2)");
}

TEST(CheckpointManifest, RefusesUnknownKeys) {
  EXPECT_ERROR(parse(R"({"name": "web app"})"), DataError,
               R"(expected only format, version, files, got "name")");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 1, "files": 2})")), DataError,
               R"(expected only bytes, sha256 of "m.bin" of "files", got "files")");
}

TEST(CheckpointManifest, RefusesLengthsAndDigestsThatAreNone) {
  EXPECT_ERROR(parse(with_digest("{}")), DataError,
               R"(as "bytes" of "m.bin" of "files", got none)");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 1})")), DataError,
               R"(expected a text as "sha256" of "m.bin" of "files", got none)");
  for (const std::string& digest : {std::string(), std::string(63, 'a'), std::string(65, 'a'),
                                    std::string(64, 'A'), std::string(64, 'g')}) {
    EXPECT_ERROR(parse(with_digest(R"({"bytes": 1, "sha256": ")" + digest + "\"}")), DataError,
                 R"(expected 64 hexadecimal characters as "sha256" of "m.bin")");
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
