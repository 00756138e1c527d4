// SPDX-License-Identifier: Apache-2.0
#include "ladder/observe/fingerprint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/io/sha256.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/fused_optimizer.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;

// Of the positions of each micro-batch: those of all ranks, in the order of the ranks, are the same
// for any number of them.
Json digests_of_micro_batches(const Batch& batch) {
  Json digests = Json::array();
  const std::int64_t size = batch.positions.size(0);
  for (std::int64_t begin = 0; begin < size; begin += batch.micro_batch) {
    const auto count = std::min(batch.micro_batch, size - begin);
    digests.push_back(tensor_digest(batch.positions.narrow(0, begin, count)));
  }
  return digests;
}

constexpr int kProjections = 4;
constexpr std::int64_t kShift = 101;  // of the signs from one projection to the next

// +1 and -1 by a hash of the index, as in tools/record_run.py.
torch::Tensor signs(std::int64_t count) {
  static std::mutex mutex;
  static torch::Tensor known = torch::empty({0}, torch::kDouble);
  const std::lock_guard lock(mutex);
  if (known.numel() < count) {
    auto hash = (torch::arange(count, torch::kInt64) * 0x9E3779B1).bitwise_and(0xFFFFFFFF);
    hash = (hash.bitwise_xor(hash.bitwise_right_shift(15)) * 0x45D9F3B).bitwise_and(0xFFFFFFFF);
    known = hash.bitwise_right_shift(16).bitwise_and(1).to(torch::kDouble) * 2 - 1;
  }
  return known.narrow(0, 0, count);
}

using Projections = std::array<double, kProjections>;

torch::Tensor flat_double(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU, torch::kDouble).reshape(-1);
}

// Linear in the tensor, so those of a sum are the sum of those of its terms.
Projections projections(const torch::Tensor& flat) {
  const auto all = signs(flat.numel() + kProjections * kShift);
  Projections found{};
  for (int k = 0; k < kProjections; ++k) {
    found[static_cast<std::size_t>(k)] =
        flat.dot(all.narrow(0, k * kShift, flat.numel())).item<double>();
  }
  return found;
}

Json sketch(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  const auto flat = flat_double(tensor);
  Json numbers = Json::array({flat.norm().item<double>()});
  for (const double number : projections(flat)) numbers.push_back(number);
  return numbers;
}

void add_weights(Json& record, const torch::nn::Module& module) {
  Json hashes = Json::object();
  Json sketches = Json::object();
  for (const auto& [name, tensor] : unwrapped_state_dict(module)) {
    hashes[name] = tensor_digest(tensor);
    sketches[name] = sketch(tensor);
  }
  record["weights"] = hashes;
  record["sketches"]["weights"] = sketches;
}

// Without the zeros at the end of a row: how far sequences are padded depends on their batch.
Json digests_of_rows(const torch::Tensor& input) {
  constexpr std::size_t kDigits = 8;
  Json rows = Json::array();
  for (std::int64_t row = 0; row < input.size(0); ++row) {
    const RowMajorBytes all(input[row]);
    auto bytes = all.span();
    while (!bytes.empty() && bytes.back() == std::byte{0}) bytes = bytes.first(bytes.size() - 1);
    rows.push_back(sha256_hex(bytes).substr(0, kDigits));
  }
  return rows;
}

// Learning rates of the last step of each optimizer of this process since the last record.
struct Rates {
  std::mutex mutex;
  std::vector<std::pair<const torch::optim::Optimizer*, std::vector<double>>> of_optimizers;
};

Rates& noted_rates() {
  static Rates noted;
  return noted;
}

void note_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  auto& [mutex, of_optimizers] = noted_rates();
  const std::lock_guard lock(mutex);
  std::erase_if(of_optimizers, [&](const auto& one) { return one.first == &optimizer; });
  of_optimizers.emplace_back(&optimizer, std::move(rates));
}

std::vector<double> take_rates() {
  auto& [mutex, of_optimizers] = noted_rates();
  const std::lock_guard lock(mutex);
  std::vector<double> all;
  for (const auto& [_, rates] : std::exchange(of_optimizers, {})) {
    all.insert(all.end(), rates.begin(), rates.end());
  }
  return all;
}

}  // namespace

struct Fingerprint::Local {
  std::mutex mutex;
  bool records = false;                     // whether the next step is one to record
  std::map<std::string, Projections> sums;  // over the backward passes of a step
};

Fingerprint::Fingerprint(const std::string& path, std::int64_t interval, int rank, int world_size)
    : interval_(interval),
      rank_(rank),
      world_size_(world_size),
      local_(std::make_shared<Local>()),
      window_(Json::object()) {
  if (interval <= 0)
    throw UsageError::out_of_range("fingerprint", interval, "a number > 0", "1 records each step");
  file_ = JsonLines(path, "fingerprint");
}

