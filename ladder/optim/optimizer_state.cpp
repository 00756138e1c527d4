// SPDX-License-Identifier: Apache-2.0
#include "ladder/optim/optimizer_state.h"

#include <utility>

#include "ladder/checkpoint/saved_json.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr const char* kGroups = "groups";

}  // namespace

SafetensorsFile to_safetensors(const OptimizerState& state) {
  return {state.tensors, {{"format", "pt"}, {kGroups, state.groups.dump()}}};
}

OptimizerState optimizer_state_from(SafetensorsFile file, std::string_view origin) {
  const auto found = file.metadata.find(kGroups);
  const bool missing = found == file.metadata.end();
  auto groups = missing ? nlohmann::json() : parse_saved_json(found->second, origin);
  if (!groups.is_array()) {
    throw DataError::mismatch(origin, "a JSON array under groups in the metadata",
                              missing ? "none" : "something else",
                              "it must hold the state of an optimizer, not of a network");
  }
  return {std::move(file.tensors), std::move(groups)};
}

}  // namespace ladder
