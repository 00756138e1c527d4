// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Untrusted JSON: checkpoints, headers of safetensors files, files of training arguments.
//
//     const auto refuse = json_data_error("sampler.json");
//     const auto json = parse_untrusted_json(text, refuse);
//     const JsonReader state(json, refuse);
//     const std::int64_t epoch = state.count("epoch");
//
// Parsing enforces size, depth and unique keys; JsonReader checks the form of each value. Both
// report every problem through one function:
//
//     sampler.json: expected a whole number from 0 to 2^62 as "epoch", got -1; hint: ...

// Throws the error of a text or value that has another form than expected. Must throw.
using JsonRefusal = std::function<void(const std::string& expected, const std::string& got)>;

// Throws a DataError (exit code 3) that begins with `name`.
JsonRefusal json_data_error(
    std::string_view name,
    std::string_view hint = "the file is damaged: resume from an older checkpoint");

struct JsonLimits {
  std::uint64_t max_bytes = std::uint64_t{64} << 20;  // of the text
  int max_depth = 16;                                 // arrays and objects inside each other
};

// Parses strict JSON. Refuses text above the limits, a zero byte, and an object with the same key
// twice, as soon as the parser reaches it: a deeper document is never built. Takes memory of up to
// 40 times the text. Printing or copying a document recurses as deep as it is nested.
nlohmann::json parse_untrusted_json(std::string_view text, const JsonRefusal& refuse,
                                    const JsonLimits& limits = {});

// The same for a file, with a DataError that begins with `path`. A missing file is no JSON either.
nlohmann::json read_untrusted_json(const std::string& path);

// Reads one JSON object, with a check of each value. Every member refuses a value of another form;
// a missing one is "none". Refers to `object`, which must outlive the reader.
class JsonReader {
 public:
  // Refuses what is not an object. `where` ends each expectation, for example " in group 0".
  JsonReader(const nlohmann::json& object, JsonRefusal refuse, std::string where = "");

  // Refuses keys other than these.
  void expect_only(const std::vector<std::string>& keys) const;

  bool contains(std::string_view key) const;
  // Null if the key is missing.
  const nlohmann::json& value(std::string_view key) const;

  // A whole number from 0 to `most`.
  std::int64_t count(std::string_view key, std::int64_t most = std::int64_t{1} << 62) const;
  // A finite number, at least `least`.
  double number(std::string_view key,
                double least = -std::numeric_limits<double>::infinity()) const;
  bool boolean(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  // An array of any values.
  const nlohmann::json& array(std::string_view key) const;
  // An array of finite numbers, or of whole numbers from 0 to 2^62. `size` is their number.
  std::vector<double> numbers(std::string_view key, std::size_t size) const;
  std::vector<std::int64_t> counts(std::string_view key) const;
  // A reader of the object under `key`.
  JsonReader object(std::string_view key) const;

  // Throws the error "expected `expected` in group 0, got `got`".
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const;
  // The same for the value of a key: "expected `what` as "key" in group 0, got null".
  [[noreturn]] void refuse_value(const std::string& what, std::string_view key) const;

 private:
  const nlohmann::json& object_;
  JsonRefusal refuse_;
  std::string where_;
};

// `value` as text, on one line or indented. Bytes that are not UTF-8, as a path may have them,
// become U+FFFD; dump() would throw.
template <typename Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// Untrusted text for a message: in quotes, on one line, in ASCII, at most its first 80 bytes.
std::string quoted_for_message(std::string_view text);
// The beginning of an untrusted value for a message, in the same way.
std::string json_for_message(const nlohmann::json& value);

}  // namespace ladder
