// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/data_parallel.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/nn/model.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "ladder/parallel/replicas.h"
#include "mnist/networks.h"
#include "tests/support/expect_error.h"
#include "tests/support/operator_calls.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/training.h"
#include "tests/support/two_inputs.h"
#include "tests/support/two_layers.h"

namespace ladder {
namespace {

using Devices = std::vector<torch::Device>;
using Tensors = std::vector<torch::Tensor>;

Devices cpus(std::size_t count) { return Devices(count, torch::kCPU); }

std::shared_ptr<DataParallel> replicated(const std::shared_ptr<Model>& model,
                                         std::size_t replicas) {
  return std::make_shared<DataParallel>(model, DataParallelOptions{.device_ids = cpus(replicas)});
}

std::string hash_of_run(const std::shared_ptr<Model>& model, const Recipe& recipe) {
  const auto optimizer = recipe.make_optimizer(model->parameters());
  train(*model, *optimizer, recipe, 4,
        [](int step) { return random_batch(6, static_cast<std::uint64_t>(step)); });
  return weights_sha256(state_dict(*model));
}

TEST(DataParallel, OnOneDeviceIsBitEqualToThePlainModel) {
  run_alone([] {
    for (const auto& recipe : {basicnet(), convnet()}) {
      EXPECT_EQ(hash_of_run(replicated(first_model(recipe), 1), recipe),
                hash_of_run(first_model(recipe), recipe));
    }
  });
}

// Batches that divide, that do not, and with fewer images than replicas, or none. With dropout.
TEST(DataParallel, HasTheGradientOfThePlainModel) {
  run_alone([] {
    for (const std::size_t replicas : {2U, 3U, 4U}) {
      const auto model = replicated(small_net(), replicas);
      for (const std::int64_t size : {12, 7, 5, 2, 1}) {
        SCOPED_TRACE(std::to_string(size) + " images, " + std::to_string(replicas) + " replicas");
        run_backward(*model, basicnet(), random_batch(size));
        EXPECT_LE(relative_difference(
                      flat_gradients(*model),
                      gradient_of_one_process(small_net(), basicnet(), random_batch(size))),
                  1e-6);
      }
    }
  });
}

TEST(DataParallel, HasTheGradientOfAPlainModelWithTiedOrFrozenWeights) {
  run_alone([] {
    for (const auto& options : {TwoLayersOptions{.tied = true}, TwoLayersOptions{.frozen = true}}) {
      const auto plain = std::make_shared<TwoLayers>(options);
      const auto network = std::make_shared<TwoLayers>(options);
      const auto model = replicated(network, 2);
      plain->forward(torch::ones({4, 2})).mean().backward();
      model->forward(torch::ones({4, 2})).mean().backward();
      EXPECT_EQ(network->a->weight.grad().defined(), !options.frozen);
      EXPECT_LE(relative_difference(network->b->weight.grad(), plain->b->weight.grad()), 1e-6);
    }
  });
}

TEST(DataParallel, FollowsAParameterThatChangesItsRole) {
  run_alone([] {
    const auto network = std::make_shared<TwoLayers>(TwoLayersOptions{.frozen = true});
    const auto model = replicated(network, 2);
    for (const bool trains : {false, true}) {
      network->a->weight.set_requires_grad(trains);
      model->forward(torch::ones({4, 2})).mean().backward();
      EXPECT_EQ(network->a->weight.grad().defined(), trains);
      EXPECT_TRUE(network->b->weight.grad().defined());
    }
  });
}

TEST(DataParallel, RefusesAnOutputWithoutRows) {
  run_alone([] {
    const auto model = replicated(std::make_shared<TwoLayers>(TwoLayersOptions{.scalar = true}), 2);
    EXPECT_ERROR(model->forward(torch::ones({4, 2})), UsageError,
                 "output of the model: expected one row per sample, got 'a scalar'; hint: ");
  });
}

TEST(DataParallel, TakesAnEmptyBatch) {
  run_alone([] {
    const auto model = replicated(small_net(), 2);
    auto batch = part_of(random_batch(4), 0, 0, 1);
    EXPECT_EQ(loss_of(*model, basicnet(), batch).item<float>(), 0.0F);
    run_backward(*model, basicnet(), batch);
    EXPECT_EQ(flat_gradients(*model).abs().sum().item<float>(), 0.0F);
  });
}

TEST(DataParallel, GivesTheOutputsInTheOrderOfTheImages) {
  run_alone([] {
    const auto model = replicated(small_net(), 3);
    const auto plain = small_net();
    const auto batch = random_batch(8);
    const RandomScope random({42, 0, batch.positions});
    EXPECT_LE(relative_difference(model->forward(batch.inputs), plain->forward(batch.inputs)),
              1e-6);
  });
}

TEST(DataParallel, EndsTwiceWithTheSameBits) {
  run_alone([] {
    for (const auto& recipe : {basicnet(), convnet()}) {
      EXPECT_EQ(hash_of_run(replicated(first_model(recipe), 3), recipe),
                hash_of_run(replicated(first_model(recipe), 3), recipe));
    }
  });
}

// Two parts, added in the same order.
TEST(DataParallel, WithTwoReplicasIsBitEqualToTwoRanks) {
  run_ranks(2, [](const ProcessGroup& group) {
    const auto replicas = replicated(first_model(basicnet()), 2);
    const auto ranks = std::make_shared<DistributedDataParallel>(first_model(basicnet()), group);
    const auto of_replicas = basicnet().make_optimizer(replicas->parameters());
    const auto of_ranks = basicnet().make_optimizer(ranks->parameters());
    for (int step = 0; step < 3; ++step) {
      const auto batch = random_batch(8, static_cast<std::uint64_t>(step));
      run_backward(*replicas, basicnet(), batch);
      run_backward(*ranks, basicnet(), slice_of(batch, group.rank(), 2));
      EXPECT_TRUE(torch::equal(flat_gradients(*replicas), flat_gradients(*ranks))) << step;
      of_replicas->step();
      of_ranks->step();
    }
    EXPECT_TRUE(torch::equal(flat_weights(*replicas), flat_weights(*ranks)));
  });
}

TEST(DataParallel, KeepsTheRunningStatisticsOfTheFirstPart) {
  run_alone([] {
    const auto model = replicated(first_model(convnet()), 3);
    const auto plain = first_model(convnet());
    for (int step = 1; step <= 3; ++step) {
      const auto images = random_batch(9, static_cast<std::uint64_t>(step)).inputs.only();
      model->forward(images);
      plain->forward(images.narrow(0, 0, 3));
      EXPECT_EQ(model->buffers().at(2).item<std::int64_t>(), step);  // num_batches_tracked
      EXPECT_TRUE(torch::equal(flat(model->buffers()), flat(plain->buffers())));
    }
  });
}

TEST(DataParallel, EvaluatesWithTheBuffersOfTheModelOnEveryReplica) {
  run_alone([] {
    const auto model = replicated(first_model(convnet()), 2);
    model->forward(random_batch(6).inputs.only());
    const auto plain = model->new_like();
    model->eval();
    plain->eval();
    const torch::NoGradGuard no_grad;
    const auto images = random_batch(7).inputs.only();
    EXPECT_LE(relative_difference(model->forward(images), plain->forward(images)), 1e-6);
    EXPECT_TRUE(torch::equal(flat(model->buffers()), flat(plain->buffers())));
  });
}

// Writes down what holds on the threads that run it.
class Witness : public Model {
 public:
  explicit Witness(std::shared_ptr<Witness> chief = nullptr)
      : linear(register_module("linear", torch::nn::Linear(784, 10))), chief_(std::move(chief)) {}

