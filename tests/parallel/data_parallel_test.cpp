// SPDX-License-Identifier: Apache-2.0
#include "ladder/parallel/data_parallel.h"

#include <ATen/Parallel.h>
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

#include "ladder/amp/autocast.h"
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
#include "tests/support/replicas.h"
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

TEST_ALONE(DataParallel, EndsTwiceWithTheSameBitsOnOneDeviceWithThoseOfThePlainModel) {
  for (const auto& recipe : {basicnet(), convnet()}) {
    const auto hash = [&](std::size_t replicas) {
      return hash_of_run(replicated(first_model(recipe), replicas), recipe);
    };
    EXPECT_EQ(hash(1), hash_of_run(first_model(recipe), recipe));
    EXPECT_EQ(hash(3), hash(3));
  }
}

// Batches that divide, that do not, and with fewer images than replicas, or none. With dropout.
TEST_ALONE(DataParallel, HasTheGradientOfThePlainModel) {
  for (const std::size_t replicas : {2U, 3U, 4U}) {
    const auto model = replicated(small_net(), replicas);
    for (const std::int64_t size : {12, 7, 5, 2, 1}) {
      SCOPED_TRACE(std::to_string(size) + " images, " + std::to_string(replicas) + " replicas");
      run_backward(*model, basicnet(), random_batch(size));
      EXPECT_LE(distance_from_one_process(*model, random_batch(size)), 1e-6);
    }
  }
}

TEST_ALONE(DataParallel, HasTheGradientOfAPlainModelWithTiedOrFrozenWeights) {
  const auto images = torch::ones({4, 2});
  for (const auto& options : {TwoLayersOptions{.tied = true}, TwoLayersOptions{.frozen = true}}) {
    TwoLayers plain(options);
    const auto network = std::make_shared<TwoLayers>(options);
    const auto model = replicated(network, 2);
    plain.forward(images).mean().backward();
    model->forward(images).mean().backward();
    EXPECT_EQ(network->a->weight.grad().defined(), !options.frozen);
    EXPECT_LE(relative_difference(network->b->weight.grad(), plain.b->weight.grad()), 1e-6);
    network->a->weight.set_requires_grad(true);  // a frozen one changes its role
    model->forward(images).mean().backward();
    EXPECT_TRUE(network->a->weight.grad().defined());
  }
  const auto scalar = std::make_shared<TwoLayers>(TwoLayersOptions{.scalar = true});
  EXPECT_ERROR(replicated(scalar, 2)->forward(images), UsageError,
               "output of the model: expected one row per sample, got 'a scalar'");
}

TEST_ALONE(DataParallel, GivesTheOutputsInTheOrderOfTheImagesOrNone) {
  const auto model = replicated(small_net(), 3);
  const auto batch = random_batch(8);
  EXPECT_ERROR(model->forward(batch.inputs), UsageError, "RandomScope");  // for dropout
  {
    const RandomScope random({42, 0, batch.positions});
    const auto expected = small_net()->forward(batch.inputs);
    EXPECT_LE(relative_difference(model->forward(batch.inputs), expected), 1e-6);
  }
  const auto none = part_of(batch, 0, 0, 1);
  EXPECT_EQ(loss_of(*model, basicnet(), none).item<float>(), 0.0F);
  run_backward(*model, basicnet(), none);
  EXPECT_EQ(flat_gradients(*model).abs().sum().item<float>(), 0.0F);
}

// Two parts, added in the same order.
TEST_ON_RANKS(DataParallel, WithTwoReplicasIsBitEqualToTwoRanks, 2) {
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
}

