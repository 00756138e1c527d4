// SPDX-License-Identifier: Apache-2.0
#include "ladder/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/monitor/evaluation.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/data_parallel.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/training.h"

namespace ladder {
namespace {

using Tensors = std::vector<torch::Tensor>;

const std::vector<torch::ScalarType> kSixteenBits = {torch::kBFloat16, torch::kFloat16};

// The dtype that a matrix product of float32 computes in: float32, unless autocast is on.
torch::ScalarType product_dtype() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

void expect_no_guard_left() {
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  at::autocast::decrement_nesting();
}

// --- the dtypes of Python ---------------------------------------------------------------

using Operations = std::map<std::string, std::function<torch::Tensor()>>;

torch::Tensor ones(at::IntArrayRef shape) { return torch::ones(shape); }

// The operations of make_golden.py, under their names there. x: [4, 4].
Operations matrix_operations(const torch::Tensor& x) {
  const auto weight = ones({4, 4});
  const auto bias = ones({4});
  const auto batch = x.unsqueeze(0);
  const auto single = ones({1, 4, 4});
  const auto twice = weight.to(torch::kFloat64);
  return {{"linear", [=] { return torch::linear(x, weight, bias); }},
          {"mm", [=] { return torch::mm(x, weight); }},
          {"matmul", [=] { return torch::matmul(batch, weight); }},
          {"bmm", [=] { return torch::bmm(batch, single); }},
          {"addmm", [=] { return torch::addmm(bias, x, weight); }},
          {"baddbmm", [=] { return torch::baddbmm(batch, batch, single); }},
          {"einsum", [=] { return torch::einsum("ij,jk->ik", {x, weight}); }},
          {"prelu", [=] { return torch::prelu(x, ones({1})); }},
          {"scaled_dot_product_attention",
           [=] { return torch::scaled_dot_product_attention(batch, batch, batch); }},
          {"mm_of_float64", [=] { return torch::mm(twice, twice); }},
          {"add_mixed", [=] { return x + weight; }},
          {"cat_mixed", [=] { return torch::cat({x, weight}); }},
          {"stack_mixed", [=] { return torch::stack({x, weight}); }}};
}

Operations layer_operations(const torch::Tensor& x) {
  const auto images = x.reshape({1, 1, 4, 4});
  const auto one = ones({1});
  const auto kernel = ones({1, 1, 3, 3});
  const auto batch_norm = [=](bool training) {
    return torch::batch_norm(images, one, one, torch::zeros({1}), ones({1}), training, 0.1, 1e-5,
                             /*cudnn_enabled=*/false);
  };
  return {{"conv1d", [=] { return torch::conv1d(x.unsqueeze(0), ones({4, 4, 3})); }},
          {"conv2d", [=] { return torch::conv2d(images, kernel, one); }},
          {"conv_transpose2d", [=] { return torch::conv_transpose2d(images, kernel); }},
          {"relu", [=] { return torch::relu(x); }},
          {"gelu", [=] { return torch::gelu(x); }},
          {"max_pool2d", [=] { return torch::max_pool2d(images, 2); }},
          {"avg_pool2d", [=] { return torch::avg_pool2d(images, 2); }},
          {"batch_norm", [=] { return batch_norm(true); }},
          {"batch_norm_eval", [=] { return batch_norm(false); }},
          {"layer_norm", [=] { return torch::layer_norm(x, {4}, ones({4}), ones({4})); }},
          {"dropout", [=] { return torch::dropout(x, 0.5, /*train=*/true); }},
          {"flatten", [=] { return images.flatten(1); }}};
}

Operations loss_operations(const torch::Tensor& x) {
  const auto labels = torch::arange(4);
  return {{"softmax", [=] { return torch::softmax(x, 1); }},
          {"log_softmax", [=] { return torch::log_softmax(x, 1); }},
          {"nll_loss", [=] { return torch::nll_loss(x, labels); }},
          {"cross_entropy", [=] { return torch::cross_entropy_loss(x, labels); }},
          {"mse_loss", [=] { return torch::mse_loss(x, ones({4, 4})); }},
          {"l1_loss", [=] { return torch::l1_loss(x, ones({4, 4})); }},
          {"binary_cross_entropy", [=] { return torch::binary_cross_entropy(x, x); }},
          {"sum", [=] { return x.sum(); }},
          {"mean", [=] { return x.mean(); }},
          {"prod", [=] { return x.prod(); }},
          {"exp", [=] { return x.exp(); }},
          {"norm", [=] { return x.norm(); }}};
}

Operations operations_on(const torch::Tensor& x) {
  auto operations = matrix_operations(x);
  operations.merge(layer_operations(x));
  operations.merge(loss_operations(x));
  return operations;
}

const std::map<std::string, torch::ScalarType> kDtypes = {{"float32", torch::kFloat32},
                                                          {"float64", torch::kFloat64},
                                                          {"bfloat16", torch::kBFloat16},
                                                          {"float16", torch::kFloat16}};

void expect_dtypes(const nlohmann::json& golden) {
  const auto operations = operations_on(torch::full({4, 4}, 0.5, kDtypes.at(golden.at("input"))));
  const auto& outputs = golden.at("outputs");
  EXPECT_EQ(operations.size(), outputs.size());
  const Autocast autocast(torch::kCPU, kDtypes.at(golden.at("autocast")));
  for (const auto& [name, operation] : operations) {
    EXPECT_EQ(operation().scalar_type(), kDtypes.at(outputs.at(name))) << name;
  }
}

TEST(Autocast, GivesEachOperationTheDtypeThatPythonGivesIt) {
  const auto& cases = golden_json("autocast.json").at("cases");
  EXPECT_EQ(cases.size(), 4U);
  for (const auto& golden : cases) {
    SCOPED_TRACE(golden.at("autocast").get<std::string>() + " of " +
                 golden.at("input").get<std::string>());
    expect_dtypes(golden);
  }
}

// --- when it holds ----------------------------------------------------------------------

TEST(Autocast, TheInnerGuardCountsAndThenTheOuterOneAgain) {
  {
    const Autocast outer(torch::kCPU, torch::kBFloat16);
    {
      const Autocast inner(torch::kCPU, torch::kFloat16);
      EXPECT_EQ(product_dtype(), torch::kFloat16);
      {
        const Autocast off(torch::kCPU, torch::kFloat32);
        EXPECT_EQ(product_dtype(), torch::kFloat32);
        {
          const Autocast on_again(torch::kCPU, torch::kBFloat16);
          EXPECT_EQ(product_dtype(), torch::kBFloat16);
        }
        EXPECT_EQ(product_dtype(), torch::kFloat32);
      }
      EXPECT_EQ(product_dtype(), torch::kFloat16);
    }
    EXPECT_EQ(product_dtype(), torch::kBFloat16);
  }
  EXPECT_EQ(product_dtype(), torch::kFloat32);
}

TEST(Autocast, AnExceptionRestoresAllThatItChanged) {
  const auto dtype = at::autocast::get_autocast_dtype(torch::kCPU);
  try {
    const Autocast autocast(torch::kCPU, torch::kFloat16, /*cache_enabled=*/false);
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kFloat16);
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), dtype);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  expect_no_guard_left();
}

