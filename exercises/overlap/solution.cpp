// SPDX-License-Identifier: Apache-2.0
// Exercise 17: buckets that travel while backward computes.
#include "exercises/overlap/overlap.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

class BucketReducer : public OverlappedReducer {
 public:
  BucketReducer(const AsyncGroup& group, std::int64_t bucket_bytes)
      : group_(group), bucket_bytes_(bucket_bytes) {}

  // Backward has computed a gradient; those of the last layers come first.
  void add(const torch::Tensor& gradient) override {
    // solution
    bucket_.push_back(gradient);
    bytes_ += gradient.nbytes();
    if (bytes_ >= bucket_bytes_) send();
    // end
  }

  // Follows each backward. After it, each gradient that was added is the mean over the ranks.
  void finish() override {
    // solution
    if (!bucket_.empty()) send();
    for (auto& one : under_way_) {
      one.work.wait();
      std::int64_t begin = 0;
      for (auto& gradient : one.gradients) {
        gradient.copy_(one.flat.narrow(0, begin, gradient.numel()).view_as(gradient));
        begin += gradient.numel();
      }
    }
    under_way_.clear();
    // end
  }

 private:
  // solution
  // stub: // Your members go here.
  struct UnderWay {
    std::vector<torch::Tensor> gradients;
    torch::Tensor flat;
    Work work;
  };

  void send() {
    std::vector<torch::Tensor> rows;
    for (const auto& gradient : bucket_) rows.push_back(gradient.flatten());
    const auto flat = torch::cat(rows) * (1.0 / group_.world_size());
    under_way_.push_back({bucket_, flat, group_.all_reduce(flat)});
    bucket_.clear();
    bytes_ = 0;
  }

  std::vector<torch::Tensor> bucket_;  // gradients that wait
  std::int64_t bytes_ = 0;
  std::vector<UnderWay> under_way_;

  // end
  AsyncGroup group_;
  std::int64_t bucket_bytes_;
};

std::unique_ptr<OverlappedReducer> make_reducer(const AsyncGroup& group,
                                                std::int64_t bucket_bytes) {
  return std::make_unique<BucketReducer>(group, bucket_bytes);
}

const Submission submission(Overlap{make_reducer});

}  // namespace
