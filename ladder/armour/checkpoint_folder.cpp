// SPDX-License-Identifier: Apache-2.0
#include "ladder/armour/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "ladder/core/clock.h"
#include "ladder/core/error.h"
#include "ladder/core/system_limits.h"
#include "ladder/core/text.h"
#include "ladder/core/unique_fd.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"
#include "ladder/io/regular_file.h"
#include "ladder/io/sha256.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kLatest = "latest";
constexpr const char* kPartial = ".partial";    // being written
constexpr const char* kReplaced = ".replaced";  // the old one, until the new one has its name
constexpr const char* kRemoved = ".removed";    // being removed

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

std::string inside(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool is_link(const std::string& path) {
  std::error_code ignored;
  return fs::is_symlink(path, ignored);
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return !is_link(path) && fs::is_directory(path, ignored);
}

// "checkpoint_" of "checkpoint_10".
std::string_view without_digits(std::string_view name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

// The number that these digits write, without a sign or leading zeros; -1 for any other text.
std::int64_t number_from(std::string_view digits) {
  constexpr auto kMost = std::int64_t{1} << 62;  // the next one must be a number too
  const auto number = parse_number<std::int64_t>(digits);
  const bool is_number = number && *number >= 0 && *number < kMost;
  return is_number && fmt::format("{}", *number) == digits ? *number : -1;
}

// A limit of the system must not look like a damaged checkpoint, which a run may pass over.
UniqueFd open_folder(const std::string& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder && is_limit_of_system(errno)) throw SystemError::failed("open", path, errno);
  return folder;
}

// Reads the whole file, but of a larger one only enough for the parser to refuse it. Returns 0 or
// errno.
int read_manifest(const RegularFile& file, std::vector<std::uint8_t>& bytes) {
  return read_pieces(file, [&](std::span<const std::byte> piece) {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(piece.data());
    bytes.insert(bytes.end(), begin, begin + piece.size());
    return bytes.size() <= kLargestManifest;
  });
}

int read_digest(const RegularFile& file, FileDigest& digest) {
  Sha256 sha256;
  const int error = read_pieces(file, [&](std::span<const std::byte> piece) {
    digest.bytes += piece.size();
    sha256.update(piece);
    return true;
  });
  digest.sha256 = sha256.hex_digest();
  return error;
}

// Whether a folder may be counted, replaced and removed as a checkpoint. A damaged one may: its
// manifest must only contain the format's name and version.
bool is_checkpoint(const std::string& path) {
  if (is_link(path)) return false;
  const UniqueFd folder = open_folder(path);
  if (!folder) return false;
  const RegularFile file = open_regular_file_in(folder.get(), kManifest);
  std::vector<std::uint8_t> bytes;
  if (!file.problem.empty() || read_manifest(file, bytes) != 0) return false;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.find(kManifestFormat) != text.npos && text.find(R"("version": 1,)") != text.npos;
}

void require_replaceable(const std::string& path) {
  if (!exists(path) || is_checkpoint(path)) return;
  std::error_code ignored;
  if (!is_link(path) && fs::is_directory(path, ignored) && fs::is_empty(path, ignored)) return;
  throw SystemError::failed("replace", path, EEXIST,
                            "not a checkpoint: name another folder, or remove this one");
}

// Removes what killed runs left beside `path`, and gives a replaced checkpoint its name back.
void remove_leftovers_beside(const std::string& path) {
  const fs::path parent = folder_of(path);
  const std::string wanted(without_digits(name_of(path)));
  for (const std::string& name : names_in(parent.string())) {
    for (const std::string_view suffix : {kPartial, kReplaced, kRemoved}) {
      const bool long_enough = name.size() > 1 + suffix.size();
      if (!long_enough || !name.starts_with('.') || !name.ends_with(suffix)) continue;
      const std::string owner = name.substr(1, name.size() - 1 - suffix.size());
      if (without_digits(owner) != wanted) continue;
      const std::string leftover = (parent / name).string();
      const std::string original = (parent / owner).string();
      if (suffix == kReplaced && !exists(original)) {
        rename_or_throw(leftover, original);
      } else if (suffix != kRemoved) {
        remove_all(leftover);
      } else {
        std::error_code ignored;  // what stays is hidden
        fs::remove_all(leftover, ignored);
      }
    }
  }
}

std::string describe(int error) {
  if (error == ENOENT) return "none";
  if (error == ENOTDIR) return "no folder";
  return fmt::format("'{}'", std::strerror(error));
}

// Checks the files of an open folder against its manifest. Damage is a DataError, a file that the
// operating system does not let this process read a SystemError.
class FolderCheck {
 public:
  // `hint` is called only for an error.
  FolderCheck(int folder, std::string path, std::function<std::string()> hint)
      : folder_(folder), path_(std::move(path)), hint_(std::move(hint)) {}

  CheckpointManifest manifest() const {
    std::vector<std::uint8_t> bytes;
    if (const int error = read_manifest(open(kManifest), bytes)) fail("read", kManifest, error);
    CheckpointManifest manifest = parse_checkpoint_manifest(
        bytes, [&](const auto& expected, const auto& got) { refuse(kManifest, expected, got); });
    // Lengths first, because they cost nothing and show most kinds of damage.
    for (const auto& [name, digest] : manifest) check_length(name, digest.bytes, open(name).bytes);
    for (const auto& [name, digest] : manifest) check_content(name, digest);
    return manifest;
  }

 private:
  RegularFile open(const std::string& name) const {
    RegularFile file = open_regular_file_in(folder_, name);
    if (file.problem.starts_with('\'')) fail("open", name, file.error);
    if (!file.problem.empty()) refuse(name, "a file", file.problem);
    return file;
  }

  void check_length(const std::string& name, std::uint64_t expected, std::uint64_t got) const {
    if (expected == got) return;
    refuse(name, fmt::format("{} bytes", expected), fmt::format("{}", got));
  }

  void check_content(const std::string& name, const FileDigest& expected) const {
    FileDigest digest;
    if (const int error = read_digest(open(name), digest)) fail("read", name, error);
    check_length(name, expected.bytes, digest.bytes);
    if (digest.sha256 == expected.sha256) return;
    refuse(name, fmt::format("sha256 {}…", expected.sha256.substr(0, 12)),
           fmt::format("{}…", digest.sha256.substr(0, 12)));
  }

  [[noreturn]] void fail(std::string_view operation, std::string_view name, int error) const {
    throw SystemError::failed(operation, inside(path_, name), error);
  }

  [[noreturn]] void refuse(std::string_view name, std::string_view expected,
                           std::string_view got) const {
    throw DataError::mismatch(inside(path_, name), expected, got, hint_());
  }

  int folder_;
  std::string path_;
  std::function<std::string()> hint_;
};

// The damage of the folder; empty if it is intact. One that cannot be read is a SystemError.
std::string damage_of(const std::string& path) {
  const UniqueFd folder = open_folder(path);
  if (!folder) throw SystemError::failed("open", path, errno);
  try {
    FolderCheck(folder.get(), path, [] { return std::string(); }).manifest();
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

// The folders "PREFIX<number>" that `accept` accepts, by number.
std::vector<NumberedCheckpoint> numbered_folders(
    const std::string& parent, std::string_view prefix,
    const std::function<bool(const std::string& path)>& accept) {
  std::vector<NumberedCheckpoint> found;
  std::error_code ignored;
  if (!fs::is_directory(parent, ignored)) return found;
  for (const std::string& name : names_in(parent)) {
    if (!name.starts_with(prefix)) continue;
    const std::int64_t number = number_from(std::string_view(name).substr(prefix.size()));
    std::string path = (fs::path(parent) / name).string();
    if (number >= 0 && accept(path)) found.push_back({number, std::move(path)});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

// The path of the newest intact checkpoint before `path`; empty if none is found.
std::string newest_intact_before(const std::string& path) {
  const std::string name = name_of(path);
  const std::string_view stem = without_digits(name);
  const std::int64_t number = number_from(std::string_view(name).substr(stem.size()));
  try {
    auto others = list_checkpoints(folder_of(path), stem);
    std::reverse(others.begin(), others.end());
    for (const auto& other : others) {
      if (other.number < number && damage_of(other.path).empty()) return other.path;
    }
  } catch (const SystemError&) {  // the error of `path` itself is the one to report
  }
  return "";
}

std::string hint_for(const std::string& path) {
  const std::string older = newest_intact_before(path);
  if (!older.empty()) return older + " is whole: resume from that one";
  if (exists(inside(path, kManifest))) {
    return "copy it again from its source, or start over: rm -r " + path;
  }
  std::error_code ignored;
  const bool names_folder = fs::is_directory(path, ignored);
  if (!names_folder && exists(inside(folder_of(path), kManifest))) {
    return "name the folder of the checkpoint: " + folder_of(path);
  }
  return "name the folder of a checkpoint: ls " + (names_folder ? path : folder_of(path));
}

// Whether `path` still leads to the folder that was opened; for an empty descriptor, whether it
// still leads to no folder.
bool is_still_at(const std::string& path, const UniqueFd& opened) {
  struct stat now{};
  struct stat then{};
  const bool found = ::stat(checkpoint_at(path).c_str(), &now) == 0 && S_ISDIR(now.st_mode);
  if (!opened || !found) return !opened && !found;
  return ::fstat(opened.get(), &then) == 0 && now.st_dev == then.st_dev &&
         now.st_ino == then.st_ino;
}

}  // namespace

std::string checkpoint_at(const std::string& path) {
  const auto target_of = [](const std::string& link) {
    std::error_code ignored;
    return (fs::path(link).parent_path() / fs::read_symlink(link, ignored)).string();
  };
  std::string folder = without_slash(path);
  const std::string latest = inside(folder, kLatest);
  if (is_link(folder)) {
    folder = target_of(folder);
  } else if (is_link(latest) && !exists(inside(folder, kManifest))) {
    folder = target_of(latest);
  }
  const std::string replaced = replaced_checkpoint(folder);
  return !exists(folder) && exists(replaced) ? replaced : folder;
}

CheckpointWriter::CheckpointWriter(const std::string& path, const CheckpointOptions& options)
    : path_(require_checkpoint_name("checkpoint", path, "checkpoints/checkpoint_1")),
      partial_(partial_checkpoint(path_)),
      replaced_(replaced_checkpoint(path_)),
      latest_(options.latest ? inside(folder_of(path_), kLatest) : "") {
  create_directories_synced(folder_of(path_));
  remove_leftovers_beside(path_);
  require_replaceable(path_);
  if (exists(latest_) && !is_link(latest_)) {
    throw SystemError::failed("replace", latest_, EEXIST,
                              "it must be a link to the newest checkpoint: rename it");
  }
  if (::mkdir(partial_.c_str(), 0777) != 0) throw SystemError::failed("mkdir", partial_, errno);
}

CheckpointWriter::~CheckpointWriter() {
  if (!finished_) remove_leftovers();
}

void CheckpointWriter::write(std::string_view name, const FileContent& content) {
  manifest_.insert_or_assign(std::string(name), write_checkpoint_file(path_, name, content));
}

void CheckpointWriter::commit(const CheckpointManifest& of_other_ranks) {
  manifest_.insert(of_other_ranks.begin(), of_other_ranks.end());
  require_files();
  const std::string text = make_checkpoint_manifest(manifest_);
  write_new_file(inside(partial_, kManifest),
                 [&](const WriteBytes& write) { write(std::as_bytes(std::span(text))); });
  fsync_directory(partial_);
  put_in_place();
  fsync_directory(folder_of(path_));
  if (!latest_.empty()) replace_symlink(name_of(path_), latest_);
  finished_ = remove_leftovers();
}

void CheckpointWriter::require_files() const {
  const UniqueFd folder = open_folder(partial_);
  if (!folder) throw SystemError::failed("open", partial_, errno);
  for (const auto& [name, digest] : manifest_) {
    require_checkpoint_file_name(name);
    const RegularFile file = open_regular_file_in(folder.get(), name);
    constexpr const char* kHint = "every rank must write its files, and to a disk that all share";
    if (!file.problem.empty()) {
      throw SystemError::failed("open", inside(partial_, name), file.error, kHint);
    }
    if (file.bytes != digest.bytes) {
      throw DataError::mismatch(inside(partial_, name), fmt::format("{} bytes", digest.bytes),
                                fmt::format("{}", file.bytes), kHint);
    }
  }
}

void CheckpointWriter::put_in_place() {
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) throw SystemError::failed("rename", path_, errno);
    require_replaceable(path_);
    exchange();
  }
  in_place_ = true;
}

void CheckpointWriter::exchange() {
  constexpr int kHere = AT_FDCWD;
  if (::renameat2(kHere, partial_.c_str(), kHere, path_.c_str(), RENAME_EXCHANGE) == 0) return;
  const bool not_offered = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
  if (!not_offered) throw SystemError::failed("rename", path_, errno);
  rename_or_throw(path_, replaced_);
  if (std::rename(partial_.c_str(), path_.c_str()) == 0) return;
  const int error = errno;
  std::rename(replaced_.c_str(), path_.c_str());
  throw SystemError::failed("rename", path_, error);
}

// Returns whether nothing is left.
bool CheckpointWriter::remove_leftovers() const {
  std::error_code error;
  std::error_code second_error;
  fs::remove_all(partial_, error);
  if (in_place_) fs::remove_all(replaced_, second_error);
  return !error && !second_error;
}

Checkpoint open_checkpoint(const std::string& path) {
  Deadline deadline(std::chrono::seconds(10));
  for (;;) {
    const std::string folder = checkpoint_at(path);
    const std::function<std::string()> hint = [&] { return hint_for(folder); };
    const UniqueFd descriptor = open_folder(folder);
    const int error = descriptor ? 0 : errno;
    const auto is_final = [&] {  // false: a writer replaced or removed it meanwhile
      const bool is_refused = error != 0 && error != ENOENT;
      return is_refused || is_still_at(path, descriptor) || deadline.passed();
    };
    try {
      if (!descriptor) throw DataError::mismatch(folder, "a checkpoint", describe(error), hint());
      auto manifest = FolderCheck(descriptor.get(), folder, hint).manifest();
      if (is_final()) return {folder, std::move(manifest)};
    } catch (const DataError&) {
      if (is_final()) throw;
    } catch (const SystemError&) {  // a network file system forgets a file that was replaced
      if (is_final()) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<NumberedCheckpoint> list_checkpoints(const std::string& parent,
                                                 std::string_view prefix) {
  return numbered_folders(parent, prefix, is_checkpoint);
}

std::string newest_folder(const std::string& parent, std::string_view prefix) {
  const auto found = numbered_folders(parent, prefix, is_folder);
  return found.empty() ? "" : found.back().path;
}

void require_no_foreign_folders(const std::string& parent, std::string_view prefix) {
  for (const auto& found : numbered_folders(parent, prefix, exists))
    require_replaceable(found.path);
}

std::string newest_intact_checkpoint(
    const std::string& parent, std::string_view prefix,
    const std::function<void(const std::string& error)>& passed_over) {
  auto found = numbered_folders(parent, prefix, is_folder);
  std::reverse(found.begin(), found.end());
  std::string newest;  // the damage of a folder with a manifest
  for (const auto& checkpoint : found) {
    const std::string damage = damage_of(checkpoint.path);
    if (damage.empty()) return checkpoint.path;
    passed_over(damage);
    if (newest.empty() && exists(inside(checkpoint.path, kManifest))) newest = damage;
  }
  if (newest.empty()) return "";
  throw DataError::mismatch(parent, "", "no whole checkpoint: " + newest,
                            "name another folder to train from the start, or move these away");
}

void remove_checkpoint(const std::string& path) {
  const std::string removed = hidden_sibling(path, kRemoved);
  remove_all(removed);
  if (std::rename(path.c_str(), removed.c_str()) != 0) {
    throw SystemError::failed("remove", path, errno);
  }
  fsync_directory(folder_of(path));
  remove_all(removed);
}

void remove_old_checkpoints(const std::string& parent, std::string_view prefix,
                            std::size_t total_limit, const std::vector<std::string>& keep,
                            const std::function<void(const std::string& error)>& failed) {
  if (total_limit < 1)
    throw UsageError::out_of_range("total_limit", total_limit, "1 or more", "unset keeps all");
  const auto found = list_checkpoints(parent, prefix);
  const fs::path latest = fs::path(parent) / kLatest;
  std::size_t left = found.size();
  for (const auto& checkpoint : found) {
    if (left <= total_limit) return;
    const auto is_this = [&](const fs::path& path) {
      std::error_code ignored;
      return fs::equivalent(path, checkpoint.path, ignored);
    };
    if (is_this(latest) || std::any_of(keep.begin(), keep.end(), is_this)) continue;
    try {
      remove_checkpoint(checkpoint.path);
      --left;
    } catch (const SystemError& error) {
      if (!failed) throw;
      failed(error.what());
    }
  }
}

}  // namespace ladder
