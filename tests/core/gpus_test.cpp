// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/gpus.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

class Gpus : public testing::Test {
 protected:
  void SetUp() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
  void TearDown() override { unsetenv("CUDA_VISIBLE_DEVICES"); }

  void add(std::initializer_list<const char*> names) {
    for (const char* name : names) dev_.write(name, "");
  }
  int visible_with(const char* list) {
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
    return visible_gpu_count(here());
  }

  // As a LibTorch with CUDA, or without.
  GpuSearch here(bool has_cuda = true) const { return {.dev = dev_.path(), .has_cuda = has_cuda}; }

  TemporaryFolder dev_;
};

TEST_F(Gpus, AreOneADeviceFileOrOneUnderWindows) {
  EXPECT_EQ(machine_gpu_count({.dev = dev_.file("missing"), .has_cuda = true}), 0);
  add({"null", "nvidiactl", "nvidia-uvm", "nvidia", "nvidia0x"});
  EXPECT_EQ(machine_gpu_count(here()), 0);
  add({"dxg"});
  EXPECT_EQ(machine_gpu_count(here()), 1);
  add({"nvidia0", "nvidia7", "nvidia12"});
  EXPECT_EQ(machine_gpu_count(here()), 3);
  EXPECT_EQ(visible_gpu_count(here()), 3);
}

// The results of torch.cuda._parse_visible_devices of PyTorch 2.11 for the same lists, up to the
// first entry that is 4 or more, as in torch.cuda.device_count.
TEST_F(Gpus, FollowCudasRulesForTheList) {
  add({"nvidia0", "nvidia1", "nvidia2", "nvidia3"});
  const std::initializer_list<std::pair<const char*, int>> table = {
      {"0", 1},       {"0,1", 2},         {"3,1,0", 3},   {"", 0},
      {"-1", 0},      {"0,-1,1", 1},      {"0,4,1", 1},   {"4", 0},
      {"0,0", 0},     {"1,2,1", 0},       {"0,x,1", 1},   {"none", 0},
      {" 0 , 1 ", 2}, {"1gpu2,2amp", 2},  {"+2", 1},      {"0,,1", 1},
      {"0,", 1},      {"00,1", 2},        {"GPU-a", 1},   {"GPU-a,GPU-b", 2},
      {"GPU-a,0", 1}, {"GPU-a,GPU-a", 0}, {"0,GPU-a", 1}, {"99999999999", 0},
      {"0,1,-1,0", 2}};
  for (const auto& [list, count] : table) EXPECT_EQ(visible_with(list), count) << list;
}

TEST_F(Gpus, AreOneOfSeveralMigEntriesAndNeverMoreThanTheMachineHas) {
  add({"nvidia0"});
  EXPECT_EQ(visible_with("GPU-a,GPU-b"), 1);
  EXPECT_EQ(visible_with("0,1"), 1);
  EXPECT_EQ(visible_with(""), 0);
  EXPECT_EQ(machine_gpu_count(here()), 1) << "without the list";
  add({"nvidia1"});
  EXPECT_EQ(visible_with("MIG-a,MIG-b"), 1);
}

TEST_F(Gpus, AreNoneForALibTorchWithoutCuda) {
  add({"nvidia0", "nvidia1"});
  EXPECT_EQ(machine_gpu_count(here(false)), 0);
  EXPECT_EQ(visible_gpu_count(here(false)), 0);
  EXPECT_EQ(no_gpu_reason(here(false)), "this LibTorch has no CUDA");
  EXPECT_EQ(missing_gpus(0, here(false)), "2 GPUs are visible, but this LibTorch has no CUDA");
}

TEST_F(Gpus, ThatCudaDoesNotFindAreMissing) {
  EXPECT_EQ(missing_gpus(0, here()), "");
  EXPECT_EQ(no_gpu_reason(here()), "this machine has no GPU");
  add({"nvidia0", "nvidia1"});
  EXPECT_EQ(missing_gpus(0, here()), "2 GPUs are visible, but CUDA finds 0");
  EXPECT_EQ(missing_gpus(1, here()), "2 GPUs are visible, but CUDA finds 1");
  EXPECT_EQ(missing_gpus(2, here()), "");
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  EXPECT_EQ(missing_gpus(0, here()), "1 GPU is visible, but CUDA finds 0");
  EXPECT_EQ(missing_gpus(1, here()), "");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(missing_gpus(0, here()), "") << "hidden on purpose";
}

TEST_F(Gpus, ThatContradictTheLaunchersAreRefused) {
  std::vector<std::vector<const char*>> launchers = {{"ACCELERATE_MIXED_PRECISION"}};
  for (const auto& names : kLauncherVariables) launchers.push_back({names.rank, names.world_size});
  for (const auto& variables : launchers) {
    for (const char* variable : variables) setenv(variable, "0", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_NO_THROW(require_gpus_of_launcher("gpu", "0,1"));
    setenv("CUDA_VISIBLE_DEVICES", "6, 7", 1);
    EXPECT_NO_THROW(require_gpus_of_launcher("gpu", "6,7"));
    EXPECT_ERROR(require_gpus_of_launcher("gpu", "0,1"), UsageError,
                 "gpu: 0,1 contradicts CUDA_VISIBLE_DEVICES=6,7 of the launcher; hint: omit gpu, "
                 "or start the launcher with CUDA_VISIBLE_DEVICES=0,1");
    EXPECT_ERROR(require_gpus_of_launcher("gpu", "7,6"), UsageError, "gpu: 7,6 contradicts");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT_ERROR(require_gpus_of_launcher("gpu", "0"), UsageError, "gpu: 0 contradicts");
    for (const char* variable : variables) unsetenv(variable);
    EXPECT_NO_THROW(require_gpus_of_launcher("gpu", "0"));
  }
  setenv("SLURM_PROCID", "0", 1);  // of a batch script, which is no launcher
  EXPECT_NO_THROW(require_gpus_of_launcher("gpu", "6"));
  unsetenv("SLURM_PROCID");
}

}  // namespace
}  // namespace ladder
