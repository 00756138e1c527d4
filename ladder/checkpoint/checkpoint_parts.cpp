// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/checkpoint_parts.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include "ladder/comm/errors.h"
#include "ladder/comm/run_together.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/io/json.h"
#include "ladder/io/sha256.h"
#include "ladder/launch/rank_status.h"

namespace ladder {
namespace {

std::string name_of(const CheckpointPart& part, std::size_t rank) {
  auto name = part.file_of_each_rank;
  return name.replace(name.find("{}"), 2, std::to_string(rank));
}

// One of two objects with one file would be lost.
void require_other_names(const CheckpointParts& parts, int world_size) {
  std::set<std::string> names;
  const auto add = [&](const std::string& name) {
    if (name.empty() || names.insert(name).second) return;
    throw UsageError::conflict("register_for_checkpointing",
                               fmt::format("a second object with the file {}", name),
                               "choose another name for it");
  };
  for (const auto& part : parts) {
    add(part.file);
    for (int rank = 0; rank < world_size && !part.file_of_each_rank.empty(); ++rank) {
      add(name_of(part, static_cast<std::size_t>(rank)));
    }
  }
}

std::string content_of(const CheckpointPart& part) {
  std::string content;
  part.save([&](std::span<const std::byte> bytes) {
    content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return content;
}

// Of a part that may be one file or several, this holds what it writes on this rank, so that it is
// asked once. A collective if there is one.
void divide_where_ranks_differ(CheckpointParts& parts, const ProcessGroup& group) {
  std::vector<CheckpointPart*> open;
  for (auto& part : parts) {
    if (!part.file.empty() && !part.file_of_each_rank.empty()) open.push_back(&part);
  }
  if (open.empty() || group.world_size() == 1) return;
  std::string own;
  run_or_fail_together(group, "save_state", [&] {
    for (auto* part : open) {
      auto content = content_of(*part);
      own += sha256_hex(std::as_bytes(std::span(content))) + '\n';
      part->save = [content = std::move(content)](const WriteBytes& write) {
        write(std::as_bytes(std::span(content)));
      };
    }
  });
  const auto texts = all_gather_text(own, group);
  constexpr std::size_t kLine = 65;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const auto differs = [&](const std::string& text) {
      return text.compare(i * kLine, kLine, texts[0], i * kLine, kLine) != 0;
    };
    if (std::ranges::any_of(texts, differs)) open[i]->file.clear();
  }
}

DistributedError not_shared(std::string_view operation, const std::string& path,
                            const std::string& expected, const std::string& got) {
  return DistributedError::ranks_disagree(fmt::format("{}: {}", operation, path), expected, got,
                                          "name a folder on a disk that all ranks share");
}

std::string without_hint(const std::string& error) {
  return error.substr(0, error.find("; hint:"));
}

// What a rank has found at the path of a checkpoint.
struct Found {
  std::string manifest_sha256;  // empty if it cannot be used
  std::string error;
};

void require_same_checkpoint(const std::string& path, const std::vector<Found>& found) {
  std::vector<int> other;
  std::vector<int> none;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const bool is_there = !found[rank].manifest_sha256.empty();
    if (is_there && found[rank].manifest_sha256 == found[0].manifest_sha256) continue;
    if (is_there && found[0].manifest_sha256.empty()) continue;
    (is_there ? other : none).push_back(static_cast<int>(rank));
  }
  std::vector<std::string> got;
  if (!other.empty()) got.push_back("another one on " + ranks_text(other));
  if (!none.empty()) {
    got.push_back(fmt::format("none on {} ({})", ranks_text(none),
                              found.at(static_cast<std::size_t>(none.front())).error));
  }
  if (got.empty()) return;
  throw not_shared("load_state", path, "the checkpoint of rank 0 on all ranks",
                   fmt::format("{}", fmt::join(got, ", ")));
}

// Writes this rank's files into the checkpoint that rank 0 has begun. Empty if it is not there.
std::optional<CheckpointManifest> write_files(const std::string& path,
                                              const std::map<std::string, FileContent>& files) {
  if (!std::filesystem::is_directory(partial_checkpoint(path))) return std::nullopt;
  CheckpointManifest manifest;
  for (const auto& [name, content] : files) {
    manifest[name] = write_checkpoint_file(path, name, content);
  }
  return manifest;
}

std::string text_of(const CheckpointManifest& manifest) {
  std::string lines;
  for (const auto& [name, digest] : manifest) {
    lines += fmt::format("\n{} {} {}", name, digest.bytes, digest.sha256);
  }
  return lines;
}

// The files of all ranks, on every rank.
CheckpointManifest merged(const std::string& path, const std::optional<CheckpointManifest>& own,
                          const ProcessGroup& group) {
  const auto lines = own ? "files" + text_of(*own) : "none";
  CheckpointManifest all;
  std::vector<int> without;
  const auto of_ranks = all_gather_text(lines, group);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::istringstream stream(of_ranks[rank]);
    std::string name;
    FileDigest digest;
    stream >> name;
    if (name == "none") without.push_back(static_cast<int>(rank));
    while (stream >> name >> digest.bytes >> digest.sha256) all[name] = digest;
  }
  if (without.empty()) return all;
  throw not_shared("save_state", partial_checkpoint(path),
                   "the folder that rank 0 created on all ranks", "none on " + ranks_text(without));
}

// The names of the part's files in a checkpoint: one for all ranks, or one of each; none if it is
// missing.
std::vector<std::string> files_in(const Checkpoint& checkpoint, const CheckpointPart& part) {
  if (!part.file.empty() && checkpoint.contains(part.file)) return {part.file};
  std::vector<std::string> names;
  while (!part.file_of_each_rank.empty() && checkpoint.contains(name_of(part, names.size()))) {
    names.push_back(name_of(part, names.size()));
  }
  return names;
}

// Every file of the checkpoint belongs to a part, and every part has its files.
void require_same_files(const Checkpoint& checkpoint, const CheckpointParts& parts) {
  std::set<std::string> held;
  for (const auto& [name, digest] : checkpoint.manifest()) held.insert(name);
  const char* const hint =
      "resume with the program that wrote it, or prepare and register the same objects";
  for (const auto& part : parts) {
    const auto names = files_in(checkpoint, part);
    for (const auto& name : names) held.erase(name);
    if (!names.empty() || part.may_be_missing) continue;
    throw DataError::mismatch(checkpoint.path(), part.file.empty() ? name_of(part, 0) : part.file,
                              "a checkpoint without it", hint);
  }
  if (!held.empty()) {
    throw DataError::mismatch(checkpoint.path(), "only the state of prepared objects",
                              *held.begin(), hint);
  }
}

// Null for a part that is not there, or not read.
Apply plan(const Checkpoint& checkpoint, const CheckpointPart& part, const ProcessGroup& group) {
  const auto names = files_in(checkpoint, part);
  std::vector<std::string> paths;
  for (const auto& name : names) paths.push_back(checkpoint.file(name));
  const bool is_of_all = names.size() == 1 && names[0] == part.file;
  if (is_of_all) return part.plan_load ? part.plan_load(paths[0]) : Apply();
  const auto ranks = static_cast<std::size_t>(group.world_size());
  if (names.size() == ranks) {
    return part.plan_load(paths[static_cast<std::size_t>(group.rank())]);
  }
  if (part.plan_load_of_ranks) return part.plan_load_of_ranks(paths);
  if (names.empty()) return {};
  throw UsageError::conflict(
      checkpoint.path(),
      fmt::format("{} and so on hold the state of each of {} processes, and this run has {}",
                  names[0], names.size(), ranks),
      fmt::format("start it with {} processes, or give the object plan_load_of_ranks "
                  "(ladder/checkpoint/checkpoint_parts.h)",
                  names.size()));
}

}  // namespace

