// SPDX-License-Identifier: Apache-2.0
#include "exercises/accumulate/accumulate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>

#include "exercises/grader/grader.h"
#include "exercises/grader/images.h"
#include "exercises/grader/messages.h"
#include "ladder/accelerate/accelerator.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/sgd.h"
#include "tests/support/training.h"

namespace ladder::exercises::accumulate {
namespace {

constexpr std::int64_t kWindow = 3;
constexpr std::int64_t kBatches = 8;  // two windows of 3 and one of 2
constexpr double kLr = 0.05;

using Wrapped = std::shared_ptr<DistributedDataParallel>;

Wrapped wrapped(const ProcessGroup& group) {
  return std::make_shared<DistributedDataParallel>(first_model(basicnet()), group);
}

// An epoch of batches that differ in size, this rank's part of each.
std::vector<Batch> epoch_of(const ProcessGroup& group) {
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < kBatches; ++i) {
    const auto seed = fresh_seed() + static_cast<std::uint64_t>(i) + 1;
    const auto whole = random_batch(i % 2 == 0 ? 8 : 5, seed);
    batches.push_back(slice_of(whole, group.rank(), group.world_size()));
  }
  return batches;
}

// Batches `begin` to `end` as one.
Batch joined(const std::vector<Batch>& batches, std::int64_t begin, std::int64_t end) {
  std::vector<torch::Tensor> images;
  std::vector<torch::Tensor> targets;
  std::vector<torch::Tensor> positions;
  Batch large = batches[static_cast<std::size_t>(begin)];
  large.global_size = 0;
  for (const auto& batch : std::span(batches).subspan(static_cast<std::size_t>(begin),
                                                      static_cast<std::size_t>(end - begin))) {
    images.push_back(batch.inputs.only());
    targets.push_back(batch.targets);
    positions.push_back(batch.positions);
    large.global_size += batch.global_size;
  }
  large.inputs = torch::cat(images);
  large.targets = torch::cat(targets);
  large.positions = torch::cat(positions);
  return large;
}

struct Saved {
  std::int64_t next_batch;
  std::shared_ptr<Model> model;
};

// One run of the learner's code on a model.
struct Run {
  Wrapped model;
  std::vector<Saved> saves = {};

