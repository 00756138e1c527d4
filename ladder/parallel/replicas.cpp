// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replicas.h"

#include "ladder/nn/random_scope.h"

namespace ladder {

void share_memory(const std::vector<torch::Tensor>& source,
                  const std::vector<torch::Tensor>& target) {
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (!target[i].is_alias_of(source[i])) target[i].set_data(source[i].detach());
  }
}

std::vector<std::optional<RandomKey>> divide_random_key(const std::vector<Inputs>& parts) {
  const RandomKey* whole = RandomScope::find();
  std::vector<std::optional<RandomKey>> keys(parts.size());
  std::int64_t begin = 0;
  for (std::size_t i = 0; whole != nullptr && i < parts.size(); ++i) {
    const auto size = parts[i].rows();
    keys[i] = RandomKey{whole->seed, whole->epoch, whole->positions.narrow(0, begin, size)};
    begin += size;
  }
  return keys;
}

}  // namespace ladder
