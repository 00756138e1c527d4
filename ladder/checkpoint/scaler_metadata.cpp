// SPDX-License-Identifier: Apache-2.0
// Of safetensors.h: in a file of its own, so that weights need no scaler.

#include <nlohmann/json.hpp>

#include "ladder/amp/grad_scaler.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

constexpr const char* kScaler = "scaler";

}  // namespace

std::map<std::string, std::string> metadata_of(const GradScaler& scaler) {
  if (!scaler.is_enabled()) return {};
  return {{kScaler, scaler.state_dict().dump()}};
}

void load_scaler(GradScaler& scaler, const std::string& path) {
  if (!scaler.is_enabled()) return;
  const auto metadata = load_safetensors(path).metadata;
  const auto found = metadata.find(kScaler);
  if (found == metadata.end()) return;
  scaler.load_state_dict(parse_untrusted_json(found->second, json_data_error(path)), path);
}

}  // namespace ladder
