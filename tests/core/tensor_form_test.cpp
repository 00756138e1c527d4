// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/tensor_form.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"

namespace ladder {
namespace {

TEST(TensorForm, ComparesAndShowsTheMembersThatAreSet) {
  const auto rows = torch::zeros({2, 3});
  const auto columns = torch::zeros({3, 2}).t();
  EXPECT_EQ(TensorForm::of_values(columns), TensorForm::of_values(rows));
  EXPECT_EQ(TensorForm::of_values(columns).text(), "Float [2, 3]");
  EXPECT_NE(TensorForm::of_memory(columns), TensorForm::of_memory(rows));
  EXPECT_EQ(TensorForm::of_memory(rows).text(), "Float [2, 3]");
  auto form = TensorForm::of_memory(columns);
  form.sizes->front() = TensorForm::kAnySize;
  form.device = torch::Device("cuda:1");
  EXPECT_EQ(form.text(), "Float [N, 3], strides [1, 2] on cuda:1");
  EXPECT_NE(TensorForm::of_values(rows.to(torch::kHalf)), TensorForm::of_values(rows));
  EXPECT_EQ(TensorForm::of_values(torch::tensor(1)).text(), "Long []");
}

TEST(TensorForm, RequiresTheMembersThatAreSet) {
  const TensorForm form = {.dtype = torch::kFloat, .sizes = {{2, 3}}};
  EXPECT_NO_THROW(form.require(torch::zeros({3, 2}).t(), "input x", "pad it"));
  EXPECT_ERROR(form.require(torch::zeros({2, 4}), "input x", "pad it"), UsageError,
               "input x: expected Float [2, 3], got 'Float [2, 4]'; hint: pad it");
  EXPECT_ERROR(form.require(torch::zeros({2, 3}, torch::kLong), "input x", "pad it"), UsageError,
               "got 'Long [2, 3]'");
  const TensorForm here = {.dtype = torch::kFloat, .device = torch::kCPU};
  EXPECT_NO_THROW(here.require(torch::zeros({7}), "output", "make another"));
  EXPECT_ERROR(here.require(torch::zeros({7}, torch::kDouble), "output", "make another"),
               UsageError, "output: expected Float on cpu, got 'Double on cpu'");
}

}  // namespace
}  // namespace ladder
