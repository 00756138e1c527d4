// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/pipeline_stage.h"

#include <ATen/record_function.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/nn/random_scope.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/network_part.h"
#include "ladder/parallel/replicated_model.h"

namespace ladder {
namespace {

constexpr std::int64_t kMaxDims = 13;
constexpr std::size_t kMaxHashed = 1 << 16;

// Dtype, memory format, number of dimensions and sizes of a tensor, for a rank that does not know
// them: [3 + kMaxDims].
torch::Tensor form_of(const torch::Tensor& tensor, bool channels_last) {
  std::vector<std::int64_t> form = {static_cast<std::int64_t>(tensor.scalar_type()),
                                    channels_last ? 1 : 0, tensor.dim()};
  form.insert(form.end(), tensor.sizes().begin(), tensor.sizes().end());
  form.resize(3 + kMaxDims);
  return torch::tensor(form, torch::kInt64);
}

// `tensor` in the order of its memory: [N, H, W, C] for channels_last, whose strides the next layer
// computes with.
torch::Tensor in_memory_order(const torch::Tensor& tensor, bool channels_last) {
  return channels_last ? tensor.permute({0, 2, 3, 1}) : tensor;
}

bool is_channels_last(const torch::Tensor& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() &&
         tensor.is_contiguous(torch::MemoryFormat::ChannelsLast);
}

torch::Tensor empty_of(const torch::Tensor& form, const torch::Device& device) {
  const auto* numbers = form.const_data_ptr<std::int64_t>();
  const auto options = torch::dtype(static_cast<torch::ScalarType>(numbers[0]))
                           .device(device)
                           .memory_format(numbers[1] != 0 ? torch::MemoryFormat::ChannelsLast
                                                          : torch::MemoryFormat::Contiguous);
  return torch::empty(c10::IntArrayRef(numbers + 3, static_cast<std::size_t>(numbers[2])), options);
}

// At most `count` equal parts of whole units, the last one smaller, none empty, but one of an empty
// batch.
std::vector<Batch> micro_batches_of(const Batch& batch, std::int64_t count, std::int64_t unit) {
  const auto units = (batch.size() + unit - 1) / unit;
  const auto size = std::max<std::int64_t>((units + count - 1) / count, 1) * unit;
  std::vector<Batch> parts;
  for (std::int64_t begin = 0; begin == 0 || begin < batch.size(); begin += size) {
    const auto rows = std::min(size, batch.size() - begin);
    const auto part_of = [&](const torch::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, begin, rows) : tensor;
    };
    auto& part = parts.emplace_back(batch);
    part.inputs = batch.inputs.map(part_of);
    part.targets = part_of(batch.targets);
    part.positions = part_of(batch.positions);
    part.indices = part_of(batch.indices);
  }
  return parts;
}

// A hash of the first values of a tensor on the CPU; 0 of none, and of one on a GPU, which would
// wait.
std::int64_t hash_of(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return 0;
  const auto values = tensor.contiguous();
  const auto* const bytes = static_cast<const char*>(values.const_data_ptr());
  const auto hash = std::hash<std::string_view>{}({bytes, std::min(values.nbytes(), kMaxHashed)});
  return static_cast<std::int64_t>(hash | 1U);
}

torch::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

}  // namespace

PipelineStage::PipelineStage(std::shared_ptr<Model> layers, ProcessGroup group,
                             PipelineOptions options)
    : ModelWrapper(std::move(layers)), group_(std::move(group)), options_(options) {
  if (options_.micro_batches < 1) {
    throw UsageError::out_of_range("micro_batches", options_.micro_batches, "at least 1",
                                   "with 1 the stages work in turn");
  }
  mark_as_part(module_->parameters(), group_);
}

torch::Tensor PipelineStage::step(const Batch& batch, const Loss& loss) {
  batch_ = {batch.size(), options_.micro_batches, hash_of(batch.indices), hash_of(batch.targets)};
  const auto unit = std::max<std::int64_t>(micro_batch_of(*module_), 1);
  const auto parts = micro_batches_of(batch, options_.micro_batches, unit);
  const auto ahead = static_cast<std::size_t>(group_.world_size() - 1 - group_.rank());
  const bool alternates = options_.schedule == PipelineSchedule::k1F1B;
  const auto dtype = micro_batch_of(*module_) > 0 ? torch::kFloat64 : torch::kFloat32;
  auto total = torch::zeros({}, torch::dtype(dtype).device(device_of(*module_)));
  std::deque<InFlight> in_flight;
  const auto run_next_backward = [&] {
    run_backward(std::move(in_flight.front()));
    in_flight.pop_front();
  };
  auto* const replicated = dynamic_cast<ReplicatedModel*>(module_.get());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto run_next_forward = [&] { in_flight.push_back(run_forward(parts[i], loss)); };
    if (replicated != nullptr && i + 1 < parts.size()) {
      const auto no_sync = replicated->no_sync();
      run_next_forward();
    } else {
      run_next_forward();
    }
    most_in_flight_ = std::max(most_in_flight_, in_flight.size());
    if (is_last()) total += in_flight.back().output.detach();
    if (alternates && i >= ahead) run_next_backward();
  }
  while (!in_flight.empty()) run_next_backward();
  finish_sends();
  group_.broadcast(total, group_.world_size() - 1);
  return total;
}

