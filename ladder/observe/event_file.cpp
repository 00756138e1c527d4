// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "ladder/io/json.h"

namespace ladder {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // of Castagnoli, bits reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

// A CRC of data that contains CRCs is weak, so records store it rotated, plus a constant.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
}

template <typename Unsigned>
std::string little_endian(Unsigned number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(number); ++i) bytes += static_cast<char>(number >> (8 * i));
  return bytes;
}

// A message of Protocol Buffers: fields, each value after its number and kind.
class Message {
 public:
  Message& integer(std::uint32_t field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(std::uint32_t field, double value) {
    key(field, 1);
    bytes_ += little_endian(std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& bytes(std::uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(std::uint32_t field, const Message& value) { return bytes(field, value.bytes_); }
  Message& real32(std::uint32_t field, float value) {
    key(field, 5);
    bytes_ += little_endian(std::bit_cast<std::uint32_t>(value));
    return *this;
  }

  const std::string& encoded() const { return bytes_; }

 private:
  void key(std::uint32_t field, std::uint32_t kind) { varint(field << 3U | kind); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>(value | 0x80U);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

double seconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Protocol Buffers require UTF-8.
std::string utf8(std::string_view text) {
  return nlohmann::json::parse(json_text(nlohmann::json(text)));
}

// A SummaryMetadata: the plugin of TensorBoard for a value.
Message plugin(std::string_view name, const Message& content) {
  return Message().message(1, Message().bytes(1, name).message(2, content));
}

Message tagged(std::string_view tag) { return Message().bytes(1, utf8(tag)); }

// A google.protobuf.Value.
Message value_of(const nlohmann::ordered_json& value) {
  if (value.is_boolean()) return Message().integer(4, value.get<bool>() ? 1 : 0);
  if (value.is_number()) return Message().real(2, value.get<double>());
  if (value.is_string()) return Message().bytes(3, utf8(value.get_ref<const std::string&>()));
  return Message().integer(1, 0);
}

std::string hparams_summary(std::string_view tag, std::uint32_t field, const Message& info) {
  const Message hparams = plugin("hparams", Message().message(field, info));
  return Message().message(1, tagged(tag).message(9, hparams)).encoded();
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc = (crc >> 8U) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFFU];
  }
  return ~crc;
}

EventFile::EventFile(const std::string& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  const auto seconds = static_cast<std::int64_t>(seconds_since_1970());
  std::string path;
  std::error_code ignored;
  for (int count = 0; count == 0 || std::filesystem::exists(path, ignored); ++count) {
    path = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, seconds, host.data(),
                       ::getpid(), count);
  }
  file_ = AppendedFile(path, OldRecords::kRefuse);
  write_record(Message().real(1, seconds_since_1970()).bytes(3, "brain.Event:2").encoded());
}

void EventFile::continue_from(std::int64_t step) {
  const Message session = Message().integer(1, 1);  // a SessionLog with status START
  write_record(
      Message().real(1, seconds_since_1970()).integer(2, step).message(7, session).encoded());
}

void EventFile::scalars(const std::map<std::string, double>& values, std::int64_t step) {
  Message summary;
  for (const auto& [name, value] : values) {
    summary.message(1, tagged(name).real32(2, static_cast<float>(value)));
  }
  write_event(step, summary.encoded());
}

void EventFile::text(const std::string& tag, std::string_view markdown) {
  constexpr std::int64_t kString = 7;  // DT_STRING
  const Message shape = Message().message(2, Message().integer(1, 1));
  const Message tensor = Message().integer(1, kString).message(2, shape).bytes(8, utf8(markdown));
  const Message value =
      tagged(tag + "/text_summary").message(8, tensor).message(9, plugin("text", {}));
  write_event(0, Message().message(1, value).encoded());
}

void EventFile::hparams(const nlohmann::ordered_json& values) {
  Message start;
  for (const auto& [name, value] : values.items()) {
    start.message(1, Message().bytes(1, utf8(name)).message(2, value_of(value)));
  }
  start.real(5, seconds_since_1970());
  write_event(0, hparams_summary("_hparams_/session_start_info", 3, start));
}

void EventFile::hparams_end() {
  constexpr std::int64_t kSuccess = 1;  // STATUS_SUCCESS
  const Message end = Message().integer(1, kSuccess).real(2, seconds_since_1970());
  write_event(0, hparams_summary("_hparams_/session_end_info", 4, end));
}

void EventFile::write_event(std::int64_t step, std::string_view summary) {
  write_record(
      Message().real(1, seconds_since_1970()).integer(2, step).bytes(5, summary).encoded());
}

void EventFile::write_record(std::string_view event) {
  std::string record = little_endian(std::uint64_t{event.size()});
  record += little_endian(masked_crc(record));
  record += event;
  record += little_endian(masked_crc(event));
  file_.write(record);
}

}  // namespace ladder
