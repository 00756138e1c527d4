// SPDX-License-Identifier: Apache-2.0
#include "exercises/pipeline/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "exercises/grader/grader.h"
#include "exercises/grader/messages.h"
#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/parallel/pipeline_stage.h"
#include "tests/support/training.h"

namespace ladder::exercises::pipeline {
namespace {

using Gradients = std::vector<torch::Tensor>;
using Rows = std::vector<std::int64_t>;

constexpr std::array<std::int64_t, 5> kWidths = {20, 32, 24, 28, 10};
constexpr int kLayers = 4;
const Rows kLarge(3, 32'768);                    // messages that a send leaves to a later recv
constexpr std::chrono::milliseconds kLate{500};  // rank 0, before it receives the last of them

// Some layers of the network, with equal weights wherever they are made.
struct Range {
  int first = 0;
  int end = kLayers;
};

Range range_of(const ProcessGroup& group) {
  const int n = group.world_size();
  return {kLayers * group.rank() / n, kLayers * (group.rank() + 1) / n};
}

class Layers : public Model {
 public:
  explicit Layers(Range range) : range_(range) {
    for (int i = range.first; i < range.end; ++i) {
      torch::manual_seed(static_cast<std::uint64_t>(i) + 1);
      const auto at = static_cast<std::size_t>(i);
      layers_.push_back(register_module(fmt::format("layer{}", i),
                                        torch::nn::Linear(kWidths[at], kWidths[at + 1])));
    }
  }

  torch::Tensor forward(const Inputs& inputs) override {
    auto x = inputs.only();
    for (auto& layer : layers_) x = torch::tanh(layer->forward(x));
    return x;
  }
  std::shared_ptr<Model> new_like() const override { return new_network_like(*this, range_); }

 private:
  Range range_;
  std::vector<torch::nn::Linear> layers_;
};

torch::Tensor mean_loss(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(output, targets);
}

std::vector<MicroBatch> micro_batches_of(const Rows& rows) {
  auto generator = at::detail::createCPUGenerator(fresh_seed() + 1);
  std::vector<MicroBatch> all;
  for (const auto count : rows) {
    all.push_back({count, torch::randn({count, kWidths.front()}, generator),
                   torch::randint(kWidths.back(), {count}, generator, torch::kInt64)});
  }
  return all;
}

// What one rank has of them.
std::vector<MicroBatch> own_micro_batches(const Rows& rows, const ProcessGroup& group) {
  auto all = micro_batches_of(rows);
  for (auto& one : all) {
    if (group.rank() != 0) one.inputs.reset();
    if (group.rank() != group.world_size() - 1) one.targets.reset();
  }
  return all;
}

Gradients gradients_of(const Model& model) {
  Gradients all;
  for (const auto& parameter : model.parameters()) all.push_back(parameter.grad());
  return all;
}

// One process that accumulates: the gradients of the layers in `range`. `weight`: of a micro-batch.
template <typename Weight>
Gradients accumulated(const std::vector<MicroBatch>& micro_batches, Range range,
                      const Weight& weight) {
  Layers whole({});
  for (const auto& one : micro_batches) {
    (mean_loss(whole.forward(one.inputs), one.targets) * weight(one)).backward();
  }
  const auto all = gradients_of(whole);
  return {all.begin() + 2 * range.first, all.begin() + 2 * range.end};
}

std::int64_t rows_of(const std::vector<MicroBatch>& micro_batches) {
  std::int64_t rows = 0;
  for (const auto& one : micro_batches) rows += one.rows;
  return rows;
}

// The mean over all rows.
Gradients accumulated(const std::vector<MicroBatch>& micro_batches, Range range) {
  const auto all = static_cast<double>(rows_of(micro_batches));
  return accumulated(micro_batches, range,
                     [&](const auto& one) { return static_cast<double>(one.rows) / all; });
}

// Backward of ones instead of the gradient that the next rank sends.
Gradients gradients_of_ones(const std::vector<MicroBatch>& micro_batches, Range range) {
  Layers before({0, range.first});
  Layers own(range);
  for (const auto& one : micro_batches) {
    own.forward(before.forward(one.inputs).detach()).sum().backward();
  }
  return gradients_of(own);
}

bool equal(const Gradients& a, const Gradients& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.defined() && y.defined() && torch::equal(x, y);
  });
}

bool close(const Gradients& a, const Gradients& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.defined() && y.defined() && torch::allclose(x, y, 1e-4, 1e-7);
  });
}

// What a rank did in one step of the learner's code.
struct Counts {
  std::int64_t forwards = 0;
  std::int64_t backwards = 0;
  std::int64_t most_held = 0;  // micro-batches between forward and backward
  std::int64_t sends = 0;
  const Messages* messages = nullptr;  // of this step; null where its time is compared
};

