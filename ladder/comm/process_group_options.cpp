// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/process_group_options.h"

namespace ladder {

std::map<std::string, std::string>& backend_names() {
  static std::map<std::string, std::string> names = {{"gloo", ""},
                                                     {"nccl", "with one GPU per rank"}};
  return names;
}

std::vector<std::string> backend_choices() {
  std::vector<std::string> choices = {"auto"};
  for (const auto& [name, condition] : backend_names()) choices.push_back(name);
  return choices;
}

std::string automatic_backends() {
  std::string text;
  for (const auto& [name, condition] : backend_names()) {
    if (condition.empty()) continue;
    text += (text.empty() ? "" : ", ") + name + " " + condition;
  }
  return text;
}

}  // namespace ladder
