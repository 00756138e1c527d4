// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "ladder/checkpoint/quoted.h"
#include "ladder/core/error.h"

namespace ladder {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMostFiles = 10'000;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_digest(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Receives the JSON piece by piece and accepts exactly the form of a manifest.
class ManifestReader : public nlohmann::json_sax<Json> {
 public:
  ManifestReader(const std::string& path, const std::function<std::string()>& hint)
      : path_(path), hint_(hint) {}

  CheckpointManifest read(std::span<const std::uint8_t> json) {
    if (json.size() > kLargestManifest) {
      throw refused(fmt::format("at most {} bytes", kLargestManifest),
                    fmt::format("{}", json.size()));
    }
    // The JSON library takes a zero byte for the end of its input.
    const auto zero = std::find(json.begin(), json.end(), 0);
    if (zero != json.end()) throw not_json(zero - json.begin());
    Json::sax_parse(json.begin(), json.end(), this);
    return std::move(manifest_);
  }

  bool null() override { throw unexpected("null"); }
  bool boolean(bool) override { throw unexpected("a truth value"); }
  bool number_integer(std::int64_t) override { throw unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    throw unexpected("a number that is not whole or too large");
  }
  bool binary(Json::binary_t&) override { throw unexpected("binary data"); }
  bool start_array(std::size_t) override { throw unexpected("an array"); }
  bool end_array() override { return true; }

  bool number_unsigned(std::uint64_t number) override {
    constexpr std::uint64_t kLargestFile = std::numeric_limits<std::int64_t>::max();
    const bool version_here = place_ == Place::kRoot && key_ == "version" && number == kVersion;
    const bool bytes_here = place_ == Place::kFile && key_ == "bytes" && number <= kLargestFile;
    if (!version_here && !bytes_here) throw unexpected(fmt::format("{}", number));
    if (bytes_here) file_->second.bytes = number;
    return true;
  }

  bool string(std::string& text) override {
    const bool format_here = place_ == Place::kRoot && key_ == "format" && text == kManifestFormat;
    const bool sha256_here = place_ == Place::kFile && key_ == "sha256" && is_digest(text);
    if (!format_here && !sha256_here) throw unexpected(in_quotes(text));
    if (sha256_here) file_->second.sha256 = text;
    return true;
  }

  bool key(std::string& key) override {
    if (place_ == Place::kFiles) return file_key(key);
    const bool root_key = key == "format" || key == "version" || key == "files";
    const bool file_key = key == "bytes" || key == "sha256";
    if (place_ == Place::kRoot ? !root_key : !file_key) {
      throw refused("only known keys", in_quotes(key));
    }
    auto& keys = place_ == Place::kRoot ? root_keys_ : file_keys_;
    if (!keys.insert(key).second) throw refused("every key once", in_quotes(key) + " twice");
    key_ = key;
    return true;
  }

  bool start_object(std::size_t) override {
    const bool files_here = place_ == Place::kRoot && key_ == "files";
    if (place_ != Place::kOutside && place_ != Place::kFiles && !files_here) {
      throw unexpected("an object");
    }
    place_ = static_cast<Place>(static_cast<int>(place_) + 1);
    file_keys_.clear();
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kFile && file_keys_.size() != 2) {
      throw refused("bytes and sha256 for " + in_quotes(file_->first), "less");
    }
    if (place_ == Place::kRoot && root_keys_.size() != 3) {
      throw refused("format, version and files", "less");
    }
    place_ = static_cast<Place>(static_cast<int>(place_) - 1);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw not_json(static_cast<std::ptrdiff_t>(position) - 1);
  }

 private:
  enum class Place { kOutside, kRoot, kFiles, kFile };  // each inside the one before it

  bool file_key(const std::string& name) {
    if (!is_checkpoint_file_name(name)) {
      throw refused("names of letters, digits, '.', '_' and '-'", in_quotes(name));
    }
    if (manifest_.size() == kMostFiles) {
      throw refused(fmt::format("at most {} files", kMostFiles), "more");
    }
    const auto [file, is_new] = manifest_.try_emplace(name);
    if (!is_new) throw refused("every file once", in_quotes(name) + " twice");
    file_ = file;
    return true;
  }

  std::string expected_here() const {
    if (place_ == Place::kFiles) return "an object for " + in_quotes(file_->first);
    if (place_ == Place::kFile) {
      const char* what = key_ == "bytes" ? "a length" : "64 hexadecimal characters";
      return fmt::format("{} for {} of {}", what, key_, in_quotes(file_->first));
    }
    if (place_ == Place::kOutside || key_ == "files") return "an object";
    return key_ == "version" ? fmt::format("version {}", kVersion)
                             : "format " + in_quotes(kManifestFormat);
  }

  DataError refused(std::string_view expected, std::string_view got) const {
    return DataError::mismatch(path_, expected, got, hint_());
  }
  DataError unexpected(std::string_view got) const { return refused(expected_here(), got); }
  DataError not_json(std::ptrdiff_t offset) const {
    return refused("valid JSON", fmt::format("an error at its byte {}", offset + 1));
  }

  const std::string& path_;
  const std::function<std::string()>& hint_;
  CheckpointManifest manifest_;
  CheckpointManifest::iterator file_;  // the last one named
  Place place_ = Place::kOutside;
  std::string key_;  // the last one read, names of files aside
  std::set<std::string> root_keys_;
  std::set<std::string> file_keys_;  // of this file
};

}  // namespace

bool is_checkpoint_file_name(std::string_view name) {
  constexpr std::size_t kLongest = 255;
  const bool allowed = std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-';
  });
  return allowed && !name.empty() && name.size() <= kLongest && name.front() != '.' &&
         name.front() != '-' && name != "manifest.json";
}

CheckpointManifest parse_checkpoint_manifest(std::span<const std::uint8_t> json,
                                             const std::string& path,
                                             const std::function<std::string()>& hint) {
  return ManifestReader(path, hint).read(json);
}

std::string make_checkpoint_manifest(const CheckpointManifest& manifest) {
  Json json = {{"format", kManifestFormat}, {"version", kVersion}, {"files", Json::object()}};
  for (const auto& [name, digest] : manifest) {
    json["files"][name] = {{"bytes", digest.bytes}, {"sha256", digest.sha256}};
  }
  return json.dump(2) + '\n';
}

}  // namespace ladder
