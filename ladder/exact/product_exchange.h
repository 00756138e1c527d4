// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ladder/comm/process_group.h"
#include "ladder/kernels/weight_products.h"

namespace ladder {

using Products = std::vector<WeightProduct>;

// The weight gradient of a linear layer is a product of two matrices. For a small batch these
// factors have fewer bytes than the product. So ranks exchange the factors, each multiplies those
// of all ranks for its part of the rows, and then they exchange the parts. The idea is that of
// sufficient factor broadcasting (Xie et al., 2016); there each rank multiplies all.
//
// Needs sums that do not depend on the order of their addends.

// A collective. `own`: per weight the products of this rank; nullopt if it has other addends too.
// Returns per weight those of all ranks: none where a rank has other addends, or where the factors
// have more bytes than the sums.
std::vector<Products> exchange_products(const std::vector<torch::Tensor>& weights,
                                        const std::vector<std::optional<Products>>& own,
                                        const ProcessGroup& group);

// The rows of a weight of which a rank multiplies the products.
struct RowsOfRank {
  RowsOfRank(const torch::Tensor& weight, const ProcessGroup& group);

  // Of the same inputs, for these rows alone.
  Products of(const Products& products) const;

  std::int64_t begin;
  std::int64_t count;
  std::int64_t most;  // that a rank has
};

// A collective: the matrix of which `rows` are those of this rank, [most][in].
torch::Tensor gather_rows(const torch::Tensor& rows, std::int64_t count, const ProcessGroup& group);

}  // namespace ladder