  torch::Tensor forward(const Inputs& inputs) override {
    const auto& images = inputs.only();
    if (images.isnan().any().item<bool>()) throw std::runtime_error("a picture of nothing");
    Witness& writer = chief_ == nullptr ? *this : *chief_;
    const auto output = linear(images.flatten(1));
    const std::lock_guard lock(writer.mutex);
    writer.threads.insert(std::this_thread::get_id());
    writer.dtypes.insert(output.scalar_type());
    writer.graphs.insert(output.requires_grad());
    writer.teams.insert(at::get_num_threads());
    return output;
  }

  // The copy reports to the original.
  std::shared_ptr<Model> new_like() const override {
    const RngStateGuard keep;
    auto self = std::const_pointer_cast<torch::nn::Module>(shared_from_this());
    auto copy = std::make_shared<Witness>(std::dynamic_pointer_cast<Witness>(self));
    copy_values(*this, *copy);
    return copy;
  }

  torch::nn::Linear linear;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<torch::ScalarType> dtypes;
  std::set<bool> graphs;
  std::set<int> teams;

 private:
  std::shared_ptr<Witness> chief_;
};

TEST(DataParallel, RunsEachReplicaOnAThreadOfItsOwn) {
  run_alone([] {
    const auto witness = std::make_shared<Witness>();
    const auto model = replicated(witness, 3);
    for (int step = 0; step < 3; ++step) model->forward(random_batch(6).inputs.only());
    EXPECT_EQ(witness->threads.size(), 3U);
    EXPECT_EQ(witness->threads.count(std::this_thread::get_id()), 0U);
  });
}

TEST(DataParallel, DividesTheThreadsAmongTheReplicasAndLeavesTheCallersAlone) {
  run_alone([] {
    at::set_num_threads(6);
    const auto witness = std::make_shared<Witness>();
    replicated(witness, 3)->forward(random_batch(6).inputs.only());
    EXPECT_EQ(witness->teams, std::set<int>{2});
    EXPECT_EQ(at::get_num_threads(), 6);
  });
}

TEST(DataParallel, BuildsNoGraphWithoutGradMode) {
  run_alone([] {
    const auto witness = std::make_shared<Witness>();
    const auto model = replicated(witness, 2);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(model->forward(random_batch(4).inputs.only()).requires_grad());
    }
    EXPECT_EQ(witness->graphs, std::set<bool>{false});
    EXPECT_TRUE(model->forward(random_batch(4).inputs.only()).requires_grad());
    EXPECT_EQ(witness->graphs, (std::set<bool>{false, true}));
  });
}

TEST(DataParallel, TakesTheAutocastOfTheCallerToTheReplicas) {
  run_alone([] {
    const auto witness = std::make_shared<Witness>();
    const auto model = replicated(witness, 2);
    const auto images = random_batch(4).inputs.only();
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    EXPECT_EQ(model->forward(images).scalar_type(), torch::kBFloat16);
    EXPECT_EQ(witness->dtypes, std::set<torch::ScalarType>{torch::kBFloat16});
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(model->forward(images).scalar_type(), torch::kFloat32);
  });
}

TEST(DataParallel, HasTheGradientOfThePlainModelUnderAutocast) {
  run_alone([] {
    const auto gradient = [](Model& model) {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const auto batch = random_batch(8);
      const RandomScope random({42, 0, batch.positions});
      const auto output = model.forward(batch.inputs).to(torch::kFloat32);
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      basicnet().loss(output, batch).backward();
      return flat_gradients(model);
    };
    constexpr double kBFloat16Unit = 1.0 / 256;
    EXPECT_LE(relative_difference(gradient(*replicated(first_model(basicnet()), 2)),
                                  gradient(*first_model(basicnet()))),
              2 * kBFloat16Unit);
  });
}

TEST(DataParallel, GivesGradientsToTheImagesIfTheyAskForThem) {
  run_alone([] {
    const auto gradient = [](Model& model) {
      auto batch = random_batch(7);
      batch.inputs.only().requires_grad_();
      run_backward(model, basicnet(), batch);
      return batch.inputs.only().grad();
    };
    EXPECT_LE(relative_difference(gradient(*replicated(small_net(), 3)), gradient(*small_net())),
              1e-6);
    const auto model = replicated(small_net(), 2);
    run_backward(*model, basicnet(), random_batch(4));  // and none if they do not
  });
}

// A gradient penalty would be left out of the gradient without an error.
TEST(DataParallel, RefusesToDifferentiateItsGradient) {
  run_alone([] {
    const auto model = replicated(small_net(), 2);
    model->eval();  // without dropout
    const auto images = random_batch(4).inputs.only().requires_grad_();
    const auto output = model->forward(images).sum();
    EXPECT_ERROR(torch::autograd::grad({output}, {images}, {}, /*retain_graph=*/true,
                                       /*create_graph=*/true),
                 UsageError, "a model of several replicas: its gradient is not differentiable");
  });
}

TEST(DataParallel, DividesEveryInputAndGivesGradientsToThoseThatAskForThem) {
  run_alone([] {
    const auto trained = [](const std::shared_ptr<Model>& model) {
      const Batch batch = two_input_batch();
      batch.inputs.at("image").requires_grad_();
      two_input_loss(*model, batch).backward();
      return std::pair(flat_gradients(*model), batch.inputs.at("image").grad());
    };
    const auto [weights, images] = trained(std::make_shared<TwoInputNet>());
    for (const std::size_t devices : {1U, 2U, 3U}) {
      const auto [got_weights, got_images] =
          trained(replicated(std::make_shared<TwoInputNet>(), devices));
      EXPECT_LE(relative_difference(got_weights, weights), 1e-6) << devices;
      EXPECT_LE(relative_difference(got_images, images), 1e-6) << devices;
    }
  });
}

TEST(DataParallel, AddsUpGradientsOfSeveralBackwards) {
  run_alone([] {
    const auto model = replicated(small_net(), 2);
    const auto batch = random_batch(8);
    const auto first = loss_of(*model, basicnet(), part_of(batch, 0, 4, 1));
    const auto second = loss_of(*model, basicnet(), part_of(batch, 4, 4, 1));
    (first + second).backward();  // both forwards before any backward
    const auto whole = gradient_of_one_process(small_net(), basicnet(), batch);
    EXPECT_LE(relative_difference(flat_gradients(*model), whole), 1e-6);
  });
}

// BatchNorm's buffers are brought to the replicas in between.
TEST(DataParallel, AllowsTwoForwardsBeforeABackwardWithBatchNorm) {
  run_alone([] {
    const auto model = replicated(first_model(convnet()), 2);
    const auto first = loss_of(*model, convnet(), random_batch(8, 1));
    const auto second = loss_of(*model, convnet(), random_batch(8, 2));
    EXPECT_NO_THROW((first + second).backward());
  });
}

TEST(DataParallel, MayBeGoneWhenItsBackwardRuns) {
  run_alone([] {
    const auto network = small_net();
    auto model = replicated(network, 2);
    const auto loss = loss_of(*model, basicnet(), random_batch(6));
    model.reset();
    loss.backward();
    EXPECT_LE(
        relative_difference(flat_gradients(*network),
                            gradient_of_one_process(small_net(), basicnet(), random_batch(6))),
        1e-6);
  });
}

TEST(DataParallel, TrainsLikeThePlainModelAsReplicasSeeEachStep) {
  run_alone([] {
    const auto weights = [](const std::shared_ptr<Model>& model) {
      const auto optimizer = convnet().make_optimizer(model->parameters());
      model->eval();  // so that BatchNorm does not see the parts
      train(*model, *optimizer, convnet(), 5,
            [](int step) { return random_batch(6, static_cast<std::uint64_t>(step)); });
      return flat_weights(*model);
    };
    const auto plain = weights(first_model(convnet()));
    EXPECT_LE(relative_difference(weights(replicated(first_model(convnet()), 2)), plain), 1e-6);
    EXPECT_GE(relative_difference(flat_weights(*first_model(convnet())), plain), 1e-5);
  });
}

TEST(DataParallel, SeesWeightsThatAreLoadedOrExchanged) {
  run_alone([] {
    torch::manual_seed(9);
    const auto other = convnet().make_model();
    const auto model = replicated(first_model(convnet()), 2);
    const auto images = random_batch(4).inputs.only();
    const torch::NoGradGuard no_grad;
    model->eval();
    other->eval();
    const auto distance = [&] {
      return relative_difference(model->forward(images), other->forward(images));
    };
    EXPECT_GE(distance(), 0.1);
    load_state_dict(*model, state_dict(*other), "a test");
    EXPECT_LE(distance(), 1e-6);
    other->parameters().back().add_(1.0);
    EXPECT_GE(distance(), 0.1);
    model->parameters().back().set_data(other->parameters().back().clone());
    EXPECT_LE(distance(), 1e-6);
  });
}

TEST(DataParallel, ShowsTheWrappedModelAndNothingOfTheReplicas) {
  run_alone([] {
    const auto model = replicated(first_model(convnet()), 3);
    model->forward(random_batch(3).inputs.only());
    std::set<std::string> expected;
    for (const auto& [name, tensor] : state_dict(*first_model(convnet()))) {
      expected.insert("module." + name);
    }
    std::set<std::string> names;
    for (const auto& [name, tensor] : state_dict(*model)) names.insert(name);
    EXPECT_EQ(names, expected);
    EXPECT_EQ(model->parameters().size(), first_model(convnet())->parameters().size());
  });
}

TEST(DataParallel, GivesACopyOfTheModelWithoutItself) {
  run_alone([] {
    const auto model = replicated(first_model(convnet()), 2);
    const auto copy = model->new_like();
    const auto network = first_model(convnet());
    const Model &copied = *copy, &original = *network;
    EXPECT_EQ(typeid(copied), typeid(original));
    EXPECT_TRUE(torch::equal(flat_weights(*copy), flat_weights(*model)));
    EXPECT_FALSE(copy->parameters().front().is_alias_of(model->parameters().front()));
  });
}

TEST(DataParallel, MovesNoRandomGenerator) {
  run_alone([] {
    const auto draw = [](std::size_t replicas) {
      const auto model = replicated(first_model(convnet()), replicas);
      model->forward(random_batch(4).inputs.only());
      return torch::rand({1}).item<float>();
    };
    EXPECT_EQ(draw(3), draw(1));
  });
}

TEST(DataParallel, HandsOnWhatAReplicaThrowsAndWorksAfterwards) {
  run_alone([] {
    const auto witness = std::make_shared<Witness>();
    const auto model = replicated(witness, 2);
    auto images = random_batch(4).inputs.only();
    images[3].fill_(std::nan(""));
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_ERROR(model->forward(images), std::runtime_error, "a picture of nothing");
      const torch::NoGradGuard no_grad;
      EXPECT_ERROR(model->forward(images), std::runtime_error, "a picture of nothing");
    }
    model->forward(random_batch(4).inputs.only()).sum().backward();
    EXPECT_TRUE(witness->linear->weight.grad().defined());
  });
}

