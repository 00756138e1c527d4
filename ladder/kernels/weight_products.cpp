// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/weight_products.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>

#include "ladder/kernels/vectors.h"

namespace ladder {
namespace {

using kernels::for_this_cpu;
using kernels::load;
using kernels::store;
using kernels::Vector;
using kernels::VectorOf;
using kernels::Vectors;
using kernels::WordsOf;

constexpr std::int64_t kTileOut = kProductRows;
constexpr std::int64_t kTileIn = 64;
constexpr std::int64_t kBlockIn = 128;  // inputs of all rows stay in the L1 cache
constexpr double kOnes = 0x1.8p52;      // as in fixed_point.cpp

// The products, and a block of columns of their sum. Factors are copied: rows that are multiples of
// 4 KiB apart, as those of an input often are, exclude each other from the cache.
struct ProductBlock {
  std::span<const std::int64_t> rows;  // of each product
  std::int64_t out;
  std::int64_t in;
  const float* gradient;  // [out / kTileOut][all rows][kTileOut]
  const float* input;     // [all rows][end - begin]
  std::int64_t begin;     // columns
  std::int64_t end;
  double steps;  // of the fixed-point form in 1
  float limit;
  double factor;  // of the result
  bool fresh;
  std::int64_t* sum;  // [out][in]; or null
  float* result;      // [out][in]; or null
};

// A tile of the sum: kVectors vectors of columns by kTileOut rows.
template <int kLanes, int kVectors>
struct Tile {
  using V = Vector<kLanes>;
  using Doubles = typename VectorOf<double, kLanes>::Type;
  using Integers = typename VectorOf<std::int64_t, kLanes>::Type;
  using Masks = WordsOf<V>;
  static constexpr int kSize = kVectors * static_cast<int>(kTileOut);

  Integers sums[static_cast<std::size_t>(kSize)] = {};
  Masks inside = ~Masks{};

  // One product, in float: its sums stay in registers. Moves both addresses past it.
  [[gnu::always_inline]] void add(const ProductBlock& block, std::int64_t rows,
                                  const float*& gradient, const float*& input) {
    constexpr std::int64_t kStep = kLanes;
    Vectors<kLanes, kSize> product = {};
    for (std::int64_t row = 0; row < rows; ++row) {
      Vectors<kLanes, kVectors> columns;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) load(columns[v], input + v * kStep);
#pragma GCC unroll 16
      for (int t = 0; t < kSize; ++t) {
        product[t] += gradient[t / kVectors] * columns[t % kVectors];
      }
      gradient += kTileOut;
      input += block.end - block.begin;
    }
#pragma GCC unroll 16
    for (int t = 0; t < kSize; ++t) {
      const V size = product[t] < 0.0F ? -product[t] : product[t];
      inside &= reinterpret_cast<Masks>(size <= block.limit);
      const Doubles rounded = __builtin_convertvector(product[t], Doubles) * block.steps + kOnes;
      sums[t] += reinterpret_cast<Integers>(rounded) - std::bit_cast<std::int64_t>(kOnes);
    }
  }

  // `at`: of the tile's first element in the sum and the result.
  [[gnu::always_inline]] void write(const ProductBlock& block, std::int64_t at) {
    for (std::int64_t t = 0; t < kSize; ++t) {
      const std::int64_t place = at + t / kVectors * block.in + t % kVectors * kLanes;
      if (block.sum != nullptr) {
        Integers before = {};
        if (!block.fresh) std::memcpy(&before, block.sum + place, sizeof before);
        sums[t] += before;
        std::memcpy(block.sum + place, &sums[t], sizeof sums[t]);
      }
      if (block.result != nullptr) {
        const V floats =
            __builtin_convertvector(__builtin_convertvector(sums[t], Doubles) * block.factor, V);
        store(block.result + place, floats);
      }
    }
  }

