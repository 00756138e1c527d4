// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/json_lines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

TEST(JsonLines, ARecordIsALineInTheOrderGiven) {
  const TemporaryFolder folder;
  JsonLines lines(folder.file("m.jsonl"));
  lines.write({{"stage", 0}, {"accuracy", 98.5}});
  lines.write({{"a", "two\nlines"}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"stage\":0,\"accuracy\":98.5}\n{\"a\":\"two\\nlines\"}\n");
}

TEST(JsonLines, TheFirstRecordEmptiesTheFileAndNotTheOpening) {
  const TemporaryFolder folder;
  folder.write("m.jsonl", "of an earlier run\n");
  JsonLines lines(folder.file("m.jsonl"));
  EXPECT_EQ(folder.read("m.jsonl"), "of an earlier run\n");
  lines.write({{"a", 1}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"a\":1}\n");
}

TEST(JsonLines, OldRecordsAreKeptOnDemand) {
  const TemporaryFolder folder;
  folder.write("m.jsonl", "{\"a\":1}\n");
  JsonLines lines(folder.file("m.jsonl"), "metrics", OldRecords::kKeep);
  lines.write({{"a", 2}});
  lines.write({{"a", 3}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
}

TEST(JsonLines, NumbersThatAreNotFiniteBecomeNull) {
  const TemporaryFolder folder;
  JsonLines lines(folder.file("m.jsonl"));
  lines.write({{"loss", NAN}, {"norm", INFINITY}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"loss\":null,\"norm\":null}\n");
}

TEST(JsonLines, TextThatIsNotUtf8IsReplaced) {
  const TemporaryFolder folder;
  JsonLines lines(folder.file("m.jsonl"));
  lines.write({{"path", "a\xff"}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"path\":\"a\xef\xbf\xbd\"}\n");
}

TEST(JsonLines, WithoutAPathNothingIsWritten) {
  JsonLines lines;
  EXPECT_NO_THROW(lines.write({{"a", 1}}));
}

TEST(JsonLines, MovesWithItsFile) {
  const TemporaryFolder folder;
  JsonLines first(folder.file("m.jsonl"));
  first.write({{"a", 1}});
  JsonLines second;
  second = std::move(first);
  second.write({{"a", 2}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"a\":1}\n{\"a\":2}\n");
}

TEST(JsonLines, AMissingFolderIsAUsageErrorNamingThePath) {
  const TemporaryFolder folder;
  const std::string path = folder.file("nowhere/m.jsonl");
  EXPECT_ERROR(JsonLines(path, "metrics"), UsageError,
               "metrics: expected a file that can be written, got '" + path +
                   "'; hint: No such file or directory: create the folder first");
  EXPECT_ERROR(JsonLines{folder.path()}, UsageError, "hint: Is a directory: name another file");
}

TEST(JsonLines, AFullDiskIsASystemErrorWithAHint) {
  JsonLines lines("/dev/full");
  EXPECT_ERROR(lines.write({{"a", 1}}), SystemError,
               "/dev/full: write: No space left on device; hint: free some space");
  EXPECT_ERROR(lines.write({{"a", std::string(100'000, 'x')}}), SystemError,
               "/dev/full: write: No space left on device");
}

}  // namespace
}  // namespace ladder
