// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/gloo_backend.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <tuple>

#include "ladder/comm/errors.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/tensor_form.h"

namespace ladder {
namespace {

using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

// In LibTorch 2.9, getTimeout() returns the group's timeout.
struct TimedWork : Gloo::AsyncWork {
  static std::chrono::milliseconds timeout_of(const AsyncWork& work) {
    return work.*(&TimedWork::timeout_);
  }
};

c10::intrusive_ptr<Gloo::Options> gloo_options(const ProcessGroup::Setup& setup) {
  auto options = Gloo::Options::create(setup.timeout);
  options->devices.push_back(setup.gloo_interface.empty()
                                 ? Gloo::createDeviceForHostname(setup.gloo_address)
                                 : Gloo::createDeviceForInterface(setup.gloo_interface));
  return options;
}

}  // namespace

Gloo::Gloo(const C10dStore& store, const ProcessGroup::Setup& setup)
    : ProcessGroupGloo(store, setup.rank, setup.world_size, gloo_options(setup)),
      timeout_(setup.timeout) {
  setTimeout(timeout_ + kNever);  // connecting had the timeout itself
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

C10dWork Gloo::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto watched = options;
  if (options.timeout != c10d::kUnsetTimeout) watched.timeout += kNever;
  return ProcessGroupGloo::allreduce(tensors, watched);
}

void Gloo::wait(const C10dWork& transfer, std::chrono::milliseconds timeout) {
  auto end = std::async(std::launch::async, [transfer] { transfer->wait(kNever); });
  Deadline deadline(timeout == kNoTimeout ? timeout_ : timeout);
  while (!deadline.passed()) {
    if (end.wait_for(deadline.slice()) == std::future_status::ready) return end.get();
  }
  do {
    close_connections(deadline.timeout());
  } while (end.wait_for(Deadline::kSlice) == std::future_status::timeout);
  end.get();
}

// Returns after `stop` when no collective is in progress.
void Gloo::watch(const std::stop_token& stop) {
  std::optional<Deadline> deadline;  // of the oldest collective
  std::uint64_t number = 0;          // of that
  std::unique_lock lock(workMutex_);
  while (true) {
    const AsyncWork* oldest = nullptr;
    for (const auto& work : workInProgress_) {
      if (!work) continue;
      if (!oldest || work->getSequencenumber() < oldest->getSequencenumber()) oldest = work.get();
    }
    if (!oldest && workQueue_.empty() && stop.stop_requested()) return;
    if (!oldest || number != oldest->getSequencenumber()) deadline.reset();
    if (oldest && !deadline) deadline.emplace(TimedWork::timeout_of(*oldest) % kNever);
    if (oldest) number = oldest->getSequencenumber();
    if (deadline && deadline->passed()) close_connections(deadline->timeout());
    const auto wakes = stop.stop_requested() ? std::stop_token() : stop;
    stopped_.wait_for(lock, wakes, Deadline::kSlice, [] { return false; });
  }
}

// Where a wait times out, Gloo closes all connections, and all that is in progress fails. Its error
// does not name the timeout. A wait for a rank whose connection is closed does not time out.
void Gloo::close_connections(std::chrono::milliseconds timeout) {
  Log({.rank = getRank(), .world_size = getSize()})
      .warn("gloo: " + timed_out(timeout, "another rank"));
  constexpr int kUnused = 0x1000000;  // a tag that next_tag() does not reach
  for (int rank = 0; rank < getSize(); ++rank) {
    if (rank == getRank()) continue;
    Tensors tensors = {torch::empty({1})};
    try {
      ProcessGroupGloo::recv(tensors, rank, kUnused)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      continue;
    }
  }
}

C10dWork Gloo::send(Tensors& tensors, int to, int /*tag*/) {
  const auto message = tensors.front();
  const auto header = torch::zeros({kHeaderBytes}, torch::kByte);
  const auto form = TensorForm::of_values(at::atleast_1d(message)).text();
  std::copy_n(form.c_str(), std::min<std::size_t>(form.size(), kHeaderBytes - 1),
              header.data_ptr<std::uint8_t>());
  const int tag = next_tag(sent_[to]);
  Tensors headers = {header};
  const auto first = ProcessGroupGloo::send(headers, to, tag);
  const auto second = ProcessGroupGloo::send(tensors, to, tag + 1);
  return c10::make_intrusive<FunctionWork>([=, this](std::chrono::milliseconds timeout) {
    wait(first, timeout);
    wait(second, timeout);
    static_cast<void>(std::tie(header, message));  // they live until here
  });
}

C10dWork Gloo::recv(Tensors& tensors, int from, int /*tag*/) {
  const auto receive = [this, message = tensors.front(), from, tag = next_tag(received_[from])] {
    const auto header = torch::zeros({kHeaderBytes}, torch::kByte);
    Tensors headers = {header};
    wait(ProcessGroupGloo::recv(headers, from, tag), kNoTimeout);
    const std::string sent(reinterpret_cast<const char*>(header.const_data_ptr<std::uint8_t>()));
    const auto expected =
        TensorForm::of_values(at::atleast_1d(message)).text().substr(0, kHeaderBytes - 1);
    if (sent != expected) {
      throw another_tensor_sent(getRank(), getSize(), from, sent, expected);
    }
    Tensors messages = {message};
    wait(ProcessGroupGloo::recv(messages, from, tag + 1), kNoTimeout);
  };
  // In a thread, so that it proceeds while this rank waits for something else.
  const std::shared_future<void> end = std::async(std::launch::async, receive);
  return c10::make_intrusive<FunctionWork>([=](auto&&...) { end.get(); });
}

C10dWork Gloo::recvAnysource(Tensors& /*tensors*/, int /*tag*/) {
  throw UsageError::conflict("recv", "no rank to receive from", "name the rank that sends");
}

}  // namespace ladder
