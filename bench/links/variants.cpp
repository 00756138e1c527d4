// SPDX-License-Identifier: Apache-2.0
#include "bench/links/variants.h"

#include <array>
#include <utility>

#include "ladder/core/error.h"

namespace ladder::bench {
namespace {

constexpr int kAccumulation = 4;
constexpr double kOneBucket = 25.0;  // MiB: more than either network's gradients

const std::vector<Variant>& all_variants() {
  using enum Variant::Averaging;
  static const std::vector<Variant> variants = {
      {.name = "compute", .averaging = kNone},
      {.name = "compute-accumulation", .averaging = kNone, .accumulation = kAccumulation},
      {.name = "plain"},
      {.name = "bf16", .comm_hook = bf16_compress_hook()},
      {.name = "fp16", .comm_hook = fp16_compress_hook()},
      {.name = "accumulation", .accumulation = kAccumulation},
      {.name = "one-bucket", .bucket_cap_mb = kOneBucket},
      {.name = "no-overlap", .averaging = kByHand},
      {.name = "convnet-compute", .recipe = "convnet", .averaging = kNone},
      {.name = "convnet", .recipe = "convnet"},
  };
  return variants;
}

// Adds a span from its construction to its end.
class Stopwatch {
 public:
  Stopwatch(Spans* spans, const char* lane, std::int64_t bytes = 0)
      : spans_(spans), lane_(lane), bytes_(bytes), begin_(Spans::Clock::now()) {}
  ~Stopwatch() {
    if (spans_ != nullptr) spans_->add(lane_, begin_, Spans::Clock::now(), bytes_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Spans* spans_;
  const char* lane_;
  std::int64_t bytes_;
  Spans::Clock::time_point begin_;
};

}  // namespace

std::vector<std::string> variant_names() {
  std::vector<std::string> names;
  for (const auto& variant : all_variants()) names.push_back(variant.name);
  return names;
}

Variant variant_of(const std::string& name) {
  for (const auto& variant : all_variants()) {
    if (variant.name == name) return variant;
  }
  throw UsageError::unknown_name("--variants", name, variant_names());
}

VariantStep::VariantStep(Variant variant, const ProcessGroup& group, Spans* spans)
    : variant_(std::move(variant)), group_(group), spans_(spans) {
  const std::int64_t batch_size = Recipe({.name = variant_.recipe}).batch_size();
  TrainingStepOptions options = {.recipe = variant_.recipe,
                                 .batch_size = batch_size / group.world_size()};
  if (variant_.averaging == Variant::Averaging::kWrapper) {
    options.group = group;
    options.reducer = {.bucket_cap_mb = variant_.bucket_cap_mb, .comm_hook = variant_.comm_hook};
    if (spans != nullptr) {
      options.reducer.comm_hook = spans->watched(variant_.comm_hook.value_or(allreduce_hook()));
    }
  }
  step_ = std::make_unique<TrainingStep>(options);
}

void VariantStep::run() {
  if (spans_ != nullptr) spans_->begin_step();
  step_->model().zero_grad();
  for (int i = 1; i < variant_.accumulation; ++i) {
    if (step_->ddp() == nullptr) {
      backward();
    } else {
      const auto pause = step_->ddp()->no_sync();
      backward();
    }
  }
  backward();
  if (variant_.averaging == Variant::Averaging::kByHand) average_by_hand();
  const Stopwatch watch(spans_, "optimizer");
  step_->optimizer().step();
}

void VariantStep::backward() {
  torch::Tensor loss;
  {
    const Stopwatch watch(spans_, "forward");
    loss = step_->loss();
  }
  const Stopwatch watch(spans_, "backward");
  loss.backward();
}

void VariantStep::average_by_hand() {
  for (const auto& parameter : step_->model().parameters()) {
    auto gradient = parameter.grad();
    const Stopwatch watch(spans_, "wire", static_cast<std::int64_t>(gradient.nbytes()));
    group_.all_reduce(gradient);
    gradient.div_(group_.world_size());
  }
}

std::vector<std::int64_t> VariantStep::message_bytes() {
  std::vector<std::int64_t> sizes;
  if (variant_.averaging == Variant::Averaging::kWrapper) {
    sizes = step_->ddp()->reducer().bucket_bytes();
  } else if (variant_.averaging == Variant::Averaging::kByHand) {
    for (const auto& parameter : step_->model().parameters()) {
      sizes.push_back(static_cast<std::int64_t>(parameter.nbytes()));
    }
  }
  return sizes;
}

}  // namespace ladder::bench
