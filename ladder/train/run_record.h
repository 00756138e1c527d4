// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "ladder/comm/process_group.h"
#include "ladder/core/json_lines.h"
#include "ladder/core/log.h"
#include "ladder/core/precision.h"
#include "ladder/core/progress.h"
#include "ladder/core/threads.h"
#include "ladder/data/batch.h"
#include "ladder/data/data_loader.h"
#include "ladder/train/evaluate.h"
#include "ladder/train/fingerprint.h"
#include "ladder/train/loss_meter.h"
#include "ladder/train/recipe.h"
#include "ladder/train/run_record_options.h"
#include "ladder/train/stop_request.h"
#include "ladder/train/trace.h"

namespace ladder {

// How a run saves what it can go on from, if it can: Accelerator::setup fills it in. Each returns
// the folder.
struct RunCheckpoints {
  std::function<std::string()> save;  // a collective; empty = a run that is told to stop saves none
  std::function<std::string()> last;  // what was saved or loaded last, or ""; may be empty
};

// What a run is about to do; goes into the log line and the header of the record.
struct RunSetup {
  torch::Device device = torch::kCPU;
  Precision precision = Precision::kFp32;
  ThreadChoice threads = {1, ""};  // of this process, and where the number comes from
  RunCheckpoints checkpoints = {};
};

// Tells how a run goes, to people and to files: log, progress, loss guard, metrics, result lines.
//
// A stage calls it at the same places in the same order: begin, then for each epoch begin_epoch,
// step after every optimizer step, end_epoch, then begin_testing and finish. The clock of
// `time elapsed` starts when it is made, so make it first: reading the data counts.
//
// All ranks call it alike. Rank 0 alone prints and writes the metrics; what it prints are sums over
// the ranks, so end_epoch and finish are collectives. So are step, now and then, and begin_testing,
// which ask whether a rank was told to stop.
//
// Result lines go to the standard output, log and progress to the standard error. With --metrics
// the same is written as JSON lines: a "run" header, an "epoch" record each and a "result"; see
// docs/formats.md.
//
// From begin to begin_testing, SIGINT and SIGTERM end the run after a step, the same on all ranks,
// with a checkpoint if it has any: see StopRequest. Before and after that they act as ever.
class RunRecord {
 public:
  // Steps of the optimizer in which libraries choose kernels and memory is fetched.
  static constexpr std::int64_t kWarmUpSteps = 20;

  // Opens the metrics file. Throws UsageError when its folder is missing, and when fingerprints
  // are asked for without a metrics file to put them beside.
  RunRecord(RunRecordOptions options, Recipe recipe, ProcessGroup group = ProcessGroup::single());

  const Log& log() const { return log_; }

  void begin(const RunSetup& setup, const DataLoader& train, const DataLoader& test,
             const torch::nn::Module& model);
  // Epochs count from 1. `done`: batches of it that were trained before a resume.
  void begin_epoch(std::int64_t epoch, std::int64_t done = 0);

  // Takes note of one training step; call it after optimizer.step() and before zero_grad().
  // `updated`: whether the optimizer stepped; false for all but the last batch of an accumulation
  // window.
  //
  // When the loss of a rank is not finite, all throw in the same step of the optimizer: that rank
  // a NumericError, the others a DistributedError (LossMeter says how they know). In fp16, where
  // the scaler makes infinite gradients on purpose, the others lose that rank in the next step. On
  // a GPU, up to 49 steps later. Throws Interruption, on all ranks, when one was told to stop.
  //
  // Takes the time of the first step and that of the first kWarmUpSteps: what a bench leaves out.
  void step(const Batch& batch, const torch::Tensor& loss, const torch::nn::Module& model,
            bool updated = true);

  // Steps of the optimizer so far, those before a resume included.
  std::int64_t steps() const { return steps_; }

  // Whether the last step() was an optimizer's, and the `steps`-th, twice `steps`-th and so on;
  // never for 0.
  bool every(std::int64_t steps) const { return updated_ && steps > 0 && steps_ % steps == 0; }

  // Mean over the samples of all ranks, of the epoch or of what was trained of it since a resume.
  double train_loss() const { return train_loss_; }

  // Writes a "log" record: a mean loss over the last steps, as a Trainer logs it.
  void log_loss(double loss);

  void end_epoch();
  // Throws Interruption, on all ranks, when one was told to stop.
  void begin_testing();

  // Prints accuracy and time and writes the result record. `total` counts all ranks. `more`:
  // further numbers for the record, by name.
  void finish(const Evaluation& total, const torch::nn::Module& model,
              const std::map<std::string, double>& more = {});

  // What the result counts over the whole run, for a checkpoint, and back: see
  // Accelerator::register_for_checkpointing. DataError naming `origin`.
  nlohmann::json state_dict() const;
  std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin);

 private:
  void look_at_loss(const Batch& batch, const torch::Tensor& loss, const torch::nn::Module& model);
  std::string last_checkpoint() const;
  void stop_if_told(bool now = false);
  void write_header(const DataLoader& train, const DataLoader& test, std::int64_t parameters);
  void print(const std::string& line) const;  // on rank 0
  double open_epoch_seconds() const;          // since begin_epoch; 0 after end_epoch

  RunRecordOptions options_;
  Recipe recipe_;
  ProcessGroup group_;
  double started_;
  Log log_;
  JsonLines metrics_;
  Fingerprint fingerprint_;
  Trace trace_;
  RunSetup setup_;
  std::int64_t batches_ = 0;  // of this rank, in an epoch
  std::unique_ptr<LossMeter> loss_;
  torch::Tensor averaged_;           // the parameter whose gradient tells of other ranks' losses
  std::optional<BadStep> bad_step_;  // told when its accumulation window ends
  std::string bad_tensor_;           // of it
  std::optional<StopRequest> stop_;
  std::unique_ptr<Progress> progress_;
  std::int64_t epoch_ = 0;
  double epoch_started_ = 0.0;
  std::int64_t epoch_steps_ = 0;    // batches
  bool updated_ = false;            // by the last step()
  std::int64_t epoch_samples_ = 0;  // of all ranks
  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;
  double train_loss_ = std::numeric_limits<double>::quiet_NaN();  // of the last epoch, all ranks
  double train_seconds_ = 0.0;
  double first_step_at_ = std::numeric_limits<double>::quiet_NaN();    // on the steady clock
  double warm_up_seconds_ = std::numeric_limits<double>::quiet_NaN();  // of the first steps
};

}  // namespace ladder
