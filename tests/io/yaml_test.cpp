// SPDX-License-Identifier: Apache-2.0
#include "ladder/io/yaml.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

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
  for (const auto& node : parse_text("a:\nb: {}\nc: []\nd: ''\ne: null\n").children) {
    EXPECT_TRUE(node.is_empty()) << node.key;
  }
  for (const auto& node : parse_text("a: 0\nb: {c: }\nd: [~]\ne: 'null'\n").children) {
    EXPECT_FALSE(node.is_empty()) << node.key;
  }
  EXPECT_EQ(parse_text("a: 'null'\n").children[0].kind, Kind::kText);
  EXPECT_EQ(parse_text("a: null\n").children[0].kind, Kind::kNull);
}

TEST(Yaml, TakesAByteOrderMarkWindowsLineEndsAndUtf8) {
  const YamlNode root = parse_text(
      "\xef\xbb\xbf"
      "a: 1\r\nb: \xc3\xa4\r\n");
  EXPECT_EQ(root.children[0].key, "a");
  EXPECT_EQ(root.children[0].text, "1");
  EXPECT_EQ(root.children[1].text, "\xc3\xa4");
  EXPECT_EQ(root.children[1].line, 2);
}

// Texts, and the error of each after the name of the file.
void expect_each_refused(const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text);
    EXPECT_ERROR(parse_text(text), UsageError, "f.yaml" + message);
  }
}

TEST(Yaml, InvalidYamlAliasesAndTagsAreRefusedWithTheirLine) {
  const std::string invalid = ":2: not YAML: ";
  const std::string alias = ":2: an alias (*name) is not allowed; hint: write the value out";
  expect_each_refused(
      {{"a: 1\nb: [1\n", invalid},
       {"a: 1\nb: 'x\n", invalid},
       {"a: 1\nb: \"x\n\n  \n", invalid},
       {"a: 1\nb: '\n", invalid},
       {"a: 1\nb: \"", invalid},
       {"a: 1\n b: 2\n", invalid},
       {"a: 1\nb: *x\n", invalid},
       {"a: 1\nb: 2\na: 3\n", ":3: 'a' is set again, after line 1; hint: keep one of the two"},
       {"a: &x 1\nb: *x\n", alias},
       {"a: &x\nb: *x\n", alias},
       {"a: &x [1]\nb: [2, *x]\n", alias},
       {"a: &x {b: 1}\nc: {d: *x}\n", alias},
       {"a: &x\n  b: *x\n", alias},
       {"&x a: 1\n*x : 2\n", alias},
       {"a: !!python/object:os.system 1\n",
        ":1: a tag (tag:yaml.org,2002:python/object:os.system) is not allowed"},
       {"a: !!map {}\n", ":1: a tag ("}});
}

TEST(Yaml, AnythingButOneMapIsRefusedWithItsLine) {
  const std::string no_map = ":1: not a map of names to values";
  const std::string no_name = ":1: a name is missing before a value";
  expect_each_refused({{"a: 1\n%b: 2\n", ":2: a line that begins with %"},
                       {"%YAML 1.1\n---\na: 1\n", ":1: a line that begins with"},
                       // The parser would end the text silently at byte 4.
                       {"a: 1\nb: 2\x04\nc: 3\n", ":2: the control character 0x04"},
                       {std::string("a: 1\0", 5), ":1: the control character 0x00"},
                       {"a: \x7f\n", ":1: the control character 0x7f"},
                       {"a: \xff\n", ": the text is not UTF-8"},
                       {"", no_map},
                       {"# nothing\n", no_map},
                       {"- a\n", no_map},
                       {"text\n", no_map},
                       {"~\n", no_map},
                       {"a: 1\n---\nb: 2\n", ":2: a second document begins"},
                       {"? [a]\n: 1\n", no_name},
                       {": 1\n", no_name},
                       // For some texts YAML::LoadAll makes documents without end.
                       {"a: 1\n]\n", ""},
                       {", a\n", ""},
                       {": [\n, b\n", ""}});
}

TEST(Yaml, WhatChangesNothingIsAccepted) {
  for (const char* text :
       {"---\na: 1\n...\n", "a: 1\n...", "a: 1\n...\n\n", "a: 1", "a: &x 1\n", "a: 1  # 5%\n"}) {
    EXPECT_EQ(parse_text(text).children[0].text, "1");
  }
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

TEST(Yaml, ManyValuesAndALongFileAreRefused) {
  EXPECT_NO_THROW(parse_text("a: [" + repeated("1, ", 998) + "]"));
  EXPECT_ERROR(parse_text("a: [" + repeated("1, ", 999) + "]"), UsageError,
               "more than 1000 values");
  EXPECT_NO_THROW(parse_text("a: 1\n#" + repeated(" ", 65'536 - 6)));
  EXPECT_ERROR(parse_text("a: 1\n#" + repeated(" ", 65'536 - 5)), UsageError,
               "f.yaml: expected at most 65536 bytes, got 65537");
}

TEST(Yaml, AFileThatCannotBeReadIsRefusedWithTheHint) {
  const TemporaryFolder folder;
  const auto expect_refused = [](const std::string& path, const std::string& text) {
    EXPECT_ERROR(read_yaml_file(path, "write it"), UsageError, path + ": expected " + text);
  };
  expect_refused(folder.write("f.yaml", "a: 1\n#" + repeated(" ", 1'000'000)), "at most 65536 b");
  expect_refused(folder.file("none"), "a readable file, got none; hint: write");
  expect_refused(folder.path(), "a readable file, got a folder");
  expect_refused("/dev/zero", "a readable file, got a device");
}

}  // namespace
}  // namespace ladder
