// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/c10d_group.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <csignal>
#include <future>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/launch/exit_status.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;

constexpr c10::SourceLocation kHere{"here", "file.cpp", 1};

// How a program ends whose all_reduce throws.
struct End {
  int code;
  std::string line;
};

template <typename Thrown>
End end_after(const Thrown& thrown) {
  CapturedStream stream;
  const int code = call_and_report(
      [&] { run_collective(ProcessGroup::single(), "all_reduce", [&] { throw thrown; }); },
      stream.get());
  return {code, stream.text()};
}

template <typename Thrown>
void expect_lost_peer(const Thrown& thrown, const std::string& text) {
  const End end = end_after(thrown);
  EXPECT_EQ(end.code, 4) << end.line;
  EXPECT_EQ(end.line, "error: all_reduce on rank 0 of 1: " + text +
                          "; hint: another rank ended or is late: see its last lines; start the "
                          "program again; with checkpoints it can resume\n");
}

template <typename Thrown>
void expect_own_error(const Thrown& thrown, const std::string& text) {
  const End end = end_after(thrown);
  EXPECT_EQ(end.code, 1) << end.line;
  EXPECT_TRUE(end.line.starts_with("error: " + text)) << end.line;
}

TEST(RunCollective, ReportsALostPeerForErrorsOfTheNetworkAndTheStore) {
  run_alone([] {
    expect_lost_peer(c10::DistNetworkError(kHere, "Broken pipe"), "Broken pipe");
    expect_lost_peer(c10::DistStoreError(kHere, "wait timeout after 9ms"),
                     "wait timeout after 9ms");
    expect_lost_peer(c10d::SocketError(kHere, "refused"), "refused");
    expect_lost_peer(c10d::TimeoutError(kHere, "timed out"), "timed out");
    expect_lost_peer(c10::Error(kHere, "Timeout waiting for key: a after 9 ms"),
                     "Timeout waiting for key: a after 9 ms");
    expect_lost_peer(c10::Error(kHere, "Gloo connectFullMesh failed with no error"),
                     "Gloo connectFullMesh failed with no error");
  });
}

TEST(RunCollective, ReportsALostPeerForErrorsOfNcclOnlyIfAPeerOrTheNetworkFailed) {
  run_alone([] {
    const auto nccl = [](const std::string& text) { return c10::DistBackendError(kHere, text); };
    expect_lost_peer(nccl("NCCL error in: a.cpp:1\nncclRemoteError: A call failed"),
                     "NCCL error in: a.cpp:1 ncclRemoteError: A call failed");
    expect_lost_peer(nccl("ncclSystemError: System call failed"),
                     "ncclSystemError: System call failed");
    const std::string late = "[Rank 0] Watchdog caught collective operation timeout: ALLREDUCE";
    expect_lost_peer(nccl(late), late);
    const std::string first =
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]";
    expect_lost_peer(nccl(first), first);
    const std::string aborted = "NCCL communicator was aborted on rank 1.";
    expect_lost_peer(nccl(aborted), aborted);
    expect_own_error(nccl("NCCL error in: a.cpp:1\nncclInvalidUsage: This is\nLast error:\n"
                          "Duplicate GPU detected : rank 0 and rank 1"),
                     "NCCL error in: a.cpp:1 ncclInvalidUsage: This is Last error: Duplicate GPU "
                     "detected : rank 0 and rank 1");
    expect_own_error(nccl("NCCL error in: a.cpp:1\nncclInvalidArgument: Invalid value"),
                     "NCCL error in: a.cpp:1 ncclInvalidArgument: Invalid value");
  });
}