PipelineStage::InFlight PipelineStage::run_forward(const Batch& part, const Loss& loss) {
  RECORD_USER_SCOPE("pipeline.forward");
  std::optional<RandomScope> random;
  if (const auto* const key = RandomScope::find()) {
    random.emplace(RandomKey{key->seed, key->epoch, part.positions});
  }
  InFlight micro_batch;
  if (is_first()) {
    micro_batch.output = module_->forward(part.inputs);
  } else {
    micro_batch.input = receive(group_.rank() - 1).requires_grad_();
    micro_batch.output = module_->forward(micro_batch.input);
  }
  if (is_last()) {
    micro_batch.output = loss(micro_batch.output, part);
  } else {
    send(micro_batch.output.detach(), group_.rank() + 1);
  }
  return micro_batch;
}

void PipelineStage::run_backward(InFlight micro_batch) {
  RECORD_USER_SCOPE("pipeline.backward");
  const auto gradient = is_last() ? torch::Tensor() : receive(group_.rank() + 1);
  auto& [input, output] = micro_batch;
  // Not of a first stage that is frozen, nor of one that ignores its input.
  if (is_last() || output.requires_grad()) output.backward(gradient);
  if (is_first()) return;
  send(input.grad().defined() ? input.grad() : torch::zeros_like(input), group_.rank() - 1);
}

torch::Tensor PipelineStage::forward(const Inputs& inputs) {
  const torch::NoGradGuard no_grad;
  const bool has_rows = inputs.begin() != inputs.end() && inputs.begin()->second.defined();
  batch_ = {has_rows ? inputs.rows() : 0};
  auto output =
      is_first() ? module_->forward(inputs) : module_->forward(receive(group_.rank() - 1));
  if (!is_last()) send(output, group_.rank() + 1);
  const int last = group_.world_size() - 1;
  for (int rank = 0; is_last() && rank < last; ++rank) send(output, rank);
  if (!is_last()) output = receive(last);
  finish_sends();
  return output;
}

void PipelineStage::send(const torch::Tensor& tensor, int dst) {
  if (tensor.dim() > kMaxDims) {
    throw UsageError::out_of_range("pipeline", tensor.dim(),
                                   fmt::format("outputs of at most {} dimensions", kMaxDims),
                                   "flatten the output of the stage");
  }
  const bool channels_last = is_channels_last(tensor);
  const auto of_batch = torch::tensor(at::ArrayRef(batch_), torch::kInt64);
  sends_.push_back(group_.isend(torch::cat({form_of(tensor, channels_last), of_batch}), dst));
  sends_.push_back(group_.isend(in_memory_order(tensor, channels_last), dst));
}

torch::Tensor PipelineStage::receive(int src) {
  auto form = torch::empty({3 + kMaxDims + std::ssize(batch_)}, torch::kInt64);
  group_.recv(form, src);
  require_same_batch(form.const_data_ptr<std::int64_t>() + 3 + kMaxDims, src);
  const auto tensor = empty_of(form, device_of(*module_));
  auto in_order = in_memory_order(tensor, is_channels_last(tensor));
  group_.recv(in_order, src);
  return tensor;
}

// What is unknown here counts as the sender knows it, for the next rank.
void PipelineStage::require_same_batch(const std::int64_t* sent, int src) {
  constexpr std::array<const char*, Identity().size()> kNames = {
      "samples", "micro_batches", "hash of indices", "hash of targets"};
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    if (batch_[i] == 0) batch_[i] = sent[i];
    if (batch_[i] == sent[i] || sent[i] == 0) continue;
    throw DistributedError::ranks_disagree(
        fmt::format("batch of the pipeline on rank {}", group_.rank()),
        fmt::format("{} {}, as on rank {}", kNames[i], sent[i], src),
        fmt::format("{} {}", kNames[i], batch_[i]),
        "give all ranks the same batch, from one data set in one order, and the same "
        "PipelineOptions");
  }
}

void PipelineStage::finish_sends() {
  for (auto& work : std::exchange(sends_, {})) work.wait();
}

void PipelineStage::copy_weights_to(torch::nn::Module& network) const {
  const torch::NoGradGuard no_grad;
  const auto own = unwrapped_state_dict(*module_);
  std::string names = "\n";
  for (const auto& [name, tensor] : own) names += name + "\n";
  const auto of_ranks = all_gather_text(names, group_);
  for (auto& [name, tensor] : state_dict(network)) {
    const auto owner = std::ranges::find_if(of_ranks, [&](const std::string& all) {
      return all.find("\n" + name + "\n") != std::string::npos;
    });
    if (owner == of_ranks.end()) {
      throw UsageError::conflict("pipeline", "no stage has " + name,
                                 "give the network that was cut into the stages");
    }
    const auto rank = static_cast<int>(owner - of_ranks.begin());
    if (rank == group_.rank()) tensor.copy_(own.at(name));
    group_.broadcast(tensor, rank);
  }
}

}  // namespace ladder
