// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replicas.h"

#include <cstddef>
#include <map>

#include "ladder/nn/random_scope.h"

namespace ladder {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr std::size_t kBucketBytes = std::size_t{10} << 20U;

// Tensors of one dtype that travel together.
struct Bucket {
  std::vector<std::size_t> members;  // indices
  std::size_t bytes = 0;
};

std::vector<Bucket> buckets_of(const Tensors& tensors) {
  std::vector<Bucket> buckets;
  std::map<torch::ScalarType, std::size_t> last;  // bucket of a dtype
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const auto dtype = tensors[i].scalar_type();
    const auto size = tensors[i].nbytes();
    const auto found = last.find(dtype);
    if (found == last.end() || buckets[found->second].bytes + size > kBucketBytes) {
      last[dtype] = buckets.size();
      buckets.emplace_back();
    }
    auto& bucket = buckets[last[dtype]];
    bucket.members.push_back(i);
    bucket.bytes += size;
  }
  return buckets;
}

}  // namespace

void share_memory(const std::vector<torch::Tensor>& source,
                  const std::vector<torch::Tensor>& target) {
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (!target[i].is_alias_of(source[i])) target[i].set_data(source[i].detach());
  }
}

Tensors coalesced_to(const torch::Device& device, const Tensors& tensors) {
  Tensors result = tensors;
  for (const auto& bucket : buckets_of(tensors)) {
    Tensors together;
    for (const auto i : bucket.members) together.push_back(tensors[i]);
    const auto from = together.front().device();
    if (from == device) continue;
    // The host's end of a copy must be complete before the flat tensor goes.
    const bool without_host = !from.is_cpu() && !device.is_cpu();
    const auto flat = at::flatten_dense_tensors(together).to(device, without_host);
    const auto parts = at::unflatten_dense_tensors(flat, together);
    for (std::size_t k = 0; k < parts.size(); ++k) result[bucket.members[k]] = parts[k];
  }
  return result;
}

void copy_coalesced(const Tensors& source, const Tensors& target) {
  if (source.empty()) return;
  at::_foreach_copy_(target, coalesced_to(target.front().device(), source));
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