std::string name_of_each_rank(std::string file) {
  return file.insert(std::min(file.rfind('.'), file.size()), "_rank_{}");
}

CheckpointPart json_part(std::string file, std::function<nlohmann::json()> save, PlanJson plan_load,
                         const PlanJsons& plan_load_of_ranks) {
  CheckpointPart part{
      .file = std::move(file),
      .save =
          [save = std::move(save)](const auto& write) {
            const std::string text = json_text(save(), 2) + '\n';
            write(std::as_bytes(std::span(text)));
          },
      .plan_load = [plan = std::move(plan_load)](
                       const std::string& path) { return plan(read_untrusted_json(path), path); }};
  if (plan_load_of_ranks) {
    part.plan_load_of_ranks = [plan_load_of_ranks](const std::vector<std::string>& paths) {
      std::vector<nlohmann::json> states;
      for (const auto& path : paths) states.push_back(read_untrusted_json(path));
      return plan_load_of_ranks(states, paths.at(0));
    };
  }
  return part;
}

nlohmann::json json_of(const CheckpointPart& part) {
  return nlohmann::json::parse(content_of(part));
}

void save_parts(const std::string& path, CheckpointParts parts, const ProcessGroup& group,
                const CheckpointOptions& options) {
  require_other_names(parts, group.world_size());
  const bool is_main = group.rank() == 0;
  divide_where_ranks_differ(parts, group);
  std::map<std::string, FileContent> files;
  for (const auto& part : parts) {
    if (!part.save) continue;
    if (part.file.empty()) {
      files[name_of(part, static_cast<std::size_t>(group.rank()))] = part.save;
    } else if (is_main) {
      files[part.file] = part.save;
    }
  }
  std::optional<SavingMark> saving(std::in_place, path);
  std::unique_ptr<CheckpointDraft> draft;
  on_rank_0(group, "save_state", [&] { draft = checkpoint_store().begin(path, options); });
  std::optional<CheckpointManifest> own;
  run_or_fail_together(group, "save_state", [&] { own = write_files(path, files); });
  const auto manifest = merged(path, own, group);
  if (!is_main) saving.reset();  // its part is done
  on_rank_0(group, "save_state", [&] {
    draft->commit(manifest);
    saving.reset();
  });
}

