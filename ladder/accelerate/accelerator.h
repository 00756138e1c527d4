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
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerated_data_loader.h"
#include "ladder/accelerate/accelerated_optimizer.h"
#include "ladder/accelerate/accelerator_options.h"
#include "ladder/accelerate/accelerator_state.h"
#include "ladder/accelerate/joined_batches.h"
#include "ladder/accelerate/operations.h"
#include "ladder/accelerate/prepare.h"
#include "ladder/accelerate/project.h"
#include "ladder/amp/autocast.h"
#include "ladder/armour/run_checkpoints.h"
#include "ladder/checkpoint/training_state.h"
#include "ladder/comm/process_group.h"
#include "ladder/data/batch.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/monitor/run_setup.h"
#include "ladder/observe/trackers.h"
#include "ladder/parallel/averaged_gradient.h"
#include "ladder/parallel/gradient_reducer.h"

namespace ladder {

// Runs a training loop, written for one device, on any number of processes.
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
// The same program runs alone and under any launcher (see init_process_group), and under
// function_launcher. Construction is a collective, after any fork: it reads the configuration
// (accelerate_config.h), makes the process group of this start, and chooses device, precision and
// threads. Prepared objects share its state, and must not be used after it. Use it from one thread.
// Comments name the collectives; every rank calls them.
//
// Explained in docs/reference/5-accelerator.md. Python's counterpart, with the same names:
// accelerate.Accelerator, version 1.15.
class Accelerator {
 public:
  // Throws UsageError for contradictory or unsupported settings (see accelerate_config.h), and for
  // a project_dir that another run uses.
  explicit Accelerator(AcceleratorOptions options = {}, AcceleratorHandlers handlers = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // --- Processes and device ---

  const ProcessGroup& process_group() const { return shared_.group; }
  int num_processes() const { return shared_.group.world_size(); }
  int process_index() const { return shared_.group.rank(); }
  int local_process_index() const { return shared_.group.local_rank(); }
  bool is_main_process() const { return shared_.group.rank() == 0; }
  bool is_local_main_process() const { return shared_.group.local_rank() == 0; }  // one per machine
  bool is_last_process() const { return shared_.group.rank() + 1 == shared_.group.world_size(); }
  bool use_distributed() const { return shared_.use_distributed(); }
  const torch::Device& device() const { return shared_.device; }
  Precision mixed_precision() const { return shared_.config.mixed_precision; }
  const ThreadChoice& threads() const { return shared_.threads; }
  const Log& log() const { return shared_.log; }
  // For a TrainingMonitor. With a project_dir, a run that a signal stops saves its state there.
  RunSetup setup();

  // --- Preparing ---

  // Prepares each object for any number of processes, and returns them in the same order: a tuple,
  // or the object itself if there is one. prepare.h lists what becomes of each. A collective.
  // BatchNorm stays local; see convert_sync_batchnorm.
  //
  // Throws UsageError for an optimizer or a dtype that no checkpoint could save. With a
  // project_dir, the first backward throws for an optimizer whose models are not prepared; on
  // several processes, a step or backward for weights that no wrapper averages
  // (averaged_gradient.h).
  template <typename... Objects>
  auto prepare(Objects&&... objects) {
    if constexpr (sizeof...(Objects) == 1) {
      return (objects_.prepare(std::forward<Objects>(objects)), ...);
    } else {
      // Braces: prepared from left to right, in the same order on every rank.
      return std::tuple{objects_.prepare(std::forward<Objects>(objects))...};
    }
  }

  // For one kind.
  std::shared_ptr<Model> prepare_model(std::shared_ptr<Model> model) {
    return objects_.prepare_model(std::move(model));
  }
  void prepare_module(const std::shared_ptr<torch::nn::Module>& module) {
    objects_.prepare_module(module);
  }
  std::shared_ptr<AcceleratedOptimizer> prepare_optimizer(
      std::shared_ptr<torch::optim::Optimizer> optimizer) {
    return objects_.prepare_optimizer(std::move(optimizer));
  }
  template <typename Schedule>
  std::shared_ptr<AcceleratedScheduler> prepare_scheduler(Schedule&& schedule) {
    return objects_.prepare_scheduler(std::forward<Schedule>(schedule));
  }
  AcceleratedDataLoader prepare_data_loader(DataLoader loader) {
    return objects_.prepare_data_loader(std::move(loader));
  }
  // Not saved in checkpoints: for evaluations, which begin with the first batch.
  AcceleratedDataLoader prepare_eval_loader(DataLoader loader) const {
    return objects_.prepare_eval_loader(std::move(loader));
  }

  // The batches of a range that has this process's batches alone, such as a loader of torch::data
  // with a sampler for several processes. The processes may have different numbers of them.
  template <typename Range>
  JoinedBatches<Range> join(Range&& batches) const {
    return objects_.join(std::forward<Range>(batches), 0, 1);
  }

  // The network without wrappers. `model` prepared, or not.
  static Model& unwrap_model(Model& model);

  // Returns make(). With dispatch_batches, only the main process calls it; the others get a data
  // set of the same size without samples. A collective.
  std::shared_ptr<const Dataset> load_dataset(
      const std::function<std::shared_ptr<const Dataset>()>& make) const;

  // `loader` without the first `batches` of every pass.
  static AcceleratedDataLoader skip_first_batches(const AcceleratedDataLoader& loader,
                                                  std::int64_t batches) {
    return loader.without_first(batches);
  }

  // --- The training loop ---

  // For one batch of an accumulation window. Decides whether a step follows the batch; if not, the
  // gradients of these models are not synchronised. Create it before the forward, once per batch;
  // it must live until the backward is done. Drops a window that an earlier pass left by `break`.
  class Accumulation {
   public:
    Accumulation() = default;

   private:
    friend class Accelerator;
    std::vector<GradientReducer::NoSync> pauses_;
    std::unique_ptr<Autocast> autocast_;  // for modules that are no Models
  };
  template <typename... Modules>
  [[nodiscard]] Accumulation accumulate(Modules&... modules) {
    if constexpr ((std::derived_from<Modules, torch::nn::Module> && ...)) {
      return begin_batch({&modules...});
    } else {
      static_assert(sizeof...(Modules) == 0,  // never
                    "Accelerator::accumulate takes modules themselves: accumulate(*model)");
    }
  }

  // While it lives, backward does not synchronise gradients. False pauses nothing.
  [[nodiscard]] Accumulation no_sync(torch::nn::Module& module, bool when = true);

  // Whether a step follows the current batch.
  bool sync_gradients() const { return shared_.gradients->sync_gradients(); }
  // The weight of the current batch in the loss of its accumulation window; see backward.
  double loss_weight() const { return shared_.gradients->loss_weight(); }
  // For a loss over items that only the loop can count, such as tokens: `own` are those of this
  // process's batch, and num_items(own).mean(sum) is the mean over those of all processes. A batch
  // that a process repeats counts as 0. A collective.
  NumItems num_items(std::int64_t own) const;
  int gradient_accumulation_steps() const { return shared_.gradients->num_steps(); }
  // From the next batch on. Throws UsageError in the middle of a window, or for a number below 1.
  void set_gradient_accumulation_steps(int steps) { shared_.gradients->set_num_steps(steps); }

  // Ends an accumulation window without a step, and drops its gradients.
  void drop_window();

  // Multiplies the loss by loss_weight(), the samples of the batch ÷ those of the window (without a
  // loader, and for JoinedBatches, 1 ÷ gradient_accumulation_steps(), also in a short window);
  // scales it for fp16; and calls backward.
  // `loss` is a mean over the global batch (NumItems::mean), not over this process's part. A
  // collective. Also sends rank 0's buffers of a module that is frozen for now (FreezeGuard).
  void backward(const torch::Tensor& loss);

  // Divides the gradients of all prepared optimizers by the fp16 scale, once per step.
  void unscale_gradients();

  // Divides the gradients by the fp16 scale and clips them. In the middle of a window they do
  // nothing. Returns the norm before clipping; undefined in the middle of a window.
  torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                                double norm_type = 2.0);
  void clip_grad_value_(const std::vector<torch::Tensor>& parameters, double clip_value);

