// SPDX-License-Identifier: Apache-2.0
// LibTorch as its examples use it: torch::data loads sample by sample, images are NCHW, the
// optimizer is torch::optim's, and on several GPUs torch::nn::parallel::data_parallel divides each
// batch. The opponent of stage 0 in C++: what ladder adds is the difference.
//   build/bin/libtorch_usual --metrics run.jsonl
#include <fmt/core.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/clock.h"
#include "ladder/core/device.h"
#include "ladder/core/error.h"
#include "ladder/core/log.h"
#include "ladder/core/memory.h"
#include "ladder/io/appended_file.h"
#include "ladder/nn/state_dict.h"
#include "mnist/files.h"
#include "mnist/main.h"
#include "mnist/recipe.h"

namespace {

using Options = mnist::SingleOptions;
namespace data = torch::data;
namespace nn = torch::nn;

// The network of PyTorch's MNIST example. Cloneable: data_parallel makes a replica per GPU.
struct BasicNetImpl : nn::Cloneable<BasicNetImpl> {
  explicit BasicNetImpl(std::int64_t channel_multiplier) : width(channel_multiplier) { reset(); }

  void reset() override {
    conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 32 * width, 3)));
    conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(32 * width, 64 * width, 3)));
    fc1 = register_module("fc1", nn::Linear(9216 * width, 128 * width));
    fc2 = register_module("fc2", nn::Linear(128 * width, 10));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::relu(conv2(x));
    x = torch::max_pool2d(x, 2);
    x = torch::dropout(x, 0.25, is_training()).flatten(1);
    x = torch::relu(fc1(x));
    x = torch::dropout(x, 0.5, is_training());
    return torch::log_softmax(fc2(x), 1);
  }

  static torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& targets) {
    return torch::nll_loss(output, targets);
  }

  std::int64_t width;
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::Linear fc1{nullptr}, fc2{nullptr};
};

// The network of the DDP-practice tutorial.
struct ConvNetImpl : nn::Cloneable<ConvNetImpl> {
  explicit ConvNetImpl(std::int64_t channel_multiplier) : width(channel_multiplier) { reset(); }

  static nn::Sequential layer(std::int64_t inputs, std::int64_t outputs) {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(inputs, outputs, 5).padding(2)),
                          nn::BatchNorm2d(outputs), nn::ReLU(), nn::MaxPool2d(2));
  }

  void reset() override {
    layer1 = register_module("layer1", layer(1, 16 * width));
    layer2 = register_module("layer2", layer(16 * width, 32 * width));
    fc = register_module("fc", nn::Linear(7 * 7 * 32 * width, 10));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return fc(layer2->forward(layer1->forward(x)).flatten(1));
  }

  static torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& targets) {
    return torch::nn::functional::cross_entropy(output, targets);
  }

  std::int64_t width;
  nn::Sequential layer1{nullptr}, layer2{nullptr};
  nn::Linear fc{nullptr};
};

TORCH_MODULE(BasicNet);
TORCH_MODULE(ConvNet);

// Images of one channel with values from 0 to 1, and their classes.
class Images : public data::Dataset<Images> {
 public:
  Images(const std::string& root, mnist::Split split, std::int64_t limit) {
    const auto files = mnist::read_files(root, split);
    const auto count = files.images.count;
    auto pixels = torch::from_blob(const_cast<std::uint8_t*>(files.images.pixels.data()),
                                   {count, 1, 28, 28}, torch::kUInt8);
    auto labels = torch::from_blob(const_cast<std::uint8_t*>(files.labels.labels.data()), {count},
                                   torch::kUInt8);
    const auto kept = limit > 0 ? std::min(limit, count) : count;
    images_ = pixels.narrow(0, 0, kept).to(torch::kFloat32).div_(255);
    labels_ = labels.narrow(0, 0, kept).to(torch::kInt64);
  }

  data::Example<> get(std::size_t index) override {
    const auto at = static_cast<std::int64_t>(index);
    return {images_[at], labels_[at]};
  }
  torch::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(labels_.size(0));
  }

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
};

auto normalized(Images images, const mnist::Recipe& recipe) {
  const auto& normalization = recipe.normalization();
  return images.map(data::transforms::Normalize<>(normalization.mean, normalization.std))
      .map(data::transforms::Stack<>());
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const mnist::Recipe& recipe,
                                                        std::vector<torch::Tensor> parameters) {
  if (recipe.name() == "convnet") {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), recipe.lr());
  }
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(recipe.lr()));
}

// What the records of the other programs have, as far as the suite reads it.
struct Totals {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::int64_t correct = 0;
  std::int64_t seen = 0;
  double first_step_at = 0.0;    // seconds of the steady clock
  double warm_up_seconds = 0.0;  // of the first 20 steps
  double train_seconds = 0.0;
  double loss = 0.0;       // over the samples of the last epoch
  double eval_loss = 0.0;  // over the test images
};

template <typename Net>
torch::Tensor forward(Net net, const torch::Tensor& images) {
  if (torch::cuda::device_count() < 2) return net->forward(images);
  return nn::parallel::data_parallel(net, images);
}

