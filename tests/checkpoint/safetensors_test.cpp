// SPDX-License-Identifier: Apache-2.0
#include "ladder/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_paths.h"
#include "tests/support/small_modules.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

// Every dtype of the format, a scalar and an empty tensor.
StateDict every_dtype() {
  StateDict tensors;
  for (const auto dtype : {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kUInt16,
                           torch::kInt32, torch::kUInt32, torch::kInt64, torch::kUInt64,
                           torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
    tensors[safetensors_dtype(dtype)] = torch::arange(6).view({2, 3}).to(dtype);
  }
  tensors["empty"] = torch::empty({0, 3});
  tensors["scalar"] = torch::tensor(2.5F);
  return tensors;
}

void expect_equal(const StateDict& got, const StateDict& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(got.contains(name));
    EXPECT_EQ(got.at(name).scalar_type(), tensor.scalar_type());
    EXPECT_EQ(got.at(name).sizes(), tensor.sizes());
    EXPECT_EQ(tensor_digest(got.at(name)), tensor_digest(tensor));
  }
}

TEST(Safetensors, GivesBackEveryDtypeScalarsAndEmptyTensorsInMemoryOfTheirOwn) {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  save_safetensors(path, {every_dtype(), {{"format", "pt"}, {"note", "ä \"quoted\"\nline"}}});
  const auto loaded = load_safetensors(path);
  expect_equal(loaded.tensors, every_dtype());
  EXPECT_EQ(loaded.metadata.size(), 2U);
  EXPECT_EQ(loaded.metadata.at("note"), "ä \"quoted\"\nline");
  loaded.tensors.at("F32").fill_(9.0F);
  expect_equal(load_safetensors(path).tensors, every_dtype());
  EXPECT_TRUE(torch::equal(loaded.tensors.at("F64"), every_dtype().at("F64")));
  save_safetensors(path, {});
  EXPECT_TRUE(load_safetensors(path).tensors.empty() && load_safetensors(path).metadata.empty());
}

TEST(Safetensors, EqualContentMakesEqualFiles) {
  const TemporaryFolder folder;
  save_safetensors(folder.file("a"), {every_dtype(), {{"x", "1"}, {"a", "2"}}});
  save_safetensors(folder.file("b"), {every_dtype(), {{"a", "2"}, {"x", "1"}}});
  EXPECT_EQ(folder.read("a"), folder.read("b"));
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a", "b"})) << "no temporary file is left";
}

// The bytes that safetensors.torch.save writes for {"a": torch.tensor([1.0, 2.0])}.
TEST(Safetensors, WritesTheBytesThatPythonWrites) {
  const TemporaryFolder folder;
  save_safetensors(folder.file("a"), {{{"a", torch::tensor({1.0F, 2.0F})}}, {}});
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string padded = header + std::string(64 - header.size() - 8, ' ');
  const std::string size = {static_cast<char>(padded.size()), 0, 0, 0, 0, 0, 0, 0};
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\x40", 8);
  EXPECT_EQ(folder.read("a"), size + padded + data);
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  const auto file = load_safetensors(LADDER_SOURCE_DIR "/tests/golden/loss_heads.safetensors");
  EXPECT_EQ(file.metadata.at("torch").substr(0, 2), "2.");
  EXPECT_TRUE(
      torch::equal(file.tensors.at("labels"), torch::tensor({0, 9, 3, 3, 5, 1}, torch::kInt64)));
  EXPECT_EQ(file.tensors.at("logits").sizes(), (std::vector<std::int64_t>{6, 10}));
}

TEST(Safetensors, SavesTheValuesOfAViewAndChannelsLastInTheOrderOfNchw) {
  const TemporaryFolder folder;
  const auto images = torch::arange(24.0F).view({1, 6, 2, 2});
  const auto channels_last = images.contiguous(torch::MemoryFormat::ChannelsLast);
  ASSERT_FALSE(channels_last.is_contiguous());
  save_safetensors(folder.file("a"), {{{"w", images}}, {}});
  save_safetensors(folder.file("b"), {{{"w", channels_last}}, {}});
  EXPECT_EQ(folder.read("a"), folder.read("b"));
  EXPECT_TRUE(torch::equal(load_safetensors(folder.file("b")).tensors.at("w"), images));
  save_safetensors(folder.file("a"), {{{"w", torch::arange(100.0F).narrow(0, 3, 2)}}, {}});
  EXPECT_TRUE(torch::equal(load_safetensors(folder.file("a")).tensors.at("w"),
                           torch::tensor({3.0F, 4.0F})));
}