  // Mixed precision for operations outside a prepared model's forward, while the result lives.
  [[nodiscard]] Autocast autocast() const;

  // Whether any prepared optimizer skipped its last step, for fp16. Waits for a GPU.
  bool optimizer_step_was_skipped() const;

  // The gradient scaler; enabled for fp16 only.
  GradScaler& scaler() { return *shared_.scaler; }

  // --- Collectives over tensors, and structures of tensors (operations.h) ---

  // The rows of all processes, in rank order, on every process.
  template <typename Structure>
  Structure gather(const Structure& data) const {
    return map_tensors(data, [this](const torch::Tensor& t) {
      return gather_rows(t, shared_.group, shared_.config.debug);
    });
  }

  // The same for the current batch of a prepared loader, without repeated samples or batches: each
  // sample once, in the loader's order. Of several passes at once, the one that began last counts.
  // Throws UsageError for a tensor that does not have one row per sample, such as a mean.
  template <typename Structure>
  Structure gather_for_metrics(const Structure& data) const {
    return map_tensors(data, [this](const torch::Tensor& t) {
      return gather_samples(t, *shared_.gradients, shared_.group, shared_.config.debug);
    });
  }

  // By default the sum over the processes; Reduction::kMean divides by their number.
  template <typename Structure>
  Structure reduce(const Structure& data, Reduction reduction = Reduction::kSum) const {
    return map_tensors(data, [&](const torch::Tensor& t) {
      return reduced(t, reduction, shared_.group, shared_.config.debug);
    });
  }

