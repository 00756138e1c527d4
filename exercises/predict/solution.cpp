// SPDX-License-Identifier: Apache-2.0
// Exercise 16: predict the time of a step from the link and the layers.
#include "exercises/predict/predict.h"

#include <algorithm>

namespace {

using namespace ladder::exercises;

// Alpha and beta of the link, from all-reduces over `ranks`.
Link fit_link(const std::vector<TimedAllReduce>& all_reduces, int ranks) {
  // solution
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& one : all_reduces) {
    const double bytes = static_cast<double>(one.bytes) / ranks;
    const double seconds = one.seconds / (2 * (ranks - 1));
    n += 1;
    x += bytes;
    y += seconds;
    xx += bytes * bytes;
    xy += bytes * seconds;
  }
  const double slope = (n * xy - x * y) / (n * xx - x * x);
  return {.alpha = (y - slope * x) / n, .beta = 1 / slope};
  // end
}

// The seconds of one step with buckets of at least `bucket_bytes`. `layers`: the first one first.
double step_seconds(const std::vector<LayerCost>& layers, std::int64_t bucket_bytes, int ranks,
                    const Link& link) {
  // solution
  double now = 0;   // of the computation
  double sent = 0;  // the end of the last all-reduce
  std::int64_t bucket = 0;
  const auto send = [&] {
    const double message = link.alpha + static_cast<double>(bucket) / ranks / link.beta;
    sent = std::max(now, sent) + 2 * (ranks - 1) * message;
    bucket = 0;
  };
  for (const auto& layer : layers) now += layer.forward_seconds;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    now += layer->backward_seconds;
    bucket += layer->bytes;
    if (bucket >= bucket_bytes) send();
  }
  if (bucket > 0) send();
  return std::max(now, sent);
  // end
}

const Submission submission(Predict{fit_link, step_seconds});

}  // namespace