  [[gnu::always_inline]] bool is_inside() const {
    bool all = true;
    for (int lane = 0; lane < kLanes; ++lane) all = all && inside[lane] != 0;
    return all;
  }
};

template <int kLanes>
[[gnu::always_inline]] inline bool add_block(const ProductBlock& block) {
  constexpr int kVectors = kLanes == 16 ? 4 : 2;  // 16 of 32 registers, or 8 of 16
  constexpr std::int64_t kColumns = std::int64_t{kVectors} * kLanes;
  const float* of_tile = block.gradient;
  bool inside = true;
  for (std::int64_t o = 0; o < block.out; o += kTileOut) {
    const float* gradient = of_tile;
    for (std::int64_t i = block.begin; i < block.end; i += kColumns) {
      Tile<kLanes, kVectors> tile;
      gradient = of_tile;
      const float* input = block.input + i - block.begin;
      for (const std::int64_t rows : block.rows) tile.add(block, rows, gradient, input);
      tile.write(block, o * block.in + i);
      inside = tile.is_inside() && inside;
    }
    of_tile = gradient;
  }
  return inside;
}

bool add_block_plain(const ProductBlock& block) { return add_block<4>(block); }
LADDER_AVX2
bool add_block_avx2(const ProductBlock& block) { return add_block<8>(block); }
LADDER_AVX512
bool add_block_avx512(const ProductBlock& block) { return add_block<16>(block); }

// The blocks [first, last) of columns; `all` lacks their inputs, which are copied here.
bool add_blocks(const ProductBlock& all, const std::vector<WeightProduct>& products,
                std::int64_t first, std::int64_t last) {
  const auto add_block = for_this_cpu(add_block_plain, add_block_avx2, add_block_avx512);
  const auto rows = std::reduce(all.rows.begin(), all.rows.end());
  std::vector<float> input(static_cast<std::size_t>(rows * kBlockIn));
  ProductBlock block = all;
  block.input = input.data();
  bool inside = true;
  for (; first < last; ++first) {
    block.begin = first * kBlockIn;
    block.end = std::min(block.in, block.begin + kBlockIn);
    float* to = input.data();
    for (const auto& product : products) {
      const float* from = product.input.const_data_ptr<float>() + block.begin;
      for (std::int64_t row = 0; row < product.input.size(0); ++row, from += block.in) {
        to = std::copy_n(from, block.end - block.begin, to);
      }
    }
    inside = add_block(block) && inside;
  }
  return inside;
}

}  // namespace

bool takes_products(const torch::Tensor& weight) {
  return weight.is_cpu() && weight.scalar_type() == torch::kFloat && weight.dim() == 2 &&
         weight.size(0) % kTileOut == 0 && weight.size(1) % kTileIn == 0 && weight.is_contiguous();
}

bool add_products_in_fixed_point(const FixedPoint& form, const std::vector<WeightProduct>& products,
                                 double divisor, bool fresh, std::int64_t* sum, double factor,
                                 float* result) {
  RECORD_FUNCTION("ladder::add_products_in_fixed_point", {});
  std::vector<std::int64_t> rows;
  std::vector<torch::Tensor> gradients;
  for (const auto& product : products) {
    rows.push_back(product.input.size(0));
    gradients.push_back(product.gradient);
  }
  const auto out = gradients.front().size(1);
  const auto tiles =
      torch::cat(gradients).view({-1, out / kTileOut, kTileOut}).transpose(0, 1).contiguous();
  const ProductBlock all = {.rows = rows,
                            .out = out,
                            .in = products.front().input.size(1),
                            .gradient = tiles.const_data_ptr<float>(),
                            .steps = 1.0 / (form.step * divisor),
                            .limit = static_cast<float>(form.limit * divisor),
                            .factor = form.step * factor,
                            .fresh = fresh,
                            .sum = sum,
                            .result = result};
  std::atomic<bool> inside = true;
  const std::int64_t blocks = (all.in + kBlockIn - 1) / kBlockIn;
  at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
    if (!add_blocks(all, products, first, last)) inside = false;
  });
  return inside;
}

}  // namespace ladder