Json Fingerprint::head(std::int64_t step, std::int64_t epoch) const {
  Json head = {{"step", step}, {"epoch", epoch}, {"rank", rank_}, {"world_size", world_size_}};
  if (!precision_.empty()) head["precision"] = precision_;
  return head;
}

void Fingerprint::watch(const torch::nn::Module& module, std::int64_t steps) {
  before_ = {{"step", steps}};
  add_weights(before_, module);
  check_before_steps(note_rates);
  local_->records = (steps + 1) % interval_ == 0;
  for (const auto& item : unwrapped(module).named_parameters()) {
    if (!item.value().is_cpu() || !item.value().requires_grad()) continue;
    const auto add_up = [local = local_, name = item.key()](const torch::Tensor& gradient) {
      if (!local->records) return;
      const torch::NoGradGuard no_grad;
      const auto found = projections(flat_double(gradient));
      const std::lock_guard lock(local->mutex);
      auto& sum = local->sums[name];
      for (std::size_t k = 0; k < kProjections; ++k) sum[k] += found[k];
    };
    item.value().register_hook(add_up);
  }
}

void Fingerprint::add(const Batch& batch, const torch::Tensor& loss) {
  const auto extend = [this](const char* name, const Json& more) {
    Json& list = window_[name];
    if (list.is_null()) list = Json::array();  // a rank without a sample has an empty one
    for (const auto& one : more) list.push_back(one);
  };
  extend("losses", Json::array({loss.item<double>()}));
  if (batch.indices.defined()) {
    const auto indices = batch.indices.contiguous();
    const auto* begin = indices.data_ptr<std::int64_t>();
    extend("samples", std::vector<std::int64_t>(begin, begin + indices.numel()));
  }
  if (!batch.inputs.empty()) extend("rows", digests_of_rows(batch.inputs.begin()->second));
}

void Fingerprint::record(std::int64_t step, const Batch& batch, const torch::Tensor& loss,
                         const torch::nn::Module& module, const Extras& extras) {
  const bool records = step % interval_ == 0;
  local_->records = (step + 1) % interval_ == 0;
  const auto stepped = take_rates();
  const auto& rates = extras.rates.empty() ? stepped : extras.rates;
  if (!records) {
    window_ = Json::object();
    return;
  }
  add(batch, loss);
  Json record = head(step, batch.epoch + 1);
  record["positions"] = tensor_digest(batch.positions);
  record["loss"] = tensor_digest(loss);
  record["loss_value"] = loss.item<double>();
  record["gradients"] = Json::object();
  Json sketches = {{"gradients", Json::object()}};
  for (const auto& item : unwrapped(module).named_parameters()) {
    const auto& gradient = item.value().grad();
    if (!gradient.defined()) continue;
    record["gradients"][item.key()] = tensor_digest(gradient);
    sketches["gradients"][item.key()] = sketch(gradient);
  }
  if (!local_->sums.empty()) sketches["local"] = std::exchange(local_->sums, {});
  record["sketches"] = sketches;
  add_weights(record, module);
  record["global_size"] = batch.global_size;
  record["random"] = tensor_digest(at::detail::getDefaultCPUGenerator().get_state());
  if (!rates.empty()) record["rates"] = rates;
  if (extras.scale) record["scale"] = *extras.scale;
  record.update(std::exchange(window_, Json::object()));
  if (!before_.is_null()) record["before"] = std::exchange(before_, nullptr);
  if (batch.micro_batch > 0) {
    record["micro_batch"] = batch.micro_batch;
    record["positions_of_micro_batches"] = digests_of_micro_batches(batch);
  }
  file_.write(record);
  has_recorded_ = true;
}

void Fingerprint::begin_epoch(const EpochStart& start) {
  if (const auto* module = std::exchange(module_, nullptr)) watch(*module, start.steps);
}

Verdict Fingerprint::step(const StepEvent& event) {
  if (event.updated) {
    record(event.step, event.batch, event.loss, event.model);
  } else if (event.step % interval_ == 0) {
    add(event.batch, event.loss);
  }
  return {};
}

Verdict Fingerprint::end() {
  if (!has_recorded_) {
    Log({.rank = rank_})
        .warn(fmt::format("fingerprint: nothing was recorded: it begins with step {}", interval_));
  }
  return {};
}

std::string Fingerprint::path_beside(const std::string& metrics_path, int rank) {
  constexpr std::string_view kSuffix = ".jsonl";
  std::string_view stem = metrics_path;
  if (stem.ends_with(kSuffix)) stem.remove_suffix(kSuffix.size());
  return fmt::format("{}.rank{}.jsonl", stem, rank);
}

}  // namespace ladder
