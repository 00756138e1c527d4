// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/c10d_group.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ladder/comm/init_process_group.h"
#include "ladder/comm/process_group.h"
#include "ladder/comm/run_together.h"
#include "ladder/core/error.h"
#include "ladder/core/unique_fd.h"
#include "ladder/launch/exit_status.h"
#include "tests/support/captured_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

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

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

template <typename Thrown>
void expect_lost_peer(const std::string& text) {
  const End end = end_after(Thrown(kHere, text));
  EXPECT_EQ(end.code, 4) << end.line;
  const auto line =
      "error: all_reduce on rank 0 of 1: " + in_one_line(text) + "; hint: another rank";
  EXPECT_TRUE(end.line.starts_with(line)) << end.line;
}

template <typename Thrown>
void expect_own_error(const Thrown& thrown, const std::string& text) {
  const End end = end_after(thrown);
  EXPECT_EQ(end.code, 1) << end.line;
  EXPECT_TRUE(end.line.starts_with("error: " + in_one_line(text))) << end.line;
}

TEST_ALONE(RunCollective, ReportsALostPeerForErrorsOfTheNetworkAndTheStore) {
  expect_lost_peer<c10::DistNetworkError>("Broken pipe");
  expect_lost_peer<c10::DistStoreError>("wait timeout after 9ms");
  expect_lost_peer<c10d::SocketError>("refused");
  expect_lost_peer<c10d::TimeoutError>("timed out");
  expect_lost_peer<c10::Error>("Timeout waiting for key: a after 9 ms");
  expect_lost_peer<c10::Error>("Wait timeout");
  expect_lost_peer<c10::Error>("Gloo connectFullMesh failed with no error");
}

TEST_ALONE(RunCollective, ReportsALostPeerForErrorsOfNcclOnlyIfAPeerOrTheNetworkFailed) {
  for (const char* text :
       {"NCCL error in: a.cpp:1\nncclRemoteError: A call failed",
        "ncclSystemError: System call failed",
        "[Rank 0] Watchdog caught collective operation timeout: ALLREDUCE",
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]",
        "NCCL communicator was aborted on rank 1."}) {
    expect_lost_peer<c10::DistBackendError>(text);
  }
  for (const char* text : {"NCCL error in: a.cpp:1\nncclInvalidUsage: This is\nLast error:\n"
                           "Duplicate GPU detected : rank 0 and rank 1",
                           "NCCL error in: a.cpp:1\nncclInvalidArgument: Invalid value"}) {
    expect_own_error(c10::DistBackendError(kHere, text), text);
  }
}

TEST_ALONE(RunCollective, LeavesOtherErrorsThoseOfThisRank) {
  const std::string type = "ProcessGroupGloo::allreduce: invalid tensor type";
  expect_own_error(c10::Error(kHere, type), type);
  expect_own_error(c10::ValueError(kHere, "negative"), "negative");
  expect_own_error(std::invalid_argument("non-empty tensor list"), "non-empty tensor list");
  const std::string reset = "gloo/config: Connection reset by peer";
  expect_own_error(std::runtime_error(reset), reset);
  EXPECT_EQ(end_after(UsageError::conflict("a", "b", "c")).code, 2);
  const std::string gpu = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 8.00 GiB";
  expect_own_error(c10::OutOfMemoryError(kHere, gpu), "out of memory: " + gpu + "; hint: use a");
  const std::string cpu = "DefaultCPUAllocator: can't allocate memory: you tried 64 bytes";
  expect_own_error(c10::Error(kHere, cpu), "out of memory: " + cpu);
  const std::string cublas = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate";
  expect_own_error(c10::Error(kHere, cublas), "out of memory: " + cublas);
  const std::string cuda = "CUDA error: out of memory";
  expect_own_error(c10::AcceleratorError(kHere, 2, cuda), "out of memory: " + cuda);
  const std::string nccl = "Cuda failure 2 'out of memory'";
  expect_own_error(c10::DistBackendError(kHere, nccl), "out of memory: " + nccl);
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
  EXPECT_ERROR(
      run_with_deadline(milliseconds(1), "HOST:1",
                        [store] { wait_for_keys(*store, {"a"}, milliseconds(1), "HOST:1"); }),
      DistributedError, "store at HOST:1: timed out after 0.001 s waiting for an answer");
  EXPECT_EQ(FLAGS_caffe2_log_level, before);
  FLAGS_caffe2_log_level = before + 1;
  store.reset();
  answer.set_value();
  ended.wait();  // the thread has returned and freed what it owned
  EXPECT_EQ(FLAGS_caffe2_log_level, before + 1);
  FLAGS_caffe2_log_level = before;
}

