// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/quoted.h"

#include <cstddef>
#include <nlohmann/json.hpp>

namespace ladder {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  using Json = nlohmann::ordered_json;
  return Json(text.substr(0, kLongest)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace ladder
