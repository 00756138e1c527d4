// SPDX-License-Identifier: Apache-2.0
#include "exercises/sync-batch-norm/sync-batch-norm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <string>

#include "exercises/grader/grader.h"

namespace ladder::exercises::sync_batch_norm {
namespace {

constexpr std::int64_t kColumns = 3;

// The rows of all ranks, those of this one, and the results of LibTorch for all.
struct Case {
  torch::Tensor all;
  torch::Tensor gradient;  // of the result
  std::int64_t begin = 0;  // of this rank's rows
  std::int64_t rows = 0;
  double eps = 1e-5;

  torch::Tensor own(const torch::Tensor& of_all) const { return of_all.narrow(0, begin, rows); }
};

// Ranks have 1, 3, 1, 3, ... rows.
Case case_of(const ProcessGroup& group, double offset, double scale = 1, double eps = 1e-5) {
  Case one;
  std::int64_t rows = 0;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const std::int64_t own = rank % 2 == 0 ? 1 : 3;
    if (rank == group.rank()) one = {.begin = rows, .rows = own};
    rows += own;
  }
  rows = std::max<std::int64_t>(rows, 2);
  one.rows = group.world_size() == 1 ? rows : one.rows;
  auto generator = at::detail::createCPUGenerator(5);
  one.all = torch::randn({rows, kColumns}, generator) * scale + offset;
  const double factor = 1 + 0.01 * static_cast<double>(fresh_seed() % 20);
  one.gradient = torch::randn({rows, kColumns}, generator) * factor;
  one.eps = eps;
  return one;
}

double apart(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : 1e9;
}

torch::Tensor normalized(const torch::Tensor& x, const torch::Tensor& mean,
                         const torch::Tensor& variance, double eps) {
  return (x - mean) / torch::sqrt(variance + eps);
}

// `one`'s rows normalised as some mistakes do; the first that fits names the mistake.
std::string meaning_of_forward(const Case& one, const torch::Tensor& got,
                               const ProcessGroup& group) {
  const auto x = one.own(one.all);
  const auto mean = one.all.mean(0);
  const auto variance = one.all.var(0, /*unbiased=*/false);
  auto means = x.mean(0) / group.world_size();
  auto within = (x - x.mean(0)).square().sum(0) / one.all.size(0);
  group.all_reduce(means);
  group.all_reduce(within);
  const auto is = [&](const torch::Tensor& m, const torch::Tensor& v) {
    return apart(got, normalized(x, m, v, one.eps)) < 1e-3;
  };
  const auto around = [&](const torch::Tensor& m) { return (x - m).square().mean(0); };
  if (is(x.mean(0), around(x.mean(0)))) return "the mean is that of this rank's rows";
  if (is(mean, one.all.var(0, true))) return "the variance divides by the number of rows minus one";
  if (is(mean, around(mean))) return "the variance is that of one rank";
  if (is(mean, within))
    return "the variance is around the mean of each rank, not around that of all";
  if (apart(got, (x - mean) / (variance.sqrt() + one.eps)) < 1e-3)
    return "eps belongs under the root";
  const auto shift = (got - normalized(x, mean, variance, one.eps)).std(0, false).max();
  return group.world_size() > 1 && apart(means, mean) > 1e-3 && one.rows > 1 &&
                 shift.item<double>() < 2
             ? "the mean of the ranks' means, which have different numbers of rows"
             : "the mean of the ranks' means, or sums that are divided by other numbers";
}

torch::Tensor reference(const Case& one, const torch::Tensor& x) {
  return torch::batch_norm(x, {}, {}, {}, {}, /*training=*/true, 0.1, one.eps, false);
}

// Every rank compares all rows, so that all ranks take part in what follows.
torch::Tensor joined(const torch::Tensor& own, const ProcessGroup& group) {
  return torch::cat(group.all_gather(own));
}

void forward_on(const SyncBatchNormalization& yours, const ProcessGroup& group, const Case& one,
                const std::string& what, const std::string& if_wrong = "") {
  SavedForBackward saved;
  const auto got = yours.forward(saved, one.own(one.all), one.eps, group);
  expect(got.defined() && got.sizes() == one.own(one.all).sizes(), "a result of the shape of x",
         "another shape", "sum(0) and mean(0) are per column");
  const double distance = apart(joined(got, group), reference(one, one.all));
  if (distance < 2e-3) return result(got * one.own(one.gradient));
  const auto usually = if_wrong.empty() ? meaning_of_forward(one, got, group) : if_wrong;
  const auto all = apart(got, one.own(reference(one, one.all)));
  if (all < 2e-3) group.barrier();  // the message is that of a rank with wrong rows
  throw Wrong{fmt::format("{}: LibTorch's batch_norm of all {} rows", what, one.all.size(0)),
              fmt::format("up to {:.2g} apart on rank {}", all, group.rank()), usually};
}

void forward(const SyncBatchNormalization& yours, const ProcessGroup& group) {
  forward_on(yours, group, case_of(group, 0.5), "values around 0.5");
  forward_on(yours, group, case_of(group, 0, 0.05, 0.01), "small values and eps 0.01",
             "eps belongs under the root: sqrt(variance + eps)");
  forward_on(
      yours, group, case_of(group, 1'000), "values around 1,000",
      "the mean of squares minus the squared mean loses all digits: subtract the mean first");
}

std::string meaning_of_backward(const Case& one, const torch::Tensor& got,
                                const torch::Tensor& expected) {
  const auto y = reference(one, one.all);
  const auto factor = torch::rsqrt(one.all.var(0, false) + one.eps);
  const auto& g = one.gradient;
  const auto is = [&](const torch::Tensor& all) { return apart(got, one.own(all)) < 1e-4; };
  if (is(g * factor)) return "backward treats mean and variance as constants";
  if (is((g - g.mean(0)) * factor)) return "the term with y is missing";
  if (is(expected / factor)) return "the factor 1 ÷ √(variance + eps) is missing";
  return "backward does not add up the sums of the ranks, or divides them by other numbers";
}

void backward(const SyncBatchNormalization& yours, const ProcessGroup& group) {
  const auto one = case_of(group, 0.5, 2.0);
  SavedForBackward saved;
  yours.forward(saved, one.own(one.all), one.eps, group);
  const auto got = yours.backward(saved, one.own(one.gradient), group);
  const auto x = one.all.clone().requires_grad_();
  reference(one, x).backward(one.gradient);
  const double distance = apart(joined(got, group), x.grad());
  expect(distance < 1e-4, fmt::format("the gradient of batch_norm of all {} rows", x.size(0)),
         fmt::format("up to {:.2g} apart", distance), meaning_of_backward(one, got, x.grad()));
  result(got);
}

// The slope of the sum of results times gradients, by differences, is the gradient.
void differences(const SyncBatchNormalization& yours, const ProcessGroup& group) {
  const auto one = case_of(group, 0.5, 2.0);
  constexpr float kStep = 1e-2F;
  const auto loss = [&](double step) {
    auto x = one.all.clone();
    x[0][0] += step;  // a row of rank 0
    SavedForBackward saved;
    auto sum = (yours.forward(saved, one.own(x), one.eps, group) * one.own(one.gradient)).sum();
    group.all_reduce(sum);
    return sum.item<double>();
  };
  const double slope = (loss(kStep) - loss(-kStep)) / (2 * kStep);
  SavedForBackward saved;
  yours.forward(saved, one.own(one.all), one.eps, group);
  const auto got =
      joined(yours.backward(saved, one.own(one.gradient), group), group)[0][0].item<double>();
  expect(std::abs(got - slope) < 1e-2,
         fmt::format("a gradient of {:.4f}, the measured slope", slope), fmt::format("{:.4f}", got),
         "backward is not the derivative of forward");
  result(torch::tensor(got));
}

void grade(Grader& grader, const SyncBatchNormalization& yours) {
  for (const int world_size : {2, 3, 1}) {
    const auto on = fmt::format(" on {} rank{}", world_size, world_size == 1 ? "" : "s");
    grader.property("forward" + on, world_size,
                    [&](const ProcessGroup& group) { forward(yours, group); });
    grader.property("backward" + on, world_size,
                    [&](const ProcessGroup& group) { backward(yours, group); });
  }
  grader.property("backward is the slope of forward, by finite differences", 2,
                  [&](const ProcessGroup& group) { differences(yours, group); });
  const auto x_of = [](const ProcessGroup&) { return torch::ones({1'000, 32}); };
  grader.compare_times(
      2, "forward and backward of 1,000 rows on two ranks; the library's is LibTorch's on one rank",
      [&](const ProcessGroup& group) {
        SavedForBackward saved;
        const auto y = yours.forward(saved, x_of(group), 1e-5, group);
        yours.backward(saved, y, group);
      },
      [&](const ProcessGroup& group) {
        const auto x = x_of(group).requires_grad_();
        torch::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false).backward(x.detach());
      });
}

const Graded<SyncBatchNormalization> graded("sync-batch-norm", grade);

}  // namespace
}  // namespace ladder::exercises::sync_batch_norm