// A file has no server.
void expect_error_that_names_the_file() {
  const TemporaryFolder folder;
  const auto path = folder.file("store");
  const UniqueFd held(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ::flock(held.get(), LOCK_EX);
  forget_launcher();
  EXPECT_ERROR(init_process_group({.init_method = "file://" + path,
                                   .rank = 0,
                                   .world_size = 2,
                                   .timeout = milliseconds(1)}),
               DistributedError,
               "store at " + path +
                   ": timed out after 0.001 s waiting for an answer; hint: another "
                   "process locks or removes the file: name a new one for each run");
}

// Side by side: all wait four seconds longer than their timeout, for an error of c10d itself.
TEST(RunWithDeadline, GivesUpAStoreThatStopsToAnswer) {
  const auto run = [](const ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) raise(SIGSTOP);
    if (group.rank() == 1) group.monitored_barrier(milliseconds(100));
    if (group.rank() == 2) expect_log_level_as_before_after_a_late_thread();
    if (group.rank() == 3) expect_error_that_names_the_file();
  };
  expect_ended_with(end_of_group(4, run, {.grace = milliseconds(1'000)}), 4,
                    "store at rank 0: timed out after 0.1 s waiting for");
}

TEST_ALONE(RunWithDeadline, RethrowsTheErrorOfItsThread) {
  const auto fail = [] { throw std::runtime_error("a mistake"); };
  EXPECT_THROW(run_with_deadline(std::chrono::seconds(20), "HOST:1", fail), std::runtime_error);
}

using std::chrono::milliseconds;

TEST_ON_RANKS(RunOnAll, WaitsForAllAndPassesAFailureOn, 3) {
  int ran = 0;
  run_or_fail_together(group, "counting", [&] { ++ran; });
  EXPECT_EQ(ran, 1);
  const auto fail_on = [&](int first, int second) {
    run_or_fail_together(group, "reading", [&] {
      if (group.rank() != first && group.rank() != second) return;
      throw std::runtime_error("failure of rank " + std::to_string(group.rank()));
    });
  };
  const auto expect_failure = [&](int first, int second) {
    if (group.rank() == first || group.rank() == second) {
      EXPECT_ERROR(fail_on(first, second), std::runtime_error,
                   "failure of rank " + std::to_string(group.rank()));
    } else {
      EXPECT_ERROR(fail_on(first, second), DistributedError, "rank 1 failed in reading");
    }
  };
  expect_failure(1, 1);
  expect_failure(1, 2);
  run_or_fail_together(group, "counting", [&] { ++ran; });  // the group is as before
  EXPECT_EQ(ran, 2);
}

TEST_ON_RANKS(OnRank0, RunsThereAloneAndPassesItsFailureOn, 3) {
  const bool is_first = group.rank() == 0;
  int ran = 0;
  on_rank_0(group, "writing", [&] { ++ran; });
  EXPECT_EQ(ran, is_first ? 1 : 0);
  const auto fail = [] { throw std::runtime_error("a full disk"); };
  if (is_first) {
    EXPECT_ERROR(on_rank_0(group, "writing", fail), std::runtime_error, "a full disk");
  } else {
    EXPECT_ERROR(on_rank_0(group, "writing", fail), DistributedError, "rank 0 failed in writing");
  }
}

TEST(RunTogether, WaitsForASlowRankPastTheTimeoutOfTheGroup) {
  for (const auto* backend : {"shm", "gloo"}) {
    run_ranks(2,
              [](const ProcessGroup& group) {
                run_or_fail_together(group, "working", [&] {
                  if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1500));
                });
                group.barrier();  // it is as before
              },
              {.backend = backend, .timeout = milliseconds(1000)});
  }
}

TEST(RunTogether, MissesARankThatEndsInItsWork) {
  const auto end = end_of_group(2, [](const ProcessGroup& group) {
    std::signal(SIGTERM, SIG_IGN);  // of spawn; here the other rank must detect the loss itself
    run_or_fail_together(group, "working", [&] {
      if (group.rank() == 1) std::raise(SIGKILL);
    });
  });
  expect_ended_with(end, 4, "[rank 0] error: all_reduce on rank 0 of 2: ");
}

}  // namespace
}  // namespace ladder