TEST(Autocast, ConcernsItsDeviceAndItsThreadAlone) {
  const Autocast on_gpu(torch::kCUDA, torch::kFloat16);
  EXPECT_EQ(product_dtype(), torch::kFloat32);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(torch::kCUDA));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  const Autocast autocast(torch::kCPU, torch::kBFloat16);
  auto elsewhere = torch::kFloat64;
  std::thread([&] { elsewhere = product_dtype(); }).join();
  EXPECT_EQ(elsewhere, torch::kFloat32);
  EXPECT_EQ(product_dtype(), torch::kBFloat16);
}

TEST(Autocast, InactiveChangesNoBit) {
  torch::manual_seed(1);
  const auto x = torch::rand({4, 4});
  const auto outputs = [&] {
    std::map<std::string, torch::Tensor> by_name;
    for (const auto& [name, operation] : operations_on(x)) {
      torch::manual_seed(2);  // for dropout
      by_name[name] = operation();
    }
    return by_name;
  };
  const auto plain = outputs();
  const Autocast autocast(torch::kCPU, torch::kFloat32);
  for (const auto& [name, output] : outputs()) {
    EXPECT_TRUE(torch::equal(output, plain.at(name))) << name;
  }
}

TEST(Autocast, InactiveLeaves16BitsAsTheyAre) {
  const Autocast autocast(torch::kCPU, torch::kFloat32);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  for (const auto dtype : kSixteenBits) {
    const auto x = torch::ones({2, 2}, dtype);
    EXPECT_EQ(torch::mm(x, x).scalar_type(), dtype);
    EXPECT_EQ(torch::mse_loss(x, x).scalar_type(), dtype);
  }
}

TEST(Autocast, RefusesAnotherDtype) {
  for (const auto dtype : {torch::kFloat64, torch::kInt32}) {
    const auto text = "Autocast dtype: expected bfloat16, float16, or float32 for none, got '" +
                      std::string(torch::toString(dtype)) + "'";
    EXPECT_ERROR(Autocast(torch::kCPU, dtype), UsageError, text);
    EXPECT_ERROR(AutocastModel(first_model(convnet()), dtype), UsageError, text);
  }
  expect_no_guard_left();
}

// --- the cache of converted weights -----------------------------------------------------

torch::Tensor parameter(double value) { return torch::full({2, 2}, value, torch::requires_grad()); }

