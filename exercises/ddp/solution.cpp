// SPDX-License-Identifier: Apache-2.0
// Exercise 3: average the gradients, first after backward, then while it runs.
#include "exercises/ddp/ddp.h"

namespace {

using namespace ladder;
using namespace ladder::exercises;

// Part 1. Follows backward. One all-reduce per parameter.
void average_gradients(const Parameters& parameters, const ProcessGroup& group) {
  // solution
  for (const auto& parameter : parameters) {
    auto gradient = parameter.grad();
    gradient *= 1.0 / group.world_size();
    group.all_reduce(gradient);
  }
  // end
}

// Part 2. Fills a bucket with gradients as backward computes them, and sends it when it is full.
class BucketReducer : public Reducer {
 public:
  BucketReducer(const Parameters& parameters, const ProcessGroup& group, std::int64_t bucket_bytes)
      : parameters_(parameters), group_(group), bucket_bytes_(bucket_bytes) {
    // solution
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].register_hook([this, i](const torch::Tensor& gradient) { add(i, gradient); });
    }
    // end
  }

  // Follows backward: sends the rest, and writes all means into the gradients.
  void finish() override {
    // solution
    send();
    for (const auto& [i, mean] : means_) parameters_[i].mutable_grad().copy_(mean);
    means_.clear();
    // end
  }

 private:
  // solution
  // stub: // Your members go here.
  void add(std::size_t i, const torch::Tensor& gradient) {
    bucket_.emplace_back(i, gradient);
    bytes_ += static_cast<std::int64_t>(gradient.nbytes());
    if (bytes_ >= bucket_bytes_) send();
  }

  void send() {
    if (bucket_.empty()) return;
    std::vector<torch::Tensor> rows;
    for (const auto& [i, gradient] : bucket_) rows.push_back(gradient.flatten());
    auto flat = torch::cat(rows) * (1.0 / group_.world_size());
    group_.all_reduce(flat);
    std::int64_t begin = 0;
    for (const auto& [i, gradient] : bucket_) {
      means_.emplace_back(i, flat.narrow(0, begin, gradient.numel()).view_as(gradient));
      begin += gradient.numel();
    }
    bucket_.clear();
    bytes_ = 0;
  }

  using Indexed = std::vector<std::pair<std::size_t, torch::Tensor>>;
  Indexed bucket_;  // gradients that wait
  std::int64_t bytes_ = 0;
  Indexed means_;  // results of this backward

  // end
  Parameters parameters_;
  ProcessGroup group_;
  std::int64_t bucket_bytes_;
};

std::unique_ptr<Reducer> make_reducer(const Parameters& parameters, const ProcessGroup& group,
                                      std::int64_t bucket_bytes) {
  return std::make_unique<BucketReducer>(parameters, group, bucket_bytes);
}

const Submission submission(Ddp{average_gradients, make_reducer});

}  // namespace
