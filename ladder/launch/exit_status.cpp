// SPDX-License-Identifier: Apache-2.0
#include "ladder/launch/exit_status.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/system_limits.h"
#include "ladder/io/appended_file.h"
#include "ladder/io/json.h"
#include "ladder/launch/failure_kind.h"
#include "ladder/launch/rank_status.h"
#include "ladder/launch/signals.h"

namespace ladder {
namespace {

struct Failure {
  std::string text;
  ExitCode code;
};

Failure failure_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours != nullptr) return {ours->what(), ours->exit_code()};
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const auto failed = SystemError::failed("file", file->path1().string(), file->code().value());
    return {failed.what(), failed.exit_code()};
  }
  const std::string message = message_of(error);
  switch (failure_kind(error)) {
    case FailureKind::kOutOfMemory:
      return {fmt::format("out of memory: {}; hint: use a smaller batch size{}", message,
                          is_memory_limited() ? "; " + hint_for_limit(ENOMEM) : ""),
              ExitCode::kRuntime};
    case FailureKind::kLimit: {
      const int limit = limit_reached(error);
      return {fmt::format("{}; hint: {}", message,
                          limit == EAGAIN ? hint_for_processes() : hint_for_limit(limit)),
              ExitCode::kRuntime};
    }
    case FailureKind::kLostPeer:
      return {peer_lost(message).what(), ExitCode::kDistributed};
    case FailureKind::kLocal:
      break;
  }
  if (environment_variable("TORCH_SHOW_CPP_STACKTRACES")) return {error.what(), ExitCode::kRuntime};
  const bool has_trace = std::string_view(error.what()).find("\nframe #") != std::string_view::npos;
  constexpr const char* kHint = "; hint: TORCH_SHOW_CPP_STACKTRACES=1 shows where it happened";
  return {message + (has_trace ? kHint : ""), ExitCode::kRuntime};
}

// "" where a variable is malformed: the code that needs it has reported that.
std::string rank_prefix() {
  try {
    for (const auto& names : kLauncherVariables) {
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

// torchrun fails on a truncated file, so a partial one is removed.
void write_error_file(const Failure& failure) {
  const auto path = environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!path) return;
  const nlohmann::ordered_json message = {
      {"message",
       {{"message", failure.text},
        {"extraInfo", {{"py_callstack", failure.text}, {"timestamp", timestamp(failure.code)}}}}}};
  AppendedFile file;
  try {
    file = AppendedFile(*path);
    file.write(json_text(message));
  } catch (const SystemError&) {
    if (file) std::remove(path->c_str());
  }
}

void print(const std::string& text, std::FILE* stream) {
  const std::string line = fmt::format("{}{}\n", rank_prefix(), text);
  auto& last_line = rank_status().last_line;
  last_line.fill('\0');
  line.substr(0, line.find('\n')).copy(last_line.data(), last_line.size() - 1);
  constexpr int kTries = 300;  // three seconds, if the reader pauses
  for (int tries = 0; tries < kTries && !print_or_drop(stream, line); ++tries) continue;
}

void ignore_unless_handled(int signal) {
  struct sigaction action{};
  if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    ::signal(signal, SIG_IGN);
  }
}

int report(const Failure& failure, std::FILE* stream) {
  print("error: " + failure.text, stream);
  write_error_file(failure);
  return static_cast<int>(failure.code);
}

}  // namespace

int call_and_report(const std::function<void()>& fn, std::FILE* stream) {
  ignore_unless_handled(SIGPIPE);
  ignore_unless_handled(SIGXFSZ);
  try {
    fn();
    require_lines_printed();
    return static_cast<int>(ExitCode::kOk);
  } catch (const StoppedBySignal& stopped) {
    const std::string text = stopped.what();
    if (!text.empty()) print(text, stream);
    return exit_code_of_signal(stopped.signal());
  } catch (const std::exception& error) {
    return report(failure_of(error), stream);
  } catch (...) {
    return report({"an exception of an unknown type", ExitCode::kRuntime}, stream);
  }
}

}  // namespace ladder
