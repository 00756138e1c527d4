// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// A file that is written whole or not at all.
//
// The bytes go to a temporary file beside the target, which takes the target's name once
// they are safe on disk. At every moment, also after a crash or a power cut, a reader of
// `path` finds the old content or the new, never a piece of it.
//
// All errors are SystemErrors that name the operation and the path. After an error, or
// without commit(), the old content is untouched and the temporary file is removed; only
// a process that is killed leaves one, `<path>.tmp.<process id>`, and the next process
// with that id replaces it. Of a link, the file behind it is replaced; anything that is not a
// regular file is refused. Use one object a path at a time.
//
//     AtomicFile file("model.safetensors");
//     file.write(header);
//     file.write(data);
//     file.commit();
class AtomicFile {
 public:
  // Creates the temporary file.
  explicit AtomicFile(std::string path);
  // Removes the temporary file unless commit() succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends bytes.
  void write(std::span<const std::byte> bytes);

  // Waits until the bytes are on disk, renames, and waits for the folder. Call it once, last.
  // Should only the folder's part fail, the new content is in place but may not survive a
  // power cut.
  void commit();

 private:
  void close();

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  bool committed_ = false;
};

// The same for a text that is at hand.
void write_text_file(const std::string& path, std::string_view text);

// Checks that a file could be created or replaced at `path`; creates nothing.
// Call it when the command line is read, so that a mistyped `--save` costs a second, not a
// training. Throws UsageError (exit code 2) naming `flag` if the folder does not exist or
// is not writable, or if `path` is itself a folder, a device or a pipe.
void require_writable_folder(std::string_view flag, const std::string& path);

}  // namespace ladder
