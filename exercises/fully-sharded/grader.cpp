// SPDX-License-Identifier: Apache-2.0
#include "exercises/fully-sharded/fully-sharded.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <string>

#include "exercises/grader/grader.h"
#include "exercises/grader/messages.h"
#include "ladder/nn/model.h"
#include "ladder/optim/adam.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/fully_sharded_data_parallel.h"

namespace ladder::exercises::fully_sharded {
namespace {

constexpr int kLayers = 4;
constexpr int kSteps = 3;
constexpr std::int64_t kWidth = 6;  // 43 weights, which no number of ranks but 1 divides
constexpr std::int64_t kRows = 7;

using Tensors = std::vector<torch::Tensor>;

// The weights of a layer: a matrix, a bias, and a factor.
torch::Tensor first_weights(int layer, std::int64_t width) {
  auto generator =
      at::detail::createCPUGenerator(fresh_seed() + static_cast<std::uint64_t>(layer) + 1);
  return torch::randn({width * width + width + 1}, generator);
}

torch::Tensor output_of(const torch::Tensor& weights, const torch::Tensor& x) {
  const auto width = x.size(1);
  const auto matrix = weights.narrow(0, 0, width * width).view({width, width});
  const auto bias = weights.narrow(0, width * width, width);
  return x + weights[width * width + width] * torch::tanh(torch::addmm(bias, x, matrix));
}

torch::Tensor loss_of(const torch::Tensor& output) { return output.square().mean(); }

// The rows of one rank, which they do not divide evenly.
torch::Tensor inputs_of(int step, std::int64_t width, const ProcessGroup& group) {
  auto generator =
      at::detail::createCPUGenerator(fresh_seed() + static_cast<std::uint64_t>(step) + 100);
  return torch::randn({kRows, width}, generator)
      .tensor_split(group.world_size())[static_cast<std::size_t>(group.rank())];
}

// The same network, for the wrappers of the library.
struct LayerModel : Model {
  explicit LayerModel(const torch::Tensor& first)
      : weights(register_parameter("weights", first.clone())) {}
  torch::Tensor forward(const Inputs& inputs) override { return output_of(weights, inputs.only()); }
  torch::Tensor weights;
};

struct Stack : Model {
  explicit Stack(std::int64_t width) {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i),
                                       std::make_shared<LayerModel>(first_weights(i, width))));
    }
  }
  torch::Tensor forward(const Inputs& inputs) override {
    auto x = inputs.only();
    for (const auto& layer : layers) x = (*layer)(x);
    return x;
  }
  std::vector<std::shared_ptr<LayerModel>> layers;
};

// A number of weights of a layer, and those of one rank.
struct Sizes {
  Sizes(std::int64_t layer, const ProcessGroup& group)
      : size(layer), ranks(group.world_size()), share((layer + ranks - 1) / ranks) {}
  std::int64_t size;
  std::int64_t ranks;
  std::int64_t share;
};

bool close(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && torch::allclose(a, b, 1e-4, 1e-6);
}

std::int64_t storage_bytes(const torch::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.storage().nbytes());
}

// [N, share]
torch::Tensor padded(const torch::Tensor& weights, const Sizes& sizes) {
  auto all = torch::zeros({sizes.ranks, sizes.share});
  all.flatten().narrow(0, 0, sizes.size).copy_(weights);
  return all;
}

Unit made_by(const FullySharded& yours, const torch::Tensor& weights, const ProcessGroup& group) {
  running("shard");
  auto unit = yours.shard(weights, group);
  running("");
  expect(unit.size == weights.numel() && unit.shard.defined() && unit.optimizer && unit.whole,
         "a Unit with size, shard, optimizer and whole", "a Unit without one of these",
         "shard() does not set a member of the Unit");
  return unit;
}

std::string meaning_of_size(std::int64_t got, const Sizes& sizes) {
  if (got == sizes.size || got == sizes.ranks * sizes.share) return "each rank keeps all weights";
  return got == sizes.size / sizes.ranks ? "the last weights are in no shard: round size ÷ N up"
                                         : "a shard has size ÷ N weights, rounded up, on each rank";
}

