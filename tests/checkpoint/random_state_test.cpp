// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/random_state.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <utility>
#include <vector>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

const torch::Device kHere(torch::kCPU);

StateDict copy_of(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, tensor] : state) copy.emplace(name, tensor.clone());
  return copy;
}

// Of each kind of number; a single normal one leaves its twin behind for the next draw.
std::vector<torch::Tensor> draw() {
  return {torch::randn({1}, torch::kFloat64),
          torch::rand({100}),
          torch::randperm(50),
          torch::randn({1}),
          torch::randn({64}),
          torch::bernoulli(torch::full({40}, 0.5))};
}

bool all_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

TEST(RandomState, OfAFileDrawsTheNumbersThatWouldHaveComeNextWhenItIsApplied) {
  const TemporaryFolder folder;
  const auto path = folder.file("random_states_0.safetensors");
  torch::manual_seed(11);
  draw();
  save_safetensors(path, {random_state(kHere), {}});
  const auto state = load_safetensors(path).tensors;
  const auto next = draw();
  EXPECT_FALSE(all_equal(next, draw()));
  for (int i = 0; i < 2; ++i) {
    torch::manual_seed(12);
    draw();
    const auto before = random_state(kHere);
    const auto apply = plan_load_random_state(state, kHere, path);
    EXPECT_TRUE(torch::equal(random_state(kHere).at("cpu"), before.at("cpu")));
    apply();
    EXPECT_TRUE(all_equal(draw(), next));
  }
}

torch::Tensor draw_on(const torch::Device& device) {
  return torch::rand({20}, torch::dtype(torch::kFloat32).device(device)).cpu();
}

// DataParallel draws from each of them.
TEST(RandomState, HoldsTheGeneratorOfEveryGpu) {
  if (gpu_count() < 2) GTEST_SKIP() << "skipped: fewer than two GPUs";
  const torch::Device first("cuda:0");
  const torch::Device second("cuda:1");
  torch::manual_seed(16);
  draw_on(second);
  const auto state = copy_of(random_state(first));
  EXPECT_EQ(state.size(), 1U + static_cast<std::size_t>(gpu_count()));
  const auto next = draw_on(first);
  const auto next_of_second = draw_on(second);
  plan_load_random_state(state, first, "a file")();
  EXPECT_TRUE(torch::equal(draw_on(first), next));
  EXPECT_TRUE(torch::equal(draw_on(second), next_of_second));
  // Resumed on 1,0: the first of this process goes on as the first of that one.
  plan_load_random_state(state, second, "a file")();
  EXPECT_TRUE(torch::equal(draw_on(second), next));
  EXPECT_TRUE(torch::equal(draw_on(first), next_of_second));
  // As written before: of one GPU.
  const auto own = random_state(second).at("cuda").clone();
  plan_load_random_state({{"cpu", state.at("cpu")}, {"cuda", state.at("cuda")}}, first, "a file")();
  EXPECT_TRUE(torch::equal(random_state(second).at("cuda"), own));
  EXPECT_TRUE(torch::equal(draw_on(first), next));
}

TEST(RandomState, OfAGpuIsLeftOutOnTheCpu) {
  auto state = random_state(kHere);
  for (const char* name : {"cuda", "cuda.1", "cuda.12"}) {
    state[name] = torch::zeros({16}, torch::kUInt8);
  }
  plan_load_random_state(state, kHere, "a file")();
  EXPECT_TRUE(torch::equal(random_state(kHere).at("cpu"), state.at("cpu")));
}

TEST(RandomState, IsRefusedWithAnyDamage) {
  torch::manual_seed(15);
  const auto good = random_state(kHere).at("cpu");
  const auto size = std::to_string(good.numel());
  const auto cut = good.slice(0, 0, -1).clone();
  const std::string state_of = "the state of a generator as cpu, got ";
  const std::vector<std::pair<StateDict, std::string>> damages = {
      {{}, "a tensor cpu, got none"},
      {{{"cuda", good}}, "a tensor cpu, got none"},
      {{{"cpu", good}, {"cpu.1", good}}, "only cpu, cuda and cuda.N, got \"cpu.1\""},
      {{{"cpu", good}, {"mps", good}}, "only cpu, cuda and cuda.N, got \"mps\""},
      {{{"cpu", good}, {"cuda.0", good}}, "only cpu, cuda and cuda.N, got \"cuda.0\""},
      {{{"cpu", good}, {"cuda.x", good}}, "only cpu, cuda and cuda.N, got \"cuda.x\""},
      {{{"cpu", good}, {"cuda1", good}}, "only cpu, cuda and cuda.N, got \"cuda1\""},
      {{{"cpu", cut}}, state_of + "Byte [" + std::to_string(cut.numel()) + "]: "},
      {{{"cpu", torch::zeros({0}, torch::kUInt8)}}, state_of + "Byte [0]: "},
      {{{"cpu", good.to(torch::kInt8)}}, state_of + "Char [" + size + "]: "},
      {{{"cpu", good.to(torch::kFloat32)}}, state_of + "Float [" + size + "]: "},
      {{{"cpu", torch::zeros_like(good)}}, state_of + "Byte [" + size + "]: "},
      {{{"cpu", torch::full_like(good, 255)}}, state_of + "Byte [" + size + "]: "}};
  draw();
  const auto before = copy_of(random_state(kHere));
  for (const auto& [state, text] : damages) {
    EXPECT_ERROR(static_cast<void>(plan_load_random_state(state, kHere, "r.safetensors")),
                 DataError, "r.safetensors: expected " + text);
    EXPECT_TRUE(torch::equal(random_state(kHere).at("cpu"), before.at("cpu"))) << text;
  }
}

}  // namespace
}  // namespace ladder
