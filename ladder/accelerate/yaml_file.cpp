// SPDX-License-Identifier: Apache-2.0
#include "ladder/accelerate/yaml_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "ladder/core/error.h"

namespace ladder {
namespace {

constexpr std::size_t kLargestFile = 65'536;
constexpr std::size_t kDeepest = 8;
constexpr int kMostValues = 1000;
constexpr std::size_t kLongest = 80;  // of a text from the file in a message

constexpr std::string_view kForm = "one 'name: value' a line is enough";

UsageError refused(const std::string& name, int line, std::string_view what,
                   std::string_view hint = kForm) {
  return UsageError::conflict(fmt::format("{}:{}", name, line), what, hint);
}

int line_of(const YAML::Mark& mark) { return std::max(mark.line, 0) + 1; }

// Builds the tree from the events of the parser, which expands no alias.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string name) : name_(std::move(name)) {}

  YamlNode take() && { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw refused(name_, line_of(mark), "a second document begins");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check(mark, "", anchor);
    add(YamlNode::Kind::kNull, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw refused(name_, line_of(mark), "an alias (*name) is not allowed", "write the value out");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    if (expects_key()) {
      take_key(mark, value);
    } else {
      add(YamlNode::Kind::kText, mark).text = value;
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    open(YamlNode::Kind::kList, mark);
  }
  void OnSequenceEnd() override { open_.pop_back(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    open(YamlNode::Kind::kMap, mark);
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  // The parser says "?" for a bare value without a tag and "!" for one in quotes.
  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) {
      throw refused(name_, line_of(mark), "an anchor (&name) is not allowed", "leave it out");
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw refused(name_, line_of(mark),
                    fmt::format("a tag ({}) is not allowed", tag.substr(0, kLongest)),
                    "leave it out");
    }
  }

  bool expects_key() const {
    return !open_.empty() && open_.back()->kind == YamlNode::Kind::kMap && !has_key_;
  }

  void take_key(const YAML::Mark& mark, const std::string& key) {
    const auto& siblings = open_.back()->children;
    const auto twin = std::find_if(siblings.begin(), siblings.end(),
                                   [&](const YamlNode& node) { return node.key == key; });
    if (twin != siblings.end()) {
      throw refused(
          name_, line_of(mark),
          fmt::format("'{}' is set again, after line {}", key.substr(0, kLongest), twin->line),
          "keep one of the two");
    }
    key_ = key;
    key_line_ = line_of(mark);
    has_key_ = true;
  }

  YamlNode& add(YamlNode::Kind kind, const YAML::Mark& mark) {
    if (expects_key()) throw refused(name_, line_of(mark), "a name is missing before a value");
    if (++values_ > kMostValues) {
      throw refused(name_, line_of(mark), fmt::format("more than {} values", kMostValues));
    }
    YamlNode node{.kind = kind, .key = {}, .text = {}, .line = line_of(mark), .children = {}};
    if (open_.empty()) return root_ = std::move(node);
    if (std::exchange(has_key_, false)) {
      node.key = std::move(key_);
      node.line = key_line_;
    }
    return open_.back()->children.emplace_back(std::move(node));
  }

  // A pointer into a parent's children stays valid: the parent gets no other child meanwhile.
  void open(YamlNode::Kind kind, const YAML::Mark& mark) {
    if (open_.size() == kDeepest) {
      throw refused(name_, line_of(mark), fmt::format("nested deeper than {} levels", kDeepest));
    }
    open_.push_back(&add(kind, mark));
  }

  std::string name_;
  YamlNode root_;
  std::vector<YamlNode*> open_;
  std::string key_;
  int key_line_ = 0;
  bool has_key_ = false;
  int values_ = 0;
  int documents_ = 0;
};

int line_at(std::string_view bytes, std::string_view::const_iterator place) {
  return 1 + static_cast<int>(std::count(bytes.begin(), place, '\n'));
}

// The parser drops a line that begins with %, and what it does not know of it.
void check_directives(std::string_view bytes, const std::string& name) {
  const bool first = bytes.starts_with('%');
  const std::size_t place = bytes.find("\n%");
  if (!first && place == std::string_view::npos) return;
  throw refused(name, first ? 1 : line_at(bytes, bytes.begin() + static_cast<long>(place) + 1),
                "a line that begins with %", "put # before a comment");
}

// The parser takes byte 4 for the end of its input, and guesses UTF-16 from zero bytes.
void check_bytes(std::string_view bytes, const std::string& name) {
  if (bytes.size() > kLargestFile) {
    throw UsageError::out_of_range(name, bytes.size(), "at most 65536 bytes",
                                   "is it the configuration file?");
  }
  const auto is_control = [](unsigned char c) {
    return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  };
  const auto* const control = std::find_if(bytes.begin(), bytes.end(), is_control);
  if (control != bytes.end()) {
    throw refused(name, line_at(bytes, control),
                  fmt::format("the control character 0x{:02x}", *control));
  }
  try {
    static_cast<void>(nlohmann::json(bytes).dump());
  } catch (const nlohmann::json::exception&) {
    throw UsageError::conflict(name, "the text is not UTF-8", "save it as UTF-8");
  }
}

std::string_view without_space_at_end(std::string_view bytes) {
  const auto last = bytes.find_last_not_of(" \t\r\n");
  return bytes.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

YamlNode parse_yaml(std::string_view bytes, const std::string& name) {
  check_bytes(bytes, name);
  check_directives(bytes, name);
  const std::string_view text = without_space_at_end(bytes);
  const int last_line = line_at(text, text.end());
  // The parser takes the end of its input for the end of a quote, but not the end of a document.
  std::istringstream stream(std::string(text) + (text.ends_with("\n...") ? "\n" : "\n...\n"));
  TreeBuilder builder(name);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) continue;
  } catch (const YAML::Exception& error) {
    throw refused(name, std::min(line_of(error.mark), last_line),
                  fmt::format("not YAML: {}", error.msg),
                  "indent with spaces, and put texts with ': ', ' #' or quotes into quotes");
  }
  YamlNode root = std::move(builder).take();
  if (root.kind != YamlNode::Kind::kMap) {
    throw refused(name, std::clamp(root.line, 1, last_line), "no map of names to values");
  }
  return root;
}

YamlNode read_yaml_file(const std::string& path, std::string_view hint) {
  std::error_code ignored;
  std::ifstream stream;
  if (std::filesystem::is_regular_file(path, ignored)) stream.open(path, std::ios::binary);
  if (!stream.is_open()) throw UsageError::conflict(path, "cannot be read", hint);
  std::string bytes(kLargestFile + 1, '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(stream.gcount()));
  return parse_yaml(bytes, path);
}

}  // namespace ladder
