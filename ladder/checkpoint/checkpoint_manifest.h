// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace ladder {

// The list of what a checkpoint folder holds: its file manifest.json.
//
//     {"format": "ladder checkpoint", "version": 1,
//      "files": {"model.safetensors": {"bytes": 4800, "sha256": "5891b5b5..."}}}
//
// It is written last, so a folder that has one was whole once; lengths and hashes say whether it
// still is. It holds nothing else: every byte of a checkpoint that is not part of this list is
// covered by a hash in it, and a changed byte of the list itself no longer fits the files.
//
// A manifest may come from a stranger and is believed in nothing. Accepted is valid JSON of
// exactly the form above: no other keys, no key twice, no nesting beyond it, at most 4 MiB and
// 10,000 files, names that lead nowhere else, digests of 64 lower-case hexadecimal characters.
// Everything else is a DataError (exit code 3) that begins with the file's name.

constexpr std::string_view kManifestFormat = "ladder checkpoint";
constexpr std::uint64_t kLargestManifest = std::uint64_t{4} << 20;  // bytes

struct FileDigest {
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 lower-case hexadecimal characters

  bool operator==(const FileDigest&) const = default;
};

// By the name of the file.
using CheckpointManifest = std::map<std::string, FileDigest, std::less<>>;

// Whether a file of a checkpoint may have this name: 1 to 255 letters, digits, '.', '_' or '-',
// the first none of '.' and '-', and not manifest.json. So a name is portable, shows in a
// listing, fits any command line, and stays in its folder.
bool is_checkpoint_file_name(std::string_view name);

// Reads and checks a manifest. `path` is for messages; `hint` is asked only for an error.
CheckpointManifest parse_checkpoint_manifest(std::span<const std::uint8_t> json,
                                             const std::string& path,
                                             const std::function<std::string()>& hint);

// The text of a manifest. The caller has checked the names.
std::string make_checkpoint_manifest(const CheckpointManifest& manifest);

}  // namespace ladder