Checkpoint open_checkpoint_together(const std::string& path, const ProcessGroup& group) {
  const auto folder =
      broadcast_text(group.rank() == 0 ? checkpoint_store().folder_at(path) : "", group);
  std::optional<Checkpoint> checkpoint;
  std::optional<DataError> refused;
  run_or_fail_together(group, "load_state", [&] {
    try {
      checkpoint.emplace(checkpoint_store().open(folder));
    } catch (const DataError& error) {
      refused.emplace(error);
    }
  });
  const auto own = checkpoint ? text_of(checkpoint->manifest()) : "";
  const auto sha256 = checkpoint ? sha256_hex(std::as_bytes(std::span(own))) : "";
  std::vector<Found> found;
  const auto error = refused ? without_hint(refused->what()) : "";
  for (const auto& text : all_gather_text(fmt::format("{}\n{}", sha256, error), group)) {
    const auto end = text.find('\n');
    found.push_back({text.substr(0, end), text.substr(end + 1)});
  }
  if (refused && found[0].manifest_sha256.empty()) throw *refused;  // of all, in most cases
  require_same_checkpoint(folder, found);
  return *std::move(checkpoint);
}

std::string load_parts(const std::string& path, const CheckpointParts& parts,
                       const ProcessGroup& group, const Log& log) {
  const auto checkpoint = open_checkpoint_together(path, group);
  std::vector<Apply> steps;
  run_or_fail_together(group, "load_state", [&] {
    require_same_files(checkpoint, parts);
    for (const auto& part : parts) steps.push_back(plan(checkpoint, part, group));
  });
  for (const auto& apply : steps) {
    if (apply) apply();
  }
  log.info("resumed from " + checkpoint.path());
  return checkpoint.path();
}

}  // namespace ladder
