// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/appended_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_paths.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

TEST(JsonLines, ARecordIsALineInTheOrderGiven) {
  const TemporaryFolder folder;
  JsonLines lines;
  EXPECT_NO_THROW(lines.write({{"a", 1}})) << "without a path nothing is written";
  lines = JsonLines(folder.file("m.jsonl"));
  lines.write({{"stage", 0}, {"accuracy", 98.5}});
  lines.write({{"a", "two\nlines"}});
  lines.write({{"loss", NAN}, {"norm", INFINITY}});
  JsonLines moved = std::move(lines);
  moved.write({{"path", "not UTF-8: \xff"}});
  EXPECT_EQ(folder.read("m.jsonl"),
            "{\"stage\":0,\"accuracy\":98.5}\n{\"a\":\"two\\nlines\"}\n"
            "{\"loss\":null,\"norm\":null}\n{\"path\":\"not UTF-8: \xef\xbf\xbd\"}\n");
}

TEST(JsonLines, TheFirstRecordEmptiesTheFileAndNotTheOpening) {
  const TemporaryFolder folder;
  folder.write("m.jsonl", "of an earlier run\n");
  {
    JsonLines lines(folder.file("m.jsonl"));
    EXPECT_EQ(folder.read("m.jsonl"), "of an earlier run\n");
    lines.write({{"a", 1}});
    EXPECT_EQ(folder.read("m.jsonl"), "{\"a\":1}\n");
  }
  JsonLines more(folder.file("m.jsonl"), "metrics", OldRecords::kKeep);
  more.write({{"a", 2}});
  more.write({{"a", 3}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
  folder.write("m.jsonl", "");  // as another program may do
  more.write({{"a", 4}});
  EXPECT_EQ(folder.read("m.jsonl"), "{\"a\":4}\n") << "it goes on at its end";
}

TEST(JsonLines, APathThatIsNoFileIsAUsageErrorWithoutWaiting) {
  const TemporaryFolder folder;
  const auto expect_hint = [](const std::string& path, const std::string& hint) {
    EXPECT_ERROR(JsonLines(path, "metrics"), UsageError,
                 "metrics: expected a file that can be written, got '" + path + "'; hint: " + hint);
  };
  const std::string no_folder = "No such file or directory: create the folder first";
  expect_hint(folder.file("nowhere/m.jsonl"), no_folder);
  expect_hint(make_link(folder.file("dangling"), folder.file("nowhere/m")), no_folder);
  expect_hint(folder.path(), "Is a directory: name another file");
  const auto pipe = make_pipe(folder.file("pipe"));
  expect_hint(pipe, "it is a pipe without a reader: start one first: cat " + pipe + " &");
  expect_hint(make_socket(folder.file("socket")), "it is a socket: name another file");
  EXPECT_NO_THROW(JsonLines(make_link(folder.file("link"), folder.file("new")), "metrics"));
  EXPECT_NO_THROW(JsonLines("/dev/null", "metrics"));
}

TEST(JsonLines, APipeWithAReaderIsOpenedAtOnce) {
  const TemporaryFolder folder;
  const auto path = make_pipe(folder.file("pipe"));
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
  JsonLines lines(path);
  lines.write({{"a", 1}});
  lines.write({{"a", 2}});
  std::string text(100, '\0');
  text.resize(static_cast<std::size_t>(::read(reader.get(), text.data(), text.size())));
  EXPECT_EQ(text, "{\"a\":1}\n{\"a\":2}\n");
}

TEST(AppendedFile, AReaderThatDoesNotReadIsAnErrorAfterAWhile) {
  const TemporaryFolder folder;
  const auto path = make_pipe(folder.file("pipe"));
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
  AppendedFile file(path, OldRecords::kReplace, std::chrono::milliseconds(20));
  EXPECT_ERROR(file.write(std::string(1 << 20, 'x')), SystemError,
               path + ": write: Connection timed out; hint: its reader has read nothing for 0.02");
}

TEST(AppendedFile, AFileThatExistsIsEmptiedKeptOrRefused) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "old");
  EXPECT_ERROR(AppendedFile(path, OldRecords::kRefuse), SystemError, "open: File exists");
  EXPECT_EQ(AppendedFile(path, OldRecords::kKeep).size(), 3U);
  EXPECT_EQ(AppendedFile(path).size(), 0U);
  EXPECT_EQ(AppendedFile("/dev/null").size(), 0U);
  AppendedFile first(path);
  first.write("x");
  for (const auto old : {OldRecords::kReplace, OldRecords::kKeep}) {
    EXPECT_ERROR(AppendedFile(path, old), SystemError,
                 path + ": lock: Resource temporarily unavailable; hint: another run writes it");
  }
  EXPECT_EQ(folder.read("a"), "x");
}

TEST(JsonLines, AFullDiskIsASystemErrorWithAHint) {
  JsonLines lines("/dev/full");
  for (const std::size_t size : {1U, 100'000U}) {
    EXPECT_ERROR(lines.write({{"a", std::string(size, 'x')}}), SystemError,
                 "/dev/full: write: No space left on device; hint: its disk has no space");
  }
}

}  // namespace
}  // namespace ladder
