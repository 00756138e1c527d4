// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/accelerate/accelerated_data_loader.h"
#include "ladder/accelerate/accelerated_optimizer.h"
#include "ladder/accelerate/accelerated_scheduler.h"
#include "ladder/accelerate/accelerator_options.h"
#include "ladder/accelerate/gradient_state.h"
#include "ladder/accelerate/operations.h"
#include "ladder/accelerate/trackers.h"
#include "ladder/accelerate/training_state.h"
#include "ladder/amp/autocast.h"
#include "ladder/amp/grad_scaler.h"
#include "ladder/comm/process_group.h"
#include "ladder/core/log.h"
#include "ladder/core/threads.h"
#include "ladder/data/data_loader.h"
#include "ladder/nn/model.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/parallel/gradient_reducer.h"
#include "ladder/train/evaluation.h"
#include "ladder/train/run_setup.h"

namespace ladder {

// Options of what the Accelerator builds. Python's counterpart: kwargs_handlers.
struct AcceleratorHandlers {
  GradientReducerOptions ddp = {};  // of DistributedDataParallel
  GradScalerOptions scaler = {};    // of fp16; `enabled` follows the precision
};

// A training loop that does not know how many devices there are.
//
//     Accelerator accelerator({.mixed_precision = Precision::kBf16});
//     auto network = std::make_shared<MyNet>();
//     auto adamw = std::make_unique<AdamW>(network->parameters());
//     auto [train, test, model, optimizer] =
//         accelerator.prepare(train_loader, test_loader, network, std::move(adamw));
//     for (const Batch& batch : train) {
//       const auto accumulation = accelerator.accumulate(*model);
//       const RandomScope random({seed, batch.epoch, batch.positions});
//       accelerator.backward(criterion(model->forward(batch.inputs), batch));
//       optimizer->step();
//       optimizer->zero_grad();
//     }
//
// The same program runs alone, under torchrun, mpirun, srun or `accelerate launch`, and under
// function_launcher. Construction reads who started it (see init_process_group), the environment
// and the configuration file (accelerate_config.h), and chooses device, precision and threads. It
// is a collective, and with more than one process must come after any fork.
//
// Not copied, not moved: prepared objects share its state, and must not outlive it in use.
// Functions are for one thread. What is a collective says so; every rank calls it.
//
// Python's counterpart, whose names these are: accelerate.Accelerator, version 1.15.
class Accelerator {
 public:
  // Throws UsageError for a configuration that contradicts itself, for what this library does not
  // do (see accelerate_config.h), and for fp16 without a GPU.
  explicit Accelerator(AcceleratorOptions options = {}, AcceleratorHandlers handlers = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // --- Who and where ---

  const ProcessGroup& process_group() const { return group_; }
  int num_processes() const { return group_.world_size(); }
  int process_index() const { return group_.rank(); }
  int local_process_index() const { return group_.local_rank(); }
  bool is_main_process() const { return group_.rank() == 0; }
  bool is_local_main_process() const { return group_.local_rank() == 0; }  // one a machine
  bool is_last_process() const { return group_.rank() + 1 == group_.world_size(); }
  bool use_distributed() const { return group_.world_size() > 1; }
  const torch::Device& device() const { return device_; }
  Precision mixed_precision() const { return config_.mixed_precision; }
  const ThreadChoice& threads() const { return threads_; }
  const Log& log() const { return log_; }
  // For a TrainingMonitor. With a project_dir, a run that is stopped by a signal saves its state
  // there.
  RunSetup setup();

  // --- Preparing ---

  // Makes each object fit for any number of processes, and returns them in the same order: a tuple,
  // or the object itself if there is one. Any number, any order, as often as wanted; what is
  // prepared already comes back as it is.
  //
  //     std::shared_ptr<Model>                   on the device, under autocast if the precision is
  //                                              mixed, and with several processes wrapped in
  //                                              DistributedDataParallel (a collective)
  //     unique or shared torch::optim::Optimizer an AcceleratedOptimizer
  //     unique or shared LrScheduler             an AcceleratedScheduler
  //     DataLoader                               an AcceleratedDataLoader
  //
  // A DataLoader is a value and is not recognised: prepare it once. Models of a class derived from
  // Model and the like are taken as well. BatchNorm stays local:
  // call convert_sync_batchnorm(*model, accelerator.process_group()) before.
  template <typename... Objects>
  auto prepare(Objects&&... objects) {
    if constexpr (sizeof...(Objects) == 1) {
      return (prepare_one(std::forward<Objects>(objects)), ...);
    } else {
      // Braces: prepared from left to right, in the same order on every rank.
      return std::tuple{prepare_one(std::forward<Objects>(objects))...};
    }
  }

  std::shared_ptr<Model> prepare_model(std::shared_ptr<Model> model);
  std::shared_ptr<AcceleratedOptimizer> prepare_optimizer(
      std::shared_ptr<torch::optim::Optimizer> optimizer);
  std::shared_ptr<AcceleratedScheduler> prepare_scheduler(std::shared_ptr<LrScheduler> scheduler);
  AcceleratedDataLoader prepare_data_loader(DataLoader loader);
  // The same without a place in checkpoints: for evaluations, which always begin at the beginning.
  AcceleratedDataLoader prepare_eval_loader(DataLoader loader) const;

  // The network without wrappers. `model` prepared, or not.
  static Model& unwrap_model(Model& model);

  // What `make` returns; with dispatch_batches, on the main process alone: the others get a data
  // set of the same size without samples. A collective.
  std::shared_ptr<const Dataset> load_dataset(
      const std::function<std::shared_ptr<const Dataset>()>& make) const;

  // `loader` without the first `batches` of every walk.
  static AcceleratedDataLoader skip_first_batches(const AcceleratedDataLoader& loader,
                                                  std::int64_t batches) {
    return loader.without_first(batches);
  }

  // --- The training loop ---

  // For one batch of an accumulation window. Decides whether a step follows it, and keeps the
  // gradients of these models at home if not. Make it before the forward; it must live until the
  // backward is done.
  class Accumulation {
   public:
    Accumulation() = default;

   private:
    friend class Accelerator;
    std::vector<std::unique_ptr<GradientReducer::NoSync>> pauses_;
  };
  template <std::derived_from<Model>... Models>
  [[nodiscard]] Accumulation accumulate(Models&... models) {
    gradients_->begin_batch();
    Accumulation accumulation;
    if (!sync_gradients() && !options_.gradient_accumulation.sync_each_batch) {
      (pause(models, accumulation), ...);
    }
    return accumulation;
  }

  // While it lives, backward averages nothing: for a loop that counts its windows itself.
  [[nodiscard]] static Accumulation no_sync(Model& model);

  // Whether a step follows the batch in hand.
  bool sync_gradients() const { return gradients_->sync_gradients(); }
  // The part of the batch in hand in the loss of its accumulation window, as backward weighs it.
  double loss_weight() const { return gradients_->loss_weight(); }
  int gradient_accumulation_steps() const { return gradients_->num_steps(); }
  void set_gradient_accumulation_steps(int steps) { gradients_->set_num_steps(steps); }

  // Ends an accumulation window that no step will follow, as when a loop is left in the middle of
  // one: its gradients are dropped.
  void drop_window();

  // Weighs the loss by its batch's part in the accumulation window, scales it for fp16, and calls
  // backward. `loss` is a mean over the batch of all processes (NumItems::mean): a plain mean
  // over this process's part is that only if all parts are of one size, and NaN for an empty one.
  //
  // The weight is the number of the batch's samples ÷ that of the window's. Python divides by the
  // number of steps, which makes the last window of an epoch too weak when it is short.
  void backward(const torch::Tensor& loss);

  // Divides the gradients of all prepared optimizers by the fp16 scale, once a step.
  void unscale_gradients();

  // Clips the gradients, when a step follows; does nothing in the middle of a window. Divides by
  // the fp16 scale first. Returns the norm before; undefined in the middle of a window.
  torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                                double norm_type = 2.0);
  void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double clip_value);