// For kLate, rank 0 receives nothing, but its own sends proceed, as they do in each call. So the
// last send of rank 1 has not ended when that rank returns, unless it waited.
void delay_last_recv(const Messages& messages) {
  const auto end = std::chrono::steady_clock::now() + kLate;
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    static_cast<void>(messages.unfinished_sends());
  }
}

Stage observed(Layers& layers, const ProcessGroup& group, Counts& counts) {
  Stage stage;
  const bool first = group.rank() == 0;
  stage.forward = [&, first](const torch::Tensor& input) {
    expect(first || input.requires_grad(), "an input that gets a gradient", "one that gets none",
           "input.requires_grad_() is missing, so there is nothing to send back");
    ++counts.forwards;
    counts.most_held = std::max(counts.most_held, counts.forwards - counts.backwards);
    auto output = layers.forward(input);
    if (output.requires_grad()) {
      output.register_hook([&, first](const torch::Tensor& gradient) {
        ++counts.backwards;
        const bool large = gradient.size(0) == kLarge.front();
        const bool last_but_one = counts.backwards == std::ssize(kLarge) - 1;
        if (first && large && last_but_one) delay_last_recv(*counts.messages);
      });
    }
    return output;
  };
  stage.input_width = kWidths[static_cast<std::size_t>(range_of(group).first)];
  if (group.rank() == group.world_size() - 1) stage.mean_loss = mean_loss;
  return stage;
}

// One message per forward, unless on the last rank, and per backward, unless on the first one.
void require_messages(const Counts& counts, std::int64_t forwards, std::int64_t backwards,
                      const ProcessGroup& group) {
  const auto to_next = group.rank() < group.world_size() - 1 ? forwards : 0;
  const auto to_previous = group.rank() > 0 ? backwards : 0;
  const auto expected = to_next + to_previous;
  std::string usually = "more than one message per micro-batch and direction: all ranks know rows";
  if (counts.sends < expected) {
    usually = counts.sends == to_next       ? "the gradient of the input is not sent back"
              : counts.sends == to_previous ? "the output of the stage is not sent to the next rank"
                                            : "a micro-batch is left out";
  }
  expect(counts.sends == expected,
         fmt::format("{} messages from rank {} of {}: {} outputs, {} gradients", expected,
                     group.rank(), group.world_size(), to_next, to_previous),
         fmt::format("{}", counts.sends), usually);
}

std::string meaning(const Gradients& got, const Gradients& expected, const Rows& rows,
                    const ProcessGroup& group) {
  auto micro_batches = micro_batches_of(rows);
  const auto range = range_of(group);
  const auto all_rows = static_cast<double>(rows_of(micro_batches));
  const auto count = static_cast<double>(rows.size());
  const auto is = [&](double weight) {
    return close(got, accumulated(micro_batches, range, [&](const auto&) { return weight; }));
  };
  if (close(got, expected)) {
    std::ranges::reverse(micro_batches);
    return equal(got, accumulated(micro_batches, range))
               ? "backward begins with the last micro-batch: another order has other last bits"
               : "the weight of a loss is rounded, or multiplied in another order";
  }
  if (is(1)) return "the mean losses of the micro-batches are added";
  if (is(1 / count)) return "a small micro-batch counts as much as a large one";
  if (is(1 / all_rows)) return "the mean loss is divided by the rows of all micro-batches";
  return close(got, gradients_of_ones(micro_batches, range))
             ? "backward does not use the received gradient: output.backward(gradient)"
             : "a gradient meets the output of another micro-batch: the ranks run their backwards "
               "in different orders";
}

void require_gradients(const Layers& layers, const Counts& counts, const Rows& rows,
                       const ProcessGroup& group) {
  const auto got = gradients_of(layers);
  const auto expected = accumulated(micro_batches_of(rows), range_of(group));
  if (equal(got, expected)) return result(flat(got));
  const double times = got[0].defined() ? (got[0].norm() / expected[0].norm()).item<double>() : 0.0;
  throw Wrong{fmt::format("rank {} of {}, micro-batches of {} rows: the gradients of one process "
                          "that accumulates",
                          group.rank(), group.world_size(), fmt::join(rows, ", ")),
              fmt::format("others, {:.3g} times as large, after {} of {} backwards", times,
                          counts.backwards, rows.size()),
              counts.backwards < std::ssize(rows)
                  ? "the backwards after the last forward are missing"
                  : meaning(got, expected, rows, group)};
}

void require_schedule(std::int64_t most_held, std::int64_t expected, std::int64_t count,
                      const ProcessGroup& group) {
  expect(most_held == expected,
         fmt::format("rank {} of {} holds {} of {} micro-batches at most", group.rank(),
                     group.world_size(), expected, count),
         fmt::format("{}", most_held),
         most_held < expected ? "a backward follows each forward at once: the ranks work in turn"
         : most_held == count ? "all forwards come before the first backward"
                              : "a forward too many comes before the first backward");
}

