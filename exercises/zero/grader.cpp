// SPDX-License-Identifier: Apache-2.0
#include "exercises/zero/zero.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "exercises/grader/grader.h"
#include "exercises/grader/messages.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/zero_redundancy_optimizer.h"
#include "tests/support/training.h"

namespace ladder::exercises::zero {
namespace {

constexpr int kSteps = 3;

using Parameters = std::vector<torch::Tensor>;

// 31 weights, which no tested number of ranks but 1 divides.
Parameters few_parameters() {
  auto generator = at::detail::createCPUGenerator(fresh_seed() + 1);
  Parameters parameters;
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{5, 3}, {5}, {2, 5}, {1}}) {
    parameters.push_back(torch::randn(sizes, generator).requires_grad_());
  }
  return parameters;
}

// Equal on all ranks, as after their average. So small that Adam's 1e-8 counts, else a factor would
// hardly change a step.
void set_gradients(const Parameters& parameters, int step) {
  auto generator =
      at::detail::createCPUGenerator(fresh_seed() + static_cast<std::uint64_t>(step) + 2);
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = torch::randn(parameter.sizes(), generator) * 1e-6;
  }
}

torch::Tensor gradients_of(const Parameters& parameters) {
  Parameters gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  return flat(gradients);
}

// Adam, undivided.
class Undivided : public DividedOptimizer {
 public:
  explicit Undivided(const Parameters& parameters)
      : parameters_(parameters), adam_(flat(parameters).numel()) {}

  void step() override {
    const torch::NoGradGuard no_grad;
    const auto weights = flat(parameters_);
    adam_.step(weights, gradients_of(parameters_));
    std::int64_t begin = 0;
    for (auto& parameter : parameters_) {
      parameter.copy_(weights.narrow(0, begin, parameter.numel()).view_as(parameter));
      begin += parameter.numel();
    }
  }

 private:
  Parameters parameters_;
  AdamPart adam_;
};

// One step of all ranks: the weights of each, [ranks, weights], and those before and expected.
struct Step {
  torch::Tensor got;
  torch::Tensor before;
  torch::Tensor expected;
  torch::Tensor without_state;  // expected if the step were the first one
  bool all_reduced = false;     // the code called all_reduce
};

// Weights that are unchanged in part, else right. "" for others.
std::string meaning_of_unchanged(const Step& step) {
  const auto ranks = step.got.size(0);
  const auto count = step.got.size(1);
  const auto unchanged = step.got == step.before;
  const auto everywhere = unchanged.all(0);
  if (unchanged.all().item<bool>()) {
    return ranks == 1 ? "torch::cat made a copy, and the new weights are not copied back to the "
                        "parameters"
                      : "each range comes from a rank that did not step it: the root of its "
                        "broadcast is another one";
  }
  if (!unchanged.logical_or(step.got == step.expected).all().item<bool>()) return "";
  if (!(unchanged == everywhere).all().item<bool>() && !everywhere.any().item<bool>()) {
    return unchanged.any(0).all().item<bool>()
               ? "each rank has the new weights of its own range only: nothing is sent"
               : "the ranges of some ranks are not sent: each rank is the root of one broadcast";
  }
  return everywhere.nonzero().min().item<std::int64_t>() >= count / ranks * ranks
             ? "the last weights are in no range where the ranks do not divide their number"
             : "the ranges of some ranks come from a rank that did not step them: each needs its "
               "own root";
}

std::string meaning(const Step& step) {
  const auto close = [&](const torch::Tensor& other) {
    return torch::allclose(step.got, other.expand_as(step.got), 1e-5, 1e-6);
  };
  const auto others = static_cast<double>(step.got.size(0) - 1);
  const auto added = step.expected + others * step.before;
  if (const auto unchanged = meaning_of_unchanged(step); !unchanged.empty()) return unchanged;
  if (close(added)) return "the weights of all ranks are added, also where they are old";
  if (close(added / (others + 1))) {
    return "the weights of all ranks are averaged, also where they are old: the step is too short";
  }
  if (torch::equal(std::get<0>(step.got[0].sort()), std::get<0>(step.expected.sort()))) {
    return "the new weights are at other places: the ranges return in another order";
  }
  if (step.all_reduced) {
    return "the gradients are added over the ranks once more; they are averaged already";
  }
  if (close(step.expected)) {
    return "the last bits differ: weights or gradients are computed with outside AdamPart";
  }
  return close(step.without_state) ? "the state of earlier steps is lost: step() makes it anew"
                                   : "a range is stepped with the gradients of another one";
}

