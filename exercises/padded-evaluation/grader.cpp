// SPDX-License-Identifier: Apache-2.0
#include "exercises/padded-evaluation/padded-evaluation.h"

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <string>

#include "exercises/grader/grader.h"
#include "exercises/grader/images.h"

namespace ladder::exercises::padded_evaluation {
namespace {

// Images that count how many of them are read.
class CountedImages : public Images {
 public:
  using Images::Images;
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    read += std::ssize(indices);
    return Images::get_batch(indices);
  }

  mutable std::int64_t read = 0;
};

std::string meaning_of_seen(std::int64_t got, std::int64_t size, std::int64_t world_size,
                            std::int64_t read) {
  if (got == size * world_size && read == size) return "each rank evaluates the whole test set";
  if (got == size * world_size) return "the counts are added up twice";
  if (got > size) return "the sampler repeats samples until all ranks have equally many";
  return got == read
             ? "the counts of one rank are not added to those of the others, or not on all ranks"
             : "drop_last leaves samples out";
}

void exact(const PaddedEvaluation& yours, const ProcessGroup& group, std::int64_t size) {
  const auto images = std::make_shared<CountedImages>(size);
  const auto model = first_model(basicnet());
  const auto expected = evaluate(*model, DataLoader(images), basicnet().criterion(), torch::kCPU);
  images->read = 0;
  const auto got = yours.evaluate_on_all(*model, images, basicnet().criterion(), group);
  const auto where = fmt::format("{} samples on {} ranks", size, group.world_size());
  expect(got.seen == size, fmt::format("{}: {} counted", where, size), fmt::format("{}", got.seen),
         meaning_of_seen(got.seen, size, group.world_size(), images->read));
  expect(got.correct == expected.correct, fmt::format("{}: {} correct", where, expected.correct),
         fmt::format("{}", got.correct),
         got.loss_sum > expected.loss_sum + 1e-3
             ? "the samples that the sampler repeats are still in the sums"
             : "some samples are counted twice and others not at all");
  expect(std::abs(got.loss_sum - expected.loss_sum) < 1e-3,
         fmt::format("{}: a loss of {:.4f}", where, expected.loss_sum),
         fmt::format("{:.4f}", got.loss_sum),
         got.loss_sum > expected.loss_sum
             ? "the samples that the sampler repeats are still in the sums"
             : "the losses are not added up like the counts");
  const auto most = (size + group.world_size() - 1) / group.world_size();
  expect(images->read <= most, fmt::format("{}: at most {} read by a rank", where, most),
         fmt::format("{}", images->read), "every rank reads all samples, so nothing is shared");
  result(torch::tensor(got.loss_sum));
}

void grade(Grader& grader, const PaddedEvaluation& yours) {
  for (const int world_size : {3, 2, 1}) {
    grader.property(
        fmt::format("each sample once on {} rank{}", world_size, world_size == 1 ? "" : "s"),
        world_size, [&](const ProcessGroup& group) {
          for (const std::int64_t size : {100, 2}) exact(yours, group, size);
        });
  }
}

const Graded<PaddedEvaluation> graded("padded-evaluation", grade);

}  // namespace
}  // namespace ladder::exercises::padded_evaluation
