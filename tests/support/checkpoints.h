// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/io/atomic_file.h"

namespace ladder {

// Small checkpoints of three files, all of which hold the same text.

inline FileContent content_from(std::string text) {
  return
      [text = std::move(text)](const WriteBytes& write) { write(std::as_bytes(std::span(text))); };
}

inline void write_checkpoint(const std::string& path, const std::string& text,
                             const CheckpointOptions& options = {}) {
  CheckpointWriter writer(path, options);
  for (const char* name : {"model.bin", "optimizer.bin", "state.json"}) {
    writer.write(name, content_from(std::string(name) + " of " + text));
  }
  writer.commit();
}

// The text of a checkpoint; fails the test unless all files have the same.
inline std::string content_of(const Checkpoint& checkpoint) {
  std::set<std::string> texts;
  for (const auto& [name, digest] : checkpoint.manifest()) {
    std::ifstream stream(checkpoint.file(name), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_EQ(text.size(), digest.bytes);
    texts.insert(text.substr(std::min(text.size(), name.size() + 4)));
  }
  EXPECT_EQ(texts.size(), 1U) << "pieces of several checkpoints";
  return texts.empty() ? "" : *texts.begin();
}

// A child process of at most a minute that runs `fn`. Exit code 1: an exception, of which the child
// prints the text.
inline pid_t child_of(const std::function<void()>& fn) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(60);
  try {
    fn();
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
    _exit(1);
  }
}

// Waits for the end of a child, and returns how it ended, as waitpid reports it.
inline int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

inline int in_child(const std::function<void()>& fn) { return status_of(child_of(fn)); }

inline void expect_exit_0(int status) {
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with " << status;
}

}  // namespace ladder
