// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "ladder/checkpoint/atomic_file.h"
#include "ladder/checkpoint/durable.h"
#include "ladder/checkpoint/quoted.h"
#include "ladder/checkpoint/saved_json.h"
#include "ladder/core/error.h"
#include "ladder/core/sha256.h"
#include "ladder/core/unique_fd.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

using Hint = std::function<std::string()>;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kLatest = "latest";
constexpr const char* kPartial = ".partial";    // being written
constexpr const char* kReplaced = ".replaced";  // waits until its successor has its name
constexpr const char* kRemoved = ".removed";    // being removed

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

std::string inside(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

std::string hidden(const std::string& path, std::string_view suffix) {
  return fmt::format("{}/.{}{}", folder_of(path), name_of(path), suffix);
}

bool exists(const std::string& path) {
  std::error_code ignored;  // what cannot be asked for is not found
  return fs::exists(fs::symlink_status(path, ignored));
}

bool is_link(const std::string& path) {
  std::error_code ignored;
  return fs::is_symlink(path, ignored);
}

// What a link points to, seen from where the link was seen.
std::string behind_link(const std::string& link) {
  std::error_code ignored;
  const fs::path target = fs::read_symlink(link, ignored);
  return (fs::path(link).parent_path() / target).string();
}

// The digits at the end of a name, if they are a number as one writes it; else -1.
std::int64_t number_from(std::string_view digits) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool canonical = digits == "0" || !digits.starts_with('0');
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole && canonical ? number : -1;
}

// "checkpoint_" of "checkpoint_10".
std::string_view without_digits(std::string_view name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) throw SystemError::failed("list", folder, error.value());
  return names;
}

struct RegularFile {
  UniqueFd descriptor;
  std::uint64_t bytes = 0;
  int error = 0;  // errno: ELOOP for a link, EISDIR for all else that is no file
};

// Follows no link, and waits for no pipe.
RegularFile open_regular(int folder, const std::string& name) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  RegularFile file{.descriptor = UniqueFd(::openat(folder, name.c_str(), kFlags))};
  struct stat status{};
  if (!file.descriptor || ::fstat(file.descriptor.get(), &status) != 0) {
    file.error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    file.error = EISDIR;
  }
  file.bytes = static_cast<std::uint64_t>(status.st_size);
  return file;
}

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

ssize_t read_some(int descriptor, std::span<std::byte> bytes) {
  ssize_t count = -1;
  do {
    count = ::read(descriptor, bytes.data(), bytes.size());
  } while (count < 0 && errno == EINTR);
  return count;
}