// What a product with the weight gives: twice the weight, as long as nothing old is used.
double twice(const torch::Tensor& weight) {
  return torch::mm(torch::ones({2, 2}), weight)[0][0].item<double>();
}

void set(const torch::Tensor& weight, double value) {
  const torch::NoGradGuard no_grad;
  weight.fill_(value);
}

TEST(Autocast, KeepsConvertedWeightsUntilTheOutermostGuardEnds) {
  const auto weight = parameter(1.0);
  {
    const Autocast outer(torch::kCPU, torch::kBFloat16, /*cache_enabled=*/true);
    {
      const Autocast inner(torch::kCPU, torch::kBFloat16, /*cache_enabled=*/true);
      EXPECT_EQ(twice(weight), 2.0);
      set(weight, 3.0);
      EXPECT_EQ(twice(weight), 2.0);  // what was kept
    }
    EXPECT_EQ(twice(weight), 2.0);
    const Autocast off(torch::kCPU, torch::kFloat32);
    EXPECT_EQ(twice(weight), 6.0);
  }
  const Autocast next(torch::kCPU, torch::kBFloat16);
  EXPECT_EQ(twice(weight), 6.0);
}

// Older LibTorch cached the converted weight without its way back.
TEST(Autocast, KeepsTheGradientAfterAForwardWithoutOne) {
  const auto weight = parameter(1.0);
  const Autocast autocast(torch::kCPU, torch::kBFloat16);
  {
    const torch::NoGradGuard no_grad;
    twice(weight);
  }
  torch::mm(torch::ones({1, 2}), weight).sum().backward();
  EXPECT_TRUE(weight.grad().eq(1).all().item<bool>());
}

TEST(Autocast, KeepsNothingWithoutTheCache) {
  const auto weight = parameter(1.0);
  {
    const Autocast outer(torch::kCPU, torch::kBFloat16, /*cache_enabled=*/false);
    EXPECT_EQ(twice(weight), 2.0);
    set(weight, 3.0);
    EXPECT_EQ(twice(weight), 6.0);
    const Autocast inner(torch::kCPU, torch::kBFloat16);  // stays as it is: off
    EXPECT_EQ(twice(weight), 6.0);
    set(weight, 4.0);
    EXPECT_EQ(twice(weight), 8.0);
  }
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// --- AutocastModel ----------------------------------------------------------------------

std::shared_ptr<AutocastModel> wrapped(const Recipe& recipe, torch::ScalarType dtype) {
  return std::make_shared<AutocastModel>(first_model(recipe), dtype);
}

// Computes one product, and remembers in what.
class Probe : public Model {
 public:
  Probe() : weight_(register_parameter("weight", torch::ones({28, 10}))) {}

  torch::Tensor forward(const Inputs& inputs) override {
    const auto& images = inputs.only();
    const auto scores = torch::mm(images.select(1, 0).select(1, 0), weight_);
    computed_in = scores.scalar_type();
    return scores;
  }
  std::shared_ptr<Model> new_like() const override { return std::make_shared<Probe>(); }

  std::optional<torch::ScalarType> computed_in;

 private:
  torch::Tensor weight_;
};

TEST(AutocastModel, ComputesIn16BitsAndReturnsFloat32OrTheFloat64OfItsInput) {
  for (const auto dtype : kSixteenBits) {
    const auto probe = std::make_shared<Probe>();
    AutocastModel model(probe, dtype);
    EXPECT_EQ(model.forward(torch::rand({2, 1, 28, 28})).scalar_type(), torch::kFloat32);
    EXPECT_EQ(probe->computed_in, dtype);
    EXPECT_EQ(product_dtype(), torch::kFloat32);  // off again
    model.to(torch::kFloat64);
    const auto images = torch::rand({2, 1, 28, 28}, torch::kFloat64);
    EXPECT_EQ(model.forward(images).scalar_type(), torch::kFloat64);
  }
}

TEST(AutocastModel, IsCloseToThePlainModelAndNotEqual) {
  const auto images = random_batch(8).inputs.only();
  for (const auto& recipe : {basicnet(), convnet()}) {
    const auto plain = first_model(recipe);
    plain->eval();
    for (const auto dtype : kSixteenBits) {
      const auto model = wrapped(recipe, dtype);
      model->eval();
      const double difference = relative_difference(model->forward(images), plain->forward(images));
      EXPECT_LT(difference, dtype == torch::kBFloat16 ? 0.02 : 0.002) << recipe.name();
      EXPECT_GT(difference, 1e-6) << recipe.name();
    }
  }
}

TEST(AutocastModel, WithFloat32IsBitEqualToThePlainModel) {
  for (const auto& recipe : {basicnet(), convnet()}) {
    const auto plain = first_model(recipe);
    const auto model = wrapped(recipe, torch::kFloat32);
    const auto of_plain = recipe.make_optimizer(plain->parameters());
    const auto of_model = recipe.make_optimizer(model->parameters());
    const auto batch_of = [](int step) {
      return random_batch(6, static_cast<std::uint64_t>(step));
    };
    train(*plain, *of_plain, recipe, 3, batch_of);
    train(*model, *of_model, recipe, 3, batch_of);
    EXPECT_EQ(weights_sha256(state_dict(*model)), weights_sha256(state_dict(*plain)));
  }
}

TEST(AutocastModel, TrainsWeightsInFloat32) {
  for (const auto& recipe : {basicnet(), convnet()}) {
    for (const auto dtype : kSixteenBits) {
      const auto model = wrapped(recipe, dtype);
      const auto plain = first_model(recipe);
      run_backward(*model, recipe, random_batch(8));
      run_backward(*plain, recipe, random_batch(8));
      for (const auto& parameter : model->parameters()) {
        EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
        EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat32);
      }
      EXPECT_LT(relative_difference(flat_gradients(*model), flat_gradients(*plain)), 0.1);
    }
  }
}