TEST(DataParallel, RefusesToDropOutWithoutARandomScope) {
  run_alone([] {
    const auto model = replicated(small_net(), 2);
    EXPECT_ERROR(model->forward(random_batch(4).inputs.only()), UsageError, "RandomScope");
  });
}

TEST(DataParallel, WantsDevicesAndTheModelOnTheFirst) {
  run_alone([] {
    const auto with_devices = [](const Devices& devices) {
      return DataParallel(first_model(convnet()), {.device_ids = devices}).is_training();
    };
    EXPECT_ERROR(with_devices({}), UsageError, "one device or more in device_ids");
    EXPECT_ERROR(with_devices({torch::Device("cuda:0"), torch::kCPU}), UsageError,
                 "layer1.0.weight is on cpu, expected cuda:0; hint: move");
    EXPECT_TRUE(with_devices(cpus(2)));
  });
}

// A layer on the device without memory, in the place of a Linear.
class OnMeta : public torch::nn::Module {
 public:
  OnMeta() { register_parameter("weight", torch::empty({10, 784}, torch::kMeta)); }
};

TEST(DataParallel, RefusesAModelThatWasMovedSince) {
  run_alone([] {
    const auto witness = std::make_shared<Witness>();
    const auto model = replicated(witness, 2);
    witness->replace_module("linear", std::make_shared<OnMeta>());
    EXPECT_ERROR(model->forward(random_batch(4).inputs.only()), UsageError,
                 "linear.weight is on meta, expected cpu");
  });
}