// Steps of 31 weights, each compared on all ranks.
void few_weights(const Zero& yours, const ProcessGroup& group) {
  const auto parameters = few_parameters();
  const auto reference = few_parameters();
  const auto optimizer = yours.make_optimizer(parameters, group);
  Undivided undivided(reference);
  for (int i = 0; i < kSteps; ++i) {
    Step step;
    step.before = flat(parameters);
    set_gradients(parameters, i);
    set_gradients(reference, i);
    const Messages messages;
    optimizer->step();
    step.all_reduced = messages.count("allreduce_") > 0;
    step.without_state = step.before.clone();
    AdamPart(step.before.numel()).step(step.without_state, gradients_of(reference));
    undivided.step();
    step.expected = flat(reference);
    step.got = group.all_gather_into_tensor(flat(parameters));
    const auto wrong = (step.got != step.expected).nonzero();
    result(step.got - step.before);
    if (wrong.size(0) == 0) continue;
    const auto weight = wrong[0][1].item<std::int64_t>();
    throw Wrong{fmt::format("step {}: weight {} of 31 is {:.7f} on each of {} ranks", i + 1, weight,
                            step.expected[weight].item<float>(), group.world_size()),
                fmt::format("{:.7f} on rank {}", step.got[wrong[0][0]][weight].item<float>(),
                            wrong[0][0].item<std::int64_t>()),
                meaning(step)};
  }
}

void bytes_of_state(const Zero& yours, const ProcessGroup& group) {
  const auto parameters = first_model(basicnet())->parameters();
  set_gradients(parameters, 0);
  const auto optimizer = yours.make_optimizer(parameters, group);
  optimizer->step();
  const auto own = torch::tensor(AdamPart::living_bytes());
  const auto bytes = group.all_gather_into_tensor(own);
  const auto count = flat(parameters).numel();
  const auto most = 8 * ((count + group.world_size() - 1) / group.world_size());
  const auto largest = bytes.max().item<std::int64_t>();
  const auto expected =
      fmt::format("{} bytes of state per rank: 8 for each of {} weights ÷ {} ranks", most, count,
                  group.world_size());
  const auto got = fmt::format("{} on rank {}", largest, bytes.argmax().item<std::int64_t>());
  const bool all = (bytes >= 8 * count).all().item<bool>();
  expect(largest <= most + 8 * 64, expected, got,
         all ? "each rank keeps the state of all weights"
             : "the ranks get whole parameters, and fc1 alone has 98 % of the weights: cut the "
               "vector of all weights");
  expect(bytes.sum().item<std::int64_t>() >= 8 * count, expected, got,
         "keep the state in AdamPart, of which each rank has one as long as its optimizer lives");
  result(flat(parameters));
}

// The weights after some steps of DistributedDataParallel.
std::string trained(
    const ProcessGroup& group,
    const std::function<std::unique_ptr<DividedOptimizer>(const Parameters&)>& make) {
  DistributedDataParallel model(first_model(basicnet()), group);
  const auto optimizer = make(model.parameters());
  for (int i = 0; i < kSteps; ++i) {
    const auto whole = random_batch(7, fresh_seed() + static_cast<std::uint64_t>(i) + 1);
    run_backward(model, basicnet(), slice_of(whole, group.rank(), group.world_size()));
    optimizer->step();
  }
  return weights_sha256(state_dict(model));
}

void basicnet_weights(const Zero& yours, const ProcessGroup& group) {
  const auto expected =
      trained(group, [](const auto& all) { return std::make_unique<Undivided>(all); });
  const auto got =
      trained(group, [&](const auto& all) { return yours.make_optimizer(all, group); });
  expect(got == expected,
         fmt::format("weights {:.16} after {} steps, as undivided", expected, kSteps),
         fmt::format("weights {:.16}", got),
         "few weights are right, so the code depends on the number or sizes of parameters");
  result(got);
}

// AdamW of the library, divided.
class Library : public DividedOptimizer {
 public:
  Library(const Parameters& parameters, const ProcessGroup& group)
      : adam_(basicnet().make_optimizer(parameters)), zero_(*adam_, group) {}
  void step() override { adam_->step(); }

 private:
  decltype(basicnet().make_optimizer({})) adam_;
  ZeroRedundancyOptimizer zero_;
};

void grade(Grader& grader, const Zero& yours) {
  using Group = const ProcessGroup&;
  for (const int ranks : {1, 2, 3}) {
    grader.property(fmt::format("31 weights on {} rank{}, {} steps, bit for bit", ranks,
                                ranks == 1 ? "" : "s", kSteps),
                    ranks, [&](Group group) { few_weights(yours, group); });
  }
  for (const int ranks : {2, 3}) {
    grader.property(fmt::format("the bytes of state on each of {} ranks", ranks), ranks,
                    [&](Group group) { bytes_of_state(yours, group); });
  }
  grader.property("BasicNet on three ranks, bit for bit", 3,
                  [&](Group group) { basicnet_weights(yours, group); });
  grader.compare_times(
      2, "three steps of BasicNet on two ranks",
      [&](Group group) {
        trained(group, [&](const auto& all) { return yours.make_optimizer(all, group); });
      },
      [](Group group) {
        trained(group, [&](const auto& all) { return std::make_unique<Library>(all, group); });
      });
}

const Graded<Zero> graded("zero", grade);

}  // namespace
}  // namespace ladder::exercises::zero
