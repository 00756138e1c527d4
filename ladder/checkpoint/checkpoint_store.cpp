// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "ladder/core/error.h"
#include "ladder/io/json.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOfDurableStore = "manifest.json";

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Whether a checkpoint may have the file, also one of another number of ranks.
bool is_part(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".json");
}

class PlainDraft : public CheckpointDraft {
 public:
  explicit PlainDraft(const std::string& path)
      : path_(require_checkpoint_name("checkpoint", path, "checkpoints/checkpoint_1")),
        partial_(partial_checkpoint(path_)) {
    remove_all(partial_);
    create_directories_synced(partial_);
    const auto replaced = replaced_checkpoint(path_);
    if (exists(replaced) && !exists(path_)) rename_or_throw(replaced, path_);
  }
  ~PlainDraft() override {
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
  }

  // A folder with a file that is no part of a checkpoint may be a person's.
  void commit(const CheckpointManifest& files) override {
    const auto present = exists(path_) ? names_in(path_) : std::vector<std::string>();
    const auto is_new = [&](const std::string& name) { return files.contains(name); };
    const bool is_checkpoint = present.empty() || std::ranges::any_of(present, is_new);
    for (const auto& name : present) {
      if (is_checkpoint && (is_new(name) || is_part(name))) continue;
      throw SystemError::failed("replace", path_, EEXIST,
                                fmt::format("a checkpoint has no {}: name another folder", name));
    }
    const auto replaced = replaced_checkpoint(path_);
    remove_all(replaced);
    if (exists(path_)) rename_or_throw(path_, replaced);
    rename_or_throw(partial_, path_);
    remove_all(replaced);
  }

 private:
  std::string path_;
  std::string partial_;
};

const CheckpointStore*& used_store() {
  static const CheckpointStore plain;
  static const CheckpointStore* used = &plain;
  return used;
}

}  // namespace

std::string Checkpoint::file(std::string_view name) const {
  if (contains(name)) return fmt::format("{}/{}", path_, name);
  throw DataError::mismatch(path_, fmt::format("the file {}", quoted_for_message(name)), "none",
                            "its files: ls " + path_);
}

std::unique_ptr<CheckpointDraft> CheckpointStore::begin(
    const std::string& path, const CheckpointOptions& /*options*/) const {
  return std::make_unique<PlainDraft>(path);
}

std::string CheckpointStore::folder_at(const std::string& path) const {
  const auto folder = without_slash(path);
  const auto replaced = replaced_checkpoint(folder);
  return !exists(folder) && exists(replaced) ? replaced : folder;
}

Checkpoint CheckpointStore::open(const std::string& path) const {
  auto folder = folder_at(path);
  CheckpointManifest files;
  std::error_code error;
  if (fs::is_directory(folder, error)) {
    for (const auto& name : names_in(folder)) {
      if (name != kOfDurableStore) files[name] = {fs::file_size(folder + "/" + name, error), ""};
    }
  }
  if (files.empty()) {
    throw DataError::mismatch(folder, "a checkpoint", "none",
                              "name the folder of a checkpoint: ls " + folder_of(folder));
  }
  return {std::move(folder), std::move(files)};
}

const CheckpointStore& checkpoint_store() { return *used_store(); }

bool use_checkpoint_store(const CheckpointStore& store) {
  used_store() = &store;
  return true;
}

bool is_checkpoint_file_name(std::string_view name) {
  constexpr std::size_t kMaxLength = 255;
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= kMaxLength &&
         name.find_first_not_of(kAllowed) == name.npos && name.front() != '.' &&
         name.front() != '-' && name != kOfDurableStore;
}

void require_checkpoint_file_name(std::string_view name) {
  if (is_checkpoint_file_name(name)) return;
  throw UsageError::malformed("file of a checkpoint", "a name of letters, digits, '.', '_' and '-'",
                              name, "such as rng_0.safetensors");
}

bool checkpoint_exists(const std::string& path) {
  const auto folder = checkpoint_store().folder_at(path);
  std::error_code ignored;
  const bool is_empty = fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored);
  return fs::exists(fs::symlink_status(folder, ignored)) && !is_empty;
}

FileDigest write_checkpoint_file(const std::string& path, std::string_view name,
                                 const FileContent& content) {
  require_checkpoint_file_name(name);
  return write_new_file(fmt::format("{}/{}", partial_checkpoint(path), name), content);
}

std::string require_checkpoint_name(std::string_view where, const std::string& path,
                                    std::string_view example) {
  std::string folder = without_slash(path);
  const auto name = fs::path(folder).filename().string();
  if (!name.empty() && !name.starts_with('.') && name != "latest") return folder;
  throw UsageError::malformed(where, "a folder with a name of its own", path,
                              fmt::format("such as {}", example));
}

std::string hidden_sibling(const std::string& path, std::string_view suffix) {
  const fs::path folder(without_slash(path));
  return fmt::format("{}/.{}{}", folder_of(folder.string()), folder.filename().string(), suffix);
}

std::string partial_checkpoint(const std::string& path) { return hidden_sibling(path, ".partial"); }

std::string replaced_checkpoint(const std::string& path) {
  return hidden_sibling(path, ".replaced");
}

}  // namespace ladder
