// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/device.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

TEST(ChooseDevice, ChoosesTheCpuByNameWithoutALogLineAndForAutoWithOne) {
  const CapturedStream terminal;
  const Log log({.stream = terminal.get()});
  EXPECT_EQ(choose_device("cpu", log), c10::Device(c10::kCPU));
  EXPECT_EQ(terminal.text(), "");
  if (torch::cuda::is_available()) GTEST_SKIP() << "skipped: has a GPU";
  EXPECT_EQ(choose_device("auto", log), c10::Device(c10::kCPU));
  EXPECT_EQ(terminal.text(), "device: no GPU found, training on the CPU\n");
}

TEST(ChooseDevice, RefusesEveryOtherText) {
  for (const std::string text : {"", "gpu", "CPU", "cpu:0", "cpu:1", "cuda:", "cuda:x", "cuda:-1",
                                 "cuda:1:2", "cuda 1", "meta", "mps"}) {
    EXPECT_ERROR(choose_device(text, Log({.quiet = true})), UsageError,
                 "device: expected auto, cpu, cuda or cuda:N, got '" + text + "'");
  }
  EXPECT_THROW(choose_device("cuda:99", Log({.quiet = true})), UsageError);
}

TEST(ChooseDevice, RefusesAGpuThatIsNotThere) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "skipped: has a GPU";
  for (const std::string text : {"cuda", "cuda:0", "cuda:1"}) {
    EXPECT_ERROR(choose_device(text, Log({.quiet = true})), UsageError,
                 "device " + text + ": this machine has 0 GPUs; hint: use cpu instead");
  }
}

// Device files without a driver, as CUDA sees this machine.
class BrokenDriver : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() > 0) GTEST_SKIP() << "skipped: has a GPU";
    unsetenv("CUDA_VISIBLE_DEVICES");
    for (const char* name : {"nvidia0", "nvidia1"}) dev_.write(name, "");
  }

  TemporaryFolder dev_;
  GpuSearch search_{.dev = dev_.path(), .has_cuda = true};
  CapturedStream terminal_;
  Log log_{{.stream = terminal_.get()}};
};

TEST_F(BrokenDriver, IsAWarningOfOneRankPerMachineAndTheCpuForAuto) {
  EXPECT_EQ(choose_device("auto", log_, 0, search_), c10::Device(c10::kCPU));
  const std::string warning = "warning: device: 2 GPUs are visible, but CUDA finds 0; hint: nvidia";
  const std::string on_cpu = "device: no GPU found, training on the CPU\n";
  const auto text = terminal_.text();
  EXPECT_TRUE(text.starts_with(warning) && text.ends_with("\n" + on_cpu)) << text;
  choose_device("auto", log_, /*local_rank=*/1, search_);
  EXPECT_EQ(terminal_.text(), on_cpu);
  EXPECT_EQ(choose_devices({}, "auto", log_, search_).size(), 2U);
  const auto of_devices = terminal_.text();
  EXPECT_TRUE(of_devices.starts_with(warning) && of_devices.ends_with("\ndevices: cpu, cpu\n"));
}

TEST_F(BrokenDriver, IsAnErrorForANamedGpuAndNoMatterForTheCpu) {
  const std::string reason = ": 2 GPUs are visible, but CUDA finds 0; hint: nvidia-smi";
  EXPECT_ERROR(choose_device("cuda", log_, 0, search_), UsageError, "device cuda" + reason);
  EXPECT_ERROR(choose_device("cuda:1", log_, 0, search_), UsageError, "device cuda:1" + reason);
  EXPECT_ERROR(choose_devices({"0", "1"}, "auto", log_, search_), UsageError,
               "device_ids cuda:0" + reason);
  EXPECT_ERROR(choose_devices({}, "cuda", log_, search_), UsageError, "device cuda" + reason);
  EXPECT_EQ(terminal_.text(), "") << "no warning beside the error";
  choose_device("cpu", log_, 0, search_);
  choose_devices({}, "cpu", log_, search_);
  EXPECT_EQ(terminal_.text(), "devices: cpu, cpu\n");
}

TEST(ChooseDevice, AutoIsTheFirstGpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  EXPECT_EQ(choose_device("auto", Log({.quiet = true})), c10::Device(c10::kCUDA, 0));
  EXPECT_TRUE(choose_device("cuda", Log({.quiet = true})).is_cuda());
}

TEST(ChooseDevice, ChoosesTheGpuOfTheLocalRankAndSharesGpusAmongMoreRanks) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  const int count = static_cast<unsigned char>(torch::cuda::device_count());
  for (int local_rank = 0; local_rank < 2 * count; ++local_rank) {
    EXPECT_EQ(choose_device("auto", Log({.quiet = true}), local_rank).index(), local_rank % count);
  }
}

TEST(SendToDevice, GivesTheTensorItselfWhereItIs) {
  const auto tensor = torch::arange(3);
  EXPECT_TRUE(send_to_device(tensor, c10::kCPU).is_same(tensor));
}

TEST(SendToDevice, CopiesToAGpuAndBack) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const auto& tensor : {torch::arange(3), torch::arange(0), torch::arange(3).pin_memory()}) {
    const auto there = send_to_device(tensor, {c10::kCUDA, 0});
    EXPECT_TRUE(there.is_cuda());
    EXPECT_TRUE(torch::equal(there.cpu(), tensor));
  }
}

const std::vector<c10::Device> kTwoReplicas = {c10::kCPU, c10::kCPU};

TEST(ChooseDevices, WithoutAGpuIsTwoReplicasOnTheCpu) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "skipped: has a GPU";
  const CapturedStream terminal;
  EXPECT_EQ(choose_devices({}, "auto", Log({.stream = terminal.get()})), kTwoReplicas);
  EXPECT_EQ(terminal.text(), "devices: cpu, cpu\n");
  EXPECT_ERROR(choose_devices({}, "cuda", Log({.quiet = true})), UsageError,
               "device cuda: this machine has 0 GPUs");
  EXPECT_ERROR(choose_devices({"0", "1"}, "auto", Log({.quiet = true})), UsageError, "cuda:0");
}

TEST(ChooseDevices, ChoosesTheRequestedDevicesAndTheOutputOnTheFirst) {
  const Log log({.quiet = true});
  EXPECT_EQ(choose_devices({}, "cpu", log), kTwoReplicas);
  EXPECT_EQ(choose_devices({"cpu", "cpu"}, "auto", log), kTwoReplicas);
  EXPECT_EQ(choose_devices({"cpu"}, "auto", log).size(), 1U);
  EXPECT_ERROR(choose_devices({"cpu", "gpu"}, "auto", log), UsageError,
               "device_ids: expected auto, cpu, cuda or cuda:N, got 'gpu'");
  EXPECT_ERROR(choose_devices({}, "gpu", log), UsageError, "got 'gpu'");
  EXPECT_EQ(choose_output_device("", kTwoReplicas), c10::Device(c10::kCPU));
  EXPECT_EQ(choose_output_device("cpu", kTwoReplicas), c10::Device(c10::kCPU));
}

TEST(PrepareProcess, SetsTheNumberOfThreadsInLibTorch) {
  const ThreadChoice two = prepare_process({.requested = 2});
  EXPECT_EQ(two.threads, 2);
  EXPECT_EQ(two.reason, "requested");
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_EQ(at::get_num_interop_threads(), 1);
  prepare_process({.requested = 1});  // a second call is allowed
  EXPECT_EQ(at::get_num_threads(), 1);
}

}  // namespace
}  // namespace ladder