  void train(const Accumulate& yours, const std::vector<Batch>& batches, std::int64_t window,
             std::int64_t first_batch = 0, std::int64_t save_every = kBatches + 1) {
    SGD optimizer(model->parameters(), {.lr = kLr});
    const Accumulation plan{window, save_every, [&](std::int64_t next_batch) {
                              saves.push_back({next_batch, model->new_like()});
                            }};
    yours.train_epoch(
        *model, optimizer, batches, first_batch,
        [&](const Batch& batch) { return loss_of(*model, basicnet(), batch); }, plan);
  }
  std::string hash() const { return weights_sha256(state_dict(*model)); }
};

// The weights after `windows` steps with one large batch each. `last_weight`: of a short window, to
// make a known mistake.
torch::Tensor large_batches(const ProcessGroup& group, const std::vector<Batch>& batches,
                            std::int64_t windows, double last_weight = 1) {
  const auto model = wrapped(group);
  SGD optimizer(model->parameters(), {.lr = kLr});
  for (std::int64_t window = 0; window < windows; ++window) {
    const auto begin = window * kWindow;
    const auto end = std::min(begin + kWindow, std::ssize(batches));
    const double own = end - begin < kWindow ? last_weight : 1;
    (loss_of(*model, basicnet(), joined(batches, begin, end)) * own).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return flat_weights(*model);
}

torch::Tensor after(const Accumulate& yours, const ProcessGroup& group,
                    const std::vector<Batch>& batches, std::int64_t window = kWindow) {
  Run run{wrapped(group)};
  run.train(yours, batches, window);
  return flat_weights(*run.model);
}

double apart(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

constexpr double kBound = 1e-5;

// One window of equal batches, then of unequal ones, then the epoch with its short last window.
void equals_large_batches(const Accumulate& yours, const ProcessGroup& group) {
  const auto epoch = epoch_of(group);
  const auto first = flat_weights(*wrapped(group));
  const std::vector<Batch> equal = {epoch[0], epoch[2], epoch[4]};
  const auto got = after(yours, group, equal);
  const auto expected = large_batches(group, equal, 1);
  if (apart(got, expected) > kBound) {
    const double times = apart(got, first) / apart(expected, first);
    // On one rank these are equal, and that property comes first.
    const double ranks = group.world_size();
    const bool own_sizes =
        ranks > 1 && (std::abs(times - ranks) < 0.1 || std::abs(times - 1 / ranks) < 0.1);
    const auto steps = [&] { return apart(after(yours, group, equal, /*window=*/1), first) > 0; };
    throw Wrong{
        "one window of three equal batches: the step of one large batch",
        fmt::format("a step {:.2f} times as long, {:.1e} apart", times, apart(got, expected)),
        own_sizes ? "the weight has this rank's sizes in it: use global_size"
        : times == 0
            ? (steps() ? "the weight is 0, an integer division: in C++ `8 / 24` is 0, so divide "
                         "numbers of type double"
                       : "optimizer.step() is missing, or follows zero_grad")
        : times > 2.5 ? "the losses of a window are added, not averaged, or the optimizer "
                        "steps after each batch"
        : times < 0.9 ? "only the last batch of a window counts: zero_grad follows each "
                        "batch"
                      : "the optimizer steps after each batch of the window"};
  }
  const std::vector<Batch> four = {epoch[0], epoch[2], epoch[4], epoch[6]};
  const auto short_one = after(yours, group, four);
  const double distance = apart(short_one, large_batches(group, four, 2));
  const bool dropped = apart(short_one, large_batches(group, four, 1)) <= kBound;
  const bool divided = apart(short_one, large_batches(group, four, 2, 1.0 / kWindow)) <= kBound;
  expect(distance <= kBound, "four equal batches in windows of 3: the weights of two large batches",
         fmt::format("{:.1e} apart", distance),
         dropped   ? "the short last window takes no step"
         : divided ? "the short last window is divided by plan.window"
                   : "the gradients of earlier windows are still there: zero_grad is missing");
  const auto all = after(yours, group, epoch);
  const double unequal = apart(all, large_batches(group, epoch, 3));
  expect(unequal <= kBound, "batches of 8 and 5 samples: the weights of three large batches",
         fmt::format("{:.1e} apart", unequal),
         group.world_size() == 1 ? "a small batch counts as much as a large one"
                                 : "the weight has this rank's sizes in it: use global_size");
  result(got - first);
  result(all - first);
}

void sends_once_per_window(const Accumulate& yours, const ProcessGroup& group) {
  const auto epoch = epoch_of(group);
  Run run{wrapped(group)};
  run.train(yours, epoch, 1);  // buckets are rebuilt after the first step
  const auto per_step = std::ssize(run.model->reducer().bucket_bytes());
  const Messages messages;
  run.train(yours, epoch, kWindow);
  const auto got = messages.count("allreduce_");
  expect(got == 3 * per_step,
         fmt::format("{} all-reduces: {} for each of 3 windows", 3 * per_step, per_step),
         fmt::format("{}", got),
         got > 3 * per_step ? "no_sync does not cover forward and backward of every batch but the "
                              "last one of a window, or its object died at once"
         : got == 2 * per_step
             ? "the short last window is not sent: its last batch ends it as well"
             : "no batch of the window runs without no_sync, so nothing is averaged");
  result(flat_weights(*run.model) - flat_weights(*wrapped(group)));
}

void equals_the_library(const Accumulate& yours) {
  Accelerator accelerator(
      {.gradient_accumulation = {.num_steps = kWindow}, .cpu = true, .threads = 1, .quiet = true});
  const auto network = first_model(basicnet());
  auto [loader, model, optimizer] =
      accelerator.prepare(DataLoader(std::make_shared<Images>(37), {.batch_size = 5}), network,
                          std::make_shared<SGD>(network->parameters(), SgdOptions{.lr = kLr}));
  std::vector<Batch> batches;
  for (const Batch& batch : loader) {
    batches.push_back(batch);
    const auto accumulation = accelerator.accumulate(*model);
    accelerator.backward(loss_of(*model, basicnet(), batch));
    optimizer->step();
    optimizer->zero_grad();
  }
  Run run{wrapped(accelerator.process_group())};
  run.train(yours, batches, kWindow);
  const auto expected = weights_sha256(state_dict(*model));
  expect(run.hash() == expected, fmt::format("weights {:.16}, as with the Accelerator", expected),
         fmt::format("weights {:.16}", run.hash()),
         "the weight is rounded, or multiplied in another order: multiply the loss once, by a "
         "double");
  result(run.hash());
}

using Places = std::vector<std::int64_t>;

struct SaveCase {
  std::int64_t save_every;
  std::int64_t first_batch;
  Places expected;
};

// Whether `got` is `expected` with `more` added to each.
bool is_shifted(const Places& got, const Places& expected, std::int64_t more) {
  return std::ranges::equal(got, expected, {}, {}, [&](auto place) { return place + more; });
}

// What places other than expected mean, in windows of 3.
std::string meaning(const SaveCase& one, const Places& got) {
  if (is_shifted(got, one.expected, -1) || is_shifted(got, one.expected, 1)) {
    return "next_batch is off by one: it is the first batch that was not read yet";
  }
  const auto inside = [](auto place) { return place % kWindow != 0 && place != kBatches; };
  if (std::ranges::any_of(got, inside)) {
    return "a checkpoint inside a window: the gradients that the window has collected are lost";
  }
  if (got.empty()) return "plan.save is never called";
  if (one.first_batch > 0) return "batches are counted from 0 until the first save";
  if (one.save_every == 2) {
    if (got == Places{0, 3, 6}) return "next_batch is the begin of the window, not its end";
    if (got == Places{3, 6}) return "`>` instead of `>=`, or no save after the last window";
    if (got == Places{6, 8})
      return "only multiples of save_every are saved, not what was read since";
  }
  if (got == Places{3, 6, 8}) return "each window is saved: save_every is not used";
  if (got == Places{8}) return "the save after the last window has the same condition";
  if (got == Places{6, 8}) return "batches are counted from first_batch, not from the last save";
  return "count the batches from the last save, or from first_batch before the first one";
}

void saves_at(const Accumulate& yours, const ProcessGroup& group, const SaveCase& one) {
  Run run{wrapped(group)};
  run.train(yours, epoch_of(group), kWindow, one.first_batch, one.save_every);
  Places got;
  for (const auto& save : run.saves) got.push_back(save.next_batch);
  const auto list = [](const Places& places) {
    return places.empty() ? "none" : fmt::format("{}", fmt::join(places, ", "));
  };
  expect(got == one.expected,
         fmt::format("save_every {}, windows of 3 from batch {} to 8: saves with next_batch {}",
                     one.save_every, one.first_batch, list(one.expected)),
         list(got), meaning(one, got));
  result(list(got));
  for (const auto& save : run.saves) result(flat_weights(*save.model));
}

void saves(const Accumulate& yours, const ProcessGroup& group) {
  for (const auto& one :
       {SaveCase{2, 0, {3, 6, 8}}, {kBatches + 1, 0, {}}, {4, 0, {6}}, {4, 3, {8}}}) {
    saves_at(yours, group, one);
  }
}

void resumes(const Accumulate& yours, const ProcessGroup& group) {
  const auto epoch = epoch_of(group);
  Run whole{wrapped(group)};
  whole.train(yours, epoch, kWindow, 0, /*save_every=*/2);
  for (const auto& save : whole.saves) {
    Run resumed{wrapped(group)};
    copy_values(*save.model, resumed.model->module());
    resumed.train(yours, epoch, kWindow, save.next_batch);
    expect(resumed.hash() == whole.hash(),
           fmt::format("a run resumed at batch {} ends with the same weights", save.next_batch),
           "other weights",
           "the checkpoint precedes the step of its window, or first_batch is not used");
  }
  constexpr std::int64_t kFirst = 2;
  Run late{wrapped(group)};
  late.train(yours, epoch, kWindow, kFirst);
  const std::vector<Batch> rest(epoch.begin() + kFirst, epoch.end());
  const double distance = apart(flat_weights(*late.model), large_batches(group, rest, 2));
  expect(distance <= kBound, "a run from batch 2 on: windows of batches 2 to 4 and 5 to 7",
         fmt::format("{:.1e} apart", distance),
         "the first window does not begin at first_batch: windows are counted from 0");
  result(flat_weights(*late.model) - flat_weights(*wrapped(group)));
}

void grade(Grader& grader, const Accumulate& yours) {
  using Group = const ProcessGroup&;
  grader.property("on one rank, a window equals a large batch", 1,
                  [&](Group group) { equals_large_batches(yours, group); });
  grader.property("on two ranks, one exchange per window", 2,
                  [&](Group group) { sends_once_per_window(yours, group); });
  grader.property("on two ranks, a window equals a large batch", 2,
                  [&](Group group) { equals_large_batches(yours, group); });
  grader.property_without_group("on two ranks, the weights of the Accelerator, bit for bit", 2,
                                [&] { equals_the_library(yours); });
  grader.property("checkpoints where the task puts them", 1,
                  [&](Group group) { saves(yours, group); });
  grader.property("a resumed run ends with the same weights", 2,
                  [&](Group group) { resumes(yours, group); });
  grader.compare_times(
      2, "an epoch of 8 batches; the library's as three large batches",
      [&](Group group) { Run{wrapped(group)}.train(yours, epoch_of(group), kWindow); },
      [](Group group) { large_batches(group, epoch_of(group), 3); });
}

const Graded<Accumulate> graded("accumulate", grade);

}  // namespace
}  // namespace ladder::exercises::accumulate