  template <typename Structure>
  Structure broadcast(const Structure& data, int from_process = 0) const {
    return map_tensors(data, [&](const torch::Tensor& t) {
      return broadcasted(t, from_process, shared_.group, shared_.config.debug);
    });
  }

  template <typename Structure>
  Structure pad_across_processes(const Structure& data, const PadOptions& options = {}) const {
    return map_tensors(data, [&](const torch::Tensor& t) {
      return padded_across_ranks(t, options, shared_.group, shared_.config.debug);
    });
  }

  // --- Process control ---

  void wait_for_everyone() const { shared_.group.barrier(); }

  // Prints a line to the standard output, on the main process only.
  void print(std::string_view line) const;

  // Runs `run` on the main process, and then on the others: to download or unpack a file once. A
  // collective. A failure on the main process stops all.
  void main_process_first(const std::function<void()>& run) const;
  void local_main_process_first(const std::function<void()>& run) const;

  // Run on one process; the others do not wait.
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
    if (shared_.group.rank() == process_index) run();
  }

  // This process's contiguous part of `items`. If their number does not divide, the first parts are
  // longer by one; apply_padding repeats the last item until all parts have that size.
  template <typename Item>
  std::vector<Item> split_between_processes(const std::vector<Item>& items,
                                            bool apply_padding = false) const {
    return part_of_rank(items, shared_.group, apply_padding);
  }

  // Releases all prepared objects, or one (an optimizer with its schedules). Those with other
  // owners keep working, but are in no checkpoint. Registered objects stay.
  void free_memory() { objects_.free_memory(); }
  template <typename Object>
  void free_memory(Object& object) {
    objects_.free_memory(object);
  }

  // A flag that stops all processes when one has a reason. check_trigger returns whether any
  // process has set it, and resets it; a collective.
  void set_trigger() { trigger_ = true; }
  bool check_trigger();

