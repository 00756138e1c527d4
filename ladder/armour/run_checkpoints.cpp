// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/run_checkpoints.h"

#include <fmt/core.h>

#include <cerrno>
#include <chrono>
#include <filesystem>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/checkpoint/loader_position.h"
#include "ladder/comm/run_together.h"
#include "ladder/comm/texts.h"
#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"
#include "ladder/monitor/run_settings.h"

namespace ladder {
namespace {

// "learning_rate is 0.001 there, and 0.01 here", of the first member that differs; "" if none does.
std::string first_difference(const nlohmann::json& saved, const nlohmann::json& own) {
  for (const auto& [name, value] : own.items()) {
    if (!saved.is_object() || !saved.contains(name) || saved.at(name) == value) continue;
    const auto difference =
        name == kSettings ? first_difference(saved.at(name), value)
                          : fmt::format("{} is {} there, and {} here", name,
                                        json_for_message(saved.at(name)), json_for_message(value));
    if (!difference.empty()) return difference;
  }
  return "";
}

}  // namespace

std::unique_ptr<const FolderLock> lock_run(const std::string& where, const std::string& file,
                                           const std::string& written, const ProcessGroup& group,
                                           const Log& log,
                                           std::unique_ptr<const FolderLock> present) {
  constexpr std::chrono::milliseconds kForTheEndOfARun{5000};
  std::unique_ptr<const FolderLock> lock = std::move(present);
  on_rank_0(group, where, [&] {
    if (lock != nullptr && (lock->is_in_place() || !lock->is_held())) return;
    const bool restarts = environment_integer("TORCHELASTIC_MAX_RESTARTS", 0).value_or(0) > 0;
    const auto wait = restarts ? group.timeout() : kForTheEndOfARun;
    create_directories_synced(folder_of(file));
    for (const auto& path : {file, written}) {
      const int error = error_of_replacing(path);
      if (error != 0 && error != ENOENT) throw SystemError::failed("write", path, error);
    }
    lock = std::make_unique<const FolderLock>(where, file, wait);
    if (lock->is_held()) return;
    log.warn(fmt::format("{}: its file system has no locks; start no second run there",
                         folder_of(file)));
  });
  return lock;
}

RunIdentity identity_of(const CheckpointParts& parts) {
  RunIdentity identity;
  for (const auto& part : parts) {
    if (!part.save || !part.file.ends_with(".json")) continue;
    const auto saved = json_of(part);
    const auto add = [&](const char* member) {
      if (saved.contains(member)) identity.push_back({part.file, {{member, saved.at(member)}}});
    };
    add(kSettings);
    if (part.file.starts_with("sampler")) add(kDataOfPosition);
  }
  return identity;
}

std::string difference_of(const std::string& checkpoint, const RunIdentity& own) {
  try {
    for (const auto& [file, members] : own) {
      const auto path = fmt::format("{}/{}", checkpoint, file);
      if (!std::filesystem::exists(path)) continue;
      const auto difference = first_difference(read_untrusted_json(path), members);
      if (!difference.empty()) return difference;
    }
  } catch (const DataError&) {  // an open of it would fail too
  }
  return "";
}

void require_own_checkpoint(const std::string& where, const std::string& checkpoint,
                            const RunIdentity& own, const std::string& hint) {
  const auto difference = difference_of(checkpoint, own);
  if (difference.empty()) return;
  throw UsageError::conflict(where, fmt::format("{} is of another run: {}", checkpoint, difference),
                             hint);
}

void limit_checkpoints(const std::string& parent, std::string_view prefix, std::size_t total_limit,
                       const std::vector<std::string>& keep, const ProcessGroup& group,
                       const Log& log) {
  on_rank_0(group, "total_limit", [&] {
    remove_old_checkpoints(parent, prefix, total_limit, keep,
                           [&](const std::string& error) { log.warn(error); });
  });
}

std::string newest_training_state(const std::string& parent, std::string_view prefix,
                                  const ProcessGroup& group, const Log& log) {
  std::string newest;
  on_rank_0(group, "load_state", [&] {
    newest = newest_intact_checkpoint(parent, prefix, [&](const std::string& error) {
      log.info("checkpoint passed over: " + error);
    });
  });
  newest = broadcast_text(newest, group);
  if (newest.empty()) {
    log.info(fmt::format("no checkpoint to resume from in {}: training from the start", parent));
  }
  return newest;
}

}  // namespace ladder
