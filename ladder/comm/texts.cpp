// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/texts.h"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace ladder {

std::string broadcast_text(std::string text, const ProcessGroup& group, int from) {
  auto size = torch::tensor(std::ssize(text), torch::kInt64);
  group.broadcast(size, from);
  text.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
  if (text.empty()) return text;
  auto bytes = torch::from_blob(text.data(), {std::ssize(text)}, torch::kUInt8);
  group.broadcast(bytes, from);
  return text;
}

std::vector<std::string> all_gather_text(std::string text, const ProcessGroup& group) {
  const auto bytes = torch::from_blob(text.data(), {std::ssize(text)}, torch::kUInt8);
  std::vector<std::string> texts;
  for (const auto& gathered : group.all_gather(bytes)) {
    const auto contiguous = gathered.contiguous();
    const auto* first = contiguous.const_data_ptr<std::uint8_t>();
    texts.emplace_back(first, first + contiguous.numel());
  }
  return texts;
}

}  // namespace ladder
