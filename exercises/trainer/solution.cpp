// SPDX-License-Identifier: Apache-2.0
// Exercise 9: a loss, a metric and a callback for the Trainer.
#include "exercises/trainer/trainer.h"

#include <limits>

namespace {

using namespace ladder;
using namespace ladder::exercises;

// The mean of the cross-entropy over the samples that `items` counts.
torch::Tensor compute_loss(const torch::Tensor& outputs, const torch::Tensor& labels,
                           const NumItems& items) {
  // solution
  return items.mean(torch::cross_entropy_loss(outputs, labels, {}, at::Reduction::Sum));
  // end
}

// A metric "error": the share of samples whose label does not have the highest score.
Metrics compute_metrics(const EvalPrediction& prediction) {
  // solution
  const auto wrong = prediction.predictions.argmax(1) != prediction.label_ids.only();
  return {{"error", wrong.to(torch::kDouble).mean().item<double>()}};
  // end
}

// Stops the training after `patience` evaluations in a row without a new lowest "eval_loss".
class Stopper : public TrainerCallback {
 public:
  explicit Stopper(int patience) : patience_(patience) {}

  void on_evaluate(TrainerEvent& event) override {
    // solution
    const double loss = event.metrics->at("eval_loss");
    if (loss < best_) {
      best_ = loss;
      without_ = 0;
    } else if (++without_ == patience_) {
      event.control.should_training_stop = true;
    }
    // end
  }

 private:
  int patience_;
  int without_ = 0;  // evaluations since the best one
  double best_ = std::numeric_limits<double>::infinity();
};

std::shared_ptr<TrainerCallback> make_stopper(int patience) {
  return std::make_shared<Stopper>(patience);
}

const Submission submission(TrainerParts{compute_loss, compute_metrics, make_stopper});

}  // namespace