std::vector<std::string> names(const StateDict& values) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : values) names.push_back(name);
  return names;
}

TEST(AutocastModel, HasTheNamesOfTheNetworkOnceUnwrapped) {
  const auto plain = first_model(convnet());
  const auto model = wrapped(convnet(), torch::kBFloat16);
  EXPECT_TRUE(state_dict(*model).contains("module.fc.weight"));
  EXPECT_EQ(names(unwrapped_state_dict(*model)), names(state_dict(*plain)));
  EXPECT_EQ(weights_sha256(state_dict(*model)), weights_sha256(state_dict(*plain)));
  load_state_dict(*model, state_dict(*plain), "the plain model");
}

TEST(AutocastModel, MakesANewOneLikeItself) {
  const auto images = random_batch(4).inputs.only();
  for (const bool training : {true, false}) {
    const auto model = wrapped(convnet(), torch::kBFloat16);
    model->train(training);
    const auto copy = model->new_like();
    EXPECT_EQ(copy->is_training(), training);
    EXPECT_EQ(copy->children().at(0)->is_training(), training);
    EXPECT_FALSE(copy->parameters()[0].is_alias_of(model->parameters()[0]));
    const auto output = copy->forward(images);
    EXPECT_EQ(output.scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::equal(output, model->forward(images)));
  }
}

class RandomImages : public Dataset {
 public:
  std::int64_t size() const override { return 12; }
  Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto batch = random_batch(size());
    const auto chosen =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
    return {.inputs = batch.inputs.only().index_select(0, chosen),
            .targets = batch.targets.index_select(0, chosen)};
  }
};

Evaluation evaluation_of(Model& model, const Recipe& recipe) {
  const DataLoader loader(std::make_shared<RandomImages>(), {.batch_size = 4});
  return evaluate(model, loader, recipe.criterion(), torch::kCPU);
}

TEST(AutocastModel, EvaluatesIn16BitsToo) {
  const auto probe = std::make_shared<Probe>();
  AutocastModel with_probe(probe, torch::kBFloat16);
  evaluation_of(with_probe, convnet());
  EXPECT_EQ(probe->computed_in, torch::kBFloat16);
  for (const auto& recipe : {basicnet(), convnet()}) {
    const auto in_bf16 = evaluation_of(*wrapped(recipe, torch::kBFloat16), recipe);
    const auto in_fp32 = evaluation_of(*first_model(recipe), recipe);
    EXPECT_EQ(in_bf16.seen, 12);
    EXPECT_NEAR(in_bf16.mean_loss(), in_fp32.mean_loss(), 0.01);
    EXPECT_NE(in_bf16.loss_sum, in_fp32.loss_sum);
  }
}

// The guard stands in the forward of each replica, so it holds in the thread of each.
TEST(AutocastModel, ComputesIn16BitsInTheReplicasOfDataParallel) {
  for (const auto& recipe : {basicnet(), convnet()}) {
    const auto alone = wrapped(recipe, torch::kBFloat16);
    const auto replicas = std::make_shared<DataParallel>(
        wrapped(recipe, torch::kBFloat16),
        DataParallelOptions{.device_ids = {torch::kCPU, torch::kCPU}});
    alone->eval();
    replicas->eval();
    const auto images = random_batch(8).inputs.only();
    const auto output = replicas->forward(images);
    EXPECT_EQ(output.scalar_type(), torch::kFloat32);
    const auto expected = torch::cat(
        {alone->forward(images.narrow(0, 0, 4)), alone->forward(images.narrow(0, 4, 4))});
    EXPECT_TRUE(torch::equal(output, expected)) << recipe.name();
    EXPECT_EQ(names(unwrapped_state_dict(*replicas)), names(unwrapped_state_dict(*alone)));
  }
}

}  // namespace
}  // namespace ladder