TEST_ALONE(DataParallel, KeepsTheRunningStatisticsOfTheFirstPartAndEvaluatesWithThemOnAll) {
  const auto model = replicated(first_model(convnet()), 3);
  const auto plain = first_model(convnet());
  for (int step = 1; step <= 3; ++step) {
    const auto images = random_batch(9, static_cast<std::uint64_t>(step)).inputs.only();
    model->forward(images);
    plain->forward(images.narrow(0, 0, 3));
    EXPECT_EQ(model->buffers().at(2).item<std::int64_t>(), step);  // num_batches_tracked
    EXPECT_TRUE(torch::equal(flat(model->buffers()), flat(plain->buffers())));
  }
  model->eval();
  plain->eval();
  const torch::NoGradGuard no_grad;
  const auto images = random_batch(7).inputs.only();
  EXPECT_LE(relative_difference(model->forward(images), plain->forward(images)), 1e-6);
  EXPECT_TRUE(torch::equal(flat(model->buffers()), flat(plain->buffers())));
}

// As a BatchNorm that is frozen, in all replicas, and in their copies.
TEST_ALONE(DataParallel, KeepsTheModeOfEachLayer) {
  const auto model = replicated(first_model(convnet()), 2);
  const auto plain = first_model(convnet());
  const auto frozen = [](torch::nn::Module& net) { return net.named_modules()["layer1.1"]; };
  for (auto* const net : {&model->module(), plain.get()}) frozen(*net)->eval();
  const auto images = random_batch(2).inputs.only();
  for (int image = 0; image < 2; ++image) {
    EXPECT_TRUE(
        torch::equal(model->forward(images)[image], plain->forward(images.narrow(0, image, 1))[0]));
  }
  EXPECT_FALSE(frozen(*plain->new_like())->is_training());
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

TEST_ALONE(DataParallel, RunsEachReplicaOnAThreadOfItsOwnWithTheStateOfTheCaller) {
  at::set_num_threads(6);
  const auto witness = std::make_shared<Witness>();
  const auto model = replicated(witness, 3);
  const auto images = random_batch(6).inputs.only();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(model->forward(images).requires_grad());
  }
  EXPECT_EQ(witness->graphs, std::set<bool>{false});
  EXPECT_TRUE(model->forward(images).requires_grad());
  EXPECT_EQ(witness->graphs, (std::set<bool>{false, true}));
  EXPECT_EQ(witness->threads.size(), 3U);
  EXPECT_EQ(witness->threads.count(std::this_thread::get_id()), 0U);
  EXPECT_EQ(witness->teams, std::set<int>{2});
  EXPECT_EQ(at::get_num_threads(), 6);
}

