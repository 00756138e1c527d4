// SPDX-License-Identifier: Apache-2.0
// Measures what each rank has in memory, by what it is, and what it sends per step: for one
// process, DistributedDataParallel and each way to divide, on 1, 2 and 4 ranks over Gloo.
//   build/bin/divided_memory stack            one JSON object per line, in bytes per rank
//
// Bytes are those that LibTorch allocated for tensors. A step has forward, backward and step;
// activations are what a forward added besides whole units.
#include <c10/core/CPUAllocator.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ladder/comm/init_process_group.h"
#include "ladder/comm/sent_bytes.h"
#include "ladder/core/device.h"
#include "ladder/launch/exit_status.h"
#include "ladder/launch/spawn.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"
#include "ladder/parallel/pipeline_stage.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"
#include "mnist/networks.h"
#include "mnist/recipe.h"

namespace {

using namespace ladder;

constexpr std::int64_t kBatch = 64;
constexpr int kWarmUpSteps = 2;  // DistributedDataParallel builds its buckets again in the second
constexpr int kSteps = 4;
constexpr std::array<const char*, 6> kNames = {"weights",     "gradients", "state",
                                               "activations", "peak",      "sent_per_step"};

std::atomic<std::int64_t> allocated = 0;
std::atomic<std::int64_t> most_allocated = 0;

// LibTorch's own, with the size of each block before it.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const block = static_cast<char*>(std::aligned_alloc(kHead, round_up(bytes) + kHead));
    *reinterpret_cast<std::size_t*>(block) = bytes;
    const auto now = allocated += static_cast<std::int64_t>(bytes);
    for (auto most = most_allocated.load();
         most < now && !most_allocated.compare_exchange_weak(most, now);) {
    }
    return {block + kHead, block + kHead, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  static constexpr std::size_t kHead = 64;
  static std::size_t round_up(std::size_t bytes) { return (bytes + kHead - 1) / kHead * kHead; }
  static void release(void* data) {
    if (data == nullptr) return;
    auto* const block = static_cast<char*>(data) - kHead;
    allocated -= static_cast<std::int64_t>(*reinterpret_cast<std::size_t*>(block));
    std::free(block);
  }
};

// A training of one way, in parts.
struct Training {
  std::shared_ptr<Model> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<ZeroRedundancyOptimizer> zero;
  std::int64_t whole_after_forward = 0;
  std::int64_t kept = 0;  // by a forward, for its backward; of the last step

  void step(const mnist::Recipe& recipe, const Batch& batch, const ProcessGroup& group) {
    group.barrier();  // no message holds memory
    if (auto* const stage = dynamic_cast<PipelineStage*>(model.get())) {
      stage->step(batch,
                  [&](const auto& output, const auto& part) { return recipe.loss(output, part); });
    } else {
      const auto before = allocated.load();
      auto loss = recipe.loss(model->forward(batch.inputs), batch);
      kept = allocated - before - whole_after_forward;
      loss.backward();
    }
    optimizer->step();
  }
};

std::shared_ptr<Model> sharded(const std::shared_ptr<Model>& network, const ProcessGroup& group,
                               bool reshard) {
  return std::make_shared<FullyShardedDataParallel>(
      network, group, FullyShardedOptions{.reshard_after_forward = reshard, .prefetch = false});
}

using Ways = std::vector<std::pair<std::string, std::function<std::shared_ptr<Model>(
                                                    std::shared_ptr<Model>, const ProcessGroup&)>>>;
const Ways& ways() {
  static const Ways all = {
      {"ddp",
       [](auto network, const auto& group) {
         return std::make_shared<DistributedDataParallel>(network, group);
       }},
      {"zero1",
       [](auto network, const auto& group) {
         return std::make_shared<DistributedDataParallel>(network, group);
       }},
      {"zero2", [](auto network, const auto& group) { return sharded(network, group, false); }},
      {"zero3", [](auto network, const auto& group) { return sharded(network, group, true); }},
      {"pipeline", [](auto network, const auto& group) -> std::shared_ptr<Model> {
         mnist::keep_layers(*network, group.rank(), group.world_size());
         return std::make_shared<PipelineStage>(network, group);
       }}};
  return all;
}

Training training_of(const std::string& way, const mnist::Recipe& recipe,
                     const ProcessGroup& group) {
  Training training;
  torch::manual_seed(recipe.seed());
  for (const auto& [name, make] : ways()) {
    if (name == way) training.model = make(recipe.make_model(), group);
  }
  training.optimizer = recipe.make_optimizer(training.model->parameters());
  if (way == "zero1") {
    training.zero = std::make_shared<ZeroRedundancyOptimizer>(*training.optimizer, group);
  }
  if (way == "zero2") {
    for (const auto& unit : dynamic_cast<FullyShardedDataParallel&>(*training.model).units()) {
      training.whole_after_forward += unit.whole * static_cast<std::int64_t>(sizeof(float));
    }
  }
  return training;
}

Batch batch_of(const std::string& way, const ProcessGroup& group) {
  const auto rows = way == "pipeline" ? kBatch : kBatch / group.world_size();
  return {.inputs = torch::rand({rows, 1, 28, 28}),
          .targets = torch::zeros({rows}, torch::kInt64),
          .global_size = kBatch,
          .world_size = kBatch / rows};
}

std::int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  std::map<const void*, std::size_t> storages;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) {
      storages[tensor.storage().unsafeGetStorageImpl()] = tensor.storage().nbytes();
    }
  }
  std::int64_t total = 0;
  for (const auto& [storage, bytes] : storages) total += static_cast<std::int64_t>(bytes);
  return total;
}

