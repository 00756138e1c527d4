// SPDX-License-Identifier: Apache-2.0
// What tests/support/fake_cuda catches.
#include "tests/support/fake_cuda/fake_cuda.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <csignal>

namespace {

const torch::Device kFirst(torch::kCUDA, 0);
const torch::Device kSecond(torch::kCUDA, 1);

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::int64_t count_of(const std::map<std::string, std::int64_t>& counts, const std::string& name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

torch::Tensor pinned(const torch::Tensor& t) { return t.pin_memory(); }

TEST(FakeCuda, LooksLikeTwoGpus) {
  EXPECT_TRUE(torch::cuda::is_available());
  EXPECT_EQ(torch::cuda::device_count(), 2);
  const auto t = torch::arange(4, kSecond);
  EXPECT_TRUE(t.is_cuda());
  EXPECT_EQ(t.device(), kSecond);
  EXPECT_EQ(t.sum().item<std::int64_t>(), 6);
}

TEST(FakeCuda, EndsAProgramWhoseHostCodeTouchesItsMemory) {
  const auto t = torch::ones({4}, kFirst);
  const auto* data = t.const_data_ptr<float>();
  EXPECT_EXIT(std::fprintf(stderr, "%f", static_cast<double>(*data)),
              testing::KilledBySignal(SIGSEGV), "");
}

TEST(FakeCuda, RefusesToMixDevices) {
  const auto here = torch::ones({4});
  const auto there = torch::ones({4}, kFirst);
  EXPECT_EQ(error_of([&] { here + there; }),
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            "and cpu!");
  EXPECT_EQ(error_of([&] { there + torch::ones({4}, kSecond); }),
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            "and cuda:1!");
  EXPECT_EQ(
      error_of([&] { torch::embedding(there.view({4, 1}), torch::zeros({2}, torch::kInt64)); }),
      "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
      "and cpu! (when checking arguments of aten::index_select)");
  EXPECT_EQ(error_of([&] { there* torch::tensor(2.0); }), "no error");  // a number
}

TEST(FakeCuda, CountsWaitsOfTheHost) {
  const auto t = torch::ones({4}, kFirst);
  const auto before = fake_cuda::counts();
  t.sum().item<float>();
  t.nonzero();
  t.masked_select(t > 0.5);
  t.index({t > 0.5});
  t.cpu();
  torch::cuda::synchronize(0);
  const auto after = fake_cuda::counts();
  for (const auto& [cause, times] :
       std::map<std::string, std::int64_t>{{"item", 1},
                                           {"aten::nonzero", 2},
                                           {"aten::masked_select", 1},
                                           {"copy.to_host.pageable.blocking", 1},
                                           {"device", 1}}) {
    EXPECT_EQ(count_of(after.syncs, cause) - count_of(before.syncs, cause), times) << cause;
  }
}

TEST(FakeCuda, CountsCopiesByKind) {
  const auto t = torch::ones({4});
  const auto page_locked = pinned(t);
  const auto before = fake_cuda::counts();
  t.to(kFirst);
  t.to(kFirst, /*non_blocking=*/true);
  page_locked.to(kFirst, /*non_blocking=*/true);
  page_locked.to(kFirst, torch::kFloat64, /*non_blocking=*/true);  // converted on the host, first
  page_locked.to(kFirst).to(kSecond);
  const auto after = fake_cuda::counts();
  for (const auto& [kind, times] :
       std::map<std::string, std::int64_t>{{"to_device.pageable.blocking", 1},
                                           {"to_device.pageable.non_blocking", 2},
                                           {"to_device.pinned.non_blocking", 1},
                                           {"to_device.pinned.blocking", 1},
                                           {"between_devices", 1}}) {
    EXPECT_EQ(count_of(after.copies, kind) - count_of(before.copies, kind), times) << kind;
  }
}

TEST(FakeCuda, CountsKernelsByOperator) {
  const auto t = torch::ones({4}, kFirst);
  const auto before = fake_cuda::counts().kernels;
  (t + t).view({2, 2}).t().select(0, 1);
  const auto after = fake_cuda::counts().kernels;
  EXPECT_EQ(count_of(after, "aten::add.out") - count_of(before, "aten::add.out"), 1);
  EXPECT_EQ(after.size(), before.size() + (count_of(before, "aten::add.out") == 0 ? 1 : 0));
}

TEST(FakeCuda, ACopyToTheHostIsPoisonUntilTheHostWaits) {
  const auto t = torch::ones({4}, kFirst);
  const auto host = pinned(torch::zeros({4}));
  host.copy_(t, /*non_blocking=*/true);
  EXPECT_TRUE(std::isnan(host[0].item<float>()));
  torch::cuda::synchronize(1);  // another GPU
  EXPECT_TRUE(std::isnan(host[0].item<float>()));
  t.fill_(2);  // after the copy, in the order of the stream
  torch::cuda::synchronize(0);
  EXPECT_EQ(host[0].item<float>(), 1.0F);
}

TEST(FakeCuda, PinnedMemoryThatIsOverwrittenUnderACopyIsAnError) {
  const auto host = pinned(torch::zeros({4}));
  auto there = host.to(kFirst, /*non_blocking=*/true);
  torch::cuda::synchronize(0);
  host.fill_(1);  // the copy was done
  there = host.to(kFirst, /*non_blocking=*/true);
  host.fill_(2);
  EXPECT_NE(error_of([] {
              torch::cuda::synchronize(0);
            }).find("pinned memory was overwritten before its non-blocking copy"),
            std::string::npos);
}

TEST(FakeCuda, AddsUpProductsOf16BitsInFloat32) {
  const auto ones = torch::full({1, 3000}, 1.0, torch::dtype(torch::kFloat16).device(kFirst));
  const auto sum = ones.mm(ones.t());  // in float16 it would end at 2048, where 1 more is lost
  EXPECT_EQ(sum.scalar_type(), torch::kFloat16);
  EXPECT_EQ(sum.item<float>(), 3000.0F);
}

TEST(FakeCuda, HasGeneratorsOfItsOwn) {
  torch::manual_seed(1);
  const auto a = torch::rand({4}, kFirst).cpu();
  const auto of_the_cpu = torch::rand({4});
  torch::manual_seed(1);
  EXPECT_TRUE(torch::rand({4}).equal(of_the_cpu));  // the CPU's was not drawn from
  EXPECT_TRUE(torch::rand({4}, kFirst).cpu().equal(a));
  EXPECT_FALSE(torch::rand({4}, kFirst).cpu().equal(a));
}

}  // namespace
