// SPDX-License-Identifier: Apache-2.0
// Without a GPU: NVRTC compiles the kernel for GPUs, and the CPU runs its text.
#include "ladder/kernels/dropout_mask_cuda.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ladder/core/philox_constants.h"
#include "ladder/kernels/counter_mask_arguments.h"
#include "ladder/kernels/dropout_mask.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_keys.h"

// The words of CUDA that the kernel uses.
#define __global__
namespace {
struct Index {
  unsigned x;
  unsigned y;
};
Index blockIdx;
Index threadIdx;
Index blockDim;
Index gridDim;
}  // namespace
#include "ladder/kernels/dropout_mask.cu"

namespace ladder {
namespace {

// counter_mask as a GPU runs it, one thread after the other.
void run_kernel(const CounterMaskArguments& arguments) {
  const auto [x, y] = counter_mask_blocks(arguments);
  blockDim = {.x = kCounterMaskThreads, .y = 1};
  gridDim = {.x = x, .y = std::min(y, 2U)};  // less than there are samples
  for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
      for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) ::counter_mask(arguments);
    }
  }
}

torch::Tensor mask_by_kernel(const torch::Tensor& input, const RandomKey& key,
                             const DropoutMaskOptions& options) {
  const auto mask = empty_mask(input).fill_(-1.0);
  run_kernel(counter_mask_arguments(mask, key, options));
  return mask;
}

void expect_bits_of_the_cpu(const torch::Tensor& input, const RandomKey& key) {
  const DropoutMaskOptions options{.p = 0.25, .layer = 3};
  EXPECT_TRUE(torch::equal(mask_by_kernel(input, key, options), counter_mask(input, key, options)));
}

TEST(CounterMaskKernel, DrawsTheBitsOfTheCpuInEveryLayout) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {5, 64, 12, 12}, {5, 3, 7, 9}, {5, 128}, {5, 13}, {5, 1, 3, 3}, {5}, {5, 6, 1, 2}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE(testing::PrintToString(shape));
    const RandomKey key{0xFEDCBA9876543210, 7, positions(4294967290, 5)};
    const auto input = torch::empty(shape);
    expect_bits_of_the_cpu(input, key);
    if (shape.size() != 4) continue;
    expect_bits_of_the_cpu(input.contiguous(torch::MemoryFormat::ChannelsLast), key);
  }
}

TEST(CounterMaskKernel, TakesAnyPositions) {
  for (const auto& positions : {torch::tensor({9, 4, 9, 0}), torch::tensor({7, 5, 3, 1}),
                                torch::tensor({2, 2, 2, 2}), torch::tensor({0, 3, 6, 9})}) {
    expect_bits_of_the_cpu(torch::empty({4, 50}), {42, 3, positions});
  }
  expect_bits_of_the_cpu(torch::empty({1, 50}), {42, 3, torch::tensor({4294967290})});
}

// Other positions are copied to the GPU.
TEST(CounterMaskKernel, TakesEqualStepsWithoutTheirPositions) {
  const auto copied = [](const std::vector<std::int64_t>& positions) {
    const auto mask = torch::empty({std::ssize(positions), 8});
    return counter_mask_arguments(mask, {42, 3, torch::tensor(positions)}, {}).positions != nullptr;
  };
  EXPECT_FALSE(copied({64, 65, 66}) || copied({1, 3, 5}) || copied({7}));
  EXPECT_TRUE(copied({64, 65, 67}) && copied({1, 2, 1}));
}

// In a captured step positions are on the GPU, with their epoch.
TEST(CounterMaskKernel, TakesEpochsWithPositions) {
  const RandomKey key{42, 3, torch::tensor(std::vector<std::int64_t>{9, 4, 4294967290, 0})};
  const auto input = torch::empty({4, 50});
  const auto joined = key.positions + (key.epoch << 32);
  const auto mask = empty_mask(input);
  auto arguments = counter_mask_arguments(mask, {key.seed, 0, joined}, {});
  arguments.with_epochs = true;
  run_kernel(arguments);
  EXPECT_TRUE(torch::equal(mask, counter_mask(input, key, {})));
}

#ifdef LADDER_CUDA
TEST(CounterMaskKernel, IsCompiledForEveryGpuWithoutOne) {
  for (const char* architecture : {"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"}) {
    const auto cubin = compile_counter_mask(architecture);
    EXPECT_TRUE(cubin.starts_with("\177ELF")) << architecture;
    EXPECT_NE(cubin.find("counter_mask"), std::string::npos) << architecture;
  }
}

TEST(CounterMaskKernel, ReportsWhatTheCompilerRefuses) {
  EXPECT_ERROR(compile_counter_mask("sm_1"), c10::Error,
               "NVRTC for sm_1: nvrtc: error: invalid value for --gpu-architecture");
}
#endif

}  // namespace
}  // namespace ladder
