// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/phases.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ladder/core/error.h"

namespace ladder::bench {
namespace {

using nlohmann::json;

enum class Part { kForward, kBackward, kCollective, kOptimizer };

// An event of the trace, in microseconds.
struct Box {
  Part part = Part::kForward;
  double begin = 0.0;
  double end = 0.0;
};

std::optional<Part> part_named(const std::string& name) {
  if (name == "aten::conv2d") return Part::kForward;
  if (name.starts_with("autograd::engine::evaluate_function")) return Part::kBackward;
  if (name.starts_with("c10d::")) return Part::kCollective;
  if (name.starts_with("aten::_fused_")) return Part::kOptimizer;
  return std::nullopt;
}

std::vector<Box> read_boxes(const std::filesystem::path& path) {
  std::ifstream file(path);
  const auto content = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!content.is_object()) return {};
  std::vector<Box> boxes;
  for (const auto& event : content.value("traceEvents", json::array())) {
    if (event.value("ph", "") != "X") continue;
    const auto part = part_named(event.value("name", ""));
    if (!part) continue;
    const double begin = event.value("ts", 0.0);
    boxes.push_back({*part, begin, begin + event.value("dur", 0.0)});
  }
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& one, const Box& other) { return one.begin < other.begin; });
  return boxes;
}

// The events of one step, from the optimizer of the step before to its own.
struct Step {
  std::optional<double> forward_begin;
  std::optional<double> backward_begin;
  double backward_end = 0.0;
  double sent_in_forward = 0.0;  // microseconds of collectives that delay it
  double sent_in_backward = 0.0;

  void add(const Box& box);
};

void Step::add(const Box& box) {
  if (box.part == Part::kForward && !forward_begin) forward_begin = box.begin;
  if (box.part == Part::kBackward) {
    if (!backward_begin) backward_begin = box.begin;
    backward_end = std::max(backward_end, box.end);
  }
  // Events after those of backward are communication.
  if (box.part != Part::kCollective || !forward_begin) return;
  if (backward_begin && box.begin >= backward_end) return;
  (backward_begin ? sent_in_backward : sent_in_forward) += box.end - box.begin;
}

// Adds the times between the edges of one step to the sums.
void add(Phases& sums, const Step& step, double begin, const Box& optimizer) {
  sums.data += *step.forward_begin - begin;
  sums.forward += *step.backward_begin - *step.forward_begin - step.sent_in_forward;
  sums.backward += step.backward_end - *step.backward_begin - step.sent_in_backward;
  sums.communication +=
      optimizer.begin - step.backward_end + step.sent_in_forward + step.sent_in_backward;
  sums.optimizer += optimizer.end - optimizer.begin;
}

}  // namespace

Phases read_phases(const std::filesystem::path& trace) {
  Phases sums;
  Step step;
  std::optional<double> begin;  // where the step before ended
  int steps = 0;
  const auto boxes = read_boxes(trace);
  for (const Box& box : boxes) {
    step.add(box);
    if (box.part != Part::kOptimizer) continue;
    if (begin && step.forward_begin && step.backward_begin) {
      add(sums, step, *begin, box);
      ++steps;
    }
    begin = box.end;
    step = {};
  }
  if (steps == 0) {
    throw DataError::mismatch(trace.string(), "a trace of two training steps or more",
                              fmt::format("{} boxes of steps", boxes.size()),
                              "the program must train for 8 steps or more");
  }
  const double per_step = 1e-3 / steps;
  return {sums.data * per_step, sums.forward * per_step, sums.backward * per_step,
          sums.communication * per_step, sums.optimizer * per_step};
}

}  // namespace ladder::bench