// Of a rank that waited in vain: not for a gradient before its forwards.
void require_forwards(const Counts& counts, std::int64_t most, std::string_view error,
                      const ProcessGroup& group) {
  const auto next = fmt::format(" rank {}", group.rank() + 1);
  const bool for_gradient = error.starts_with("recv") && error.find(next) != error.npos;
  expect(
      counts.backwards > 0 || counts.forwards >= most || !for_gradient,
      fmt::format("rank {} of {}: {} forwards before it waits for a gradient", group.rank(),
                  group.world_size(), most),
      fmt::format("{}, then all ranks wait", counts.forwards),
      "the schedule is mirrored: rank 0 has the most forwards ahead, N - 1 - r of them on rank r");
}

void one_step(PipelineStep step, PipelineSchedule schedule, const Rows& rows,
              const ProcessGroup& group) {
  Layers layers(range_of(group));
  Counts counts;
  const auto stage = observed(layers, group, counts);
  const Messages messages;
  counts.messages = &messages;
  const auto count = std::ssize(rows);
  const std::int64_t stages = group.world_size() - group.rank();  // from this one on
  const auto most = schedule == PipelineSchedule::k1F1B ? std::min(count, stages) : count;
  try {
    step(stage, own_micro_batches(rows, group), group);
  } catch (const DistributedError& error) {  // what did this rank do before it waited in vain?
    counts.sends = messages.count("send");
    require_messages(counts, counts.forwards, counts.backwards, group);
    require_forwards(counts, most, error.what(), group);
    throw;
  }
  const auto unfinished = messages.unfinished_sends();
  expect(unfinished == 0,
         fmt::format("rank {}: the step waits for each of its sends", group.rank()),
         fmt::format("{} sends that had not ended when it returned", unfinished),
         "wait() is missing: keep what isend returns, and wait() for each at the end of the step");
  counts.sends = messages.count("send");
  require_messages(counts, count, std::min(counts.backwards, count), group);
  require_gradients(layers, counts, rows, group);
  require_schedule(counts.most_held, most, count, group);
}

const Rows kEqual = {6, 6, 6, 6};
const Rows kUnequal = {6, 6, 6, 6, 2};

void compare_times(Grader& grader, const Pipeline& yours) {
  constexpr std::int64_t kRows = 64;
  static const Rows rows(8, kRows);
  using Group = const ProcessGroup&;
  const auto yours_step = [&](Group group) {
    Layers layers(range_of(group));
    Counts counts;
    yours.one_forward_one_backward(observed(layers, group, counts), own_micro_batches(rows, group),
                                   group);
  };
  const auto library_step = [](Group group) {
    std::vector<torch::Tensor> inputs;
    std::vector<torch::Tensor> targets;
    for (const auto& one : micro_batches_of(rows)) {
      inputs.push_back(one.inputs);
      targets.push_back(one.targets);
    }
    PipelineStage stage(std::make_shared<Layers>(range_of(group)), group, {.micro_batches = 8});
    stage.step({.inputs = torch::cat(inputs), .targets = torch::cat(targets)},
               [](const torch::Tensor& output, const Batch& part) {
                 return mean_loss(output, part.targets) / 8.0;
               });
  };
  grader.compare_times(2, "a step of eight micro-batches on two ranks", yours_step, library_step);
}

void grade(Grader& grader, const Pipeline& yours) {
  const auto part_1 = [&](const std::string& title, int ranks, const Rows& rows) {
    grader.property("part 1: " + title, ranks, [&](const ProcessGroup& group) {
      one_step(yours.all_forwards_first, PipelineSchedule::kGPipe, rows, group);
    });
  };
  const auto part_2 = [&](const std::string& title, int ranks, const Rows& rows) {
    grader.property("part 2: " + title, ranks, [&](const ProcessGroup& group) {
      one_step(yours.one_forward_one_backward, PipelineSchedule::k1F1B, rows, group);
    });
  };
  part_1("one rank accumulates, with a small last micro-batch", 1, kUnequal);
  part_1("two ranks, the same gradients bit for bit", 2, kEqual);
  part_1("three ranks and a small last micro-batch", 3, kUnequal);
  part_2("two ranks, which hold two micro-batches and one", 2, kEqual);
  part_2("three ranks and a small last micro-batch", 3, kUnequal);
  part_2("fewer micro-batches than ranks", 3, {4, 3});
  part_2("two ranks, messages of 3 MB", 2, kLarge);
  compare_times(grader, yours);
}

const Graded<Pipeline> graded("pipeline", grade);

}  // namespace
}  // namespace ladder::exercises::pipeline
