// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/device.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>

#include "ladder/core/error.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

TEST(ChooseDevice, TakesTheCpuByNameAndSaysNothing) {
  const CapturedStream terminal;
  const Log log({.stream = terminal.get()});
  EXPECT_EQ(choose_device("cpu", log), c10::Device(c10::kCPU));
  EXPECT_EQ(terminal.text(), "");
}

TEST(ChooseDevice, RefusesEveryOtherText) {
  for (const std::string text : {"", "gpu", "CPU", "cpu:0", "cpu:1", "cuda:", "cuda:x", "cuda:-1",
                                 "cuda:1:2", "cuda 1", "meta", "mps"}) {
    EXPECT_ERROR(choose_device(text, Log({.quiet = true})), UsageError,
                 "--device: expected auto, cpu, cuda or cuda:N, got '" + text + "'");
  }
}

TEST(ChooseDevice, RefusesAGpuThatIsNotThere) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "skipped: has a GPU";
  for (const std::string text : {"cuda", "cuda:0", "cuda:1"}) {
    EXPECT_ERROR(choose_device(text, Log({.quiet = true})), UsageError,
                 "--device " + text + ": this machine has 0 GPUs; hint: use --device cpu");
  }
}

TEST(ChooseDevice, AnUnusableDeviceIsAMistakeOnTheCommandLine) {
  try {
    choose_device("cuda:99", Log({.quiet = true}));
    FAIL() << "no machine has 100 GPUs";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.exit_code()), 2);
  }
}

TEST(ChooseDevice, AutoFallsBackToTheCpuWithOneLine) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "skipped: has a GPU";
  const CapturedStream terminal;
  EXPECT_EQ(choose_device("auto", Log({.stream = terminal.get()})), c10::Device(c10::kCPU));
  EXPECT_EQ(terminal.text(), "device: no GPU found, training on the CPU\n");
}

TEST(ChooseDevice, AutoTakesTheFirstGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  EXPECT_EQ(choose_device("auto", Log({.quiet = true})), c10::Device(c10::kCUDA, 0));
  EXPECT_TRUE(choose_device("cuda", Log({.quiet = true})).is_cuda());
}

TEST(PrepareProcess, TellsLibTorchTheNumberOfThreads) {
  const ThreadChoice two = prepare_process({.requested = 2});
  EXPECT_EQ(two.threads, 2);
  EXPECT_EQ(two.reason, "--threads");
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_EQ(at::get_num_interop_threads(), 1);
  prepare_process({.requested = 1});  // a second call is allowed
  EXPECT_EQ(at::get_num_threads(), 1);
}

}  // namespace
}  // namespace ladder
