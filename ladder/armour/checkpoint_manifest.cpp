// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/checkpoint_manifest.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

namespace ladder {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMaxFiles = 10'000;

FileDigest digest_from(const JsonReader& file) {
  file.expect_only({"bytes", "sha256"});
  FileDigest digest{static_cast<std::uint64_t>(file.count("bytes")), file.text("sha256")};
  const bool is_digest = digest.sha256.size() == 64 &&
                         digest.sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_digest) file.refuse_value("64 hexadecimal characters", "sha256");
  return digest;
}

}  // namespace

CheckpointManifest parse_checkpoint_manifest(std::span<const std::uint8_t> json,
                                             const JsonRefusal& refuse) {
  const auto document =
      parse_untrusted_json({reinterpret_cast<const char*>(json.data()), json.size()}, refuse,
                           {.max_bytes = kLargestManifest, .max_depth = 3});
  const JsonReader root(document, refuse);
  root.expect_only({"format", "version", "files"});
  if (root.text("format") != kManifestFormat) {
    root.refuse_value(quoted_for_message(kManifestFormat), "format");
  }
  if (root.count("version") != kVersion) root.refuse_value(fmt::format("{}", kVersion), "version");
  const JsonReader files = root.object("files");
  CheckpointManifest manifest;
  for (const auto& item : document.at("files").items()) {
    if (!is_checkpoint_file_name(item.key())) {
      refuse("names of letters, digits, '.', '_' and '-'", quoted_for_message(item.key()));
    }
    manifest.emplace(item.key(), digest_from(files.object(item.key())));
  }
  if (manifest.size() > kMaxFiles) {
    refuse(fmt::format("at most {} files", kMaxFiles), fmt::format("{}", manifest.size()));
  }
  return manifest;
}

std::string make_checkpoint_manifest(const CheckpointManifest& manifest) {
  using Json = nlohmann::ordered_json;
  Json::object_t files;  // operator[] would compare each name with all before it
  for (const auto& [name, digest] : manifest) {
    files.emplace_back(name, Json({{"bytes", digest.bytes}, {"sha256", digest.sha256}}));
  }
  const Json json = {
      {"format", kManifestFormat}, {"version", kVersion}, {"files", std::move(files)}};
  return json.dump(2) + '\n';
}

}  // namespace ladder
