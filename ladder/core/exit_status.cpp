// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/exit_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <typeinfo>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/stopped_by_signal.h"

namespace ladder {
namespace {

struct Failure {
  std::string text;
  ExitCode code;
};

constexpr std::string_view kOutOfMemory = "out of memory; hint: use a smaller batch size";

// LibTorch's allocators have errors of their own.
bool is_out_of_memory(const std::exception& error) {
  const std::string_view text = error.what();
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("alloc_cpu.cpp") != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos;
}

// The types are c10's. This file knows no torch, so it looks at the name the compiler gave them.
bool is_lost_peer(const std::exception& error) {
  constexpr std::array<std::string_view, 11> kTold = {"gloo/",
                                                      "Connection closed by peer",
                                                      "Connection reset by peer",
                                                      "Timed out waiting",
                                                      "caused pair closure",
                                                      "wait timeout",
                                                      "NCCL error",
                                                      "ncclRemoteError",
                                                      "DistBackendError",
                                                      "DistStoreError",
                                                      "DistNetworkError"};
  const std::string_view text = error.what();
  const std::string_view type = typeid(error).name();
  return std::any_of(kTold.begin(), kTold.end(), [&](std::string_view told) {
    return text.find(told) != std::string_view::npos || type.find(told) != std::string_view::npos;
  });
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Errors of LibTorch carry a stack trace of many lines behind the message.
std::string without_stack_trace(const std::exception& error) {
  std::string text = error.what();
  if (environment_variable("TORCH_SHOW_CPP_STACKTRACES")) return text;
  if (text.find('\n') == std::string::npos) return text;
  return first_line(text) + "; hint: TORCH_SHOW_CPP_STACKTRACES=1 shows where it happened";
}

Failure failure_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours != nullptr) return {ours->what(), ours->exit_code()};
  if (is_out_of_memory(error)) return {std::string(kOutOfMemory), ExitCode::kRuntime};
  if (is_lost_peer(error)) {
    return {DistributedError::peer_lost(first_line(error.what())).what(), ExitCode::kDistributed};
  }
  return {without_stack_trace(error), ExitCode::kRuntime};
}

// Rank and number of ranks, as each launcher calls them.
struct RankNames {
  const char* rank;
  const char* world_size;
};
constexpr std::array<RankNames, 5> kRankNames = {{{"RANK", "WORLD_SIZE"},
                                                  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                  {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                                  {"PMI_RANK", "PMI_SIZE"},
                                                  {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}};

// Whatever is wrong with these variables was said by whoever needed them.
std::string rank_prefix() {
  try {
    for (const auto& names : kRankNames) {
      const auto rank = environment_integer(names.rank, 0);
      const bool several = environment_integer(names.world_size, 1).value_or(1) > 1;
      if (rank && several) return fmt::format("[rank {}] ", *rank);
    }
  } catch (const UsageError&) {
    return "";
  }
  return "";
}

std::string timestamp(ExitCode code) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = code == ExitCode::kDistributed
                           ? std::chrono::ceil<std::chrono::seconds>(now)
                           : std::chrono::floor<std::chrono::seconds>(now);
  return std::to_string(seconds.count());
}

std::string torchrun_record(const Failure& failure) {
  const nlohmann::ordered_json record = {
      {"message",
       {{"message", failure.text},
        {"extraInfo", {{"py_callstack", failure.text}, {"timestamp", timestamp(failure.code)}}}}}};
  constexpr int kOneLine = -1;
  return record.dump(kOneLine, ' ', false, nlohmann::json::error_handler_t::replace);
}

// torchrun fails on half a file, so that one is removed.
void write_error_file(const Failure& failure) {
  const auto path = environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!path) return;
  const std::string record = torchrun_record(failure);
  std::FILE* file = std::fopen(path->c_str(), "we");
  if (file == nullptr) return;
  const bool written = std::fwrite(record.data(), 1, record.size(), file) == record.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) std::remove(path->c_str());
}

void print(const std::string& text, std::FILE* stream) {
  const std::string line = fmt::format("{}{}\n", rank_prefix(), text);
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fflush(stream);
}

int report(const StoppedBySignal& interruption, std::FILE* stream) {
  const std::string text = interruption.what();
  if (!text.empty()) print(text, stream);
  return exit_code_of_signal(interruption.signal());
}

int report(const Failure& failure, std::FILE* stream) {
  print("error: " + failure.text, stream);
  write_error_file(failure);
  return static_cast<int>(failure.code);
}

}  // namespace

int call_and_report(const std::function<void()>& fn, std::FILE* stream) {
  try {
    fn();
    return static_cast<int>(ExitCode::kOk);
  } catch (const StoppedBySignal& interruption) {
    return report(interruption, stream);
  } catch (const std::exception& error) {
    return report(failure_of(error), stream);
  } catch (...) {
    return report({"an exception of an unknown type", ExitCode::kRuntime}, stream);
  }
}

}  // namespace ladder
