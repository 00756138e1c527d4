// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/operations.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

torch::Tensor ints(const std::vector<std::int64_t>& values) {
  return torch::tensor(values, torch::kInt64);
}

void expect_equal(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_TRUE(torch::equal(got, expected)) << got << "\nexpected\n" << expected;
}

TEST(MapTensors, KeepsTheStructure) {
  run_alone([] {
    using Inner = std::pair<torch::Tensor, std::vector<torch::Tensor>>;
    const std::map<std::string, Inner> data = {{"b", {ints({1}), {ints({2}), ints({3})}}},
                                               {"a", {ints({4}), {}}}};
    std::vector<std::int64_t> seen;
    const auto change = [&](const torch::Tensor& tensor) {
      seen.push_back(tensor.item<std::int64_t>());
      return tensor * 10;
    };
    const auto result = map_tensors(std::tuple{data, ints({5})}, change);
    EXPECT_EQ(seen, (std::vector<std::int64_t>{4, 1, 2, 3, 5})) << "in one order on all ranks";
    expect_equal(std::get<0>(result).at("b").second.at(1), ints({30}));
    expect_equal(std::get<0>(result).at("a").first, ints({40}));
    expect_equal(std::get<1>(result), ints({50}));
  });
}

TEST(Gather, PutsTheRowsBelowEachOther) {
  run_ranks(3, [](const ProcessGroup& group) {
    const auto rank = group.rank();
    const auto rows = torch::full({rank, 2}, rank, torch::kInt64);  // none on rank 0
    expect_equal(gather_rows(rows, group), ints({1, 1, 2, 2, 2, 2}).view({3, 2}));
    expect_equal(gather_rows(torch::tensor(rank, torch::kInt64), group), ints({0, 1, 2}));
    const auto with_gradient = torch::ones({1}, torch::requires_grad());
    EXPECT_FALSE(gather_rows(with_gradient, group).requires_grad());
  });
  run_alone([] {
    const auto group = ProcessGroup::single();
    expect_equal(gather_rows(torch::tensor(7, torch::kInt64), group), ints({7}));
    expect_equal(gather_rows(ints({7, 8}), group), ints({7, 8}));
  });
}

TEST(ReduceAndBroadcast, AddAverageOrSendWithoutChangingTheInput) {
  run_ranks(2, [](const ProcessGroup& group) {
    const auto own = torch::tensor({1.0, 2.0}) * (group.rank() + 1);
    const auto before = own.clone();
    expect_equal(reduced(own, Reduction::kSum, group), torch::tensor({3.0, 6.0}));
    expect_equal(reduced(own, Reduction::kMean, group), torch::tensor({1.5, 3.0}));
    expect_equal(own, before);
    expect_equal(reduced(ints({group.rank()}), Reduction::kSum, group), ints({1}));
    for (const int source : {0, 1}) {
      expect_equal(broadcasted(own, source, group), torch::tensor({1.0, 2.0}) * (source + 1));
    }
    expect_equal(own, before);
  });
}

// Values as accelerate.utils.pad_across_processes 1.15 gives them.
TEST(PadAcrossProcesses, FillsUpToTheLongest) {
  run_ranks(2, [](const ProcessGroup& group) {
    const bool is_short = group.rank() == 0;
    const auto rows = is_short ? ints({1, 2}).view({1, 2}) : ints({3, 4, 5, 6}).view({2, 2});
    const auto padded = [&](const torch::Tensor& tensor, const PadOptions& options) {
      return padded_across_ranks(tensor, options, group);
    };
    const auto expect = [&](const PadOptions& options, const torch::Tensor& of_short) {
      expect_equal(padded(rows, options), is_short ? of_short : rows);
    };
    expect({}, ints({1, 2, 0, 0}).view({2, 2}));
    expect({.pad_index = -100}, ints({1, 2, -100, -100}).view({2, 2}));
    expect({.pad_index = 9, .pad_first = true}, ints({9, 9, 1, 2}).view({2, 2}));
    expect({.dim = -2}, ints({1, 2, 0, 0}).view({2, 2}));
    expect({.dim = 1}, rows);  // as long already

    const auto columns = rows.t().contiguous();
    expect_equal(padded(columns, {.dim = -1, .pad_index = 7}),
                 is_short ? ints({1, 7, 2, 7}).view({2, 2}) : columns);
    expect_equal(padded(is_short ? torch::zeros({0}) : torch::ones({2}), {.pad_index = 0.5}),
                 is_short ? torch::full({2}, 0.5) : torch::ones({2}));
    for (const std::int64_t dim : {2, -3}) {
      EXPECT_ERROR(padded(rows, {.dim = dim}), UsageError, "a dimension of a tensor with 2");
    }
  });
}

TEST(RequireSameShapes, SeesDtypeSizesAndDimensions) {
  run_ranks(2, [](const ProcessGroup& group) {
    const bool first = group.rank() == 0;
    const auto check = [&](const torch::Tensor& one, const torch::Tensor& other, bool rows) {
      require_same_shapes(first ? one : other, rows, "a test", group);
    };
    const auto matrix = torch::zeros({2, 3});
    const auto scalar = torch::zeros({});
    check(matrix, torch::ones({2, 3}), false);
    check(matrix, torch::zeros({5, 3}), true);
    check(scalar, torch::zeros({1}), true);
    EXPECT_THROW(check(scalar, torch::zeros({1}), false), DistributedError);
    EXPECT_THROW(check(matrix, torch::zeros({5, 3}), false), DistributedError);
    for (const auto& other :
         {torch::zeros({2, 3}, torch::kInt64), torch::zeros({2, 3, 1}), torch::zeros({2, 4})}) {
      EXPECT_THROW(check(matrix, other, true), DistributedError);
    }
  });
}

}  // namespace
}  // namespace ladder