TEST(DataParallel, PutsOutputsOnTheDeviceThatIsNamed) {
  run_alone([] {
    for (const std::size_t replicas : {1U, 2U}) {
      DataParallel model(first_model(convnet()),
                         {.device_ids = cpus(replicas), .output_device = torch::Device("meta")});
      EXPECT_TRUE(model.forward(random_batch(4).inputs.only()).is_meta());
    }
  });
}

// --- copies between devices ---------------------------------------------------------------

// Of two dtypes, of several layouts, one larger than a bucket, and one that is missing.
Tensors tensors_of_all_kinds() {
  torch::manual_seed(1);
  return {torch::randn({3, 4}),
          torch::arange(5),
          torch::randn({2, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast),
          torch::Tensor(),
          torch::randn({3 << 20}),
          torch::randn({4, 3}).t(),
          torch::tensor(7),
          torch::zeros({0})};
}

TEST(CoalescedCopy, KeepsLayoutsAndIsSeenByAutograd) {
  auto source = tensors_of_all_kinds();
  std::erase_if(source, [](const auto& tensor) { return !tensor.defined(); });
  Tensors target;
  for (const auto& tensor : source) target.push_back(torch::full_like(tensor, -1));
  std::vector<std::int64_t> versions;
  for (const auto& tensor : target) versions.push_back(tensor._version());
  copy_coalesced(source, target);
  for (std::size_t i = 0; i < target.size(); ++i) {
    EXPECT_TRUE(torch::equal(target[i], source[i])) << i;
    EXPECT_EQ(target[i].strides(), source[i].strides()) << i;
    EXPECT_GT(target[i]._version(), versions[i]) << i;
  }
}

TEST(CoalescedCopy, IsNoneOnOneDevice) {
  const auto source = tensors_of_all_kinds();
  const auto result = coalesced_to(torch::kCPU, source);
  for (std::size_t i = 0; i < source.size(); ++i) EXPECT_TRUE(result[i].is_same(source[i])) << i;
}

TEST(CoalescedCopy, IsOneForEachDtypeAndBucket) {
  const auto source = tensors_of_all_kinds();
  const OperatorCalls copies("aten::_to_copy");
  const auto result = coalesced_to(torch::kMeta, source);  // the other device without a GPU
  EXPECT_EQ(copies.count(), 4) << "three of float32, because one is large, and one of int64";
  for (std::size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(result[i].defined(), source[i].defined()) << i;
    if (!source[i].defined()) continue;
    EXPECT_TRUE(result[i].is_meta()) << i;
    EXPECT_EQ(result[i].sizes(), source[i].sizes()) << i;
  }
}

// --- on GPUs ----------------------------------------------------------------------------

const torch::Device kFirst(torch::kCUDA, 0);
const torch::Device kSecond(torch::kCUDA, 1);

std::shared_ptr<DataParallel> on_devices(const Recipe& recipe, const Devices& devices) {
  const auto model = first_model(recipe);
  model->to(devices.front());
  return std::make_shared<DataParallel>(model, DataParallelOptions{.device_ids = devices});
}

// The order of a sum may differ from run to run there.
TEST(DataParallel, HasTheGradientOfThePlainModelOnTwoGpus) {
  if (visible_gpu_count() < 2) GTEST_SKIP() << "skipped: fewer than two GPUs";
  run_alone([] {
    for (const auto& recipe : {basicnet(), convnet()}) {
      const auto apart = on_devices(recipe, {kFirst, kSecond});
      const auto together = on_devices(recipe, {kFirst, kFirst});
      const auto optimizer = recipe.make_optimizer(apart->parameters());
      const auto other_optimizer = recipe.make_optimizer(together->parameters());
      for (int step = 0; step < 3; ++step) {
        const auto batch = random_batch(8, static_cast<std::uint64_t>(step)).to(kFirst);
        run_backward(*apart, recipe, batch);
        run_backward(*together, recipe, batch);
        EXPECT_LE(
            relative_difference(flat_gradients(*apart).cpu(), flat_gradients(*together).cpu()),
            1e-4)
            << step;
        optimizer->step();
        other_optimizer->step();
      }
      const auto buffers = apart->buffers();
      const auto others = together->buffers();
      for (std::size_t b = 0; b < buffers.size(); ++b) {
        EXPECT_TRUE(torch::allclose(buffers[b].cpu(), others[b].cpu(), 1e-4, 1e-4)) << b;
      }
    }
  });
}

TEST(CoalescedCopy, BetweenTwoGpusKeepsShapesAndValues) {
  if (visible_gpu_count() < 2) GTEST_SKIP() << "skipped: fewer than two GPUs";
  run_alone([] {
    const auto tensors = tensors_of_all_kinds();
    Tensors there;
    for (const auto& tensor : tensors) {
      there.push_back(tensor.defined() ? tensor.to(kFirst) : tensor);
    }
    const auto moved = coalesced_to(kSecond, there);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined()) continue;
      EXPECT_EQ(moved[i].device(), kSecond) << i;
      EXPECT_TRUE(torch::equal(moved[i].cpu(), tensors[i])) << i;
    }
  });
}