TEST(Safetensors, RefusesADtypeThatTheFormatLacksAndKeepsTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "old");
  EXPECT_ERROR(save_safetensors(path, {{{"w", torch::ones({1}, torch::kComplexFloat)}}, {}}),
               UsageError, "safetensors: has no dtype ComplexFloat");
  EXPECT_ERROR(save_safetensors(folder.file("a.pt"), {}), UsageError,
               "save_safetensors: expected a name that torch.load does not take for its own",
               "convert_checkpoint.py " + folder.file("a.safetensors ") + folder.file("a.pt"));
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

TEST(Safetensors, RefusesAFileThatIsMissingCutOffAnywhereOrSomethingElse) {
  const TemporaryFolder folder;
  const auto expect_refused = [](const std::string& path, const std::string& text = "") {
    EXPECT_ERROR(load_safetensors(path), DataError, path + ": expected " + text);
  };
  expect_refused("/nonexistent/a.safetensors", "a readable file, got none");
  expect_refused(folder.path(), "a readable file, got a folder; hint: name the file");
  expect_refused(make_pipe(folder.file("pipe")), "a readable file, got a pipe");
  expect_refused("/dev/zero", "a readable file, got a device");
  save_safetensors(folder.file("whole"), {{{"w", torch::ones({3})}}, {}});
  const std::string whole = folder.read("whole");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_refused(folder.write("a", whole.substr(0, size)));
  }
  for (const std::string& text :
       {whole + "x", std::string("PK\x03\x04 a pickle of torch.save"), std::string("{}")}) {
    expect_refused(folder.write("a", text));
  }
}

TEST(SaveModel, AndLoadModelGiveBackTheWeights) {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  const auto source = mnist::make_conv_net();
  const auto target = mnist::make_conv_net({.math = mnist::Math::kReference});  // another layout
  save_model(*source, folder.file("a"));
  load_model(*target, folder.file("a"));
  EXPECT_EQ(weights_sha256(state_dict(*target)), weights_sha256(state_dict(*source)));
  EXPECT_EQ(load_safetensors(folder.file("a")).metadata.at("format"), "pt");
}

TEST(SaveModel, RefusesWeightsThatAreNotFiniteAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "old");
  const auto net = mnist::make_conv_net();
  const torch::NoGradGuard no_grad;
  auto bias = net->named_parameters()["fc.bias"];
  bias[3] = NAN;
  EXPECT_ERROR(save_model(*net, path), NumericError,
               path + ": expected finite weights, got NaN or infinity in fc.bias");
  EXPECT_EQ(folder.read("a"), "old");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a"})) << "no temporary file is left";
  bias.set_requires_grad(false);  // as a mask
  save_model(*net, path);
  EXPECT_TRUE(load_safetensors(path).tensors.contains("fc.bias"));
}

TEST(SaveModel, LeavesTheWrappersPrefixOut) {
  const TemporaryFolder folder;
  Wrapper wrapped(mnist::make_conv_net());
  save_model(wrapped, folder.file("a"));
  EXPECT_TRUE(load_safetensors(folder.file("a")).tensors.contains("layer1.0.weight"));
  const auto plain = mnist::make_conv_net();
  load_model(*plain, folder.file("a"));
  load_model(wrapped, folder.file("a"));
  EXPECT_EQ(weights_sha256(state_dict(*plain)), weights_sha256(state_dict(wrapped)));
}

TEST(LoadModel, NamesTheFileOfAnotherNetworkAndChangesNothing) {
  const TemporaryFolder folder;
  const auto path = folder.file("a.safetensors");
  save_safetensors(path, {{{"fc.weight", torch::ones({10, 1568})}}, {}});
  const auto net = mnist::make_conv_net();
  const auto before = weights_sha256(state_dict(*net));
  EXPECT_ERROR(load_model(*net, path), DataError,
               path + ": expected a tensor layer1.0.weight, got none");
  EXPECT_EQ(weights_sha256(state_dict(*net)), before);
}

}  // namespace
}  // namespace ladder
