// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/weight_products.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ladder/kernels/vectors.h"

namespace ladder {
namespace {

using kernels::for_this_cpu;
using kernels::load;
using kernels::store;
using kernels::Vector;
using kernels::VectorOf;
using kernels::WordsOf;

constexpr std::int64_t kTileOut = 4;
constexpr std::int64_t kBlockIn = 128;  // inputs of all rows stay in the L1 cache
constexpr std::int64_t kMostLanes = 16;

// One product, as plain numbers.
struct Factors {
  const float* gradient;  // [rows][out]
  const float* input;     // [rows][in]
  std::int64_t rows;
};

// A block of columns of the sum.
struct ProductBlock {
  const Factors* products;
  std::int64_t count;
  std::int64_t out;
  std::int64_t in;
  std::int64_t begin;  // columns
  std::int64_t end;
  double steps;  // of the fixed-point form in 1
  float limit;
  double factor;  // of the result
  bool fresh;
  std::int64_t* sum;  // [out][in]; or null
  float* result;      // [out][in]; or null
};

// Two vectors of columns by kTileOut rows: eight sums in registers.
template <int kLanes>
[[gnu::always_inline]] inline bool add_tile(const ProductBlock& block, std::int64_t o,
                                            std::int64_t i) {
  using V = Vector<kLanes>;
  using Doubles = typename VectorOf<double, kLanes>::Type;
  using Integers = typename VectorOf<std::int64_t, kLanes>::Type;
  using Masks = WordsOf<V>;
  constexpr double kOnes = 0x1.8p52;  // as in fixed_point.cpp
  constexpr int kTile = 2 * static_cast<int>(kTileOut);
  Integers sums[kTile] = {};
  Masks inside = ~Masks{};
  for (std::int64_t k = 0; k < block.count; ++k) {
    const Factors& product = block.products[k];
    V tile[kTile] = {};
    const float* gradient = product.gradient + o;
    const float* input = product.input + i;
    for (std::int64_t row = 0; row < product.rows; ++row) {
      V left;
      V right;
      load(left, input);
      load(right, input + kLanes);
#pragma GCC unroll 4
      for (int t = 0; t < kTile; t += 2) {
        tile[t] += gradient[t / 2] * left;
        tile[t + 1] += gradient[t / 2] * right;
      }
      gradient += block.out;
      input += block.in;
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const V size = tile[t] < 0.0F ? -tile[t] : tile[t];
      inside &= reinterpret_cast<Masks>(size <= block.limit);
      const Doubles rounded = __builtin_convertvector(tile[t], Doubles) * block.steps + kOnes;
      sums[t] += reinterpret_cast<Integers>(rounded) - std::bit_cast<std::int64_t>(kOnes);
    }
  }
  for (int t = 0; t < kTile; ++t) {
    const std::int64_t at = (o + t / 2) * block.in + i + t % 2 * kLanes;
    if (block.sum != nullptr) {
      Integers before = {};
      if (!block.fresh) std::memcpy(&before, block.sum + at, sizeof before);
      sums[t] += before;
      std::memcpy(block.sum + at, &sums[t], sizeof sums[t]);
    }
    if (block.result != nullptr) {
      const V floats =
          __builtin_convertvector(__builtin_convertvector(sums[t], Doubles) * block.factor, V);
      store(block.result + at, floats);
    }
  }
  bool all = true;
  for (int lane = 0; lane < kLanes; ++lane) all = all && inside[lane] != 0;
  return all;
}

template <int kLanes>
[[gnu::always_inline]] inline bool add_block(const ProductBlock& block) {
  bool inside = true;
  for (std::int64_t o = 0; o < block.out; o += kTileOut) {
    for (std::int64_t i = block.begin; i < block.end; i += 2 * kLanes) {
      inside = add_tile<kLanes>(block, o, i) && inside;
    }
  }
  return inside;
}

bool add_block_plain(const ProductBlock& block) { return add_block<4>(block); }
LADDER_AVX2
bool add_block_avx2(const ProductBlock& block) { return add_block<8>(block); }
LADDER_AVX512
bool add_block_avx512(const ProductBlock& block) { return add_block<16>(block); }

}  // namespace

std::vector<WeightProduct> DeferredProducts::of(const torch::Tensor& weight) const {
  const auto found = products_.find(weight.const_data_ptr());
  return found == products_.end() ? std::vector<WeightProduct>{} : found->second;
}

bool DeferredProducts::keep(const torch::Tensor& weight, const WeightProduct& product) {
  const bool fits = weight.size(0) % kTileOut == 0 && weight.size(1) % (2 * kMostLanes) == 0 &&
                    weight.is_contiguous() && product.input.is_contiguous();
  if (innermost() == nullptr || !fits) return false;
  innermost()->products_[weight.const_data_ptr()].push_back(product);
  return true;
}

bool add_products_in_fixed_point(const FixedPoint& form, const std::vector<WeightProduct>& products,
                                 double divisor, bool fresh, std::int64_t* sum, double factor,
                                 float* result) {
  RECORD_FUNCTION("ladder::add_products_in_fixed_point", {});
  const auto block_of = for_this_cpu(add_block_plain, add_block_avx2, add_block_avx512);
  std::vector<Factors> factors;
  for (const auto& product : products) {
    factors.push_back({product.gradient.const_data_ptr<float>(),
                       product.input.const_data_ptr<float>(), product.input.size(0)});
  }
  const std::int64_t in = products.front().input.size(1);
  const ProductBlock all = {.products = factors.data(),
                            .count = std::ssize(factors),
                            .out = products.front().gradient.size(1),
                            .in = in,
                            .steps = 1.0 / (form.step * divisor),
                            .limit = static_cast<float>(form.limit * divisor),
                            .factor = form.step * factor,
                            .fresh = fresh,
                            .sum = sum,
                            .result = result};
  std::atomic<bool> inside = true;
  const std::int64_t blocks = (in + kBlockIn - 1) / kBlockIn;
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    ProductBlock block = all;
    for (; begin < end; ++begin) {
      block.begin = begin * kBlockIn;
      block.end = std::min(in, block.begin + kBlockIn);
      if (!block_of(block)) inside = false;
    }
  });
  return inside;
}

}  // namespace ladder
