// SPDX-License-Identifier: Apache-2.0
#include "ladder/exact/product_exchange.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/exact/exact_sums.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

constexpr std::int64_t kIn = 64;

// The factors of a weight with `out` rows, in eighths: `seed` is their only difference.
WeightProduct product(std::int64_t out, std::int64_t rows, std::int64_t seed) {
  const auto numbers = [&](std::int64_t columns) {
    return torch::arange(rows * columns)
        .add(seed)
        .remainder(7)
        .sub(3)
        .div(8)
        .to(torch::kFloat)
        .view({rows, columns});
  };
  return {numbers(out), numbers(kIn)};
}

// Of rank 0 two, of rank 1 none, of rank 2 one that is shorter.
std::vector<Products> of_ranks(std::int64_t out, std::int64_t rows) {
  return {{product(out, rows, 1), product(out, rows, 2)}, {}, {product(out, rows - 1, 3)}};
}

Products of_rank(const ProcessGroup& group, std::int64_t out, std::int64_t rows) {
  return of_ranks(out, rows)[static_cast<std::size_t>(group.rank())];
}

// One micro-batch, with another gradient beside the products.
ExactSums::Addends addends(const Products& products, float other) {
  return {.gradients = {torch::Tensor(), torch::full({3}, other)}, .products = {products, {}}};
}

ExactSums sums_for(std::int64_t out) { return {{torch::zeros({out, kIn}), torch::zeros({3})}, {}}; }

// With 4 rows two ranks multiply nothing, with 20 they have 8, 8 and 4; 128 samples are too many.
TEST_ON_RANKS(ProductExchange, GivesEachRankTheSumsOfOneRank, 3) {
  for (const std::int64_t out : {4, 20}) {
    for (const std::int64_t rows : {1, 5, 128}) {
      auto whole = sums_for(out);
      std::vector<ExactSums::Addends> all;
      for (const auto& products : of_ranks(out, rows)) all.push_back(addends(products, 1));
      const auto expected = whole.finish(all, /*loss_scale=*/8, ProcessGroup::single());
      auto sums = sums_for(out);
      for (const bool in_two_parts : {false, true}) {
        std::vector<ExactSums::Addends> own = {addends(of_rank(group, out, rows), 1)};
        if (in_two_parts) {
          sums.add(own, /*loss_scale=*/8);
          own.clear();
        }
        const auto found = sums.finish(own, /*loss_scale=*/8, group);
        EXPECT_TRUE(torch::equal(found.gradients[0], expected.gradients[0]));
        EXPECT_TRUE(torch::equal(found.gradients[1], expected.gradients[1]));
        EXPECT_GT(found.gradients[0].abs().max().item<float>(), 0);
      }
    }
  }
}

TEST_ON_RANKS(ProductExchange, GivesNanOnAllRanksForARowBeyondTheLimit, 3) {
  auto products = of_rank(group, 20, 5);
  if (group.rank() == 2) products[0].gradient[0][19] = 1e9;  // rank 2 multiplies this row
  auto sums = sums_for(20);
  const auto found = sums.finish({addends(products, 1)}, /*loss_scale=*/1, group);
  for (const auto& gradient : found.gradients) EXPECT_TRUE(gradient.isnan().all().item<bool>());
}

// Of a weight of 20 x 64, 30 rows of factors have 2,520 numbers; the sums take the room of 2,560.
TEST_ON_RANKS(ProductExchange, IsForFactorsThatAreSmallerAndForProductsAlone, 3) {
  const auto weight = torch::zeros({20, kIn});
  const auto found = [&](const torch::Tensor& like, std::int64_t rows, bool others_on_rank_1) {
    std::optional<Products> own;
    if (!others_on_rank_1 || group.rank() != 1) own = of_rank(group, like.size(0), rows);
    return std::ssize(exchange_products({like}, {own}, group).front());
  };
  EXPECT_EQ(found(weight, 10, false), 3);  // 10 + 10 + 9 rows
  EXPECT_EQ(found(weight, 11, false), 0);
  EXPECT_EQ(found(weight, 10, true), 0);
  EXPECT_EQ(found(torch::zeros({20, 32}), 2, false), 0);  // not a form it takes
}

}  // namespace
}  // namespace ladder
