// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace ladder {

// JSON of a checkpoint, of which nothing is believed. Whatever is of another form is a DataError,
// which begins with `origin`.

// The value that `text` holds. Nested at most 16 levels deep: printing or copying a value goes as
// deep into the stack as the value is nested.
nlohmann::json parse_saved_json(std::string_view text, std::string_view origin);

// The value of `name`; null if there is none.
nlohmann::json saved_value(const nlohmann::json& state, std::string_view name);

// A whole number from 0 to 2^62.
std::int64_t saved_count(const nlohmann::json& state, std::string_view name,
                         std::string_view origin);

// A finite number, 0 or above.
double saved_number(const nlohmann::json& state, std::string_view name, std::string_view origin);

}  // namespace ladder
