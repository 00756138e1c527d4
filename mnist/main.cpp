// SPDX-License-Identifier: Apache-2.0
#include "mnist/main.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "ladder/launch/exit_status.h"
#include "ladder/launch/signals.h"

namespace mnist {
namespace {

using namespace ladder;

// Without these streams, the next file to be opened would get their numbers, and their lines.
void prepare_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", O_RDWR);
    if (opened >= 0 && opened != stream) ::dup2(opened, stream);
  }
}

// Stopped by a signal, the program dies of it, so that a script that runs it stops too.
int exit_status(int code) {
  if (!is_signal_exit_code(code)) return code;
  std::fflush(nullptr);
  SignalGuard::reraise(code - exit_code_of_signal(0));
}

}  // namespace

int report_errors(const std::function<void()>& body) {
  return exit_status(call_and_report([&] {
    prepare_standard_streams();
    body();
  }));
}

void print_text(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  print_line(text);
}

}  // namespace mnist