template <typename Net, typename Loader>
void train_epoch(Net net, Loader& loader, torch::optim::Optimizer& optimizer,
                 const torch::Device& device, Totals& totals) {
  constexpr std::int64_t kWarmUp = 20;
  const double begin = ladder::steady_seconds();
  double loss_sum = 0.0;
  std::int64_t samples = 0;
  net->train();
  for (auto& batch : loader) {
    optimizer.zero_grad();
    const auto targets = batch.target.to(device);
    const auto loss = Net::Impl::loss(forward(net, batch.data.to(device)), targets);
    loss.backward();
    optimizer.step();
    loss_sum += loss.template item<double>() * static_cast<double>(targets.size(0));
    samples += targets.size(0);
    const double now = ladder::steady_seconds();
    if (++totals.steps == 1) totals.first_step_at = now;
    if (totals.steps == kWarmUp) totals.warm_up_seconds = totals.train_seconds + now - begin;
  }
  totals.loss = loss_sum / static_cast<double>(samples);
  totals.samples += samples;
  totals.train_seconds += ladder::steady_seconds() - begin;
}

template <typename Net, typename Loader>
void test(Net net, Loader& loader, const torch::Device& device, Totals& totals) {
  const torch::NoGradGuard no_grad;
  net->eval();
  for (auto& batch : loader) {
    const auto targets = batch.target.to(device);
    const auto output = net->forward(batch.data.to(device));
    totals.correct += output.argmax(1).eq(targets).sum().template item<std::int64_t>();
    totals.eval_loss +=
        Net::Impl::loss(output, targets).template item<double>() * double(targets.size(0));
    totals.seen += targets.size(0);
  }
  totals.eval_loss /= static_cast<double>(totals.seen);
}

void write_record(const Options& options, const mnist::Recipe& recipe, const torch::Device& device,
                  const Totals& totals, const nn::Module& net, double started) {
  if (options.record.metrics.empty()) return;
  ladder::JsonLines metrics(options.record.metrics, "--metrics");
  metrics.write({{"record", "run"},
                 {"stage", options.record.stage},
                 {"world_size", 1},
                 {"batch_size", recipe.batch_size()},
                 {"lr", recipe.lr()}});
  metrics.write({{"record", "result"},
                 {"recipe", recipe.name()},
                 {"precision", "fp32"},
                 {"device", device.str()},
                 {"steps", totals.steps},
                 {"accuracy", 100.0 * double(totals.correct) / double(totals.seen)},
                 {"correct", totals.correct},
                 {"seen", totals.seen},
                 {"train_loss", totals.loss},
                 {"eval_loss", totals.eval_loss},
                 {"train_seconds", totals.train_seconds},
                 {"total_seconds", ladder::steady_seconds() - started},
                 {"first_step_at", totals.first_step_at},
                 {"warm_up_seconds", totals.warm_up_seconds},
                 {"samples_per_second", double(totals.samples) / totals.train_seconds},
                 {"peak_rss_bytes", ladder::peak_rss_bytes()},
                 {"weights_sha256", ladder::weights_sha256(ladder::state_dict(net))}});
}

// Flags of stage 0 that this program has no use for.
void require_no_other_flags(const Options& options) {
  const std::vector<std::pair<const char*, bool>> others = {
      {"--save", !options.save.empty()},
      {"--load", !options.load.empty()},
      {"--trace", !options.monitor.trace.empty()},
      {"--fingerprint", options.monitor.fingerprint != 0},
      {"--augment", options.data.augment},
      {"--num-workers", options.data.num_workers != 0},
      {"--pin-memory", options.data.pin_memory},
      {"--math", options.recipe.math != mnist::Math::kFast},
      {"--scheduler", options.recipe.scheduler != "none"}};
  for (const auto& [flag, given] : others) {
    if (!given) continue;
    throw ladder::UsageError::conflict(flag, "libtorch_usual does without it",
                                       "use stage0_single_gpu, or omit the flag");
  }
}

template <typename Net>
void train_and_test(const Options& options) {
  require_no_other_flags(options);
  const double started = ladder::steady_seconds();
  const mnist::Recipe recipe(options.recipe);
  if (options.threads > 0) torch::set_num_threads(options.threads);
  const torch::Device device = ladder::choose_device(options.device, ladder::Log({.quiet = true}));
  const auto& [root, limit_train, limit_test, augment, workers, pin] = options.data;
  auto train_set = normalized(Images(root, mnist::Split::kTrain, limit_train), recipe);
  auto test_set = normalized(Images(root, mnist::Split::kTest, limit_test), recipe);
  torch::manual_seed(recipe.seed());
  Net net(options.recipe.width);
  net->to(device);
  const auto optimizer = make_optimizer(recipe, net->parameters());
  const auto batch_size = static_cast<std::size_t>(recipe.batch_size());
  auto train_loader = data::make_data_loader<data::samplers::RandomSampler>(train_set, batch_size);
  auto test_loader = data::make_data_loader<data::samplers::SequentialSampler>(
      test_set, static_cast<std::size_t>(recipe.eval_batch_size()));
  Totals totals;
  for (std::int64_t epoch = 1; epoch <= recipe.epochs(); ++epoch) {
    train_epoch(net, *train_loader, *optimizer, device, totals);
  }
  test(net, *test_loader, device, totals);
  fmt::print("{}\n", recipe.accuracy_line(100.0 * double(totals.correct) / double(totals.seen)));
  fmt::print("time elapsed: {:.2f} seconds\n", ladder::steady_seconds() - started);
  write_record(options, recipe, device, totals, *net, started);
}

void run(const Options& options) {
  options.recipe.name == "convnet" ? train_and_test<ConvNet>(options)
                                   : train_and_test<BasicNet>(options);
}

}  // namespace

int main(int argc, char** argv) { return mnist::run_main<Options>(argc, argv, run); }
