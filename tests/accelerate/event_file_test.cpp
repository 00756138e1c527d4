// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/event_file.h"

#include <gtest/gtest.h>

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

using std::string_literals::operator""s;

std::uint64_t number(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8U | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::uint64_t masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return static_cast<std::uint32_t>(((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U);
}

// The events of a file, whose frames are checked.
std::vector<std::string> events(const TemporaryFolder& folder) {
  std::vector<std::string> events;
  const auto names = folder.names();
  const std::string bytes = folder.read(names.at(0));
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const auto length = static_cast<std::size_t>(number(rest.substr(0, 8)));
    EXPECT_EQ(number(rest.substr(8, 4)), masked(rest.substr(0, 8)));
    EXPECT_EQ(number(rest.substr(12 + length, 4)), masked(rest.substr(12, length)));
    events.emplace_back(rest.substr(12, length));
    rest.remove_prefix(16 + length);
  }
  return events;
}

// Without the wall time: its key 0x09, and 8 bytes.
std::string without_time(const std::string& event) {
  EXPECT_EQ(event[0], '\x09');
  return event.substr(9);
}

TEST(Crc32c, IsThatOfRfc3720) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
}

TEST(EventFile, BeginsWithItsVersion) {
  const TemporaryFolder folder;
  const EventFile file(folder.path());
  EXPECT_EQ(without_time(events(folder).at(0)), "\x1a\x0d"s + "brain.Event:2");
}

TEST(EventFile, AnEventHasAStepAndAValueATag) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.scalars({{"loss", 0.5}, {"acc", 98.0}}, 300);
  EXPECT_EQ(without_time(events(folder).at(1)),
            "\x10\xac\x02"s +                                       // step: 300
                "\x2a\x19" +                                        // summary: 25 bytes
                "\x0a\x0a\x0a\x03" + "acc" + "\x15\0\0\xc4\x42"s +  // 98
                "\x0a\x0b\x0a\x04" + "loss" + "\x15\0\0\0\x3f"s);   // 0.5
}

TEST(EventFile, AllIsInTheFileWhenACallReturns) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  for (int step = 1; step <= 3; ++step) {
    file.scalars({{"loss", 1.0}}, step);
    EXPECT_EQ(events(folder).size(), static_cast<std::size_t>(step + 1));
  }
}

TEST(EventFile, TwoInOneSecondAreTwoFiles) {
  const TemporaryFolder folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(folder.names().size(), 2U);
  EXPECT_NE(first.path().find("/events.out.tfevents.1"), std::string::npos);
}

TEST(EventFile, AStepFrom128OnTakesTwoBytes) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.scalars({{"a", 0.0}}, 127);
  file.scalars({{"a", 0.0}}, 128);
  EXPECT_EQ(without_time(events(folder).at(1)).substr(0, 3), "\x10\x7f\x2a"s);
  EXPECT_EQ(without_time(events(folder).at(2)).substr(0, 4), "\x10\x80\x01\x2a"s);
}

TEST(EventFile, ANegativeStepIsTenBytesLong) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.scalars({{"a", 0.0}}, -1);
  EXPECT_EQ(without_time(events(folder).at(1)).substr(0, 12),
            "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x2a"s);
}

TEST(EventFile, AMissingFolderIsASystemError) {
  EXPECT_ERROR(EventFile("/nowhere"), SystemError, "open: No such file or directory");
}

}  // namespace
}  // namespace ladder
