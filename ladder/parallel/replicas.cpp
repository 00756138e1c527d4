// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/replicas.h"

#include <torch/autograd.h>
#include <torch/utils.h>

#include <map>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/nn/create_graph.h"
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

struct ReplicaNode : torch::autograd::Function<ReplicaNode> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const std::function<c10::intrusive_ptr<ReplicaPass>()>& make_pass,
                               const torch::Device& device, at::TensorList /*leaves*/) {
    const auto pass = make_pass();
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    return pass->joined_output(device);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradient) {
    refuse_create_graph("a model of several replicas");
    const auto capsule = context->saved_data["pass"].toCapsule();
    auto gradients = static_cast<const ReplicaPass&>(*capsule).backward(gradient.front());
    gradients.insert(gradients.begin(), 2, torch::Tensor());  // make_pass, device
    return gradients;
  }
};

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

ReplicaPass::ReplicaPass(const Inputs& whole, std::vector<Inputs> parts)
    : inputs(std::move(parts)), outputs(inputs.size()) {
  for (const auto& [name, tensor] : whole) devices.push_back(tensor.device());
}

void ReplicaPass::begin_part(std::size_t part, const Inputs& whole, const torch::Device& device,
                             bool with_grad) {
  for (const auto& [name, tensor] : whole) {
    const auto leaf = inputs[part].at(name).to(device).detach();
    inputs[part].set(name, leaf.set_requires_grad(with_grad && tensor.requires_grad()));
  }
}

Tensors ReplicaPass::leaves(std::size_t part, Tensors parameters) const {
  for (const auto& [name, input] : inputs[part]) {
    if (input.requires_grad()) parameters.push_back(input);
  }
  return parameters;
}

Tensors ReplicaPass::gradients_of_inputs(const std::vector<Tensors>& of_parts,
                                         const torch::Device& device) const {
  Tensors result(devices.size());
  if (inputs.empty()) return result;
  std::size_t input = 0;
  std::size_t leaf = 0;  // index among the inputs that need a gradient
  for (const auto& [name, first] : inputs.front()) {
    const auto& own_device = devices[input];
    auto& gradient = result[input++];
    if (!first.requires_grad()) continue;
    Tensors rows;
    for (std::size_t part = 0; part < of_parts.size(); ++part) {
      const auto& found = of_parts[part][leaf];
      rows.push_back(
          (found.defined() ? found : torch::zeros_like(inputs[part].at(name))).to(device));
    }
    gradient = torch::cat(rows).to(own_device);
    ++leaf;
  }
  return result;
}

torch::Tensor ReplicaPass::joined_output(const torch::Device& device) const {
  Tensors joined;
  for (const auto& output : outputs) {
    if (!output.defined() || output.dim() == 0) {
      throw UsageError::malformed("output of the model", "one row per sample",
                                  output.defined() ? "a scalar" : "no tensor",
                                  "return a value per sample, and take the mean outside");
    }
    joined.push_back(output.detach().to(device));
  }
  return joined.size() == 1 ? joined.front() : torch::cat(joined);
}

torch::Tensor apply_as_one_node(const std::function<c10::intrusive_ptr<ReplicaPass>()>& forward,
                                const torch::Device& device, const Tensors& leaves) {
  return ReplicaNode::apply(forward, device, at::TensorList(leaves));  // autograd sees no vector
}

}  // namespace ladder
