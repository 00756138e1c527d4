// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <utility>

#include "ladder/core/error.h"
#include "ladder/io/regular_file.h"

namespace ladder {
namespace {

constexpr int kDeepest = 8;
constexpr int kMaxValues = 1000;

UsageError refused(const std::string& name, int line, std::string_view what,
                   std::string_view hint = "write one 'name: value' per line") {
  return UsageError::conflict(fmt::format("{}:{}", name, line), what, hint);
}

int line_of(const YAML::Mark& mark) { return std::max(mark.line, 0) + 1; }

// Refuses, event by event, what no tree may be built of. (YAML::LoadAll, which would find a second
// document, does not end for some invalid texts.)
class Guard : public YAML::EventHandler {
 public:
  explicit Guard(std::string name) : name_(std::move(name)) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw refused(name_, line_of(mark), "a second document begins");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    throw refused(name_, line_of(mark), "an alias (*name) is not allowed", "write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t /*anchor*/,
                const std::string& /*value*/) override {
    if (tag.empty() || tag == "?" || tag == "!") return;  // none: bare, and in quotes
    throw refused(name_, line_of(mark), fmt::format("a tag ({:.80}) is not allowed", tag),
                  "remove the tag");
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    OnScalar(mark, tag, anchor, "");
    if (++depth_ <= kDeepest) return;
    throw refused(name_, line_of(mark), fmt::format("nested deeper than {} levels", kDeepest));
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    OnSequenceStart(mark, tag, anchor, style);
  }
  void OnMapEnd() override { --depth_; }

 private:
  std::string name_;
  int documents_ = 0;
  int depth_ = 0;
};

class TreeReader {
 public:
  explicit TreeReader(std::string name) : name_(std::move(name)) {}

  // `line`: of the name, or of a value without one.
  YamlNode read(const YAML::Node& value, int line) {
    if (++values_ > kMaxValues) {
      throw refused(name_, line, fmt::format("more than {} values", kMaxValues));
    }
    YamlNode node;
    node.line = line;
    if (value.IsScalar()) {
      node.kind = YamlNode::Kind::kText;
      node.text = value.Scalar();
    } else if (value.IsSequence()) {
      node.kind = YamlNode::Kind::kList;
      for (const auto& item : value) node.children.push_back(read(item, line_of(item.Mark())));
    } else if (value.IsMap()) {
      node.kind = YamlNode::Kind::kMap;
      for (const auto& entry : value) add_entry(node, entry.first, entry.second);
    }
    return node;
  }

 private:
  void add_entry(YamlNode& map, const YAML::Node& key, const YAML::Node& value) {
    const int line = line_of(key.Mark());
    if (!key.IsScalar()) throw refused(name_, line, "a name is missing before a value");
    for (const auto& other : map.children) {
      if (other.key != key.Scalar()) continue;
      throw refused(name_, line,
                    fmt::format("'{:.80}' is set again, after line {}", other.key, other.line),
                    "keep one of the two");
    }
    auto entry = read(value, line);
    entry.key = key.Scalar();
    map.children.push_back(std::move(entry));
  }

  std::string name_;
  int values_ = 0;
};

// What the parser would misread: it drops a line that begins with %, takes byte 4 for the end of
// its input, and guesses UTF-16 from zero bytes.
void check_bytes(std::string_view bytes, const std::string& name) {
  if (bytes.size() > kLargestConfigFile) {
    throw UsageError::out_of_range(name, bytes.size(), "at most 65536 bytes",
                                   "is it the configuration file?");
  }
  int line = 1;
  char before = '\n';
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F) {
      throw refused(name, line, fmt::format("the control character 0x{:02x}", byte));
    }
    if (c == '%' && before == '\n') {
      throw refused(name, line, "a line that begins with %", "put # before a comment");
    }
    if (c == '\n') ++line;
    before = c;
  }
  try {
    static_cast<void>(nlohmann::json(bytes).dump());
  } catch (const nlohmann::json::exception&) {
    throw UsageError::conflict(name, "the text is not UTF-8", "save it as UTF-8");
  }
}

}  // namespace

YamlNode parse_yaml(std::string_view bytes, const std::string& name) {
  check_bytes(bytes, name);
  // The parser takes the end of its input for the end of a quote, but not the end of a document.
  std::string text(bytes.substr(0, bytes.find_last_not_of(" \t\r\n") + 1));
  const int last_line = 1 + static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  text += text.ends_with("\n...") ? "\n" : "\n...\n";
  YAML::Node root;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Guard guard(name);
    while (parser.HandleNextDocument(guard)) continue;
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw refused(name, std::min(line_of(error.mark), last_line),
                  fmt::format("not YAML: {}", error.msg),
                  "indent with spaces, and put texts with ': ', ' #' or quotes into quotes");
  }
  if (!root.IsMap()) {
    throw refused(name, std::min(line_of(root.Mark()), last_line), "not a map of names to values");
  }
  return TreeReader(name).read(root, line_of(root.Mark()));
}

std::string read_config_bytes(const std::string& path, std::string_view hint) {
  const auto file = open_regular_file(path);
  if (!file.problem.empty()) {
    throw UsageError::conflict(path, "expected a readable file, got " + file.problem, hint);
  }
  std::string bytes(std::min<std::uint64_t>(file.bytes, kLargestConfigFile + 1), '\0');
  if (read_at(file, 0, std::as_writable_bytes(std::span(bytes))) == 0) return bytes;
  throw UsageError::conflict(path, "expected a readable file, got a read error", hint);
}

YamlNode read_yaml_file(const std::string& path, std::string_view hint) {
  return parse_yaml(read_config_bytes(path, hint), path);
}

nlohmann::json json_of(const YamlNode& node) {
  using Kind = YamlNode::Kind;
  if (node.kind == Kind::kNull) return nullptr;
  if (node.kind == Kind::kText) return node.text;
  auto json = node.kind == Kind::kMap ? nlohmann::json::object() : nlohmann::json::array();
  for (const auto& child : node.children) {
    if (node.kind == Kind::kMap) json[child.key] = json_of(child);
    if (node.kind == Kind::kList) json.push_back(json_of(child));
  }
  return json;
}

}  // namespace ladder
