// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/yaml.h"

#include <gtest/gtest.h>

#include <string>

#include "ladder/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Kind = YamlNode::Kind;

YamlNode parse_text(const std::string& text) { return parse_yaml(text, "f.yaml"); }

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(Yaml, BecomesATreeOfNamesAndTextsWithTheirLines) {
  const YamlNode root = parse_text("a: 1\nb:\n  c: 'x: y'\n  d: [p, {q: r}]\n\ne:\nf: ~\n");
  ASSERT_EQ(root.children.size(), 4U);
  EXPECT_EQ(root.children[0].key, "a");
  EXPECT_EQ(root.children[0].text, "1");
  EXPECT_EQ(root.children[0].line, 1);
  const YamlNode& b = root.children[1];
  EXPECT_EQ(b.kind, Kind::kMap);
  EXPECT_EQ(b.line, 2);
  EXPECT_EQ(b.children[0].text, "x: y");
  EXPECT_EQ(b.children[0].line, 3);
  EXPECT_EQ(b.children[1].kind, Kind::kList);
  EXPECT_EQ(b.children[1].children[0].text, "p");
  EXPECT_EQ(b.children[1].children[1].children[0].key, "q");
  EXPECT_EQ(root.children[2].kind, Kind::kNull);
  EXPECT_EQ(root.children[2].line, 6);
  EXPECT_EQ(root.children[3].kind, Kind::kNull);
}

TEST(Yaml, NullAndEmptyTextsMapsAndListsAreEmpty) {
  for (const auto& node : parse_text("a:\nb: {}\nc: []\nd: ''\n").children) {
    EXPECT_TRUE(node.is_empty()) << node.key;
  }
  for (const auto& node : parse_text("a: 0\nb: {c: }\nd: [~]\n").children) {
    EXPECT_FALSE(node.is_empty()) << node.key;
  }
}

TEST(Yaml, AQuotedNullIsAText) {
  EXPECT_EQ(parse_text("a: 'null'\n").children[0].kind, Kind::kText);
  EXPECT_EQ(parse_text("a: null\n").children[0].kind, Kind::kNull);
}

TEST(Yaml, TakesAByteOrderMarkAndWindowsLineEnds) {
  const YamlNode root = parse_text(
      "\xef\xbb\xbf"
      "a: 1\r\nb: 2\r\n");
  EXPECT_EQ(root.children[0].key, "a");
  EXPECT_EQ(root.children[0].text, "1");
  EXPECT_EQ(root.children[1].line, 2);
}

TEST(Yaml, InvalidYamlIsRefusedWithItsLine) {
  EXPECT_ERROR(parse_text("a: 1\nb: [1\n"), UsageError, "f.yaml:2: not YAML: ");
  EXPECT_ERROR(parse_text("a: 1\nb: 'x\n"), UsageError, "f.yaml:2: not YAML: ");
  EXPECT_ERROR(parse_text("a: 1\nb: \"x\n\n  \n"), UsageError, "f.yaml:2: not YAML: ");
  EXPECT_ERROR(parse_text("a: 1\nb: '\n"), UsageError, "f.yaml:2: not YAML: ");
  EXPECT_ERROR(parse_text("a: 1\nb: \""), UsageError, "f.yaml:2: not YAML: ");
  EXPECT_ERROR(parse_text("a: 1\n b: 2\n"), UsageError, "f.yaml:2: not YAML: ");
}

TEST(Yaml, ARepeatedNameIsRefused) {
  EXPECT_ERROR(parse_text("a: 1\nb: 2\na: 3\n"), UsageError,
               "f.yaml:3: 'a' is set again, after line 1; hint: keep one of the two");
}

TEST(Yaml, AliasesAndTagsAreRefused) {
  const std::string alias = "f.yaml:2: an alias (*name) is not allowed; hint: write the value out";
  for (const char* text : {"a: &x 1\nb: *x\n", "a: &x\nb: *x\n", "a: &x [1]\nb: [2, *x]\n",
                           "a: &x {b: 1}\nc: {d: *x}\n", "a: &x\n  b: *x\n", "&x a: 1\n*x : 2\n"}) {
    EXPECT_ERROR(parse_text(text), UsageError, alias);
  }
  EXPECT_EQ(parse_text("a: &x 1\n").children[0].text, "1");  // an anchor alone changes nothing
  EXPECT_ERROR(parse_text("a: 1\nb: *x\n"), UsageError, "f.yaml:2: not YAML: ");
  EXPECT_ERROR(parse_text("a: !!python/object:os.system 1\n"), UsageError,
               "f.yaml:1: a tag (tag:yaml.org,2002:python/object:os.system) is not allowed");
  EXPECT_ERROR(parse_text("a: !!map {}\n"), UsageError, "a tag (");
}

TEST(Yaml, ALineThatBeginsWithAPercentSignIsRefused) {
  EXPECT_ERROR(parse_text("a: 1\n%b: 2\n"), UsageError, "f.yaml:2: a line that begins with %");
  EXPECT_ERROR(parse_text("%YAML 1.1\n---\na: 1\n"), UsageError,
               "f.yaml:1: a line that begins with");
  EXPECT_EQ(parse_text("a: 5%\n").children[0].text, "5%");
}

