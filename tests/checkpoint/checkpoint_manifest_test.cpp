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
      std::span(reinterpret_cast<const std::uint8_t*>(json.data()), json.size()), "c/manifest.json",
      [] { return std::string("try another"); });
}

// A manifest with this text as its files.
std::string with_files(const std::string& files) {
  return R"({"format": "ladder checkpoint", "version": 1, "files": )" + files + "}";
}

std::string with_file(const std::string& name, const std::string& digest) {
  return with_files("{\"" + name + "\": " + digest + "}");
}

std::string with_digest(const std::string& digest) { return with_file("m.bin", digest); }

std::string repeated(int count, std::string_view text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

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

TEST(CheckpointManifest, TheOrderOfKeysDoesNotMatter) {
  EXPECT_EQ(parse(R"({"files":{"m.bin":{"sha256":")" + kDigest +
                  R"(","bytes":9223372036854775807}},"version":1,"format":"ladder checkpoint"})"),
            (CheckpointManifest{{"m.bin", {9'223'372'036'854'775'807U, kDigest}}}));
}

TEST(CheckpointManifest, AnErrorHasPathExpectedGotAndHint) {
  EXPECT_ERROR(parse(with_digest(R"({"bytes": -1})")), DataError,
               "c/manifest.json: expected a length for bytes of \"m.bin\", got a negative number; "
               "hint: try another");
}

TEST(CheckpointManifest, RefusesWhatIsNotJson) {
  const std::string valid = make_checkpoint_manifest({{"m.bin", {3, kDigest}}});
  EXPECT_ERROR(parse(""), DataError, "expected valid JSON, got an error at its byte 1");
  EXPECT_ERROR(parse("{"), DataError, "expected valid JSON, got an error at its byte 2");
  EXPECT_ERROR(parse(valid + "x"), DataError, "expected valid JSON");
  EXPECT_ERROR(parse(valid + std::string("\0{}", 3)), DataError,
               "expected valid JSON, got an error at its byte " + std::to_string(valid.size() + 1));
  EXPECT_ERROR(parse(std::string_view(valid).substr(0, valid.size() - 2)), DataError,
               "expected valid JSON");
  EXPECT_ERROR(parse("\x80\x04"
                     "a pickle"),
               DataError, "expected valid JSON");
}

TEST(CheckpointManifest, RefusesAnotherFormatAndAnotherVersion) {
  EXPECT_ERROR(parse("[]"), DataError, "expected an object, got an array");
  EXPECT_ERROR(parse("7"), DataError, "expected an object, got 7");
  EXPECT_ERROR(parse("{}"), DataError, "expected format, version and files, got less");
  EXPECT_ERROR(parse(R"({"version": 1, "files": {}})"), DataError, "format, version and files");
  EXPECT_ERROR(parse(R"({"format": "web app"})"), DataError,
               "expected format \"ladder checkpoint\", got \"web app\"");
  EXPECT_ERROR(parse(R"({"version": 2})"), DataError, "expected version 1, got 2");
  EXPECT_ERROR(parse(R"({"version": "1"})"), DataError, "expected version 1, got \"1\"");
  EXPECT_ERROR(parse(R"({"version": 1.0})"), DataError, "expected version 1, got a number that");
}

TEST(CheckpointManifest, RefusesUnknownKeysAndKeysTwice) {
  EXPECT_ERROR(parse(R"({"name": "web app"})"), DataError, "only known keys, got \"name\"");
  EXPECT_ERROR(parse(R"({"bytes": 1})"), DataError, "only known keys, got \"bytes\"");
  EXPECT_ERROR(parse(R"({"version": 1, "version": 1})"), DataError,
               "every key once, got \"version\" twice");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 1, "bytes": 1})")), DataError,
               "every key once, got \"bytes\" twice");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 1, "files": {}})")), DataError,
               "only known keys, got \"files\"");
  const std::string file = R"("m.bin": {"bytes": 1, "sha256": ")" + kDigest + "\"}";
  EXPECT_ERROR(parse(with_files("{" + file + "," + file + "}")), DataError,
               "every file once, got \"m.bin\" twice");
}

TEST(CheckpointManifest, RefusesLengthsAndDigestsThatAreNone) {
  EXPECT_ERROR(parse(with_files("[]")), DataError, "expected an object, got an array");
  EXPECT_ERROR(parse(with_files("null")), DataError, "expected an object, got null");
  EXPECT_ERROR(parse(with_digest("12")), DataError, "expected an object for \"m.bin\", got 12");
  EXPECT_ERROR(parse(with_digest("{}")), DataError, "bytes and sha256 for \"m.bin\", got less");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 1})")), DataError, "bytes and sha256 for");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": true})")), DataError, "got a truth value");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 9223372036854775808})")), DataError,
               "expected a length for bytes of \"m.bin\", got 9223372036854775808");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 18446744073709551616})")), DataError,
               "got a number that is not whole or too large");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": 1e400})")), DataError, "expected ");
  for (const std::string& digest : {std::string(), std::string(63, 'a'), std::string(65, 'a'),
                                    std::string(64, 'A'), std::string(64, 'g')}) {
    EXPECT_ERROR(parse(with_digest(R"({"bytes": 1, "sha256": ")" + digest + "\"}")), DataError,
                 "expected 64 hexadecimal characters for sha256 of \"m.bin\", got \"");
  }
}

TEST(CheckpointManifest, RefusesDeepNesting) {
  EXPECT_ERROR(parse(repeated(1'000'000, "[")), DataError, "expected an object, got an array");
  EXPECT_ERROR(parse(repeated(100'000, R"({"files":)")), DataError, "expected ");
  EXPECT_ERROR(parse(with_digest(R"({"bytes": {"bytes": 1}})")), DataError, "got an object");
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
  EXPECT_ERROR(parse(make_checkpoint_manifest(many)), DataError, "at most 10000 files, got more");
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
