// SPDX-License-Identifier: Apache-2.0
#include "ladder/nn/state_dict.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/nn/model.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_modules.h"
#include "tests/support/two_layers.h"

namespace ladder {
namespace {

using Names = std::vector<std::string>;

Names names_of(const StateDict& values) {
  Names names;
  for (const auto& item : values) names.push_back(item.first);
  return names;
}

// A network with two parameters and a buffer.
struct Small : IdleModel {
  explicit Small(double value) {
    register_parameter("weight", torch::full({2, 3}, value));
    register_parameter("bias", torch::full({2}, value));
    register_buffer("count", torch::full({}, value, torch::kInt64));
  }
};

// A network wrapped `depth` times.
std::shared_ptr<Model> small(double value, int depth = 0) {
  std::shared_ptr<Model> module = std::make_shared<Small>(value);
  for (int i = 0; i < depth; ++i) module = std::make_shared<Wrapper>(module);
  return module;
}

bool all_are(const torch::nn::Module& module, double value) {
  for (const auto& [name, tensor] : state_dict(module)) {
    if (!tensor.eq(value).all().item<bool>()) return false;
  }
  return true;
}

TEST(StateDict, HoldsParametersAndBuffersUnderPythonsNames) {
  EXPECT_EQ(names_of(state_dict(*mnist::make_conv_net())),
            (Names{"fc.bias", "fc.weight", "layer1.0.bias", "layer1.0.weight", "layer1.1.bias",
                   "layer1.1.num_batches_tracked", "layer1.1.running_mean", "layer1.1.running_var",
                   "layer1.1.weight", "layer2.0.bias", "layer2.0.weight", "layer2.1.bias",
                   "layer2.1.num_batches_tracked", "layer2.1.running_mean", "layer2.1.running_var",
                   "layer2.1.weight"}));
}

TEST(StateDict, SharesMemoryAndIsFreeOfAutograd) {
  const auto module = small(1.0);
  const auto weight = state_dict(*module).at("weight");
  EXPECT_FALSE(weight.requires_grad());
  weight.fill_(5.0);
  EXPECT_EQ(module->parameters()[0][0][0].item<double>(), 5.0);
}

TEST(StateDict, KeepsThePrefixOfAWrapperAndUnwrappedDropsIt) {
  EXPECT_EQ(names_of(state_dict(*small(1.0, 1))),
            (Names{"module.bias", "module.count", "module.weight"}));
  for (const int depth : {0, 1, 2}) {
    EXPECT_EQ(names_of(unwrapped_state_dict(*small(1.0, depth))),
              (Names{"bias", "count", "weight"}));
  }
}

// A network whose own child is called "module", alone or beside a weight of the same name.
struct Backbone : torch::nn::Module {
  Backbone(double value, bool has_weight) {
    register_module("module", small(value));
    if (has_weight) register_parameter("weight", torch::full({2, 3}, value));
  }
};

TEST(AChildNamedModule, KeepsItsNameAndIsLoadedAndHashedWhole) {
  for (const bool has_weight : {false, true}) {
    const Backbone saved(6.0, has_weight);
    Names names = {"module.bias", "module.count", "module.weight"};
    if (has_weight) names.emplace_back("weight");
    EXPECT_EQ(names_of(unwrapped_state_dict(saved)), names);
    Backbone loaded(7.0, has_weight);
    load_state_dict(loaded, unwrapped_state_dict(saved), "a file");
    EXPECT_TRUE(all_are(loaded, 6.0));
    Backbone from_wrapper(7.0, has_weight);
    StateDict of_python;  // DistributedDataParallel's
    for (const auto& [name, tensor] : state_dict(saved)) of_python["module." + name] = tensor;
    load_state_dict(from_wrapper, of_python, "a file");
    EXPECT_TRUE(all_are(from_wrapper, 6.0));
    const auto hash = weights_sha256(state_dict(saved));
    EXPECT_EQ(weights_sha256(of_python), hash);
    for (const auto& [name, tensor] : state_dict(saved)) {
      auto changed = state_dict(saved);
      changed.at(name) = tensor + 1;
      EXPECT_NE(weights_sha256(changed), hash) << name;
    }
  }
}

TEST(LoadStateDict, CopiesWithAndWithoutThePrefixOnEitherSide) {
  for (const int from : {0, 1, 2}) {
    for (const int to : {0, 1, 2}) {
      const auto target = small(1.0, to);
      load_state_dict(*target, state_dict(*small(2.0, from)), "a file");
      EXPECT_TRUE(all_are(*target, 2.0)) << from << " wrappers into " << to;
    }
  }
}

// --- one tensor with two names ---

TEST(TiedWeights, AreSavedUnderTheirFirstName) {
  const TwoLayers tied({.tied = true});
  EXPECT_EQ(names_of(state_dict(tied)), (Names{"a.bias", "a.weight", "b.bias", "b.weight"}));
  EXPECT_EQ(names_of(unwrapped_state_dict(tied)), (Names{"a.bias", "a.weight"}));
}

// Python's safetensors.torch.save_model keeps one name, torch.save both.
TEST(TiedWeights, AreLoadedUnderAnyOfTheirNames) {
  const auto weight = torch::full({2, 2}, 2.0);
  const auto bias = torch::full({2}, 2.0);
  for (const StateDict& values :
       {StateDict{{"a.weight", weight}, {"b.bias", bias}},
        StateDict{{"b.weight", weight}, {"a.bias", bias}},
        StateDict{{"a.weight", weight}, {"b.weight", weight}, {"b.bias", bias}}}) {
    TwoLayers tied({.tied = true});
    load_state_dict(tied, values, "a file");
    EXPECT_TRUE(all_are(tied, 2.0));
  }
}

TEST(TiedWeights, RefuseTwoValuesAndNone) {
  TwoLayers tied({.tied = true});
  auto values = state_dict(TwoLayers());
  values["b.bias"] = values["b.bias"] + 1;
  EXPECT_ERROR(load_state_dict(tied, values, "w"), DataError,
               "w: expected equal values of a.bias and b.bias, which are one tensor, got others");
  EXPECT_ERROR(load_state_dict(tied, {{"a.weight", values.at("a.weight")}}, "w"), DataError,
               "w: expected a tensor a.bias, got none");
  values = state_dict(TwoLayers());
  values["c.bias"] = values["b.bias"];
  EXPECT_ERROR(load_state_dict(tied, values, "w"), DataError, "got also c.bias");
}

TEST(LoadStateDict, NamesThePrefixOfAllNames) {
  for (const std::string prefix : {"_orig_mod.", "model.", "net.module."}) {
    StateDict values;
    for (const auto& [name, tensor] : state_dict(TwoLayers())) values[prefix + name] = tensor;
    TwoLayers network;
    EXPECT_ERROR(load_state_dict(network, values, "w"), DataError,
                 "w: expected a tensor a.weight, got the prefix " + prefix + " before all names",
                 "convert_checkpoint.py w stripped.safetensors --strip " + prefix);
    values["other"] = values.begin()->second;
    EXPECT_ERROR(load_state_dict(network, values, "w"), DataError, "a tensor a.weight, got none");
  }
}

TEST(LoadStateDict, CopiesTheValuesAndNotTheTensors) {
  const auto source = small(2.0);
  const auto target = small(1.0);
  const auto weight = target->parameters()[0];
  load_state_dict(*target, state_dict(*source), "a file");
  state_dict(*source).at("weight").fill_(9.0);
  EXPECT_TRUE(all_are(*target, 2.0));
  EXPECT_TRUE(weight.is_same(target->parameters()[0])) << "an optimizer would lose it";
  EXPECT_TRUE(weight.requires_grad());
}

TEST(LoadStateDict, ConvertsToTheLayoutAndDtypeOfTheTarget) {
  const auto target = mnist::make_conv_net();  // channels_last
  StateDict values;
  for (const auto& [name, tensor] : state_dict(*target)) {
    const auto dtype = tensor.is_floating_point() ? torch::kFloat64 : tensor.scalar_type();
    values[name] = torch::full(tensor.sizes(), 2.0, dtype);
  }
  load_state_dict(*target, values, "a file");
  EXPECT_TRUE(all_are(*target, 2.0));
  const auto weight = state_dict(*target).at("layer2.0.weight");
  EXPECT_TRUE(weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_EQ(weight.scalar_type(), torch::kFloat32);
}

TEST(LoadStateDict, ChecksFirstAndCopiesLater) {
  for (const int depth : {0, 1}) {
    const auto target = small(1.0, depth);
    const auto apply = plan_load_state_dict(*target, state_dict(*small(2.0)), "a file");
    EXPECT_TRUE(all_are(*target, 1.0)) << "changed before it was asked to";
    apply();
    EXPECT_TRUE(all_are(*target, 2.0));
  }
}

// Loading `values` must fail with `message` and change nothing.
void expect_refused(const StateDict& values, const std::string& message) {
  for (const int depth : {0, 1}) {
    const auto target = small(1.0, depth);
    const auto text = "w.safetensors: expected " + message;
    EXPECT_ERROR(load_state_dict(*target, values, "w.safetensors"), DataError, text);
    EXPECT_ERROR(static_cast<void>(plan_load_state_dict(*target, values, "w.safetensors")),
                 DataError, text);
    EXPECT_TRUE(all_are(*target, 1.0)) << "changed in spite of the error";
  }
}

TEST(LoadStateDict, RefusesAMissingTensorAndChangesNothing) {
  auto values = state_dict(*small(2.0, 1));
  values.erase("module.weight");  // the last by name: the others have been looked at
  expect_refused(values, "a tensor weight, got none");
}

TEST(LoadStateDict, RefusesASurplusTensorAnotherShapeOrDtypeAndChangesNothing) {
  const struct {
    const char* name;
    torch::Tensor value;
    const char* message;
  } cases[] = {
      {"zeta", torch::ones({1}), "3 tensors, got also zeta"},
      {"weight", torch::ones({3, 2}), "weight as Float [2, 3], got Float [3, 2]"},
      {"weight", torch::ones({}), "weight as Float [2, 3], got Float []"},
      {"weight", torch::ones({2, 3}, torch::kInt64), "weight as Float [2, 3], got Long [2, 3]"},
      {"count", torch::tensor(1.5), "count as Long [], got Float []"},
      {"count", torch::tensor(1, torch::kInt32), "count as Long [], got Int []"},
  };
  for (const auto& [name, value, message] : cases) {
    auto values = state_dict(*small(2.0));
    values[name] = value;
    expect_refused(values, message);
  }
}

TEST(LoadStateDict, RefusesATargetThatCannotBeWrittenAndChangesNothing) {
  torch::nn::Linear target(2, 1);
  const auto before = weights_sha256(state_dict(*target));
  target->register_buffer("zeta", torch::ones({1}).expand({3}));
  auto values = state_dict(*torch::nn::Linear(2, 1));
  values["zeta"] = torch::ones({3});
  EXPECT_ERROR(load_state_dict(*target, values, "w"), UsageError,
               "load_state_dict: elements of zeta share memory, as after expand(); hint: ");
  auto after = state_dict(*target);
  after.erase("zeta");
  EXPECT_EQ(weights_sha256(after), before);
}

// `name` of a network with BatchNorm, with one element replaced.
StateDict conv_net_with(const std::string& name, float element) {
  StateDict values;
  for (const auto& [key, tensor] : state_dict(*mnist::make_conv_net())) {
    values[key] = tensor.clone();
  }
  values.at(name).view(-1)[1] = element;
  return values;
}

TEST(LoadStateDict, RefusesNumbersThatAreNotFiniteAndChangesNothing) {
  const auto target = mnist::make_conv_net();
  const auto before = weights_sha256(state_dict(*target));
  auto too_large = unwrapped_state_dict(*target);  // for float32
  too_large.at("fc.bias") = torch::full({10}, 1e300, torch::kFloat64);
  const std::pair<StateDict, std::string> damages[] = {
      {conv_net_with("layer1.0.weight", NAN), "finite numbers in layer1.0.weight, got NaN or inf"},
      {conv_net_with("fc.bias", INFINITY), "finite numbers in fc.bias, got NaN or infinity; hint"},
      {too_large, "finite numbers in fc.bias"},
      {conv_net_with("layer1.1.running_mean", -INFINITY), "finite numbers in layer1.1.running_m"},
      {conv_net_with("layer2.1.running_var", NAN), "finite numbers in layer2.1.running_var, got"},
      {conv_net_with("layer2.1.running_var", -1e-3F),
       "variances >= 0 in layer2.1.running_var, got a negative one"}};
  for (const auto& [values, message] : damages) {
    EXPECT_ERROR(load_state_dict(*target, values, "w"), DataError, "w: expected " + message);
    EXPECT_EQ(weights_sha256(state_dict(*target)), before);
  }
}

// A mask of infinities is no damage.
TEST(LoadStateDict, TakesInfinitiesWhereNothingIsTrained) {
  const auto target = small(1.0);
  target->named_parameters()["bias"].requires_grad_(false);
  auto values = state_dict(*small(2.0));
  values["bias"] = torch::full({2}, -INFINITY);
  load_state_dict(*target, values, "a file");
  EXPECT_TRUE(state_dict(*target).at("bias").isinf().all().item<bool>());
}

TEST(AllFinite, SeesASingleElementAndNoOverflowOfTheSum) {
  EXPECT_TRUE(all_finite(torch::ones({1000})));
  EXPECT_TRUE(all_finite(torch::full({1000}, 3e38F)));
  EXPECT_TRUE(all_finite(torch::full({1000}, 60000.0, torch::kFloat16)));
  EXPECT_TRUE(all_finite(torch::empty({0})));
  EXPECT_TRUE(all_finite(torch::tensor({1, 2})));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    auto tensor = torch::ones({1000});
    tensor[999] = bad;
    EXPECT_FALSE(all_finite(tensor)) << bad;
  }
  EXPECT_FALSE(all_finite(torch::tensor({INFINITY, -INFINITY})));
}

TEST(RequireFinite, LooksAtWeightsAndRunningStatistics) {
  for (const char* name : {"fc.weight", "layer1.1.running_mean", "layer2.1.running_var"}) {
    const auto net = mnist::make_conv_net();
    state_dict(*net).at(name).view(-1)[0] = NAN;
    EXPECT_ERROR(require_finite(*net, "out"), NumericError,
                 std::string("out: expected finite weights, got NaN or infinity in ") + name +
                     "; nothing was saved; hint: use a smaller learning rate");
  }
  EXPECT_NO_THROW(require_finite(*mnist::make_conv_net(), "out"));
}

StateDict sample() {
  return {{"conv.weight", torch::arange(24.0F).view({1, 6, 2, 2}) / 7},
          {"count", torch::tensor(7, torch::kInt64)},
          {"empty", torch::empty({0, 3})},
          {"half", torch::tensor({0.5, -2.0}, torch::kBFloat16)},
          {"mask", torch::tensor({true, false})}};
}

// Made with hashlib and torch in Python from the description in the header.
constexpr const char* kSampleSha256 =
    "2539a37f31807c7788aeab4598a6bf1449eb6624132ff5859b0c396d6be4fe16";

TEST(WeightsSha256, IsWhatPythonComputesWithAnyLayoutAndPrefix) {
  EXPECT_EQ(weights_sha256(sample()), kSampleSha256);
  StateDict other;
  for (const auto& [name, tensor] : sample()) other["module." + name] = tensor;
  auto& weight = other["module.conv.weight"];
  weight = weight.contiguous(torch::MemoryFormat::ChannelsLast);
  ASSERT_FALSE(weight.is_contiguous());
  EXPECT_EQ(weights_sha256(other), kSampleSha256);
}

TEST(WeightsSha256, ChangesWithNameDtypeShapeAndTheLastBit) {
  const auto changed = [](const std::string& name, const torch::Tensor& tensor) {
    auto values = sample();
    values[name] = tensor;
    return weights_sha256(values);
  };
  EXPECT_NE(changed("count", torch::tensor(8, torch::kInt64)), kSampleSha256);
  EXPECT_NE(changed("count", torch::tensor({7}, torch::kInt64)), kSampleSha256);
  EXPECT_NE(changed("empty", torch::empty({3, 0})), kSampleSha256);
  EXPECT_NE(changed("mask", torch::tensor({1, 0}, torch::kUInt8)), kSampleSha256);
  EXPECT_NE(changed("new", torch::empty({0})), kSampleSha256);
  EXPECT_NE(changed("new", torch::tensor(0.0F)), changed("new", torch::tensor(-0.0F)));
}

std::vector<float> floats_of(const torch::Tensor& tensor) {
  const RowMajorBytes bytes(tensor);
  std::vector<float> values(bytes.span().size() / sizeof(float));
  std::memcpy(values.data(), bytes.span().data(), bytes.span().size());
  return values;
}

TEST(RowMajorBytes, AreRowMajorHoweverTheTensorLiesAndShareMemoryIfTheyCan) {
  const auto images = torch::arange(12.0F).view({1, 3, 2, 2});
  const std::vector<float> row_major = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  EXPECT_EQ(floats_of(images), row_major);
  EXPECT_EQ(floats_of(images.contiguous(torch::MemoryFormat::ChannelsLast)), row_major);
  EXPECT_EQ(floats_of(torch::arange(4.0F).view({2, 2}).t()), (std::vector<float>{0, 2, 1, 3}));
  EXPECT_EQ(floats_of(torch::arange(4.0F).narrow(0, 1, 2)), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats_of(torch::ones({1}).expand({3})), (std::vector<float>{1, 1, 1}));
  EXPECT_TRUE(RowMajorBytes(torch::empty({0, 3})).span().empty());
  const auto tensor = torch::ones({4}, torch::requires_grad());
  EXPECT_EQ(static_cast<const void*>(RowMajorBytes(tensor).span().data()), tensor.const_data_ptr());
}

// python3: hashlib.sha256(struct.pack("<3q", 0, 1, 2)).hexdigest()[:16], and of b""
TEST(TensorDigest, IsTheBeginningOfTheSha256OfTheBytes) {
  EXPECT_EQ(tensor_digest(torch::arange(3, torch::kInt64)), "ab25350e3e65efeb");
  EXPECT_EQ(tensor_digest(torch::empty({0})), "e3b0c44298fc1c14");
  EXPECT_NE(tensor_digest(torch::tensor(0.0F)), tensor_digest(torch::tensor(-0.0F)));
}

TEST(SafetensorsDtype, NamesAreThoseOfTheFormatInBothDirections) {
  const std::vector<std::pair<torch::ScalarType, std::string>> names = {
      {torch::kBool, "BOOL"},   {torch::kUInt8, "U8"},      {torch::kInt8, "I8"},
      {torch::kInt16, "I16"},   {torch::kUInt16, "U16"},    {torch::kInt32, "I32"},
      {torch::kUInt32, "U32"},  {torch::kInt64, "I64"},     {torch::kUInt64, "U64"},
      {torch::kFloat16, "F16"}, {torch::kBFloat16, "BF16"}, {torch::kFloat32, "F32"},
      {torch::kFloat64, "F64"}};
  for (const auto& [dtype, name] : names) {
    EXPECT_EQ(safetensors_dtype(dtype), name);
    EXPECT_EQ(dtype_of_safetensors(name), dtype);
  }
}

TEST(SafetensorsDtype, RefusesWhatTheFormatLacks) {
  EXPECT_ERROR(safetensors_dtype(torch::kComplexFloat), UsageError,
               "safetensors: has no dtype ComplexFloat; hint: register torch::view_as_real(");
  EXPECT_ERROR(safetensors_dtype(torch::kQInt8), UsageError, "no dtype QInt8; hint: convert");
  EXPECT_ERROR(dtype_of_safetensors("F31"), UsageError, "safetensors dtype: expected one of F32");
}

}  // namespace
}  // namespace ladder
