// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ladder {

// Numbers and words of a text.

// The number that the whole text is, or nothing: "12", "-3", and for floating point "1e-3", "inf".
// No blanks, no sign '+', no suffix.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stopped == end ? std::optional(value) : std::nullopt;
}

// A flag by Python's rule: y, yes, t, true, on, 1 or n, no, f, false, off, 0, in upper or lower
// case. Throws UsageError, which begins with `where`, for everything else.
bool parse_bool(std::string_view where, std::string_view text);

// Throws UsageError, which begins with `where`, for a path that begins with "--", or is a word such
// as "false" or "none": on a command line and in a configuration they stand for no path.
void require_path(std::string_view where, std::string_view path);

// Throws UsageError, which begins with `where`, for a name of a safetensors file that Python takes
// for a pickle of torch.save: .pt, .pth, .bin, .ckpt, .pkl or .tar. The hint is a command of
// `converter`.
void require_no_pickle_name(std::string_view where, const std::string& path,
                            std::string_view converter);

// The parts between separators, empty ones included: "a,,b" has three, "" has one.
std::vector<std::string> split(std::string_view text, char separator);

// Without the blanks at its ends.
std::string_view without_blanks(std::string_view text);

// The letters A to Z in lower case; all other bytes stay, in any locale.
std::string to_lower(std::string_view text);

// The first `longest` bytes, with "..." if there are more: for messages.
std::string shortened(std::string_view text, std::size_t longest = 80);

// "1,199,882". `number` >= 0.
std::string grouped_digits(std::int64_t number);

// count / by, rounded up. Both >= 0, `by` > 0.
constexpr std::int64_t ceil_div(std::int64_t count, std::int64_t by) {
  return (count + by - 1) / by;
}

}  // namespace ladder
