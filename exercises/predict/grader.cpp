// SPDX-License-Identifier: Apache-2.0
#include "exercises/predict/predict.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "exercises/grader/grader.h"

namespace ladder::exercises::predict {
namespace {

using Layers = std::vector<LayerCost>;

constexpr std::int64_t kMiB = 1 << 20;

bool close(double a, double b, double tolerance = 1e-6) {
  return std::abs(a - b) <= tolerance * std::abs(b);
}

// Another number in each check.
double fresh_factor() { return 1 + 0.001 * static_cast<double>(fresh_seed() % 100); }

struct NamedLink {
  std::string name;
  Link link;
};

std::vector<NamedLink> links() {
  return {{"1 Gbit/s", {.alpha = 50e-6 * fresh_factor(), .beta = 125e6}},
          {"10 Gbit/s and a large latency", {.alpha = 400e-6 * fresh_factor(), .beta = 1.25e9}}};
}

// --- part 1

double all_reduce_seconds(std::int64_t bytes, int ranks, const Link& link) {
  return VirtualClock().start_all_reduce(bytes, ranks, link);
}

std::string meaning_of_fit(const Link& got, const Link& expected, int ranks) {
  const double n = ranks;
  const auto is = [&](double alpha, double beta) {
    return close(got.alpha, alpha * expected.alpha, 0.02) &&
           close(got.beta, beta * expected.beta, 0.02);
  };
  if (is(1, 8)) return "beta is in bits per second: a byte has 8 of them";
  if (close(got.beta * expected.beta, 1, 0.02)) {
    return "beta is the slope, seconds per byte: it has to be 1 ÷ slope";
  }
  if (got.alpha == 0) return "the line goes through the origin: its height there is alpha";
  if (is(2 * (n - 1), n / (2 * (n - 1)))) {
    return "the line of whole all-reduces: each is 2 (N - 1) messages of bytes ÷ N";
  }
  if (is(1, n)) return "a message has bytes ÷ N, but all bytes are counted";
  if (is((n - 1) / n, n / (n - 1))) return "N for N - 1: an all-reduce is 2 (N - 1) messages";
  if (is(2, 0.5)) return "one phase alone: reduce-scatter and all-gather are N - 1 messages each";
  if (is(1e3, 1) || is(1e6, 1)) return "alpha is in milliseconds or microseconds, not in seconds";
  return close(got.beta, expected.beta, 0.02)
             ? "alpha is the height of the line where the bytes are 0"
             : "beta is 1 ÷ the slope of the line of seconds per message over bytes per message";
}

void fits(const Predict& yours) {
  for (const auto& [name, link] : links()) {
    for (const int ranks : {4, 2, 16}) {
      std::vector<TimedAllReduce> measured;
      for (const std::int64_t bytes :
           {1'000'000, 4, 100'000'000, 10'000, 1'000, 10'000'000, 100'000}) {
        const double seconds = all_reduce_seconds(bytes, ranks, link);
        measured.push_back({bytes, std::round(seconds * 1e6) / 1e6});
      }
      const auto got = yours.fit_link(measured, ranks);
      expect(close(got.alpha, link.alpha, 0.02) && close(got.beta, link.beta, 0.005),
             fmt::format("{}, {} ranks: alpha {:.3g} s, beta {:.3g} bytes/s", name, ranks,
                         link.alpha, link.beta),
             fmt::format("alpha {:.3g}, beta {:.3g}", got.alpha, got.beta),
             meaning_of_fit(got, link, ranks));
      // The fit is within the rounding of the times, and so is its result here.
      result(torch::tensor({std::round(got.alpha / link.alpha * 20) * link.alpha, 1.0}));
    }
  }
}

// --- part 2

struct Network {
  std::string name;
  Layers layers;
};

std::vector<Network> networks() {
  const double f = fresh_factor();
  return {{"24 layers of 4 MiB", Layers(24, {4 * kMiB, 0.003 * f, 0.0065 * f})},
          {"4 layers, of which one has 98 % of the bytes",
           {{1'280, 0.002, 0.004 * f},
            {73'984, 0.006 * f, 0.015},
            {4'719'104, 0.001, 0.003},
            {5'160, 0.001, 0.001 * f}}}};
}

// What a step costs: the right ways, and those of known mistakes.
struct Ways {
  std::function<double(double bytes, double n, const Link& link)> cost = [](double bytes, double n,
                                                                            const Link& link) {
    return 2 * (n - 1) * (link.alpha + bytes / n / link.beta);
  };
  bool last_layer_first = true;
  bool sends_last_bucket = true;
  bool fills_before_sending = true;
  bool shares_the_link = true;
  bool more_than = false;  // `>` instead of `>=`
};

// What the known mistakes need of a step.
struct Run {
  double forward = 0;
  double computation = 0;
  double messages = 0;  // of all buckets
  double end = 0;
};

struct Case {
  Layers layers;
  std::int64_t bucket_bytes;
  int ranks;
  Link link;

  Run run(const Ways& ways) const {
    Run run;
    VirtualClock clock;
    double free = 0;
    std::int64_t bucket = 0;
    const auto send = [&] {
      const double seconds = ways.cost(static_cast<double>(bucket), ranks, link);
      const double ready = ways.shares_the_link ? std::max(free, clock.now()) : clock.now();
      free = std::max(free, ready + seconds);
      run.messages += seconds;
      bucket = 0;
    };
    for (const auto& layer : layers) clock.compute(layer.forward_seconds);
    run.forward = clock.now();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto& layer = layers[ways.last_layer_first ? layers.size() - 1 - i : i];
      clock.compute(layer.backward_seconds);
      if (!ways.fills_before_sending && bucket > 0 && bucket + layer.bytes > bucket_bytes) send();
      bucket += layer.bytes;
      const bool full = ways.more_than ? bucket > bucket_bytes : bucket >= bucket_bytes;
      if (ways.fills_before_sending && full) send();
    }
    if (ways.sends_last_bucket && bucket > 0) send();
    run.computation = clock.now();
    clock.wait_until(free);
    run.end = clock.now();
    return run;
  }
};

std::string meaning(const Case& one, double got) {
  const auto right = one.run({});
  const auto is = [&](double seconds) { return close(got, seconds) && !close(seconds, right.end); };
  const auto with = [&](const Ways& ways) { return is(one.run(ways).end); };
  const auto cost = [&](double (*seconds)(double, double, const Link&)) {
    return with({.cost = seconds});
  };
  const double in_turn = right.computation + right.messages;
  if (is(in_turn)) return "messages and backward overlap: a bucket leaves while backward computes";
  if (is(2 * right.end - in_turn)) return "the overlap is subtracted twice";
  if (is(right.end - right.forward)) return "forward is missing";
  if (is(std::max(right.computation, right.messages)) ||
      is(right.forward + std::max(right.computation - right.forward, right.messages))) {
    return "the first bucket cannot leave before its gradients exist, nor the last one";
  }
  if (with({.sends_last_bucket = false})) return "the last bucket is missing, which is not full";
  if (with({.shares_the_link = false})) {
    return "all-reduces share the link: each begins when the one before has ended";
  }
  if (is(right.computation)) return "the step ends with the last all-reduce, not with backward";
  if (with({.last_layer_first = false})) return "backward begins with the last layer";
  if (with({.fills_before_sending = false})) {
    return "the bucket is sent before the gradient that fills it is added";
  }
  if (with({.more_than = true})) return "\"at least\" is `>=`, but `>` is used";
  using L = const Link&;
  if (cost([](double b, double n, L l) { return 2 * n * (l.alpha + b / n / l.beta); })) {
    return "N for N - 1: an all-reduce is 2 (N - 1) messages";
  }
  if (cost([](double b, double n, L l) { return (n - 1) * (l.alpha + b / n / l.beta); })) {
    return "one phase alone: reduce-scatter and all-gather are N - 1 messages each";
  }
  if (cost([](double b, double n, L l) { return 2 * (n - 1) * (l.alpha + b / l.beta); })) {
    return "a message has bytes ÷ N, but all bytes are counted";
  }
  if (cost([](double b, double n, L l) { return l.alpha + 2 * (n - 1) * b / n / l.beta; })) {
    return "each of the 2 (N - 1) messages takes alpha, not the all-reduce once";
  }
  if (cost([](double b, double, L l) { return l.alpha + b / l.beta; })) {
    return "an all-reduce is 2 (N - 1) messages, not one";
  }
  if (cost([](double b, double n, L l) { return 2 * (n - 1) * (l.alpha + 8 * b / n / l.beta); })) {
    return "bytes for bits: beta counts bytes per second";
  }
  return got < right.computation
             ? "a step takes at least as long as forward and backward"
             : "compare with a step by hand: when is each bucket full, and when is the link free?";
}

void predicts(const Predict& yours, std::int64_t bucket_bytes) {
  for (const auto& [network, layers] : networks()) {
    for (const auto& [name, link] : links()) {
      for (const int ranks : {4, 2, 16}) {
        const Case one{layers, bucket_bytes, ranks, link};
        const double got = yours.step_seconds(layers, bucket_bytes, ranks, link);
        const double expected = one.run({}).end;
        expect(close(got, expected),
               fmt::format("{}, {} ranks, {}: a step of {:.3f} ms", network, ranks, name,
                           1e3 * expected),
               fmt::format("{:.3f} ms", 1e3 * got), meaning(one, got));
        result(torch::tensor(got));
      }
    }
  }
}

void grade(Grader& grader, const Predict& yours) {
  using Group = const ProcessGroup&;
  grader.property("part 1: alpha and beta of two links", 1, [&](Group) { fits(yours); });
  using Size = std::pair<const char*, std::int64_t>;
  for (const auto& [name, bytes] : {Size{"1 MiB", kMiB},
                                    {"25 MiB", 25 * kMiB},
                                    {"4 MiB", 4 * kMiB},
                                    {"0.1 MiB", kMiB / 10},
                                    {"1 byte: one message per layer", 1},
                                    {"1,000 MiB: one message", 1'000 * kMiB}}) {
    grader.property(fmt::format("part 2: buckets of {}", name), 1,
                    [&](Group) { predicts(yours, bytes); });
  }
}

const Graded<Predict> graded("predict", grade);

}  // namespace
}  // namespace ladder::exercises::predict