  // --- Saving ---

  // Writes the weights, without prefixes of wrappers, as safetensors. A collective; afterwards a
  // FullyShardedDataParallel is sharded.
  void save_model(const torch::nn::Module& model, const std::string& path) const;

  // As PreparedObjects::register_for_checkpointing. The object must outlive the Accelerator.
  template <typename Object>
  void register_for_checkpointing(Object& object, const std::string& file = "") {
    objects_.register_for_checkpointing(object, file);
  }

  // What tells this run from others that saved into its folder; see require_own_checkpoint.
  RunIdentity identity() const { return identity_of(parts_of(objects_.state())); }

  // Writes a checkpoint of all prepared and registered objects, the scaler and the random
  // generators (training_state.h). The folder is `path`, or the next
  // project_dir/checkpoints/checkpoint_N, where checkpoints beyond total_limit are removed. Returns
  // it. A collective. Throws UsageError in the middle of an accumulation window.
  std::string save_state(const std::string& path = "", const SaveStateOptions& options = {}) {
    return project_.save_state(path, options);
  }

  // Loads a checkpoint: `path`, or the last one in a folder of checkpoints or a project_dir. "auto"
  // is the newest intact one in project_dir; if there is none, nothing is loaded and the result is
  // "". Returns the checkpoint's folder. Call it after prepare and before the first batch. A
  // collective. Objects of a kind are matched by the order of prepare.
  //
  // Checks everything, also against the prepared objects, before it changes anything: DataError,
  // UsageError. Project::load_state has what the run then equals.
  std::string load_state(const std::string& path = "") { return project_.load_state(path); }

  // The last checkpoint that this object has written or loaded; empty if none.
  const std::string& last_checkpoint() const { return project_.last_checkpoint(); }

  // --- Trackers: numbers over time, written by the main process ---

  // Starts the trackers of AcceleratorOptions::log_with. After load_state they append to the files
  // of the run. A write that fails later, as on a full disk, is a warning and ends the curves.
  void init_trackers(const std::string& project_name, const nlohmann::ordered_json& config = {});
  void log(const std::map<std::string, double>& values, std::int64_t step);
  // Closes the trackers and waits for all processes. A collective.
  void end_training();

  const AcceleratorOptions& options() const { return shared_.options; }

 private:
  Accumulation begin_batch(const std::vector<torch::nn::Module*>& modules);
  void pause(torch::nn::Module& module, Accumulation& accumulation);
  bool needs_autocast(const std::vector<torch::nn::Module*>& modules) const;
  void backward_with_check(const torch::Tensor& loss);
  void send_buffers_of_frozen() const;
  void warn_of_foreign_gradients();
  // Warns if it throws SystemError, and ends the curves.
  void write_curves(const std::function<void()>& write);
  void drop_left_window();

  const AcceleratorState shared_;
  PreparedObjects objects_;
  Trackers trackers_;
  Project project_;
  std::shared_ptr<LocalLeaves> local_ = std::make_shared<LocalLeaves>();
  mutable bool had_autocast_ = false;
  bool warned_of_gradients_ = false;
  bool curves_end_ = false;
  bool trigger_ = false;
};

// Evaluates a classifier: a prepared model over a prepared loader, in evaluation mode and without
// gradients. Counts every sample once; the same result on all processes. A collective per batch.
Evaluation evaluate(const Accelerator& accelerator, Model& model,
                    const AcceleratedDataLoader& loader, const LossSum& loss_sum);

// Seeds PyTorch's generators of the CPU and the GPUs; device_specific: with seed + rank, for noise,
// after the weights. Noise that does not depend on the number of processes: nn/sample_noise.h.
// Returns the seed used.
std::uint64_t set_seed(std::uint64_t seed, bool device_specific = false,
                       const ProcessGroup& group = ProcessGroup::single());

}  // namespace ladder
