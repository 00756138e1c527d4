// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/exit_status.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/launch/failure_kind.h"
#include "ladder/launch/signals.h"
#include "tests/support/captured_stream.h"
#include "tests/support/odd_paths.h"
#include "tests/support/temporary_folder.h"

// Of LibTorch and Gloo, which this test does without: exceptions are recognised by these names.
namespace c10 {
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct OutOfMemoryError : Error {
  using Error::Error;
};
struct DistStoreError : Error {
  using Error::Error;
};
}  // namespace c10
namespace gloo {
struct IoException : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace gloo

namespace ladder {
namespace {

class CallAndReport : public testing::Test {
 protected:
  void SetUp() override { unset_variables(); }
  void TearDown() override { unset_variables(); }

  template <typename Thrown>
  int code_after(const Thrown& thrown) {
    return call_and_report([&] { throw thrown; }, stream_.get());
  }

  template <typename Thrown>
  std::string line_after(const Thrown& thrown) {
    code_after(thrown);
    return stream_.next_write();
  }

  // Expects one write.
  template <typename Thrown>
  void expect_report(const Thrown& thrown, int code, const std::string& line) {
    EXPECT_EQ(code_after(thrown), code) << line;
    EXPECT_EQ(stream_.next_write(), line);
  }

  CapturedStream stream_;

 private:
  static void unset_variables() {
    for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                             "TORCHELASTIC_ERROR_FILE", "TORCH_SHOW_CPP_STACKTRACES"}) {
      unsetenv(name);
    }
  }
};

TEST_F(CallAndReport, IsZeroAndSilentIfNothingIsThrownAndIgnoresSignalsOfFailedWrites) {
  const auto handler_after = [&](int signal, void (*before)(int)) {
    std::signal(signal, before);
    EXPECT_EQ(call_and_report([] {}, stream_.get()), 0);
    return std::signal(signal, SIG_IGN);
  };
  const auto handler = [](int) {};
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    EXPECT_EQ(handler_after(signal, SIG_DFL), SIG_IGN) << signal;
    EXPECT_EQ(handler_after(signal, handler), +handler) << "of the program: " << signal;
  }
  EXPECT_EQ(stream_.text(), "");
}

TEST_F(CallAndReport, AnInterruptionIsNoErrorAndHasTheCodeOfItsSignal) {
  EXPECT_EQ(code_after(StoppedBySignal(15, "stopped")), 143);
  EXPECT_EQ(stream_.next_write(), "stopped\n");
  EXPECT_EQ(code_after(StoppedBySignal(2, "")), 130) << "without a text";
  EXPECT_EQ(stream_.next_write(), "");
}

TEST_F(CallAndReport, PrintsOneLineInOneWriteAndReturnsTheCodeOfTheError) {
  expect_report(DataError::missing_file("data/x.gz", "pass --data-root"), 3,
                "error: data/x.gz: expected a readable file, got none; hint: pass --data-root\n");
  EXPECT_EQ(stream_.text(), "");
  EXPECT_EQ(code_after(UsageError::conflict("a", "b", "c")), 2);
  EXPECT_EQ(code_after(ChildError::of(5, "rank 1", "exit code 0", "5", "")), 5);
  stream_.text();
  const std::filesystem::filesystem_error of_a_file(
      "cannot read", "runs/latest", std::make_error_code(std::errc::permission_denied));
  expect_report(of_a_file, 1,
                "error: runs/latest: file: Permission denied; hint: check the permissions: namei "
                "-l runs/latest\n");
  expect_report(7, 1, "error: an exception of an unknown type\n");
  expect_report(std::runtime_error("shape mismatch\nframe #0: somewhere\nframe #1: above"), 1,
                "error: shape mismatch; hint: TORCH_SHOW_CPP_STACKTRACES=1 shows where it "
                "happened\n");
  setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  expect_report(std::runtime_error("wrong\nframe #0"), 1, "error: wrong\nframe #0\n");
}

