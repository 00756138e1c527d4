// SPDX-License-Identifier: Apache-2.0
#include "mnist/record.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Version.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/core.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "ladder/amp/precision.h"
#include "ladder/comm/sent_bytes.h"
#include "ladder/comm/texts.h"
#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/core/memory.h"
#include "ladder/core/text.h"
#include "ladder/core/versions.h"
#include "ladder/io/atomic_file.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"

namespace mnist {
namespace {

using namespace ladder;

std::int64_t parameter_count(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const auto& parameter : unique_tensors(model.parameters())) count += parameter.numel();
  return count;
}

// The peak of the device memory that this process allocated, over all GPUs; unset on the CPU.
std::optional<double> device_peak_bytes(const torch::Device& device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!device.is_cuda() || allocator == nullptr) return std::nullopt;
  std::int64_t sum = 0;
  for (c10::DeviceIndex index = 0; index < at::accelerator::deviceCount(); ++index) {
    sum += allocator->getDeviceStats(index).allocated_bytes[0].peak;  // 0: of all pools
  }
  return static_cast<double>(sum);
}

double rate(std::int64_t samples, double seconds) {
  return seconds > 0.0 ? static_cast<double>(samples) / seconds : 0.0;
}

}  // namespace

Record::Record(RecordOptions options, Recipe recipe, ProcessGroup group)
    : options_(std::move(options)),
      recipe_(std::move(recipe)),
      group_(std::move(group)),
      started_(options_.started.value_or(steady_seconds())),
      log_({.rank = group_.rank(), .world_size = group_.world_size(), .quiet = options_.quiet}) {
  if (!options_.metrics.empty() && group_.rank() == 0) {
    metrics_ = JsonLines(options_.metrics, "--metrics");
  }
}

void Record::begin(const RunSetup& setup, const DataLoader& train, const DataLoader& test,
                   const torch::nn::Module& model) {
  setup_ = setup;
  const std::int64_t parameters = parameter_count(model);
  if (!options_.save.empty() && group_.rank() == 0) {
    require_writable_folder("--save", options_.save, parameters * std::int64_t{sizeof(float)});
  }
  micro_batch_ = micro_batch_of(model);
  log_.info(
      fmt::format("{}: {} with {} parameters on {}{}, {} thread{} ({}), {}", options_.stage,
                  recipe_.name(), grouped_digits(parameters), setup.device.str(),
                  setup.precision == Precision::kFp32 ? "" : " in " + name_of(setup.precision),
                  setup.threads.threads, setup.threads.threads == 1 ? "" : "s",
                  setup.threads.reason, data_text(train, test)));
  if (group_.world_size() > 1) {
    // Each rank reads the files of its own machine, and computes with its instructions.
    require_agreement(group_, "data", {data_text(train, test)},
                      "give all ranks the same --data-root");
    require_agreement(
        group_, "instructions",
        {setup.device.is_cpu() ? at::get_cpu_capability() : "those of a GPU"},
        "give all ranks the same --device; ATEN_CPU_CAPABILITY=default for different CPUs");
    log_.info(fmt::format("{}; backend {}", group_.description(), group_.backend()));
  }
  if (micro_batch_ > 0) {
    log_.info(
        fmt::format("exact sums over micro-batches of {}: the same weights for any number of "
                    "ranks and threads with {} instructions",
                    micro_batch_, at::get_cpu_capability()));
  }
  write_header(train, test, parameters);
}

// MNIST's test set belongs to its training set; a set that is not MNIST's is named.
std::string Record::data_text(const DataLoader& train, const DataLoader& test) {
  const auto& tested = test.dataset().description();
  const bool is_unknown = tested.starts_with("unknown set");
  return train.dataset().description() + (is_unknown ? ", tested on " + tested : "");
}

