// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/io/regular_file.h"

namespace ladder {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kShown = 80;  // bytes of a text or value in a message
constexpr std::int64_t kLargestCount = std::int64_t{1} << 62;

bool is_finite_number(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

// At most 2^62, so that a sum of two fits 64 bits.
bool is_count(const Json& value) {
  if (!value.is_number_integer()) return false;
  const auto number = value.get<std::int64_t>();  // negative for a number above 2^63
  return number >= 0 && number <= kLargestCount;
}

std::string ascii(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

void check_size(std::uint64_t bytes, const JsonLimits& limits, const JsonRefusal& refuse) {
  if (bytes <= limits.max_bytes) return;
  refuse(fmt::format("at most {} bytes", limits.max_bytes), fmt::format("{}", bytes));
}

// What nlohmann's parser accepts besides: documents of any depth, and a key twice in an object. It
// calls this for each value that it has read, so a limit ends it where it is passed.
class DocumentCheck {
 public:
  DocumentCheck(const JsonRefusal& refuse, int max_depth)
      : refuse_(refuse), max_depth_(max_depth) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& found) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth_) {
      refuse_(fmt::format("JSON of at most {} levels", max_depth_), "more");
    }
    if (event == Event::key && !keys_.back().insert(found.get<std::string>()).second) {
      refuse_("every key once", quoted_for_message(found.get<std::string>()) + " twice");
    }
    return true;
  }

 private:
  const JsonRefusal& refuse_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;  // of the open objects
};

}  // namespace

JsonRefusal json_data_error(std::string_view name, std::string_view hint) {
  return
      [name = std::string(name), hint = std::string(hint)](const auto& expected, const auto& got) {
        throw DataError::mismatch(name, expected, got, hint);
      };
}

Json parse_untrusted_json(std::string_view text, const JsonRefusal& refuse,
                          const JsonLimits& limits) {
  check_size(text.size(), limits, refuse);
  const auto zero = text.find('\0');  // nlohmann's parser takes it for the end of the text
  if (zero != text.npos) refuse("valid JSON", fmt::format("a zero byte at byte {}", zero + 1));
  try {
    return Json::parse(text, DocumentCheck(refuse, limits.max_depth));
  } catch (const Json::parse_error& error) {
    const auto before = text.substr(0, error.byte);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    refuse("valid JSON", fmt::format("an error at byte {}, line {}", error.byte, line));
  } catch (const Json::out_of_range&) {
    refuse("valid JSON", "a number that no double holds");
  }
  std::abort();  // a refusal throws
}

Json read_untrusted_json(const std::string& path) {
  const auto refuse = json_data_error(path);
  const JsonLimits limits;
  const auto file = open_data_file(path);
  check_size(file.bytes, limits, refuse);
  std::string text(file.bytes, '\0');
  if (const int error = read_at(file, 0, std::as_writable_bytes(std::span(text)))) {
    refuse("a readable file", std::generic_category().message(error));
  }
  return parse_untrusted_json(text, refuse, limits);
}

JsonReader::JsonReader(const Json& object, JsonRefusal refuse, std::string where)
    : object_(object), refuse_(std::move(refuse)), where_(std::move(where)) {
  if (!object.is_object()) JsonReader::refuse("an object", json_for_message(object));
}

void JsonReader::expect_only(const std::vector<std::string>& keys) const {
  for (const auto& item : object_.items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) != keys.end()) continue;
    refuse(fmt::format("only {}", fmt::join(keys, ", ")), quoted_for_message(item.key()));
  }
}

bool JsonReader::contains(std::string_view key) const { return object_.contains(key); }

const Json& JsonReader::value(std::string_view key) const {
  static const Json none;
  const auto found = object_.find(key);
  return found == object_.end() ? none : *found;
}

std::int64_t JsonReader::count(std::string_view key, std::int64_t most) const {
  const auto& found = value(key);
  if (is_count(found) && found.get<std::int64_t>() <= most) return found.get<std::int64_t>();
  const auto text = most == kLargestCount ? std::string("2^62") : fmt::format("{}", most);
  refuse_value(fmt::format("a whole number from 0 to {}", text), key);
}

double JsonReader::number(std::string_view key, double least) const {
  const auto& found = value(key);
  if (is_finite_number(found) && found.get<double>() >= least) return found.get<double>();
  refuse_value(std::isinf(least) ? "a number" : fmt::format("a number >= {}", least), key);
}

bool JsonReader::boolean(std::string_view key) const {
  const auto& found = value(key);
  if (!found.is_boolean()) refuse_value("true or false", key);
  return found.get<bool>();
}

const std::string& JsonReader::text(std::string_view key) const {
  const auto& found = value(key);
  if (!found.is_string()) refuse_value("a text", key);
  return found.get_ref<const std::string&>();
}

const Json& JsonReader::array(std::string_view key) const {
  const auto& found = value(key);
  if (!found.is_array()) refuse_value("an array", key);
  return found;
}

std::vector<double> JsonReader::numbers(std::string_view key, std::size_t size) const {
  const auto& found = value(key);
  if (found.is_array() && found.size() == size &&
      std::all_of(found.begin(), found.end(), is_finite_number)) {
    return found.get<std::vector<double>>();
  }
  refuse_value(fmt::format("an array of {} number{}", size, size == 1 ? "" : "s"), key);
}

std::vector<std::int64_t> JsonReader::counts(std::string_view key) const {
  const auto& found = value(key);
  if (found.is_array() && std::all_of(found.begin(), found.end(), is_count)) {
    return found.get<std::vector<std::int64_t>>();
  }
  refuse_value("an array of whole numbers from 0 to 2^62", key);
}

JsonReader JsonReader::object(std::string_view key) const {
  const auto& found = value(key);
  if (!found.is_object()) refuse_value("an object", key);
  return {found, refuse_, fmt::format(" of {}{}", quoted_for_message(key), where_)};
}

void JsonReader::refuse(const std::string& expected, const std::string& got) const {
  refuse_(expected + where_, got);
  std::abort();  // a refusal throws
}

void JsonReader::refuse_value(const std::string& what, std::string_view key) const {
  refuse(fmt::format("{} as {}", what, quoted_for_message(key)),
         contains(key) ? json_for_message(value(key)) : "none");
}

std::string quoted_for_message(std::string_view text) {
  return ascii(Json(text.substr(0, kShown)));
}

std::string json_for_message(const Json& value) { return ascii(value).substr(0, kShown); }

}  // namespace ladder