  // Mixed precision for operations outside of a prepared model's forward.
  [[nodiscard]] Autocast autocast() const;

  // Whether fp16 made the last step of any prepared optimizer skip. Waits for a GPU.
  bool optimizer_step_was_skipped() const;

  // The gradient scaler; not enabled unless the precision is fp16.
  GradScaler& scaler() { return *scaler_; }

  // --- Collectives over tensors, and structures of tensors (operations.h) ---

  // The rows of all processes, on every process.
  template <typename Structure>
  Structure gather(const Structure& data) const {
    return map_tensors(data, [this](const torch::Tensor& tensor) { return gather_one(tensor); });
  }

  // The same without the samples that even_batches repeated, in the order of the loader: one row a
  // sample, each sample once. For the batch in hand of a prepared loader. A tensor that has not one
  // row a sample, such as a mean, is refused: UsageError.
  template <typename Structure>
  Structure gather_for_metrics(const Structure& data) const {
    return map_tensors(data,
                       [this](const torch::Tensor& tensor) { return gather_samples(tensor); });
  }

  template <typename Structure>
  Structure reduce(const Structure& data, Reduction reduction = Reduction::kSum) const {
    return map_tensors(data, [&](const torch::Tensor& t) { return reduce_one(t, reduction); });
  }

  template <typename Structure>
  Structure broadcast(const Structure& data, int from_process = 0) const {
    return map_tensors(data,
                       [&](const torch::Tensor& t) { return broadcast_one(t, from_process); });
  }

