// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/batch_norm_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "ladder/nn/batch_norm_passes.h"

namespace ladder::windows {
namespace {

constexpr std::int64_t kGroups = 64;  // of rows whose sums are added in order

template <typename T>
[[gnu::always_inline]] inline void do_step(Step step, const Pass<T>& pass) {
  if (step == Step::kMoments) return add_moments(pass);
  if (step == Step::kGradientSums) return add_gradients(pass);
  Places places;
  const std::int64_t block = block_of(pass.row.channels);
  for (std::int64_t first = 0; first < pass.row.windows; first += block) {
    const std::int64_t windows = std::min(block, pass.row.windows - first);
    if (step == Step::kPool) pool(pass, first, windows, places);
    if (step == Step::kGradient) write_gradient(pass, first, windows, places);
  }
}

// Also for the wider vector instructions of newer CPUs; which, is chosen when the program starts:
// too early for ThreadSanitizer.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
[[gnu::target_clones("arch=x86-64-v3", "default")]]
#endif
void do_row(Step step, const Pass<float>& pass) {
  do_step(step, pass);
}
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
[[gnu::target_clones("arch=x86-64-v3", "default")]]
#endif
void do_row(Step step, const Pass<Bfloat16Bits>& pass) {
  do_step(step, pass);
}

template <typename T>
Pass<T> pass_at(const Work& work, std::int64_t i, double* sums) {
  const Row row = row_of(work.choices);
  const auto data = [](const torch::Tensor& tensor) {
    return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
  };
  T* const gradient = data(work.gradient);
  return {.row = row,
          .input = data(work.input) + 2 * i * row.pixels(),
          .pooled = data(work.pooled) + i * row.pooled(),
          .choice = work.choices.data_ptr<std::uint8_t>() + i * row.pooled(),
          .gradient = gradient == nullptr ? nullptr : gradient + 2 * i * row.pixels(),
          .a = work.a.data(),
          .b = work.b.data(),
          .d = work.d.data(),
          .sums = sums};
}

void do_rows(Step step, const Work& work, std::int64_t begin, std::int64_t end, double* sums) {
  const bool bfloat16 = work.input.scalar_type() == torch::kBFloat16;
  for (std::int64_t i = begin; i < end; ++i) {
    if (bfloat16) {
      do_row(step, pass_at<Bfloat16Bits>(work, i, sums));
    } else {
      do_row(step, pass_at<float>(work, i, sums));
    }
  }
}

}  // namespace

Work work_on(const torch::Tensor& input, const torch::Tensor& pooled,
             const torch::Tensor& choices) {
  const std::vector<float> numbers(static_cast<std::size_t>(input.size(1)));
  return {input, pooled, choices, {}, numbers, numbers, numbers};
}

void for_all_rows(Step step, const Work& work) {
  at::parallel_for(0, rows_of(work.choices), 8, [&](std::int64_t begin, std::int64_t end) {
    do_rows(step, work, begin, end, nullptr);
  });
}

std::vector<double> sums_of_rows(Step step, const Work& work) {
  const std::int64_t rows = rows_of(work.choices);
  const auto width = static_cast<std::size_t>(2 * work.choices.size(1));
  std::vector<double> parts(kGroups * width);
  at::parallel_for(0, kGroups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) {
      do_rows(step, work, group * rows / kGroups, (group + 1) * rows / kGroups,
              parts.data() + static_cast<std::size_t>(group) * width);
    }
  });
  std::vector<double> sums(width);
  for (std::size_t i = 0; i < parts.size(); ++i) sums[i % width] += parts[i];
  return sums;
}

}  // namespace ladder::windows