TEST_F(CallAndReport, NamesTheRankOfAnyLauncherIfThereAreSeveral) {
  const std::pair<const char*, const char*> names[] = {
      {"RANK", "WORLD_SIZE"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  const auto line = [&] { return line_after(std::runtime_error("no")); };
  for (const auto& [rank, world_size] : names) {
    setenv(rank, "1", 1);
    EXPECT_EQ(line(), "error: no\n") << "of how many?";
    setenv(world_size, "2", 1);
    EXPECT_EQ(line(), "[rank 1] error: no\n") << rank;
    setenv(world_size, "1", 1);
    EXPECT_EQ(line(), "error: no\n") << "there is one";
    setenv(world_size, "2", 1);
    setenv(rank, "one", 1);
    EXPECT_EQ(line(), "error: no\n") << "no number";
    unsetenv(rank);
  }
}

TEST_F(CallAndReport, OutOfMemoryKeepsDeviceAndSizeAndGetsAHint) {
  const c10::OutOfMemoryError on_gpu(
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 1.25 GiB free.\n"
      "Exception raised from malloc at CUDACachingAllocator.cpp:1\nframe #0: here");
  expect_report(on_gpu, 1,
                "error: out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has "
                "1.25 GiB free.; hint: use a smaller batch size\n");
  const c10::Error on_cpu("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 b");
  EXPECT_NE(line_after(on_cpu).find("allocate 8 b; hint: use a smaller"), std::string::npos);
  expect_report(std::bad_alloc(), 1,
                "error: out of memory: std::bad_alloc; hint: use a smaller batch size\n");
}

TEST_F(CallAndReport, ALimitOfTheSystemIsACauseWithItsHint) {
  const c10::DistStoreError in_store(
      "The client socket cannot be initialized: Too many open files");
  EXPECT_EQ(code_after(in_store), 1) << "a lost rank is a consequence";
  EXPECT_NE(stream_.text().find("; hint: this process may open "), std::string::npos);
  EXPECT_EQ(code_after(std::system_error(EAGAIN, std::system_category())), 1);
  const auto text = stream_.text();
  EXPECT_NE(text.find("unavailable; hint: "), std::string::npos) << text;
}

TEST_F(CallAndReport, ALostPeerIsRecognisedByTheTypeOfTheError) {
  EXPECT_EQ(code_after(gloo::IoException("Application timeout caused pair closure")), 4);
  stream_.text();
  expect_report(c10::DistStoreError("The client socket has timed out\nframe #0: here"), 4,
                "error: collective: expected all ranks to take part, got \"The client socket has "
                "timed out\"; hint: see the first error of the other ranks; start the program "
                "again; with checkpoints it can resume\n");
  expect_report(std::runtime_error("gloo/config: Connection reset by peer"), 1,
                "error: gloo/config: Connection reset by peer\n");
}

class ErrorFile : public CallAndReport {
 protected:
  void SetUp() override {
    CallAndReport::SetUp();
    setenv("TORCHELASTIC_ERROR_FILE", folder_.file("error.json").c_str(), 1);
  }
  nlohmann::json message() const {
    return nlohmann::json::parse(folder_.read("error.json")).at("message");
  }
  std::int64_t timestamp() const {
    return std::stoll(message().at("extraInfo").at("timestamp").get<std::string>());
  }
  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  TemporaryFolder folder_;
};

TEST_F(ErrorFile, HoldsTheLineWithoutItsBeginningInUtf8) {
  code_after(std::runtime_error("bad \xFF byte"));
  EXPECT_EQ(message().at("message"), "bad \xEF\xBF\xBD byte");
  EXPECT_EQ(message().at("extraInfo").at("py_callstack"), "bad \xEF\xBF\xBD byte");
}

TEST_F(ErrorFile, DatesACauseBeforeItsConsequencesOfTheSameSecond) {
  const double before = now();
  code_after(DataError::missing_file("a", "b"));
  const auto cause = timestamp();
  code_after(gloo::IoException("Connection closed by peer"));
  const double after = now();
  EXPECT_LT(cause, timestamp());
  EXPECT_GT(static_cast<double>(cause), before - 1.0);
  EXPECT_LT(static_cast<double>(timestamp()), after + 1.0);
}

TEST_F(ErrorFile, IsNotWrittenWithoutAnError) {
  call_and_report([] {}, stream_.get());
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(ErrorFile, ThatIsAPipeOrCannotBeWrittenHidesNothing) {
  for (const auto& path : {make_pipe(folder_.file("pipe")), folder_.file("missing/error.json")}) {
    setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
    expect_report(DataError::missing_file("a", "b"), 3,
                  "error: a: expected a readable file, got none; hint: b\n");
  }
}

class PeerLost : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("TORCHELASTIC_MAX_RESTARTS");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
  }
  static void set_restarts(const char* done, const char* most) {
    setenv("TORCHELASTIC_RESTART_COUNT", done, 1);
    setenv("TORCHELASTIC_MAX_RESTARTS", most, 1);
  }
};

TEST_F(PeerLost, QuotesTheBackendAndTheNextStep) {
  set_restarts("0", "5");
  EXPECT_EQ(
      peer_lost("closed").what(),
      std::string("collective: expected all ranks to take part, got \"closed\"; hint: see the "
                  "first error of the other ranks; torchrun will restart the ranks (restart "
                  "1 of 5)"));
}

TEST_F(PeerLost, TheNextStepIsTheLaunchers) {
  EXPECT_EQ(step_after_failure(), "start the program again; with checkpoints it can resume");
  set_restarts("0", "0");
  EXPECT_EQ(step_after_failure(), "torchrun does not restart the ranks (--max-restarts 0)");
  set_restarts("2", "3");
  EXPECT_EQ(step_after_failure(), "torchrun will restart the ranks (restart 3 of 3)");
  set_restarts("3", "3");
  EXPECT_EQ(step_after_failure(), "no restarts are left (3 of 3 done)");
  set_restarts("three", "3");
  EXPECT_EQ(step_after_failure(), "start the program again; with checkpoints it can resume");
}

// torchrun fails on a truncated one.
TEST_F(ErrorFile, ThatIsCutShortIsRemoved) {
  const auto report = [&] {
    const rlimit few_bytes{10, 10};
    setrlimit(RLIMIT_FSIZE, &few_bytes);
    code_after(DataError::missing_file("a", "b"));
    std::exit(folder_.names().empty() ? 0 : 1);
  };
  EXPECT_EXIT(report(), testing::ExitedWithCode(0), "");
}

TEST(DeferredSignals, EndTheProcessAfterTheWork) {
  const auto work = [] {
    {
      const DeferredSignals until_done;
      ::raise(SIGTERM);
      std::fputs("done", stderr);
    }
    std::fputs("never", stderr);
  };
  EXPECT_EXIT(work(), testing::KilledBySignal(SIGTERM), "^done$");
  const auto twice = [] {
    const DeferredSignals until_done;
    ::raise(SIGTERM);
    ::raise(SIGTERM);
    std::fputs("never", stderr);
  };
  EXPECT_EXIT(twice(), testing::KilledBySignal(SIGTERM), "^$");
}

}  // namespace
}  // namespace ladder