TEST_ALONE(DataParallel, TakesTheAutocastOfTheCallerToTheReplicas) {
  const auto forward = [](Model& model, const Batch& batch) {
    const Autocast autocast(torch::kCPU, torch::kBFloat16);
    const RandomScope random({42, 0, batch.positions});
    return model.forward(batch.inputs);
  };
  const auto witness = std::make_shared<Witness>();
  const auto model = replicated(witness, 2);
  const auto batch = random_batch(8);
  EXPECT_EQ(forward(*model, batch).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(witness->dtypes, std::set<torch::ScalarType>{torch::kBFloat16});
  EXPECT_EQ(model->forward(batch.inputs).scalar_type(), torch::kFloat32);
  const auto gradient = [&](Model& network) {
    basicnet().loss(forward(network, batch).to(torch::kFloat32), batch).backward();
    return flat_gradients(network);
  };
  constexpr double kBFloat16Unit = 1.0 / 256;
  EXPECT_LE(relative_difference(gradient(*replicated(first_model(basicnet()), 2)),
                                gradient(*first_model(basicnet()))),
            2 * kBFloat16Unit);
}

// A gradient penalty would be left out of the gradient without an error.
TEST_ALONE(DataParallel, RefusesToDifferentiateItsGradient) {
  const auto model = replicated(small_net(), 2);
  model->eval();  // without dropout
  const auto images = random_batch(4).inputs.only().requires_grad_();
  const auto output = model->forward(images).sum();
  EXPECT_ERROR(torch::autograd::grad({output}, {images}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true),
               UsageError, "a model of several replicas: its gradient is not differentiable");
}

TEST_ALONE(DataParallel, DividesEveryInputAndGivesGradientsToThoseThatAskForThem) {
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
}

TEST_ALONE(DataParallel, AddsUpGradientsOfTwoForwardsBeforeABackward) {
  const auto model = replicated(small_net(), 2);
  const auto batch = random_batch(8);
  const auto first = loss_of(*model, basicnet(), part_of(batch, 0, 4, 1));
  const auto second = loss_of(*model, basicnet(), part_of(batch, 4, 4, 1));
  (first + second).backward();
  EXPECT_LE(distance_from_one_process(*model, batch), 1e-6);
  // BatchNorm's buffers are brought to the replicas in between.
  const auto with_buffers = replicated(first_model(convnet()), 2);
  const auto one = loss_of(*with_buffers, convnet(), random_batch(8, 1));
  const auto other = loss_of(*with_buffers, convnet(), random_batch(8, 2));
  EXPECT_NO_THROW((one + other).backward());
}

TEST_ALONE(DataParallel, MayBeGoneWhenItsBackwardRuns) {
  const auto network = small_net();
  auto model = replicated(network, 2);
  const auto loss = loss_of(*model, basicnet(), random_batch(6));
  model.reset();
  loss.backward();
  EXPECT_LE(distance_from_one_process(*network, random_batch(6)), 1e-6);
}

TEST_ALONE(DataParallel, SeesWeightsThatAreLoadedOrExchanged) {
  const auto network = first_model(convnet());
  expect_sees_weights_that_are_loaded_or_exchanged(*replicated(network, 2), *network);
}

TEST_ALONE(DataParallel, ShowsTheWrappedModelAndNothingOfTheReplicas) {
  const auto draw = [](std::size_t replicas) {
    const auto model = replicated(first_model(convnet()), replicas);
    model->forward(random_batch(4).inputs.only());
    return torch::rand({1}).item<float>();
  };
  EXPECT_EQ(draw(3), draw(1)) << "the random generator";
  const auto network = first_model(convnet());
  const auto model = replicated(network, 3);
  model->forward(random_batch(3).inputs.only());
  expect_names_and_copy_of_wrapper(*model, *network);
}

TEST_ALONE(DataParallel, HandsOnWhatAReplicaThrowsAndWorksAfterwards) {
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
}

// A layer on the device without memory, in the place of a Linear.
struct OnMeta : torch::nn::Module {
  OnMeta() { register_parameter("weight", torch::empty({10, 784}, torch::kMeta)); }
};

TEST_ALONE(DataParallel, WantsDevicesAndTheModelOnTheFirst) {
  const auto with = [](const DataParallelOptions& options) {
    return DataParallel(first_model(convnet()), options).forward(random_batch(4).inputs.only());
  };
  EXPECT_ERROR(with({}), UsageError, "one device or more in device_ids");
  EXPECT_ERROR(with({.device_ids = {torch::Device("cuda:0"), torch::kCPU}}), UsageError,
               "layer1.0.weight is on cpu, expected cuda:0; hint: move");
  for (const std::size_t replicas : {1U, 2U}) {
    EXPECT_TRUE(with({.device_ids = cpus(replicas)}).is_cpu());
    EXPECT_TRUE(
        with({.device_ids = cpus(replicas), .output_device = torch::Device("meta")}).is_meta());
  }
  const auto witness = std::make_shared<Witness>();
  const auto moved = replicated(witness, 2);
  witness->replace_module("linear", std::make_shared<OnMeta>());
  EXPECT_ERROR(moved->forward(random_batch(4).inputs.only()), UsageError,
               "linear.weight is on meta, expected cpu");
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

TEST(CoalescedCopy, IsNoneOnOneDeviceAndElseOneForEachDtypeAndBucket) {
  const auto source = tensors_of_all_kinds();
  const auto here = coalesced_to(torch::kCPU, source);
  const OperatorCalls copies("aten::_to_copy");
  const auto result = coalesced_to(torch::kMeta, source);  // the other device without a GPU
  EXPECT_EQ(copies.count(), 4) << "three of float32, because one is large, and one of int64";
  for (std::size_t i = 0; i < source.size(); ++i) {
    EXPECT_TRUE(here[i].is_same(source[i])) << i;
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
