// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/two_ranks.h"

#include <fmt/core.h>
#include <torch/utils.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "ladder/comm/init_process_group.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr const char* kPipe = "the pipe to rank 1";
constexpr int kWarmUpSteps = 3;  // DistributedDataParallel builds its buckets in the first

class OneThread {
 public:
  OneThread() : before_(torch::get_num_threads()) { torch::set_num_threads(1); }
  ~OneThread() { torch::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

void warm_up(const TwoRanks::Step& step) {
  for (int i = 0; i < kWarmUpSteps; ++i) step();
}

}  // namespace

TwoRanks::TwoRanks() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw SystemError::failed("pipe", kPipe, errno);
  orders_in_.reset(ends[0]);
  orders_out_.reset(ends[1]);
}

void TwoRanks::measure(benchmark::State& state, Body body, Backend backend) {
  send({.body = body,
        .backend = backend,
        .argument = state.range(0),
        .steps = static_cast<std::int64_t>(state.max_iterations)});
  const OneThread one_thread;
  body(group(backend), state.range(0), [&](const Step& step) {
    warm_up(step);
    for (auto _ : state) step();
  });
}

void TwoRanks::follow() {
  for (Order order = receive(); order.body != nullptr; order = receive()) {
    const OneThread one_thread;
    order.body(group(order.backend), order.argument, [&](const Step& step) {
      warm_up(step);
      for (std::int64_t i = 0; i < order.steps; ++i) step();
    });
  }
}

// A pipe takes and gives so few bytes whole or not at all.
void TwoRanks::send(const Order& order) const {
  const auto sent = ::write(orders_out_.get(), &order, sizeof(order));
  if (sent != sizeof(order)) throw SystemError::failed("write", kPipe, errno);
}

TwoRanks::Order TwoRanks::receive() const {
  Order order;
  const auto received = ::read(orders_in_.get(), &order, sizeof(order));
  if (received != sizeof(order)) throw SystemError::failed("read", kPipe, errno);
  return order;
}

// The second group meets elsewhere than the first: in a file that the common parent names.
const ProcessGroup& TwoRanks::group(Backend backend) {
  constexpr std::chrono::seconds kTimeout{30};
  if (backend == Backend::kGloo) {
    if (!gloo_) gloo_ = init_process_group({.backend = "gloo", .timeout = kTimeout});
    return *gloo_;
  }
  if (!shared_memory_) {
    const auto file =
        std::filesystem::temp_directory_path() / fmt::format("ladder-micro-{}", ::getppid());
    shared_memory_ = init_process_group(
        {.backend = "shm", .init_method = "file://" + file.string(), .timeout = kTimeout});
    shared_memory_->barrier();
    std::filesystem::remove(file);
  }
  return *shared_memory_;
}

}  // namespace ladder