// The current device and stream of each forward and backward, as replicas see them.
class StreamWitness : public Model {
 public:
  explicit StreamWitness(std::shared_ptr<StreamWitness> chief = nullptr)
      : linear(register_module("linear", torch::nn::Linear(784, 10))), chief_(std::move(chief)) {}

  torch::Tensor forward(const Inputs& inputs) override {
    note(forwards(), linear->weight.device());
    auto output = linear(inputs.only().flatten(1));
    if (output.requires_grad()) {
      output.register_hook(
          [this](const torch::Tensor& gradient) { note(backwards(), gradient.device()); });
    }
    return output;
  }

  std::shared_ptr<Model> new_like() const override {
    auto self = std::const_pointer_cast<torch::nn::Module>(shared_from_this());
    auto copy = std::make_shared<StreamWitness>(std::dynamic_pointer_cast<StreamWitness>(self));
    copy_values(*this, *copy);
    return copy;
  }

  torch::nn::Linear linear;
  std::mutex mutex;
  std::set<std::string> seen_forward;
  std::set<std::string> seen_backward;

 private:
  StreamWitness& writer() { return chief_ == nullptr ? *this : *chief_; }
  std::set<std::string>& forwards() { return writer().seen_forward; }
  std::set<std::string>& backwards() { return writer().seen_backward; }