  template <typename Structure>
  Structure pad_across_processes(const Structure& data, const PadOptions& options = {}) const {
    return map_tensors(data, [&](const torch::Tensor& t) { return pad_one(t, options); });
  }

  // --- Process control ---

  void wait_for_everyone() const { group_.barrier(); }

  // A line on the standard output, by the main process.
  void print(std::string_view line) const;

  // Runs `run` on the main process first and on the others when it has returned: to download or
  // unpack something once. A collective. A failure on the main process stops all.
  void main_process_first(const std::function<void()>& run) const;
  void local_main_process_first(const std::function<void()>& run) const;

  // Run on one process, and not waited for.
  void on_main_process(const std::function<void()>& run) const {
    if (is_main_process()) run();
  }
  void on_local_main_process(const std::function<void()>& run) const {
    if (is_local_main_process()) run();
  }
  void on_last_process(const std::function<void()>& run) const {
    if (is_last_process()) run();
  }
  void on_process(int process_index, const std::function<void()>& run) const {
    if (group_.rank() == process_index) run();
  }

  // This process's part of `items`: parts follow each other, the first ones longer by one where it
  // does not divide. With apply_padding, the last item is repeated until all are as long.
  template <typename Item>
  std::vector<Item> split_between_processes(const std::vector<Item>& items,
                                            bool apply_padding = false) const;

  // Forgets all that was prepared; what is still held elsewhere goes on working, but is in no
  // checkpoint. Registered objects stay.
  void free_memory();

  // A flag that one process raises and all see: to stop all when the loss of one is bad.
  // check_trigger tells whether any has raised it, and takes it down; a collective.
  void set_trigger() { trigger_ = true; }
  bool check_trigger();

  // --- Saving ---

  // The weights, without the prefix of any wrapper, by the main process: a safetensors file that
  // Python reads. A collective.
  void save_model(const Model& model, const std::string& path) const;

  // An object of yours that save_state saves and load_state loads. It has
  //     nlohmann::json state_dict() const;
  //     std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin);
  // the second checks the state, changes nothing, and returns what applies it; or it has, instead,
  //     void load_state_dict(const nlohmann::json& state, std::string_view origin);
  // Must outlive the Accelerator. `file`: its name in the checkpoint, such as "my_state.json"; else
  // custom_checkpoint_N.json, by the order of registration.
  template <typename Object>
  void register_for_checkpointing(Object& object, const std::string& file = "") {
    state_.custom.push_back(custom_state_of(object, file.empty() ? next_custom_file() : file));
  }

  // Writes a checkpoint: prepared models, optimizers, schedulers, loaders' places, the scaler, the
  // random generators of every process, and registered objects. To `path`, or to the next
  // project_dir/checkpoints/checkpoint_N, where older ones beyond total_limit are removed. Returns
  // the folder. A collective.
  //
  // Written whole or not at all; see checkpoint_folder.h. UsageError in the middle of an
  // accumulation window, whose gradients would be lost.
  std::string save_state(const std::string& path = "", const SaveStateOptions& options = {});

  // Takes a checkpoint back: `path`, or the last of a folder of them, or of a project_dir.
  // Everything is checked before anything is changed, also that it fits what is prepared.
  // DataError, UsageError. Call it when all is prepared and before the first batch. A collective.
  // Returns the checkpoint's folder.
  //
  // The run then goes on as if it had not been interrupted, to the last bit, if threads, loader
  // mode and number of processes are as they were; at three processes and more, sums over the
  // ranks may differ in their last bits (docs/design.md). With another number of processes, the
  // random generators stay as they are, and a log line says so; a place in the middle of an epoch
  // is then taken in global mode only.
  std::string load_state(const std::string& path = "");

  // The checkpoint that this object has written or loaded last; empty if none.
  const std::string& last_checkpoint() const { return last_checkpoint_; }