TEST(RunCollective, LeavesAnInvalidArgumentAnErrorOfThisRank) {
  run_alone([] {
    expect_own_error(c10::Error(kHere, "ProcessGroupGloo::allreduce: invalid tensor type"),
                     "ProcessGroupGloo::allreduce: invalid tensor type");
    expect_own_error(c10::ValueError(kHere, "negative"), "negative");
    expect_own_error(std::invalid_argument("expects non-empty tensor list"),
                     "expects non-empty tensor list");
    expect_own_error(std::runtime_error("gloo/config: Connection reset by peer"),
                     "gloo/config: Connection reset by peer");
    EXPECT_EQ(end_after(UsageError::conflict("a", "b", "c")).code, 2);
  });
}

TEST(RunCollective, KeepsDeviceAndSizeOfMemoryThatRanOut) {
  run_alone([] {
    const std::string gpu = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 8.00 GiB";
    expect_own_error(c10::OutOfMemoryError(kHere, gpu),
                     "out of memory: " + gpu + "; hint: use a smaller batch size\n");
    const std::string cpu = "DefaultCPUAllocator: can't allocate memory: you tried 64 bytes";
    expect_own_error(c10::Error(kHere, cpu), "out of memory: " + cpu);
    expect_own_error(c10::AcceleratorError(kHere, 2, "CUDA error: out of memory"),
                     "out of memory: CUDA error: out of memory");
    expect_own_error(c10::DistBackendError(kHere, "Cuda failure 2 'out of memory'"),
                     "out of memory: Cuda failure 2 'out of memory'");
  });
}

// A store whose server sends nothing until `answer` is set.
class SilentStore : public c10d::HashStore {
 public:
  SilentStore(std::shared_future<void> answer, std::promise<void> destroyed)
      : answer_(std::move(answer)), destroyed_(std::move(destroyed)) {}
  ~SilentStore() override { destroyed_.set_value(); }
  using c10d::HashStore::wait;
  void wait(const std::vector<std::string>& /*keys*/, const milliseconds& /*timeout*/) override {
    answer_.wait();
  }

 private:
  std::shared_future<void> answer_;
  std::promise<void> destroyed_;
};

void expect_log_level_as_before_after_a_late_thread() {
  const int before = FLAGS_caffe2_log_level;
  std::promise<void> answer;
  std::promise<void> destroyed;
  auto ended = destroyed.get_future();
  auto store = c10::make_intrusive<SilentStore>(answer.get_future().share(), std::move(destroyed));
  EXPECT_ERROR(run_with_deadline(milliseconds(1), "HOST:1",
                                 [store] { wait_for_keys(*store, {"a"}, milliseconds(1)); }),
               DistributedError, "store at HOST:1: timed out after 0.001 s waiting for an answer");
  EXPECT_EQ(FLAGS_caffe2_log_level, before);
  FLAGS_caffe2_log_level = before + 1;
  store.reset();
  answer.set_value();
  ended.wait();  // the thread has returned and freed what it owned
  EXPECT_EQ(FLAGS_caffe2_log_level, before + 1);
  FLAGS_caffe2_log_level = before;
}

// Side by side: both wait four seconds longer than their timeout, for an error of c10d itself.
TEST(RunWithDeadline, GivesUpAStoreThatStopsToAnswer) {
  const auto end = end_of_group(3,
                                [](const ProcessGroup& group) {
                                  group.barrier();
                                  if (group.rank() == 0) raise(SIGSTOP);
                                  if (group.rank() == 1) group.monitored_barrier(milliseconds(100));
                                  if (group.rank() == 2)
                                    expect_log_level_as_before_after_a_late_thread();
                                },
                                {.grace = milliseconds(200)});
  EXPECT_EQ(end.exit_code, 4) << end.error << end.messages;
  EXPECT_NE(end.messages.find("store at rank 0: timed out after 0.1 s waiting for"),
            std::string::npos)
      << end.messages;
}

TEST(RunWithDeadline, RethrowsTheErrorOfItsThread) {
  run_alone([] {
    const auto fail = [] { throw std::runtime_error("a mistake"); };
    EXPECT_THROW(run_with_deadline(std::chrono::seconds(20), "HOST:1", fail), std::runtime_error);
  });
}

}  // namespace
}  // namespace ladder