std::string meaning_of_shard(const torch::Tensor& got, const torch::Tensor& weights,
                             const Sizes& sizes, int rank) {
  if (torch::equal(got, padded(weights, sizes)[0])) {
    return "every rank has the shard of rank 0: begin at rank() * share";
  }
  const auto from = rank * (sizes.size / sizes.ranks);
  return torch::equal(got, weights.narrow(0, from, sizes.share))
             ? "the shards overlap, because each begins at a number that is rounded down"
             : "the shard of rank r begins at r * share; behind the last weight are zeros";
}

void shards(const FullySharded& yours, const ProcessGroup& group) {
  const auto weights = first_weights(0, kWidth);
  const Sizes sizes(weights.numel(), group);
  const auto unit = made_by(yours, weights, group);
  const auto got = unit.shard.numel();
  expect(got == sizes.share, fmt::format("a shard of {} of {} weights", sizes.share, sizes.size),
         fmt::format("{}", got), meaning_of_size(got, sizes));
  const auto own = padded(weights, sizes)[group.rank()];
  expect(torch::equal(unit.shard.flatten(), own),
         fmt::format("rank {}: weights from {} on", group.rank(), group.rank() * sizes.share),
         "other weights", meaning_of_shard(unit.shard, weights, sizes, group.rank()));
  expect(storage_bytes(unit.shard) <= 4 * sizes.share,
         fmt::format("{} bytes of memory behind the shard", 4 * sizes.share),
         fmt::format("{}", storage_bytes(unit.shard)),
         "the shard is a view, so the memory of all weights stays: clone() it");
  expect(AdamPart::living_bytes() == 8 * sizes.share,
         fmt::format("{} bytes of state: 8 for each weight of the shard", 8 * sizes.share),
         fmt::format("{}", AdamPart::living_bytes()),
         "the optimizer has the state of all weights, or of other ones than the shard's");
  expect(WholeWeights::living_bytes() == 0, "a layer without memory for its whole weights",
         fmt::format("{} bytes", WholeWeights::living_bytes()),
         "the whole weights have memory before unshard()");
  expect(
      unit.whole->weights().numel() == sizes.ranks * sizes.share,
      fmt::format("WholeWeights of {} weights: the shards of all ranks", sizes.ranks * sizes.share),
      fmt::format("{}", unit.whole->weights().numel()),
      "the whole weights have no room for the padding of the last shard");
  result(unit.shard);
}

void require_whole(const Unit& unit, const torch::Tensor& got, const torch::Tensor& expected,
                   const torch::Tensor& earlier) {
  const auto wanted = fmt::format("the {} weights of all shards", expected.numel());
  expect(got.dim() == 1 && got.numel() == expected.numel(), wanted,
         fmt::format("{} weights", got.numel()),
         "the padding is not cut off: narrow(0, 0, unit.size)");
  expect(storage_bytes(got) > 0, wanted, "weights without memory",
         "allocate() is missing before the all-gather");
  expect(!got.isnan().any().item<bool>(), wanted, "NaN, which allocate() leaves",
         "nothing is gathered into the new memory, or not the shards of all ranks");
  expect(torch::equal(got, expected), wanted, "other weights",
         earlier.defined() && torch::equal(got, earlier)
             ? "the weights of an earlier step: gather at each call"
             : "the shards are at other places than r * share");
  expect(got.requires_grad(), "weights that require a gradient", "weights that do not",
         "the returned weights get no gradient: return a part of weights(), not of values()");
  expect(got.is_alias_of(unit.whole->weights()), "a part of whole->weights()", "another tensor",
         "the returned weights are a copy, whose memory stays when the whole is released");
}

// Three times, with a step in between; the last one finds memory that was not released.
void unshards(const FullySharded& yours, const ProcessGroup& group) {
  const auto weights = first_weights(0, kWidth);
  auto unit = made_by(yours, weights, group);
  torch::Tensor earlier;
  for (int i = 0; i < 3; ++i) {
    const auto expected =
        group.all_gather_into_tensor(unit.shard).flatten().narrow(0, 0, weights.numel());
    running("unshard");
    const auto got = yours.unshard(unit, group);
    running("");
    require_whole(unit, got, expected, earlier);
    result(got);
    earlier = expected.clone();
    if (i == 0) unit.whole->release();
    const torch::NoGradGuard no_grad;
    unit.shard.add_(1);
  }
}

