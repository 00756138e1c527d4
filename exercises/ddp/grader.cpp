// SPDX-License-Identifier: Apache-2.0
#include "exercises/ddp/ddp.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <numeric>
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
  const auto seed = fresh_seed() + static_cast<std::uint64_t>(step) + 1;
  return slice_of(random_batch(7, seed), group.rank(), group.world_size());
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
  if (!got.any().item<bool>()) {
    return "an integer division: in C++ `1 / 2` is 0, so divide `1.0`";
  }
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
  if (const auto times = got.norm() / mean.norm(); close(got, mean * times)) {
    return fmt::format(
        "every gradient is {:.3g} times too large: the factor has another number "
        "than that of the ranks, {}",
        times.item<double>(), world_size);
  }
  return close(got, local) ? "local" : "";
}

void require_gradients(const std::string& where, const Model& model, const Expected& expected,
                       const ProcessGroup& group, const std::string& if_local,
                       const std::string& else_usually) {
  const auto got = gradients(model);
  const auto wrong = wrong_ones(got, expected.mean);
  if (wrong.empty()) return result(flat(got));
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
  result(got);
}

void part_1_weights(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  require_weights_of_stage_2(
      trained(*model, group, [&] { yours.average_gradients(model->parameters(), group); }), group);
}

// Backward with the hooks of a Reducer, then finish().
void average(Reducer& reducer, Model& model, const Batch& batch) {
  running("a backward with hooks, and finish()",
          "an index outside its range, or a hook that captured a local by reference: [this, i]");
  try {
    run_backward(model, basicnet(), batch);
    reducer.finish();
    running("");
  } catch (const c10::Error& error) {
    const std::string words = error.what_without_backtrace();
    const auto has = [&](const char* part) { return words.find(part) != std::string::npos; };
    const auto got = words.substr(0, words.find('\n'));
    const bool undefined =
        has("ndefined") || has("does not have a device") || has("initialized dtype");
    expect(!undefined, "hooks without an exception", got,
           "the gradient is still undefined inside the hook; write the means in finish()");
    expect(!has("non-empty list"), "finish() without an exception", got,
           "the last bucket is empty, so torch::cat has nothing to join");
    expect(!has("view size is not compatible"), "hooks without an exception", got,
           "the memory of a gradient can have another order (channels last): flatten(), not view");
    throw;
  }
}

void part_2(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  const auto other = first_model(basicnet());
  const auto reducer = yours.make_reducer(model->parameters(), group, kBucketBytes);
  for (int step = 0; step < kSteps; ++step) {
    const auto expected = expected_gradients(*other, group, step);
    average(*reducer, *model, batch_of(step, group));
    require_gradients(fmt::format("part 2, step {}", step + 1), *model, expected, group,
                      step == 0 ? "the means are not copied into the gradients"
                                : "the hooks work in the first step only",
                      step == 0 ? "the parts of a bucket are mixed up"
                                : "what finish() wrote in the first step is not cleared");
  }
}

using Bytes = std::vector<std::int64_t>;

// The bytes of each gradient, in the order in which backward computes them.
Bytes in_order_of_backward(const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  Bytes bytes;
  for (const auto& parameter : model->parameters()) {
    parameter.register_hook([&bytes](const torch::Tensor& gradient) {
      bytes.push_back(static_cast<std::int64_t>(gradient.nbytes()));
    });
  }
  run_backward(*model, basicnet(), batch_of(0, group));
  return bytes;
}

// Buckets as the task defines them: the bytes of each.
Bytes buckets_of(const Bytes& gradients, std::int64_t bucket_bytes) {
  Bytes buckets = {0};
  for (const auto bytes : gradients) {
    if (buckets.back() >= bucket_bytes) buckets.push_back(0);
    buckets.back() += bytes;
  }
  return buckets;
}

// Buckets that are sent before the gradient that fills them.
Bytes early_buckets_of(const Bytes& gradients, std::int64_t bucket_bytes) {
  Bytes buckets = {0};
  for (const auto bytes : gradients) {
    if (buckets.back() > 0 && buckets.back() + bytes > bucket_bytes) buckets.push_back(0);
    buckets.back() += bytes;
  }
  return buckets;
}

