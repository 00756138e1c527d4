// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/comm_hook.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

// The averaged gradient of the second step: its buckets are the final ones.
torch::Tensor gradient_with(const ProcessGroup& group, const std::optional<CommHook>& hook) {
  DistributedDataParallel model(small_net(), group, {.reducer = {.comm_hook = hook}});
  const auto slice = slice_of(random_batch(8), group.rank(), group.world_size());
  for (int step = 0; step < 2; ++step) run_backward(model, basicnet(), slice);
  const auto gradient = flat_gradients(model);
  expect_equal_on_all_ranks(gradient, group);
  return gradient;
}

// What `hook` sends in two steps of one rank, in bytes.
std::int64_t bytes_with(const ProcessGroup& group, CommHook hook) {
  std::int64_t bytes = 0;
  hook.encode = [&bytes, encode = hook.encode](const torch::Tensor& bucket, int world_size) {
    const auto sent = encode(bucket, world_size);
    bytes += static_cast<std::int64_t>(sent.nbytes());
    return sent;
  };
  gradient_with(group, hook);
  return bytes;
}

TEST(AllreduceHook, IsBitEqualToNoHook) {
  for (const int world : {2, 3}) {
    run_ranks(world, [](const ProcessGroup& group) {
      const auto plain = gradient_with(group, std::nullopt);
      const auto hooked = gradient_with(group, allreduce_hook());
      // Dividing by 3 and multiplying by a third round differently.
      const double tolerance = group.world_size() == 2 ? 0.0 : 1e-7;
      EXPECT_LE(relative_difference(hooked, plain), tolerance);
    });
  }
}

// Rounding to half of a unit in the last place, before the sum and in it. The parts are longer
// than their average, by at most the square root of the world size here.
TEST_ON_RANKS(CompressHooks, AreAsPreciseAsTheirNumbersAndSendHalfTheBytes, 2) {
  constexpr std::int64_t kParameters = 500;
  const auto plain = gradient_with(group, std::nullopt);
  EXPECT_EQ(bytes_with(group, allreduce_hook()), 2 * 4 * kParameters);
  for (const auto& [hook, unit] :
       {std::pair(fp16_compress_hook(), 1.0 / 2048), std::pair(bf16_compress_hook(), 1.0 / 256)}) {
    const double difference = relative_difference(gradient_with(group, hook), plain);
    EXPECT_LE(difference, 2 * unit);
    EXPECT_GE(difference, unit / 8);
    EXPECT_EQ(bytes_with(group, hook), 2 * 2 * kParameters);
  }
}

TEST_ON_RANKS(CommHook, DecidesWhatTheAverageIs, 2) {
  const auto plain = gradient_with(group, std::nullopt);
  const CommHook sum = {
      .encode = [](const torch::Tensor& bucket, int /*world_size*/) { return bucket; },
      .decode = [](const torch::Tensor& total) { return total; }};
  EXPECT_TRUE(torch::equal(gradient_with(group, sum), plain * 2));
  const CommHook scaled = {
      .encode = [](const torch::Tensor& bucket,
                   int world_size) { return bucket.mul_(4.0 / world_size); },  // in place
      .decode = [](const torch::Tensor& total) { return total * 0.5; }};
  EXPECT_TRUE(torch::equal(gradient_with(group, scaled), plain * 2));
}

TEST_ON_RANKS(CommHook, RunsOnOneRankToo, 1) {
  for (const auto& rank : {group, ProcessGroup::single()}) {
    const auto plain = gradient_with(rank, std::nullopt);
    EXPECT_TRUE(torch::equal(gradient_with(rank, allreduce_hook()), plain));
    EXPECT_TRUE(torch::equal(gradient_with(rank, bf16_compress_hook()),
                             plain.to(torch::kBFloat16).to(torch::kFloat32)));
  }
}

// A hook that sends a number before the gradients, as of an error.
TEST(CommHook, MayReturnAPartOfWhatItSent) {
  run_ranks(2, [](const ProcessGroup& group) {
    const auto after = [](std::int64_t first) {
      return CommHook{.encode =
                          [](const torch::Tensor& bucket, int world_size) {
                            return torch::cat({torch::ones({1}), bucket / world_size});
                          },
                      .decode = [first](const torch::Tensor& sum) { return sum.slice(0, first); }};
    };
    EXPECT_TRUE(torch::equal(gradient_with(group, after(1)), gradient_with(group, std::nullopt)));
    EXPECT_ERROR(gradient_with(group, after(0)), UsageError,
                 "CommHook::decode: expected 500 elements, as the bucket has, got 501");
  });
}

}  // namespace
}  // namespace ladder