  void note(std::set<std::string>& seen, const torch::Device& own) {
    const c10::impl::VirtualGuardImpl gpu(own.type());
    const auto stream = gpu.getStream(own);
    const std::lock_guard lock(writer().mutex);
    seen.insert(fmt::format("{} on {}: stream {}", own.str(), gpu.getDevice().str(), stream.id()));
  }

  std::shared_ptr<StreamWitness> chief_;
};

// The streams of the second GPU on which tensors are joined for a copy, in any thread.
std::set<c10::StreamId>& streams_of_copies() {
  static std::set<c10::StreamId> streams;
  return streams;
}
std::unique_ptr<at::ObserverContext> note_copy(const at::RecordFunction& call) {
  static std::mutex mutex;
  if (std::string_view(call.name()) != "aten::flatten_dense_tensors") return nullptr;
  const std::lock_guard lock(mutex);
  streams_of_copies().insert(c10::impl::VirtualGuardImpl(torch::kCUDA).getStream(kSecond).id());
  return nullptr;
}

TEST(DataParallel, OnTwoGpusUsesTheStreamsOfItsCaller) {
  if (visible_gpu_count() < 2) GTEST_SKIP() << "skipped: fewer than two GPUs";
  run_alone([] {
    const c10::impl::VirtualGuardImpl gpu(torch::kCUDA);
    const auto witness = std::make_shared<StreamWitness>();
    witness->to(kFirst);
    DataParallel model(witness, {.device_ids = {kFirst, kSecond}});
    std::set<std::string> expected;
    std::vector<c10::Stream> streams;
    for (const auto& device : {kFirst, kSecond}) {
      streams.push_back(gpu.getStreamFromGlobalPool(device));
      EXPECT_NE(streams.back(), gpu.getStream(device));
      expected.insert(fmt::format("{0} on {0}: stream {1}", device.str(), streams.back().id()));
    }
    const c10::MultiStreamGuard others(streams);
    at::addGlobalCallback(at::RecordFunctionCallback(note_copy));
    model.forward(random_batch(8).inputs.only().to(kFirst)).sum().backward();
    EXPECT_EQ(streams_of_copies(), std::set{streams.back().id()});
    EXPECT_EQ(witness->seen_forward, expected);
    EXPECT_EQ(witness->seen_backward, expected);
  });
}

TEST(DataParallel, HasTheGradientOfThePlainModelOnAGpuShared) {
  if (visible_gpu_count() == 0) GTEST_SKIP() << "skipped: no GPU";
  run_alone([] {
    at::globalContext().setAllowTF32CuDNN(false);  // it rounds the factors to 10 bits
    const torch::Device gpu("cuda:0");
    const auto model = first_model(basicnet());
    model->to(gpu);
    DataParallel replicas(model, {.device_ids = {gpu, gpu}});
    run_backward(replicas, basicnet(), random_batch(8).to(gpu));
    EXPECT_LE(relative_difference(
                  flat_gradients(replicas).cpu(),
                  gradient_of_one_process(first_model(basicnet()), basicnet(), random_batch(8))),
              1e-4);  // cuDNN's kernels and the CPU's round differently
  });
}

}  // namespace
}  // namespace ladder
