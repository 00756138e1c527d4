// SPDX-License-Identifier: Apache-2.0
#include "ladder/exact/product_exchange.h"

#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

namespace ladder {
namespace {

using Rows = std::vector<std::int64_t>;

// Which products a rank has of each weight.
struct Form {
  std::vector<std::optional<Rows>> rows;  // of the inputs; nullopt = other addends too

  // As numbers for the other ranks: per weight how many products, -1 for nullopt, and their rows.
  torch::Tensor packed() const {
    Rows numbers;
    for (const auto& each : rows) {
      numbers.push_back(each ? std::ssize(*each) : -1);
      if (each) numbers.insert(numbers.end(), each->begin(), each->end());
    }
    return torch::tensor(numbers, torch::kInt64);
  }

  Form(const torch::Tensor& packed, std::size_t weights) {
    const auto* next = packed.const_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < weights; ++i) {
      const std::int64_t count = *next++;
      rows.emplace_back();
      if (count < 0) continue;
      rows.back().emplace(next, next + count);
      next += count;
    }
  }

  explicit Form(const std::vector<std::optional<Products>>& products) {
    for (const auto& each : products) {
      rows.emplace_back();
      if (!each) continue;
      rows.back().emplace();
      for (const auto& product : *each) rows.back()->push_back(product.input.size(0));
    }
  }
};

// Whether the factors of all ranks have fewer bytes than their int64 sum.
bool is_worthwhile(const torch::Tensor& weight, std::size_t index, std::span<const Form> forms) {
  std::int64_t rows = 0;
  for (const auto& form : forms) {
    if (!form.rows[index]) return false;
    rows += std::reduce(form.rows[index]->begin(), form.rows[index]->end());
  }
  return rows > 0 && rows * (weight.size(0) + weight.size(1)) <= 2 * weight.numel();
}

}  // namespace

std::vector<Products> exchange_products(const std::vector<torch::Tensor>& weights,
                                        const std::vector<std::optional<Products>>& own,
                                        const ProcessGroup& group) {
  std::vector<Products> result(weights.size());
  if (std::ranges::none_of(weights, takes_products)) return result;
  std::vector<Form> forms;
  for (const auto& packed : group.all_gather(Form(own).packed())) {
    forms.emplace_back(packed, weights.size());
  }
  std::vector<std::size_t> worthwhile;
  std::vector<torch::Tensor> factors = {torch::empty({0}, torch::kFloat)};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!is_worthwhile(weights[i], i, forms)) continue;
    worthwhile.push_back(i);
    for (const auto& [gradient, input] : *own[i]) {
      factors.push_back(gradient.reshape(-1));
      factors.push_back(input.reshape(-1));
    }
  }
  if (worthwhile.empty()) return result;
  const auto all = group.all_gather(torch::cat(factors));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::int64_t begin = 0;
    const auto next = [&](std::int64_t rows, std::int64_t columns) {
      begin += rows * columns;
      return all[rank].narrow(0, begin - rows * columns, rows * columns).view({rows, columns});
    };
    for (const auto i : worthwhile) {
      for (const auto rows : *forms[rank].rows[i]) {
        const auto gradient = next(rows, weights[i].size(0));
        result[i].push_back({gradient, next(rows, weights[i].size(1))});
      }
    }
  }
  return result;
}

RowsOfRank::RowsOfRank(const torch::Tensor& weight, const ProcessGroup& group) {
  constexpr auto kTile = kProductRows;
  const std::int64_t all = weight.size(0);
  const std::int64_t tiles = (all / kTile + group.world_size() - 1) / group.world_size();
  most = tiles * kTile;
  begin = std::min(group.rank() * most, all);
  count = std::min(most, all - begin);
}

Products RowsOfRank::of(const Products& products) const {
  Products result;
  for (const auto& product : products) {
    result.push_back({product.gradient.narrow(1, begin, count), product.input});
  }
  return result;
}

torch::Tensor gather_rows(const torch::Tensor& rows, std::int64_t count,
                          const ProcessGroup& group) {
  return group.all_gather_into_tensor(rows).view({-1, rows.size(1)}).narrow(0, 0, count);
}

}  // namespace ladder
