// SPDX-License-Identifier: Apache-2.0
#include "exercises/ddp/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "exercises/grader/grader.h"
#include "exercises/grader/messages.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/training.h"

namespace ladder::exercises::ddp {
namespace {

constexpr std::int64_t kBucketBytes = 40'000;  // fc2 is smaller, fc1 and conv2 are larger
constexpr int kSteps = 3;

// A part of a batch that the ranks do not divide evenly.
Batch batch_of(int step, const ProcessGroup& group) {
  return slice_of(random_batch(7, static_cast<std::uint64_t>(step) + 1), group.rank(),
                  group.world_size());
}

Parameters gradients(const Model& model) {
  Parameters all;
  for (const auto& parameter : model.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

// The gradients of this rank alone, and their mean over the ranks.
struct Expected {
  Parameters local;
  Parameters mean;
};

Expected expected_gradients(Model& model, const ProcessGroup& group, int step) {
  run_backward(model, basicnet(), batch_of(step, group));
  Expected expected{gradients(model), {}};
  for (const auto& gradient : expected.local) {
    expected.mean.push_back(group.all_gather_into_tensor(gradient).mean(0));
  }
  return expected;
}

bool close(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && torch::allclose(a, b, 1e-4, 1e-7);
}

// The wrong parameters of all.
std::vector<std::size_t> wrong_ones(const Parameters& got, const Parameters& expected) {
  std::vector<std::size_t> wrong;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!close(got[i], expected[i])) wrong.push_back(i);
  }
  return wrong;
}

[[noreturn]] void wrong_gradient(const std::string& where, const std::string& name,
                                 const torch::Tensor& got, const torch::Tensor& mean,
                                 const std::string& usually) {
  const double times = (got.norm() / mean.norm()).item<double>();
  throw Wrong{fmt::format("{}: the mean over the ranks as gradient of {}", where, name),
              fmt::format("a gradient {:.2f} times as large", times), usually};
}

std::string meaning(const torch::Tensor& got, const torch::Tensor& local, const torch::Tensor& mean,
                    int world_size) {
  if (close(got, mean * world_size)) {
    return fmt::format("sum instead of mean: every gradient is {}.0 times too large", world_size);
  }
  if (close(got * world_size, mean)) {
    return "the gradients are divided by the number of ranks twice";
  }
  if (close(got * world_size, local)) {
    return "this rank does not call all_reduce, or ignores its result; a collective is inside an "
           "`if`";
  }
  if (close(got, mean + local)) {
    return "the mean is written in the hook, and backward adds its own gradient to it";
  }
  return close(got, local) ? "local" : "";
}

void require_gradients(const std::string& where, const Model& model, const Expected& expected,
                       const ProcessGroup& group, const std::string& if_local,
                       const std::string& else_usually) {
  const auto got = gradients(model);
  const auto wrong = wrong_ones(got, expected.mean);
  if (wrong.empty()) return;
  const auto i = wrong.front();
  auto usually = meaning(got[i], expected.local[i], expected.mean[i], group.world_size());
  if (usually == "local") {
    usually = wrong.size() < got.size() ? "finish() does not send the last bucket" : if_local;
  }
  wrong_gradient(where, model.named_parameters()[i].key(), got[i], expected.mean[i],
                 usually.empty() ? else_usually : usually);
}

void part_1(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  const auto before = weights_sha256(state_dict(*model));
  const auto expected = expected_gradients(*model, group, 0);
  const Messages messages;
  yours.average_gradients(model->parameters(), group);
  expect(before == weights_sha256(state_dict(*model)), "unchanged weights", "other weights",
         "the weights are averaged, not the gradients");
  require_gradients("part 1", *model, expected, group,
                    "the all-reduce works on a copy, or on another tensor than parameter.grad()",
                    "another tensor than the gradient is sent");
  const auto count = messages.count("allreduce_");
  expect(count == std::ssize(model->parameters()),
         fmt::format("{} all-reduces, one per parameter", model->parameters().size()),
         fmt::format("{}", count), "part 1 joins gradients, which belongs to part 2");
}

// The weights after some steps with `average` after each backward.
std::string trained(Model& model, const ProcessGroup& group, const std::function<void()>& average) {
  const auto optimizer = basicnet().make_optimizer(model.parameters());
  for (int step = 0; step < kSteps; ++step) {
    run_backward(model, basicnet(), batch_of(step, group));
    average();
    optimizer->step();
  }
  return weights_sha256(state_dict(model));
}

void require_weights_of_stage_2(const std::string& got, const ProcessGroup& group) {
  DistributedDataParallel wrapped(first_model(basicnet()), group);
  const auto expected = trained(wrapped, group, [] {});
  expect(got == expected,
         fmt::format("weights {:.16} after {} steps, as in stage 2", expected, kSteps),
         fmt::format("weights {:.16}", got),
         "the gradients are divided after the sum or by `/`: the last bits differ from "
         "`* (1.0 / world_size)` before it");
}

void part_1_weights(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  require_weights_of_stage_2(
      trained(*model, group, [&] { yours.average_gradients(model->parameters(), group); }), group);
}

void part_2(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  const auto other = first_model(basicnet());
  const auto reducer = yours.make_reducer(model->parameters(), group, kBucketBytes);
  for (int step = 0; step < kSteps; ++step) {
    const auto expected = expected_gradients(*other, group, step);
    run_backward(*model, basicnet(), batch_of(step, group));
    reducer->finish();
    require_gradients(fmt::format("part 2, step {}", step + 1), *model, expected, group,
                      step == 0 ? "the means are not copied into the gradients"
                                : "the hooks work in the first step only",
                      step == 0 ? "the parts of a bucket are mixed up"
                                : "what finish() wrote in the first step is not cleared");
  }
}

// Buckets as the task defines them: the bytes of each.
std::vector<std::int64_t> buckets_of(const Model& model) {
  std::vector<std::int64_t> buckets = {0};
  auto parameters = model.parameters();
  std::reverse(parameters.begin(), parameters.end());
  for (const auto& parameter : parameters) {
    if (buckets.back() >= kBucketBytes) buckets.push_back(0);
    buckets.back() += static_cast<std::int64_t>(parameter.nbytes());
  }
  return buckets;
}

void messages_of_part_2(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  const auto parameters = model->parameters();
  Messages messages;
  parameters.front().register_hook([&](const torch::Tensor&) { messages.mark("first layer"); });
  const auto reducer = yours.make_reducer(parameters, group, kBucketBytes);
  run_backward(*model, basicnet(), batch_of(0, group));
  reducer->finish();
  const auto count = messages.count("allreduce_");
  const auto most = std::ssize(buckets_of(*model));
  expect(messages.first("allreduce_") < messages.first("first layer"),
         "the first all-reduce starts before backward has reached the first layer",
         "it starts later", "no bucket is sent from a hook, so nothing overlaps with backward");
  expect(count <= most,
         fmt::format("at most {} all-reduces for buckets of {} bytes", most, kBucketBytes),
         fmt::format("{} for {} parameters", count, parameters.size()),
         count == std::ssize(parameters) ? "each gradient is a message of its own"
                                         : "the count of bytes is not set to 0 after a message");
}

void part_2_weights(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  const auto reducer = yours.make_reducer(model->parameters(), group, kBucketBytes);
  require_weights_of_stage_2(trained(*model, group, [&] { reducer->finish(); }), group);
}

void grade(Grader& grader, const Ddp& yours) {
  using Group = const ProcessGroup&;
  const auto check = [&](const std::string& title, int ranks, void (*run)(const Ddp&, Group)) {
    grader.property(title, ranks, [&](Group group) { run(yours, group); });
  };
  check("part 1: the mean of the gradients of two ranks", 2, part_1);
  check("part 1: the weights of stage 2 on two ranks, bit for bit", 2, part_1_weights);
  check("part 1: the weights of stage 2 on three ranks, bit for bit", 3, part_1_weights);
  check("part 2: the mean of the gradients, three steps", 2, part_2);
  check("part 2: buckets, sent while backward runs", 2, messages_of_part_2);
  check("part 2: the weights of stage 2 on three ranks, bit for bit", 3, part_2_weights);
  const auto yours_step = [&](Group group) {
    const auto model = first_model(basicnet());
    const auto reducer = yours.make_reducer(model->parameters(), group, 25 << 20);
    trained(*model, group, [&] { reducer->finish(); });
  };
  const auto library_step = [](Group group) {
    DistributedDataParallel wrapped(first_model(basicnet()), group);
    trained(wrapped, group, [] {});
  };
  grader.compare_times(2, "three steps of BasicNet on two ranks", yours_step, library_step);
}

const Graded<Ddp> graded("ddp", grade);

}  // namespace
}  // namespace ladder::exercises::ddp
