// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ladder/checkpoint/checkpoint_store.h"
#include "ladder/io/json.h"

namespace ladder {

// The list of the files in a checkpoint folder: its file manifest.json.
//
//     {"format": "ladder checkpoint", "version": 1,
//      "files": {"model.safetensors": {"bytes": 4800, "sha256": "5891b5b5..."}}}
//
// It is written last, so a folder with a manifest was complete once. Lengths and hashes show
// whether it still is: a hash covers every byte of the checkpoint, and the files contradict a
// changed list.
//
// A manifest is untrusted. Accepted is valid JSON of exactly the form above: no other keys, no key
// twice, no deeper nesting, at most 4 MiB and 10,000 files, names without folders, digests of 64
// lower-case hexadecimal characters. Everything else is refused.

constexpr std::string_view kManifestFormat = "ladder checkpoint";
constexpr std::uint64_t kLargestManifest = std::uint64_t{4} << 20;  // bytes

// Reads and checks a manifest. `refuse` throws the error for any other form.
CheckpointManifest parse_checkpoint_manifest(std::span<const std::uint8_t> json,
                                             const JsonRefusal& refuse);

// The text of a manifest. The caller has checked the names.
std::string make_checkpoint_manifest(const CheckpointManifest& manifest);

}  // namespace ladder