TEST(Yaml, ABombIsRefusedAtItsFirstAlias) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 30; ++i) {
    const std::string one = "*a" + std::to_string(i - 1) + ", ";
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeated(one, 9) + "]\n";
  }
  EXPECT_ERROR(parse_text(bomb), UsageError, "f.yaml:2: an alias");
}

TEST(Yaml, DeepNestingIsRefused) {
  EXPECT_NO_THROW(parse_text("a: " + repeated("[", 7) + repeated("]", 7)));
  const std::string message = "f.yaml:1: nested deeper than 8 levels";
  EXPECT_ERROR(parse_text("a: " + repeated("[", 8) + repeated("]", 8)), UsageError, message);
  EXPECT_ERROR(parse_text("a: " + repeated("[", 30'000) + repeated("]", 30'000)), UsageError,
               message);
  EXPECT_ERROR(parse_text("a: " + repeated("[", 60'000)), UsageError, message);
  EXPECT_ERROR(parse_text("a: " + repeated("{a: ", 15'000)), UsageError, "f.yaml:1: ");
  EXPECT_ERROR(parse_text("a: " + repeated("{a: ", 8) + repeated("}", 8)), UsageError, message);
  EXPECT_ERROR(parse_text("a:\n" + repeated("- ", 30'000)), UsageError, "nested deeper than 8");
  EXPECT_ERROR(parse_text(repeated("? ", 30'000)), UsageError, "f.yaml:1: ");
}

TEST(Yaml, ManyValuesAreRefused) {
  EXPECT_NO_THROW(parse_text("a: [" + repeated("1, ", 998) + "]"));
  EXPECT_ERROR(parse_text("a: [" + repeated("1, ", 999) + "]"), UsageError,
               "more than 1000 values");
}

TEST(Yaml, ALongFileIsRefused) {
  EXPECT_NO_THROW(parse_text("a: 1\n#" + repeated(" ", 65'536 - 6)));
  EXPECT_ERROR(parse_text("a: 1\n#" + repeated(" ", 65'536 - 5)), UsageError,
               "f.yaml: expected at most 65536 bytes, got 65537");
  const TemporaryFolder folder;
  const std::string path = folder.write("f.yaml", "a: 1\n#" + repeated(" ", 1'000'000));
  EXPECT_ERROR(read_yaml_file(path, "hint"), UsageError, "expected at most 65536 bytes");
}

TEST(Yaml, ControlCharactersAreRefused) {
  // The parser would end the text silently at byte 4.
  EXPECT_ERROR(parse_text("a: 1\nb: 2\x04\nc: 3\n"), UsageError,
               "f.yaml:2: the control character 0x04");
  EXPECT_ERROR(parse_text(std::string("a: 1\0", 5)), UsageError, "the control character 0x00");
  EXPECT_ERROR(parse_text("a: \x7f\n"), UsageError, "the control character 0x7f");
}

TEST(Yaml, TextThatIsNotUtf8IsRefused) {
  EXPECT_ERROR(parse_text("a: \xff\n"), UsageError, "f.yaml: the text is not UTF-8");
  EXPECT_EQ(parse_text("a: \xc3\xa4\n").children[0].text, "\xc3\xa4");
}

TEST(Yaml, AnythingButOneMapIsRefused) {
  for (const char* text : {"", "# nothing\n", "- a\n", "text\n", "~\n"}) {
    EXPECT_ERROR(parse_text(text), UsageError, "f.yaml:1: not a map of names to values");
  }
  EXPECT_ERROR(parse_text("a: 1\n---\nb: 2\n"), UsageError, "f.yaml:2: a second document begins");
  EXPECT_ERROR(parse_text("? [a]\n: 1\n"), UsageError,
               "f.yaml:1: a name is missing before a value");
  EXPECT_ERROR(parse_text(": 1\n"), UsageError, "f.yaml:1: a name is missing before a value");
  // For some texts YAML::LoadAll makes documents without end.
  for (const char* text : {"a: 1\n]\n", ", a\n", ": [\n, b\n"})
    EXPECT_THROW(parse_text(text), UsageError);
  for (const char* text : {"---\na: 1\n...\n", "a: 1\n...", "a: 1\n...\n\n", "a: 1"}) {
    EXPECT_EQ(parse_text(text).children[0].text, "1");
  }
}

TEST(Yaml, AnUnreadableFileIsRefusedWithTheHint) {
  const TemporaryFolder folder;
  EXPECT_ERROR(read_yaml_file(folder.file("none"), "write it"), UsageError,
               folder.file("none") + ": expected a readable file, got none; hint: write");
  EXPECT_ERROR(read_yaml_file(folder.path(), "write it"), UsageError, "got a folder");
  EXPECT_ERROR(read_yaml_file("/dev/zero", "write it"), UsageError, "got a device");
}

}  // namespace
}  // namespace ladder
