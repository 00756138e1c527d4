// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ladder/io/json.h"

namespace ladder::exported {

// What the JSON files of a .pt2 file have in common. Each function passes a value of another form
// to `refuse`. Source: torch/_export/serde/schema.py of LibTorch 2.11.

// The hint for a damaged file.
inline constexpr const char* kExportAgain =
    "export the network again: python export_network.py NETWORK out.pt2";

// The only member of a union, such as {"as_int": 3}.
struct Union {
  const std::string& kind;
  const nlohmann::json& value;
};
Union union_of(const nlohmann::json& json, const JsonRefusal& refuse);

std::int64_t integer_of(const nlohmann::json& json, const JsonRefusal& refuse);
double real_of(const nlohmann::json& json, const JsonRefusal& refuse);
torch::ScalarType dtype_of(const nlohmann::json& json, const JsonRefusal& refuse);
torch::MemoryFormat memory_format_of(const nlohmann::json& json, const JsonRefusal& refuse);

}  // namespace ladder::exported