// `mean`, `own`: rows of all shards, of all ranks and of this one.
std::string meaning_of_gradient(const torch::Tensor& got, const torch::Tensor& mean,
                                const torch::Tensor& own, int rank) {
  const auto ranks = mean.size(0);
  if (!got.any().item<bool>()) return "an integer division: in C++ `1 / 3` is 0";
  if (close(got, mean[rank])) {
    return "divided after the sum, or by `/`: the last bits differ from `* (1.0 / N)` before it";
  }
  if (close(got, mean[rank] * ranks)) return "sum instead of mean";
  if (close(got * ranks, mean[rank])) return "divided by the number of ranks twice";
  if (close(got, own[rank]) || close(got * ranks, own[rank])) {
    return "the gradient of this rank alone: nothing is added over the ranks";
  }
  for (std::int64_t row = 0; row < ranks; ++row) {
    if (close(got, mean[row])) return "the gradient of another shard: take row rank()";
  }
  return "the rows are cut at other places than the shards";
}

void gradients(const FullySharded& yours, const ProcessGroup& group) {
  const auto weights = first_weights(0, kWidth);
  const Sizes sizes(weights.numel(), group);
  auto unit = made_by(yours, weights, group);
  running("unshard");
  yours.unshard(unit, group);
  running("");
  const auto own = padded(first_weights(group.rank() + 10, kWidth), sizes);
  auto mean = own * (1.0 / group.world_size());
  group.all_reduce(mean);
  unit.whole->weights().mutable_grad() = own.clone().flatten();
  const Messages messages;
  running("reduce_gradient");
  yours.reduce_gradient(unit, group);
  running("");
  expect(unit.gradient.defined() && unit.gradient.numel() == sizes.share,
         fmt::format("a gradient of {} weights, as the shard has", sizes.share),
         unit.gradient.defined() ? fmt::format("{}", unit.gradient.numel()) : "none",
         "unit.gradient is not the row of this rank");
  const auto got = unit.gradient.flatten();
  expect(torch::equal(got, mean[group.rank()]),
         fmt::format("rank {}: the mean over {} ranks, bit for bit", group.rank(), sizes.ranks),
         fmt::format("a gradient {:.2f} times as large",
                     (got.norm() / mean[group.rank()].norm()).item<double>()),
         meaning_of_gradient(got, mean, own, group.rank()));
  expect(messages.count("allreduce_") == 0, "a reduce-scatter", "an all-reduce",
         "all_reduce sends twice as much as reduce_scatter and leaves the sums of all shards");
  expect(!unit.whole->weights().grad().defined(), "no whole gradient afterwards",
         "a whole gradient",
         "the whole gradient stays, and the next backward adds its own to it: reset()");
  expect(storage_bytes(unit.gradient) <= 4 * sizes.share,
         fmt::format("{} bytes of memory behind the gradient", 4 * sizes.share),
         fmt::format("{}", storage_bytes(unit.gradient)),
         "unit.gradient is a view of a whole gradient, whose memory stays");
  result(got);
}

// What the layers of one step meet: the first problem. A hook ends backward by a c10::Error.
struct Watch {
  std::int64_t layer_bytes;
  int forwards = 0;
  std::string got = {};
  std::string usually = {};

  void note(const std::string& what, const std::string& means) {
    if (usually.empty()) got = what, usually = means;
  }
  void require(const std::string& phase) const {
    expect(usually.empty(), phase + ": the weights of one layer whole, its own", got, usually);
  }

  void look(const torch::Tensor& weights, const std::string& phase, const std::string& all) {
    const auto whole = WholeWeights::living_bytes() / layer_bytes;
    if (storage_bytes(weights) == 0) {
      note("no memory", fmt::format("unshard() is missing before a {}", phase));
    } else if (whole > 1) {
      note(fmt::format("{} layers whole", whole),
           whole == kLayers ? all
                            : fmt::format("a layer stays whole after its {}: release()", phase));
    }
  }
};

