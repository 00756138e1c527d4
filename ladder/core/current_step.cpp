// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/current_step.h"

#include <fmt/core.h>

namespace ladder {
namespace {

std::atomic<std::int64_t> own = 0;
std::atomic<std::int64_t>* kept_at = &own;

}  // namespace

std::int64_t current_step() { return kept_at->load(std::memory_order_relaxed); }

void set_current_step(std::int64_t step) { kept_at->store(step, std::memory_order_relaxed); }

std::string in_current_step() {
  const std::int64_t step = current_step();
  return step == 0 ? "" : fmt::format(", step {}", step);
}

void keep_current_step_at(std::atomic<std::int64_t>& place) { kept_at = &place; }

}  // namespace ladder