  // --- Trackers: numbers over time, written by the main process ---

  // Starts the trackers of AcceleratorOptions::log_with; after load_state they go on with the files
  // that are there.
  void init_trackers(const std::string& project_name, const nlohmann::ordered_json& config = {});
  void log(const std::map<std::string, double>& values, std::int64_t step);
  // Closes the trackers and waits for everyone. A collective.
  void end_training();

  const AcceleratorOptions& options() const { return options_; }

 private:
  std::shared_ptr<Model> prepare_one(std::shared_ptr<Model> model) {
    return prepare_model(std::move(model));
  }
  std::shared_ptr<AcceleratedOptimizer> prepare_one(
      std::shared_ptr<torch::optim::Optimizer> optimizer) {
    return prepare_optimizer(std::move(optimizer));
  }
  std::shared_ptr<AcceleratedScheduler> prepare_one(std::shared_ptr<LrScheduler> scheduler) {
    return prepare_scheduler(std::move(scheduler));
  }
  AcceleratedDataLoader prepare_one(DataLoader loader) {
    return prepare_data_loader(std::move(loader));
  }
  static std::shared_ptr<AcceleratedOptimizer> prepare_one(
      std::shared_ptr<AcceleratedOptimizer> optimizer) {
    return optimizer;
  }
  static std::shared_ptr<AcceleratedScheduler> prepare_one(
      std::shared_ptr<AcceleratedScheduler> scheduler) {
    return scheduler;
  }
  static AcceleratedDataLoader prepare_one(AcceleratedDataLoader loader) { return loader; }

  void require_supported_precision() const;
  static void pause(Model& model, Accumulation& accumulation);
  torch::Tensor gather_one(const torch::Tensor& tensor) const;
  torch::Tensor gather_samples(const torch::Tensor& tensor) const;
  torch::Tensor reduce_one(const torch::Tensor& tensor, Reduction reduction) const;
  torch::Tensor pad_one(const torch::Tensor& tensor, const PadOptions& options) const;
  torch::Tensor broadcast_one(const torch::Tensor& tensor, int from_process) const;
  void make_project_folder() const;
  std::string checkpoints_folder() const;
  std::string checkpoint_to_load(const std::string& path) const;
  std::string next_checkpoint() const;
  std::string next_custom_file();

  AcceleratorOptions options_;
  AcceleratorHandlers handlers_;
  AccelerateConfig config_;
  ProcessGroup group_;
  Log log_;
  ThreadChoice threads_;
  torch::Device device_;
  std::shared_ptr<GradScaler> scaler_;
  std::shared_ptr<GradientState> gradients_;
  std::shared_ptr<PreparedOptimizers> optimizers_;
  std::vector<std::shared_ptr<AcceleratedScheduler>> schedulers_;
  TrainingState state_;
  Trackers trackers_;
  std::size_t custom_files_ = 0;
  bool trigger_ = false;
  bool resumed_ = false;
  std::string last_checkpoint_;
};

// Evaluates a classifier: a prepared model over a prepared loader, in evaluation mode and without
// gradients. Counts every sample of all processes once: the outputs of each batch are gathered, and
// repeated samples are removed (gather_for_metrics). The result is the same on all processes. A
// collective at each batch.
//
// To count on each process and add up would be wrong where even_batches repeats samples, and one
// process's count divided by the size of the whole set is 1/N of the accuracy.
Evaluation evaluate(const Accelerator& accelerator, Model& model,
                    const AcceleratedDataLoader& loader, const LossSum& loss_sum);

// Seeds PyTorch's generators, of the CPU and of the GPUs. device_specific: with seed + rank, so
// that the processes draw different numbers; not for initial weights. Returns the seed used.
std::uint64_t set_seed(std::uint64_t seed, bool device_specific = false,
                       const ProcessGroup& group = ProcessGroup::single());

template <typename Item>
std::vector<Item> Accelerator::split_between_processes(const std::vector<Item>& items,
                                                       bool apply_padding) const {
  const auto count = static_cast<std::int64_t>(items.size());
  const std::int64_t size = count / num_processes();
  const std::int64_t longer = count % num_processes();
  const std::int64_t rank = process_index();
  const auto begin = items.begin() + rank * size + std::min(rank, longer);
  std::vector<Item> part(begin, begin + size + (rank < longer ? 1 : 0));
  if (apply_padding && longer != 0 && rank >= longer) part.push_back(items.back());
  return part;
}

}  // namespace ladder