Network watched(Watch& watch) {
  Network network;
  network.loss = loss_of;
  network.layer = [&watch](const torch::Tensor& weights, const torch::Tensor& x) {
    watch.look(weights, "forward", "all layers are unsharded before the first forward");
    watch.require(fmt::format("forward of layer {}", watch.forwards++));
    const auto output = output_of(weights, x);
    output.register_hook([&watch, weights](const torch::Tensor& /*gradient*/) {
      watch.look(weights, "backward",
                 "one backward passes through all layers: give each an input of its own, "
                 "x.detach().requires_grad_()");
      TORCH_CHECK(watch.usually.empty(), watch.usually);
    });
    return output;
  };
  return network;
}

void step_of(const FullySharded& yours, std::vector<Unit>& units, const torch::Tensor& inputs,
             const ProcessGroup& group) {
  Watch watch{4 * units.front().whole->weights().numel()};
  const auto network = watched(watch);
  running("train_step");
  try {
    yours.train_step(units, network, inputs, group);
  } catch (const c10::Error& error) {
    watch.require("backward");
    const std::string words = error.what_without_backtrace();
    expect(words.find("modified by an inplace operation") == std::string::npos,
           "a backward without an exception", words.substr(0, words.find('\n')),
           "write into values(), not into weights(), of which autograd counts the changes");
    throw;
  }
  running("");
  watch.require("backward");
  expect(WholeWeights::living_bytes() == 0, "no layer whole after the step",
         fmt::format("{} bytes", WholeWeights::living_bytes()),
         "a layer stays whole after its backward: release()");
}

// The mean gradients if backward began with ones in each layer.
Tensors gradients_of_ones(const Tensors& weights, torch::Tensor x, const ProcessGroup& group) {
  Tensors all;
  for (const auto& one : weights) {
    const auto leaf = one.detach().clone().requires_grad_();
    x = output_of(leaf, x.detach());
    x.sum().backward();
    all.push_back(group.all_gather_into_tensor(leaf.grad()).mean(0));
  }
  return all;
}

// One step: the weights of each layer.
struct Step {
  Tensors got;
  Tensors before;
  Tensors expected;
  Tensors gradients;  // the learner's
  Tensors of_ones;
};

std::string meaning(const Step& step) {
  std::size_t unchanged = 0;
  std::size_t of_ones = 0;
  for (std::size_t i = 0; i < step.got.size(); ++i) {
    if (step.got[i].isnan().any().item<bool>()) {
      return "memory without values in backward: allocate() alone instead of unshard()";
    }
    unchanged += torch::equal(step.got[i], step.before[i]) ? 1U : 0U;
    of_ones += close(step.gradients[i], step.of_ones[i]) ? 1U : 0U;
  }
  if (unchanged == step.got.size()) {
    return "the weights are those of before the step: no optimizer steps a shard";
  }
  if (unchanged > 0) return "a layer gets no step, or no backward";
  return of_ones > 0
             ? "backward begins with ones in each layer: pass on the gradient of the next input"
             : "a layer gets the gradient, or the input, of another one";
}

// The whole weights, or gradients, of all ranks.
torch::Tensor whole_of(const torch::Tensor& part, const Unit& unit, const ProcessGroup& group) {
  const auto own = part.defined() ? part : torch::zeros_like(unit.shard);
  return group.all_gather_into_tensor(own.flatten()).flatten().narrow(0, 0, unit.size);
}

void require_step(const Step& step, int number) {
  for (std::size_t i = 0; i < step.got.size(); ++i) {
    result(step.got[i] - step.before[i]);
    if (torch::equal(step.got[i], step.expected[i])) continue;
    const auto at = (step.got[i] != step.expected[i]).nonzero()[0].item<std::int64_t>();
    throw Wrong{fmt::format("step {}: weight {} of layer {} is {:.7f}, as in "
                            "DistributedDataParallel",
                            number + 1, at, i, step.expected[i][at].item<float>()),
                fmt::format("{:.7f}", step.got[i][at].item<float>()), meaning(step)};
  }
}

