// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/c10d_group.h"

#include <c10/util/Logging.h>
#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "ladder/comm/c10d_backends.h"
#include "ladder/comm/errors.h"
#include "ladder/core/environment.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

std::vector<int> missing_keys(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<int> missing;
  try {
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) missing.push_back(static_cast<int>(rank));
    }
  } catch (const std::exception& error) {
    throw no_rendezvous("rank 0", error.what(), "rank 0 or torchrun serves it: see its output");
  }
  return missing;
}

}  // namespace

C10dGroup make_c10d_group(ProcessGroup::Setup& setup) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("default_pg", setup.store);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, setup.rank, setup.world_size);
  set_backends(*group, setup, store);
  group->setGroupName("0");
  return group;
}

void exit_barrier(c10d::Store& store, const std::string& key, std::size_t ranks) {
  constexpr std::chrono::seconds kLongest{2};
  try {
    const auto count = static_cast<std::size_t>(store.add(key + "/count", 1));
    if (count == ranks) store.set(key + "/complete", std::string("1"));
    store.wait({key + "/complete"}, kLongest);
  } catch (const std::exception&) {
    return;
  }
}

std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               std::chrono::milliseconds timeout) {
  const C10dLogSilencer quiet;
  try {
    store.wait(keys, timeout);
    return {};
  } catch (const std::exception&) {
    auto missing = missing_keys(store, keys);
    if (!missing.empty()) exit_barrier(store, keys.front(), keys.size() - missing.size());
    return missing;
  }
}

void run_with_deadline(std::chrono::milliseconds timeout, const std::string& address,
                       std::function<void()> talk) {
  constexpr std::chrono::seconds kForItsOwnError{4};  // exit_barrier included
  std::packaged_task<void()> task(std::move(talk));
  auto done = task.get_future();
  std::thread(std::move(task)).detach();
  if (done.wait_for(timeout + kForItsOwnError) == std::future_status::timeout) {
    throw no_rendezvous(address, timed_out(timeout, "an answer"),
                        "rank 0 or torchrun serves it, and hangs or has ended: see its output");
  }
  done.get();
}

void run_collective(const ProcessGroup& group, const char* operation,
                    const std::function<void()>& collective) {
  try {
    collective();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw collective_failed(operation, group.rank(), group.world_size(), error.what());
  }
}

C10dLogSilencer::C10dLogSilencer() : before_(FLAGS_caffe2_log_level) {
  constexpr int kFatalOnly = 3;
  if (!environment_variable("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatalOnly;
}

C10dLogSilencer::~C10dLogSilencer() { FLAGS_caffe2_log_level = before_; }

}  // namespace ladder
