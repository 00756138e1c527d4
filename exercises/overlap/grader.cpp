// SPDX-License-Identifier: Apache-2.0
#include "exercises/overlap/overlap.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include "exercises/grader/grader.h"

namespace ladder::exercises::overlap {
namespace {

using Bytes = std::vector<std::int64_t>;
using Tensors = std::vector<torch::Tensor>;

constexpr Link kLink{.alpha = 50e-6, .beta = 125e6};
constexpr double kBackward = 400e-6;  // seconds of each layer
constexpr std::int64_t kBucketBytes = 40'000;

// Weights of the layers, the last one first: their gradients are 4 times as many bytes.
constexpr std::array<std::int64_t, 7> kWeights = {2'500, 9'000, 10'000, 4'000, 7'000, 8'000, 1'000};

Tensors gradients_of(int step, int rank) {
  const auto seed = fresh_seed() + static_cast<std::uint64_t>(10 * step + rank) + 1;
  auto generator = at::detail::createCPUGenerator(seed);
  Tensors all;
  for (const auto weights : kWeights) all.push_back(torch::randn({weights / 10, 10}, generator));
  return all;
}

// Of a step with right buckets: the bytes of each all-reduce, and the seconds.
struct Expected {
  Bytes bytes;
  double seconds = 0;
  double one_at_a_time = 0;  // if each bucket waits for the one before it
  double in_turn = 0;        // if backward waits for each bucket

  Expected(std::int64_t bucket_bytes, int ranks) {
    VirtualClock clock;
    VirtualClock slow;
    double messages = 0;
    double end = 0;
    double slow_end = 0;
    std::int64_t bucket = 0;
    const auto send = [&] {
      messages += VirtualClock().start_all_reduce(bucket, ranks, kLink);
      end = clock.start_all_reduce(bucket, ranks, kLink);
      slow.wait_until(slow_end);
      slow_end = slow.start_all_reduce(bucket, ranks, kLink);
      bytes.push_back(bucket);
      bucket = 0;
    };
    for (const auto weights : kWeights) {
      clock.compute(kBackward);
      slow.compute(kBackward);
      bucket += 4 * weights;
      if (bucket >= bucket_bytes) send();
    }
    if (bucket > 0) send();
    in_turn = clock.now() + messages;
    clock.wait_until(end);
    slow.wait_until(slow_end);
    seconds = clock.now();
    one_at_a_time = slow.now();
  }
};

bool close(double a, double b) { return std::abs(a - b) <= 1e-9; }
bool close(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::allclose(a, b, 1e-4, 1e-6);
}

std::string meaning_of_buckets(const Bytes& got, const Bytes& expected, std::int64_t bucket_bytes) {
  const auto sum = [](const Bytes& all) { return std::reduce(all.begin(), all.end()); };
  if (got.empty()) return "nothing is sent";
  if (sum(got) > sum(expected)) {
    return "the bucket is not emptied after a message, so the next one repeats its gradients";
  }
  if (sum(got) < sum(expected)) return "finish() does not send the last bucket";
  if (got.size() == kWeights.size()) return "each gradient is a message of its own";
  if (got.size() == 1) return "one message of all: the bucket is never full";
  if (got.front() < bucket_bytes) {
    return "the bucket is sent before the gradient that fills it is added";
  }
  if (got.size() > expected.size()) return "the count of bytes is not set to 0 after a message";
  return got.front() > 2 * bucket_bytes ? "numel() is counted, but bucket_bytes are bytes"
                                        : "\"at least\" is `>=`, but `>` is used";
}

std::string meaning_of_gradient(const torch::Tensor& got, const torch::Tensor& local,
                                const torch::Tensor& mean, int ranks, int step) {
  if (!got.any().item<bool>()) return "an integer division: in C++ `1 / 2` is 0, so divide `1.0`";
  if (close(got, local)) return "the means are not copied into the gradients";
  if (close(got * ranks, local)) {
    return "the tensor is read before wait(): until then it has no sum, but the numbers of this "
           "rank";
  }
  if (close(got, mean * ranks)) {
    return fmt::format("sum instead of mean: every gradient is {}.0 times too large", ranks);
  }
  if (close(got * ranks, mean)) return "the gradients are divided by the number of ranks twice";
  return step > 0 ? "what finish() did in the first step is not cleared"
                  : "the parts of a bucket are mixed up";
}

std::string meaning_of_time(double got, const Expected& expected, std::size_t sent_in_backward) {
  if (sent_in_backward == 0) return "no bucket is sent in add(), so nothing overlaps with backward";
  if (close(got, expected.in_turn)) {
    return "add() waits for each all-reduce, and backward with it: wait() in finish()";
  }
  if (close(got, expected.one_at_a_time)) {
    return "a bucket waits for the one before it, and backward with it: wait() in finish()";
  }
  return got < expected.seconds
             ? "finish() returns before the last all-reduce has ended: wait() for "
               "each"
             : "a wait() before the end of backward";
}

// A backward and finish(). Returns the seconds on the virtual clock.
double step_of(OverlappedReducer& reducer, const AsyncGroup& group, const Tensors& gradients,
               std::size_t& sent_in_backward) {
  const double start = group.clock().now();
  const auto before = group.bytes().size();
  for (const auto& gradient : gradients) {
    group.clock().compute(kBackward);
    reducer.add(gradient);
  }
  sent_in_backward = group.bytes().size() - before;
  reducer.finish();
  return group.clock().now() - start;
}

void steps(const Overlap& yours, const ProcessGroup& ranks, std::int64_t bucket_bytes) {
  const AsyncGroup group(ranks, kLink);
  const Expected expected(bucket_bytes, ranks.world_size());
  const auto reducer = yours.make_reducer(group, bucket_bytes);
  std::vector<Tensors> earlier;
  for (int step = 0; step < 3; ++step) {
    const auto gradients = gradients_of(step, ranks.rank());
    const auto local = gradients_of(step, ranks.rank());
    const auto before = static_cast<std::ptrdiff_t>(group.bytes().size());
    std::size_t sent_in_backward = 0;
    const double seconds = step_of(*reducer, group, gradients, sent_in_backward);
    const Bytes bytes(group.bytes().begin() + before, group.bytes().end());
    const auto where = fmt::format("bucket_bytes {}, step {}", bucket_bytes, step + 1);
    expect(bytes == expected.bytes,
           fmt::format("{}: all-reduces of {} bytes", where, fmt::join(expected.bytes, ", ")),
           fmt::format("{}", fmt::join(bytes, ", ")),
           meaning_of_buckets(bytes, expected.bytes, bucket_bytes));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto mean = ranks.all_gather_into_tensor(local[i]).mean(0);
      expect(close(gradients[i], mean),
             fmt::format("{}: the mean over the ranks as gradient {} of 7", where, i + 1),
             fmt::format("a gradient {:.2f} times as large",
                         (gradients[i].norm() / mean.norm()).item<double>()),
             meaning_of_gradient(gradients[i], local[i], mean, ranks.world_size(), step));
      result(gradients[i]);
    }
    expect(close(seconds, expected.seconds),
           fmt::format("{}: {:.3f} ms on the virtual clock, the shortest step of these buckets",
                       where, 1e3 * expected.seconds),
           fmt::format("{:.3f} ms", 1e3 * seconds),
           meaning_of_time(seconds, expected, sent_in_backward));
    result(torch::tensor(seconds));
    earlier.push_back(gradients);
  }
  expect(earlier[0].back().use_count() == 1, "after step 3, the gradients of step 1 are released",
         "they are still in use", "finish() does not clear what was under way");
}

void grade(Grader& grader, const Overlap& yours) {
  for (const std::int64_t bucket_bytes : {kBucketBytes, std::int64_t{1}, std::int64_t{1'000'000}}) {
    for (const int ranks : {2, 3}) {
      const Expected expected(bucket_bytes, ranks);
      grader.property(
          fmt::format("{} ranks, buckets of {} bytes: a step of {:.2f} ms, {:.2f} without overlap",
                      ranks, bucket_bytes, 1e3 * expected.seconds, 1e3 * expected.in_turn),
          ranks, [&](const ProcessGroup& group) { steps(yours, group, bucket_bytes); });
    }
  }
}

const Graded<Overlap> graded("overlap", grade);

}  // namespace
}  // namespace ladder::exercises::overlap