std::int64_t state_bytes(const Training& training) {
  const auto& optimizer = dynamic_cast<const FusedOptimizer&>(*training.optimizer);
  std::vector<torch::Tensor> tensors;
  for (const auto& [name, tensor] : optimizer.state_dict(*training.model).tensors) {
    tensors.push_back(tensor);
  }
  return bytes_of(tensors);
}

// The numbers of kNames.
std::vector<std::int64_t> measured(const std::string& way, const mnist::Recipe& recipe,
                                   const ProcessGroup& group) {
  const auto batch = batch_of(way, group);
  const auto nothing = allocated.load();
  auto training = training_of(way, recipe, group);
  const auto parameters = training.model->parameters();
  const auto weights = bytes_of(parameters);
  training.step(recipe, batch, group);
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  const auto gradient_bytes = bytes_of(gradients);
  gradients.clear();
  const auto state = training.zero ? training.zero->state_bytes() : state_bytes(training);
  for (int i = 0; i < kWarmUpSteps; ++i) {
    training.optimizer->zero_grad();
    training.step(recipe, batch, group);
  }
  most_allocated = allocated.load();
  group.barrier();
  const auto sent = sent_bytes();
  for (int i = 0; i < kSteps; ++i) {
    training.optimizer->zero_grad();
    training.step(recipe, batch, group);
  }
  group.barrier();
  return {weights,       gradient_bytes,           state,
          training.kept, most_allocated - nothing, (sent_bytes() - sent) / kSteps};
}

void print(const std::string& way, const ProcessGroup& group,
           const std::vector<std::int64_t>& numbers) {
  const auto all = group.all_gather(torch::tensor(numbers));
  if (group.rank() != 0) return;
  std::string line = fmt::format(R"({{"way": "{}", "ranks": {})", way, group.world_size());
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    std::vector<std::int64_t> of_ranks;
    for (const auto& own : all) {
      of_ranks.push_back(own[static_cast<std::int64_t>(i)].item<std::int64_t>());
    }
    line += fmt::format(R"(, "{}": [{}])", kNames.at(i), fmt::join(of_ranks, ", "));
  }
  fmt::print("{}}}\n", line);
  std::fflush(stdout);
}

void run(const std::string& recipe_name) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  const auto group = init_process_group({.backend = "gloo"});
  prepare_process({.requested = 1, .local_world_size = group.local_world_size()});
  const mnist::Recipe recipe({.name = recipe_name}, group.world_size());
  for (const auto& [way, make] : ways()) print(way, group, measured(way, recipe, group));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string recipe = argc > 1 ? argv[1] : "stack";
  return call_and_report([&] {
    for (const int ranks : {1, 2, 4}) {
      spawn([&](int /*rank*/) { run(recipe); }, {.nprocs = ranks});
    }
  });
}