// The whole file, but of one that is too large only enough for the parser to refuse it.
// Returns 0 or errno.
int read_manifest(const RegularFile& file, std::vector<std::uint8_t>& bytes) {
  bytes.resize(std::min(file.bytes, kLargestManifest) + 1);
  std::size_t size = 0;
  while (size < bytes.size()) {
    const auto rest = std::as_writable_bytes(std::span(bytes)).subspan(size);
    const ssize_t count = read_some(file.descriptor.get(), rest);
    if (count < 0) return errno;
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  bytes.resize(size);
  return 0;
}

// Of all bytes there are, whatever the length was before. Returns 0 or errno.
int read_digest(const RegularFile& file, FileDigest& digest) {
  std::vector<std::byte> piece(std::size_t{1} << 18);
  Sha256 sha256;
  ssize_t count = 0;
  while ((count = read_some(file.descriptor.get(), piece)) > 0) {
    const auto size = static_cast<std::size_t>(count);
    digest.bytes += size;
    sha256.update(std::span(piece).first(size));
  }
  digest.sha256 = sha256.hex_digest();
  return count < 0 ? errno : 0;
}

// Whether a folder may be counted, replaced and removed as a checkpoint. A damaged one may: of its
// manifest only the format's name must be there.
bool is_checkpoint(const std::string& path) {
  if (is_link(path)) return false;
  const UniqueFd folder = open_folder(path);
  if (!folder) return false;
  const RegularFile file = open_regular(folder.get(), kManifest);
  std::vector<std::uint8_t> bytes;
  if (file.error != 0 || read_manifest(file, bytes) != 0) return false;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.find(kManifestFormat) != text.npos;
}

// What stands in the way of a checkpoint must be one, or nothing of value.
void require_replaceable(const std::string& path) {
  if (!exists(path) || is_checkpoint(path)) return;
  std::error_code ignored;
  if (!is_link(path) && fs::is_directory(path, ignored) && fs::is_empty(path, ignored)) return;
  throw SystemError::failed("replace", path, EEXIST,
                            "it is no checkpoint: name another folder, or remove it yourself");
}

void require_link(const std::string& latest) {
  if (!exists(latest) || is_link(latest)) return;
  throw SystemError::failed("replace", latest, EEXIST,
                            "it is to be a link to the newest checkpoint: give it another name");
}

// Removes what killed runs left beside `path`, and gives a replaced checkpoint its name back.
void remove_remains(const std::string& path) {
  const fs::path parent = folder_of(path);
  const std::string wanted(without_digits(name_of(path)));
  for (const std::string& name : names_in(parent.string())) {
    for (const std::string_view suffix : {kPartial, kReplaced, kRemoved}) {
      const bool long_enough = name.size() > 1 + suffix.size();
      if (!long_enough || !name.starts_with('.') || !name.ends_with(suffix)) continue;
      const std::string owner = name.substr(1, name.size() - 1 - suffix.size());
      if (without_digits(owner) != wanted) continue;
      const std::string there = (parent / name).string();
      const std::string back = (parent / owner).string();
      if (suffix != kReplaced || exists(back)) {
        remove_all(there);
      } else if (std::rename(there.c_str(), back.c_str()) != 0) {
        throw SystemError::failed("rename", back, errno);
      }
    }
  }
}

FileDigest synced_digest(int folder, const std::string& folder_path, const std::string& name) {
  const std::string path = inside(folder_path, name);
  const RegularFile file = open_regular(folder, name);
  if (file.error != 0) {
    throw SystemError::failed("open", path, file.error,
                              "every rank must write its files, and to a disk that all share");
  }
  if (::fsync(file.descriptor.get()) != 0) throw SystemError::failed("fsync", path, errno);
  FileDigest digest;
  const int error = read_digest(file, digest);
  if (error != 0) throw SystemError::failed("read", path, error);
  return digest;
}

std::string with_name(const std::string& path) {
  std::string folder = without_slash(path);
  const std::string name = name_of(folder);
  if (!name.empty() && !name.starts_with('.') && name != kLatest) return folder;
  throw UsageError::malformed("checkpoint", "a folder with a name of its own", path,
                              "such as checkpoints/checkpoint_1");
}

void require_file_name(std::string_view name) {
  if (is_checkpoint_file_name(name)) return;
  throw UsageError::malformed("file of a checkpoint", "a name of letters, digits, '.', '_' and '-'",
                              name, "such as rng_0.safetensors");
}

// What was found instead of a file, for a message.
std::string in_words(int error) {
  if (error == ENOENT) return "none";
  if (error == ELOOP) return "a link";
  if (error == EISDIR) return "a folder, a pipe or a device";
  return fmt::format("'{}'", std::strerror(error));
}

RegularFile open_or_refuse(int folder, const std::string& folder_path, const std::string& name,
                           const Hint& hint) {
  RegularFile file = open_regular(folder, name);
  if (file.error == 0) return file;
  throw DataError::mismatch(inside(folder_path, name), "a file", in_words(file.error), hint());
}

CheckpointManifest manifest_of(int folder, const std::string& folder_path, const Hint& hint) {
  const RegularFile file = open_or_refuse(folder, folder_path, kManifest, hint);
  const std::string path = inside(folder_path, kManifest);
  std::vector<std::uint8_t> bytes;
  const int error = read_manifest(file, bytes);
  if (error != 0) throw DataError::mismatch(path, "a readable file", in_words(error), hint());
  return parse_checkpoint_manifest(bytes, path, hint);
}

void check_length(std::uint64_t expected, std::uint64_t got, const std::string& path,
                  const Hint& hint) {
  if (expected == got) return;
  throw DataError::mismatch(path, fmt::format("{} bytes", expected), fmt::format("{}", got),
                            hint());
}

void check_content(const RegularFile& file, const FileDigest& expected, const std::string& path,
                   const Hint& hint) {
  FileDigest digest;
  const int error = read_digest(file, digest);
  if (error != 0) throw DataError::mismatch(path, "a readable file", in_words(error), hint());
  check_length(expected.bytes, digest.bytes, path, hint);
  if (digest.sha256 == expected.sha256) return;
  throw DataError::mismatch(path, fmt::format("sha256 {}…", expected.sha256.substr(0, 12)),
                            fmt::format("{}…", digest.sha256.substr(0, 12)), hint());
}

// The lengths of all files first: that costs nothing, and finds most of what can be wrong.
CheckpointManifest check_folder(int folder, const std::string& folder_path, const Hint& hint) {
  CheckpointManifest manifest = manifest_of(folder, folder_path, hint);
  for (const auto& [name, digest] : manifest) {
    const RegularFile file = open_or_refuse(folder, folder_path, name, hint);
    check_length(digest.bytes, file.bytes, inside(folder_path, name), hint);
  }
  for (const auto& [name, digest] : manifest) {
    const RegularFile file = open_or_refuse(folder, folder_path, name, hint);
    check_content(file, digest, inside(folder_path, name), hint);
  }
  return manifest;
}

bool is_intact(const std::string& path) {
  const UniqueFd folder = open_folder(path);
  if (!folder) return false;
  try {
    check_folder(folder.get(), path, [] { return std::string(); });
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// The newest whole checkpoint before `path`; empty if none can be found.
std::string newest_intact_before(const std::string& path) {
  const std::string name = name_of(path);
  const std::string_view stem = without_digits(name);
  const std::int64_t number = number_from(std::string_view(name).substr(stem.size()));
  try {
    auto others = list_checkpoints(folder_of(path), stem);
    std::reverse(others.begin(), others.end());
    for (const auto& other : others) {
      if (other.number < number && is_intact(other.path)) return other.path;
    }
  } catch (const SystemError&) {
    return "";  // what is wrong with `path` itself says more
  }
  return "";
}

// What to do about a checkpoint that is damaged or gone.
std::string hint_for(const std::string& path) {
  const std::string older = newest_intact_before(path);
  if (!older.empty()) return older + " is whole: resume from that one";
  if (exists(inside(path, kManifest))) return "fetch it again from where it came, or start anew";
  return "name the folder of a checkpoint: ls " + (exists(path) ? path : folder_of(path));
}

// The folder that `path` means at this moment. It need not exist.
std::string folder_meant(const std::string& path) {
  std::string folder = without_slash(path);
  const std::string latest = inside(folder, kLatest);
  if (is_link(folder)) {
    folder = behind_link(folder);
  } else if (is_link(latest) && !exists(inside(folder, kManifest))) {
    folder = behind_link(latest);
  }
  const std::string replaced = hidden(folder, kReplaced);
  return !exists(folder) && exists(replaced) ? replaced : folder;
}

// Whether the folder that was opened is still the one of that path. An empty descriptor: whether
// there is still none.
bool is_still_at(const std::string& path, const UniqueFd& opened) {
  struct stat now{};
  struct stat then{};
  const bool there = ::stat(folder_meant(path).c_str(), &now) == 0;
  if (!opened || !there) return !opened && !there;
  return ::fstat(opened.get(), &then) == 0 && now.st_dev == then.st_dev &&
         now.st_ino == then.st_ino;
}

void remove_checkpoint(const std::string& path) {
  const std::string removed = hidden(path, kRemoved);
  remove_all(removed);
  if (std::rename(path.c_str(), removed.c_str()) != 0) {
    throw SystemError::failed("rename", removed, errno);
  }
  fsync_directory(folder_of(path));
  remove_all(removed);
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::string& path, const CheckpointOptions& options)
    : path_(with_name(path)),
      partial_(hidden(path_, kPartial)),
      replaced_(hidden(path_, kReplaced)),
      latest_(options.latest ? inside(folder_of(path_), kLatest) : "") {
  create_directories_synced(folder_of(path_));
  remove_remains(path_);
  require_replaceable(path_);
  if (!latest_.empty()) require_link(latest_);
  if (::mkdir(partial_.c_str(), 0777) != 0) throw SystemError::failed("mkdir", partial_, errno);
}

CheckpointWriter::~CheckpointWriter() {
  if (!finished_) remove_leftovers();
}

std::string CheckpointWriter::file(std::string_view name) const {
  require_file_name(name);
  return inside(partial_, name);
}

void CheckpointWriter::commit(const std::vector<std::string>& names) {
  const std::string text = make_checkpoint_manifest(synced_manifest(names));
  AtomicFile manifest(inside(partial_, kManifest));
  manifest.write(std::as_bytes(std::span(text)));
  manifest.commit();
  put_in_place();
  fsync_directory(folder_of(path_));
  if (!latest_.empty()) replace_symlink(name_of(path_), latest_);
  finished_ = remove_leftovers();
}

CheckpointManifest CheckpointWriter::synced_manifest(const std::vector<std::string>& names) const {
  std::for_each(names.begin(), names.end(), require_file_name);
  const UniqueFd folder = open_folder(partial_);
  if (!folder) throw SystemError::failed("open", partial_, errno);
  CheckpointManifest manifest;
  for (const auto& name : names) manifest[name] = synced_digest(folder.get(), partial_, name);
  return manifest;
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
  exchange_in_two_steps();
}

void CheckpointWriter::exchange_in_two_steps() {
  if (std::rename(path_.c_str(), replaced_.c_str()) != 0) {
    throw SystemError::failed("rename", replaced_, errno);
  }
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

std::string partial_checkpoint(const std::string& path) {
  return hidden(without_slash(path), kPartial);
}

Checkpoint::Checkpoint(std::string path, CheckpointManifest manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {}

std::string Checkpoint::file(std::string_view name) const {
  if (contains(name)) return inside(path_, name);
  throw DataError::mismatch(path_, fmt::format("the file {}", in_quotes(name)), "none",
                            inside(path_, kManifest) + " lists what it holds");
}

Checkpoint open_checkpoint(const std::string& path) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  for (;;) {
    const std::string folder = folder_meant(path);
    const Hint hint = [&] { return hint_for(folder); };
    const UniqueFd descriptor = open_folder(folder);
    const int error = errno;
    try {
      if (!descriptor) throw DataError::mismatch(folder, "a checkpoint", in_words(error), hint());
      auto manifest = check_folder(descriptor.get(), folder, hint);
      if (is_still_at(path, descriptor) || Clock::now() > deadline) {
        return {folder, std::move(manifest)};
      }
    } catch (const DataError&) {  // perhaps only because a writer replaced or removed it
      if (is_still_at(path, descriptor) || Clock::now() > deadline) throw;
    }
  }
}

nlohmann::json read_saved_json(const std::string& path) {
  constexpr std::uint64_t kLargest = std::uint64_t{64} << 20;
  std::error_code unknown;  // what cannot be read has no text, which is no JSON either
  const std::uint64_t bytes = fs::file_size(path, unknown);
  if (!unknown && bytes > kLargest) {
    throw DataError::mismatch(path, "JSON of at most 64 MiB", fmt::format("{} bytes", bytes),
                              "the file is damaged: resume from an older checkpoint");
  }
  std::ifstream file(path, std::ios::binary);
  return parse_saved_json(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

std::vector<NumberedCheckpoint> list_checkpoints(const std::string& parent,
                                                 std::string_view prefix) {
  std::vector<NumberedCheckpoint> found;
  std::error_code ignored;  // what cannot be asked for is not there
  if (!fs::is_directory(parent, ignored)) return found;
  for (const std::string& name : names_in(parent)) {
    if (!name.starts_with(prefix)) continue;
    const std::int64_t number = number_from(std::string_view(name).substr(prefix.size()));
    std::string path = (fs::path(parent) / name).string();
    if (number >= 0 && is_checkpoint(path)) found.push_back({number, std::move(path)});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

void remove_old_checkpoints(const std::string& parent, std::string_view prefix,
                            std::size_t total_limit, const std::vector<std::string>& keep) {
  if (total_limit < 1) throw UsageError::out_of_range("total_limit", total_limit, "1 or more");
  const auto found = list_checkpoints(parent, prefix);
  const fs::path latest = fs::path(parent) / kLatest;
  std::size_t left = found.size();
  for (const auto& checkpoint : found) {
    if (left <= total_limit) return;
    const auto is_this = [&](const fs::path& path) {
      std::error_code ignored;  // what is not there protects nothing
      return fs::equivalent(path, checkpoint.path, ignored);
    };
    if (is_this(latest) || std::any_of(keep.begin(), keep.end(), is_this)) continue;
    remove_checkpoint(checkpoint.path);
    --left;
  }
}

}  // namespace ladder