std::string meaning_of_buckets(const Bytes& got, const Bytes& gradients,
                               std::int64_t bucket_bytes) {
  const auto expected = buckets_of(gradients, bucket_bytes);
  const auto sum = [](const Bytes& all) { return std::reduce(all.begin(), all.end()); };
  if (sum(got) > sum(expected)) {
    return "the bucket is not emptied after a message, so the next one repeats its gradients";
  }
  if (got.size() > expected.size()) {
    return got.size() == gradients.size() ? "each gradient is a message of its own"
           : got == early_buckets_of(gradients, bucket_bytes)
               ? "the bucket is sent before the gradient that fills it is added"
               : "the count of bytes is not set to 0 after a message";
  }
  return bucket_bytes < kBucketBytes ? "\"at least\" is `>=`, but `>` is used"
                                     : "numel() is counted, but bucket_bytes are bytes";
}

// The messages of two steps, because the first one may leave something behind.
void buckets(const Ddp& yours, const ProcessGroup& group, std::int64_t bucket_bytes) {
  const auto model = first_model(basicnet());
  const auto parameters = model->parameters();
  const auto gradients = in_order_of_backward(group);
  const auto expected = buckets_of(gradients, bucket_bytes);
  Messages* now = nullptr;
  parameters.front().register_hook([&](const torch::Tensor&) { now->mark("first layer"); });
  const auto reducer = yours.make_reducer(parameters, group, bucket_bytes);
  for (int step = 0; step < 2; ++step) {
    Messages messages;
    now = &messages;
    average(*reducer, *model, batch_of(step, group));
    expect(messages.first("allreduce_") < messages.first("first layer"),
           "the first all-reduce starts before backward has reached the first layer",
           "it starts later", "no bucket is sent from a hook, so nothing overlaps with backward");
    Bytes got;
    for (const auto& message : messages.all()) {
      if (message.operation == "allreduce_" && message.bytes > 0) got.push_back(message.bytes);
    }
    expect(got == expected,
           fmt::format("bucket_bytes {}, step {}: all-reduces of {} bytes", bucket_bytes, step + 1,
                       fmt::join(expected, ", ")),
           fmt::format("{}", fmt::join(got, ", ")),
           meaning_of_buckets(got, gradients, bucket_bytes));
    result(flat_gradients(*model));
    result(torch::tensor(got));
  }
}

void messages_of_part_2(const Ddp& yours, const ProcessGroup& group) {
  buckets(yours, group, kBucketBytes);
  buckets(yours, group, in_order_of_backward(group).front());
  buckets(yours, group, 1);  // the last bucket is empty
}

void memory_of_part_2(const Ddp& yours, const ProcessGroup& group) {
  const auto model = first_model(basicnet());
  const auto reducer = yours.make_reducer(model->parameters(), group, kBucketBytes);
  const auto bytes_after = [&](int steps) {
    for (int step = 0; step < steps; ++step) average(*reducer, *model, batch_of(0, group));
    const auto used = ::mallinfo2();
    return static_cast<std::int64_t>(used.uordblks + used.hblkhd);
  };
  const auto before = bytes_after(3);
  const auto more = bytes_after(4) - before;
  const auto one = static_cast<std::int64_t>(flat_weights(*model).nbytes());
  expect(more < 2 * one, "no more memory after step 7 than after step 3",
         fmt::format("{} bytes more; a step's means are {}", more, one),
         "finish() keeps the means of earlier steps");
  result(flat_gradients(*model));
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
  check("part 1: the mean of the gradients of three ranks", 3, part_1);
  check("part 1: the weights of stage 2 on two ranks, bit for bit", 2, part_1_weights);
  check("part 1: the weights of stage 2 on three ranks, bit for bit", 3, part_1_weights);
  check("part 2: the mean of the gradients, three steps", 2, part_2);
  check("part 2: buckets, sent while backward runs", 2, messages_of_part_2);
  check("part 2: no memory grows from step to step", 2, memory_of_part_2);
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