// The steps of DistributedDataParallel, with the same optimizer.
class Reference {
 public:
  Reference(std::int64_t width, const ProcessGroup& group)
      : stack_(std::make_shared<Stack>(width)), model_(stack_, group) {
    for (const auto& layer : stack_->layers) {
      optimizers_.push_back(std::make_unique<AdamPart>(layer->weights.numel()));
    }
  }

  Tensors weights() const {
    Tensors all;
    for (const auto& layer : stack_->layers) all.push_back(layer->weights.detach().clone());
    return all;
  }

  void step(const torch::Tensor& inputs) {
    model_.zero_grad();
    loss_of(model_.forward(inputs)).backward();
    for (std::size_t i = 0; i < optimizers_.size(); ++i) {
      const auto& weights = stack_->layers[i]->weights;
      optimizers_[i]->step(weights.detach(), weights.grad());
    }
  }

 private:
  std::shared_ptr<Stack> stack_;
  DistributedDataParallel model_;
  std::vector<std::unique_ptr<AdamPart>> optimizers_;
};

std::vector<Unit> units_of(const FullySharded& yours, std::int64_t width,
                           const ProcessGroup& group) {
  std::vector<Unit> units;
  for (int i = 0; i < kLayers; ++i) {
    units.push_back(made_by(yours, first_weights(i, width), group));
  }
  return units;
}

void steps(const FullySharded& yours, std::int64_t width, const ProcessGroup& group) {
  auto units = units_of(yours, width, group);
  Reference reference(width, group);
  for (int i = 0; i < kSteps; ++i) {
    const auto inputs = inputs_of(i, width, group);
    Step step;
    step.before = reference.weights();
    step.of_ones = gradients_of_ones(step.before, inputs, group);
    step_of(yours, units, inputs, group);
    reference.step(inputs);
    step.expected = reference.weights();
    for (const auto& unit : units) {
      step.got.push_back(whole_of(unit.shard, unit, group));
      step.gradients.push_back(whole_of(unit.gradient, unit, group));
    }
    require_step(step, i);
  }
}

void compare_times(Grader& grader, const FullySharded& yours) {
  static constexpr std::int64_t kWide = 256;
  using Group = const ProcessGroup&;
  const auto yours_steps = [&](Group group) {
    auto units = units_of(yours, kWide, group);
    const Network network{output_of, loss_of};
    for (int i = 0; i < kSteps; ++i) {
      yours.train_step(units, network, inputs_of(i, kWide, group), group);
    }
  };
  const auto library_steps = [](Group group) {
    FullyShardedDataParallel model(std::make_shared<Stack>(kWide), group);
    AdamW optimizer(model.parameters());
    for (int i = 0; i < kSteps; ++i) {
      model.zero_grad();
      loss_of(model.forward(inputs_of(i, kWide, group))).backward();
      optimizer.step();
    }
  };
  grader.compare_times(2, "three steps of four layers on two ranks", yours_steps, library_steps);
}

void grade(Grader& grader, const FullySharded& yours) {
  const auto check = [&](const std::string& title, int ranks, const auto& run) {
    grader.property(title, ranks, [&](const ProcessGroup& group) { run(group); });
  };
  for (const int ranks : {2, 3}) {
    check(fmt::format("shard: the weights, state and bytes of each of {} ranks", ranks), ranks,
          [&](const auto& group) { shards(yours, group); });
  }
  check("unshard: the weights of three shards, before and after a step", 3,
        [&](const auto& group) { unshards(yours, group); });
  check("reduce_gradient: the mean over three ranks, bit for bit", 3,
        [&](const auto& group) { gradients(yours, group); });
  for (const int ranks : {1, 2, 3}) {
    check(fmt::format("train_step: {} steps of {} layers on {} rank{}, bit for bit", kSteps,
                      kLayers, ranks, ranks == 1 ? "" : "s"),
          ranks, [&](const auto& group) { steps(yours, kWidth, group); });
  }
  check("train_step: layers of 3 weights on 4 ranks", 4,
        [&](const auto& group) { steps(yours, 1, group); });
  compare_times(grader, yours);
}

const Graded<FullySharded> graded("fully-sharded", grade);

}  // namespace
}  // namespace ladder::exercises::fully_sharded