void Record::write_header(const DataLoader& train, const DataLoader& test,
                          std::int64_t parameters) {
  nlohmann::ordered_json versions;
  for (const auto& [name, version] : library_versions()) versions[name] = version;
  for (const auto& [name, version] : options_.versions) versions[name] = version;
  auto flags = nlohmann::ordered_json::object();
  for (const auto& [name, value] : options_.flags) flags[name] = value;
  metrics_.write({{"record", "run"},
                  {"stage", options_.stage},
                  {"recipe", recipe_.name()},
                  {"world_size", group_.world_size()},
                  {"rank", group_.rank()},
                  {"backend", group_.backend()},
                  {"launch", group_.description()},
                  {"device", setup_.device.str()},
                  {"precision", name_of(setup_.precision)},
                  {"threads", setup_.threads.threads},
                  {"sums", flags.value("--sums", "fast")},
                  {"micro_batch", micro_batch_},
                  {"cpu_capability", at::get_cpu_capability()},
                  {"parameters", parameters},
                  {"data", data_text(train, test)},
                  {"train_size", train.dataset().size()},
                  {"test_size", test.dataset().size()},
                  {"epochs", recipe_.epochs()},
                  {"batch_size", recipe_.batch_size()},
                  {"eval_batch_size", recipe_.eval_batch_size()},
                  {"lr", recipe_.lr()},
                  {"head", recipe_.head() == Head::kLogits ? "logits" : "log-softmax"},
                  {"math", recipe_.math() == Math::kFast ? "fast" : "reference"},
                  {"mean", recipe_.normalization().mean},
                  {"std", recipe_.normalization().std},
                  {"seed", recipe_.seed()},
                  {"options", flags},
                  {"versions", versions}});
}

void Record::append(const nlohmann::ordered_json& record) {
  try {
    if (!failed_) metrics_.write(record);
  } catch (const SystemError& error) {
    log_.warn(error.what());
    failed_ = error;
  }
}

void Record::epoch(const EpochSummary& summary) {
  append({{"record", "epoch"},
          {"epoch", summary.epoch},
          {"steps", summary.steps},
          {"samples", summary.samples},
          {"train_loss", summary.train_loss},
          {"seconds", summary.seconds},
          {"samples_per_second", rate(summary.samples, summary.seconds)}});
}

void Record::log_loss(std::int64_t step, double loss) {
  append({{"record", "log"}, {"step", step}, {"loss", loss}});
}

void Record::result(const Evaluation& total, const TrainingTotals& training,
                    const torch::nn::Module& model, const std::map<std::string, double>& more) {
  const double peak_rss = sum_over_ranks(static_cast<double>(peak_rss_bytes()), group_);
  const double sent = sum_over_ranks(static_cast<double>(sent_bytes()), group_);
  const auto read = group_.all_gather_into_tensor(torch::tensor(read_bytes()));
  const auto device_peak = device_peak_bytes(setup_.device);
  const double device_peaks = sum_over_ranks(device_peak.value_or(0.0), group_);
  if (group_.rank() != 0) return;
  print_line(recipe_.accuracy_line(total.accuracy()));
  const double seconds = steady_seconds() - started_;
  print_line(fmt::format("time elapsed: {:.2f} seconds", seconds));
  nlohmann::ordered_json result = {
      {"record", "result"},
      {"stage", options_.stage},
      {"recipe", recipe_.name()},
      {"world_size", group_.world_size()},
      {"precision", name_of(setup_.precision)},
      {"device", setup_.device.str()},
      {"epochs", recipe_.epochs()},
      {"steps", training.steps},
      {"accuracy", total.accuracy()},
      {"correct", total.correct},
      {"seen", total.seen},
      {"train_loss", training.train_loss},
      {"eval_loss", total.mean_loss()},
      {"train_seconds", training.train_seconds},
      {"total_seconds", seconds},
      {"first_step_at", training.first_step_at},
      {"warm_up_seconds", training.warm_up_seconds},
      {"samples_per_second", rate(training.samples, training.train_seconds)},
      {"peak_rss_bytes", static_cast<std::int64_t>(peak_rss)},
      {"sent_bytes", static_cast<std::int64_t>(sent)},
      {"read_bytes", std::vector(read.const_data_ptr<std::int64_t>(),
                                 read.const_data_ptr<std::int64_t>() + read.numel())},
      {"weights_sha256", weights_sha256(unwrapped_state_dict(model))}};
  // Several ranks evaluate in another order than that of the images.
  if (group_.world_size() == 1) {
    for (const auto& [index, prediction] : total.misclassified) {
      result["misclassified"].push_back({index, prediction});
    }
  }
  if (device_peak) result["device_peak_bytes"] = static_cast<std::int64_t>(device_peaks);
  for (const auto& [name, value] : more) result[name] = value;
  if (failed_) throw *failed_;
  metrics_.write(result);
}

}  // namespace mnist
