// SPDX-License-Identifier: Apache-2.0
#include "exercises/data-parallel/data-parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "exercises/grader/grader.h"
#include "ladder/parallel/data_parallel.h"
#include "tests/support/training.h"

namespace ladder::exercises::data_parallel {
namespace {

constexpr std::int64_t kImages = 5;

Batch images(std::int64_t count = kImages) { return random_batch(count, fresh_seed() + 1); }

// A network that counts the copies made of it.
class CountedNet : public Model {
 public:
  CountedNet()
      : hidden_(register_module("hidden", torch::nn::Linear(28 * 28, 16))),
        output_(register_module("output", torch::nn::Linear(16, 10))) {}

  torch::Tensor forward(const Inputs& inputs) override {
    ++runs;
    parts->push_back(inputs.only().size(0));
    const auto hidden = hidden_->forward(inputs.only().flatten(1));
    return torch::log_softmax(output_->forward(torch::tanh(hidden)), 1);
  }
  std::shared_ptr<Model> new_like() const override {
    ++copies;
    const RngStateGuard keep;
    auto copy = std::make_shared<CountedNet>();
    copy_values(*this, *copy);
    copy->parts = parts;
    return copy;
  }

  int runs = 0;
  // The images of each run, also of those of the copies.
  std::shared_ptr<std::vector<std::int64_t>> parts = std::make_shared<std::vector<std::int64_t>>();
  mutable int copies = 0;

 private:
  torch::nn::Linear hidden_;
  torch::nn::Linear output_;
};

std::shared_ptr<CountedNet> new_net() {
  torch::manual_seed(1);
  return std::make_shared<CountedNet>();
}

using Step = std::function<double(Model& model, const Batch& batch, int replicas)>;

Step step_of(const ReplicatedBackward& yours) {
  return [&yours](Model& model, const Batch& batch, int replicas) {
    return yours.backward(model, batch.inputs.only(), batch.targets, replicas,
                          basicnet().criterion());
  };
}

// Gradients of `parts` of the batch, summed in the given order, each of the mean over all images.
torch::Tensor summed(const std::vector<torch::Tensor>& parts) {
  auto total = torch::zeros_like(parts.front());
  for (const auto& part : parts) total += part;
  return total;
}

std::vector<torch::Tensor> gradients_of_parts(const Batch& batch, int replicas) {
  std::vector<torch::Tensor> parts;
  std::int64_t begin = 0;
  for (const auto& part : torch::tensor_split(batch.inputs.only(), replicas)) {
    if (part.size(0) == 0) continue;
    const auto net = new_net();
    const auto targets = batch.targets.narrow(0, begin, part.size(0));
    (basicnet().criterion()(net->forward(part), targets) / batch.size()).backward();
    parts.push_back(flat_gradients(*net));
    begin += part.size(0);
  }
  return parts;
}

torch::Tensor gradients_after(const Model& model) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : model.parameters()) {
    all.push_back(parameter.grad().defined() ? parameter.grad() : torch::zeros_like(parameter));
  }
  return flat(all);
}

bool close(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::allclose(a, b, 1e-4, 1e-6);
}

std::string meaning(const torch::Tensor& got, const std::vector<torch::Tensor>& parts) {
  const auto expected = summed(parts);
  const auto n = static_cast<double>(parts.size());
  if (!got.any().item<bool>()) return "the gradients stay in the replicas";
  if (parts.size() > 1 && close(got * n, expected)) {
    return "the gradients are averaged over the replicas; they have to be added";
  }
  if (close(got, expected * static_cast<double>(kImages))) {
    return "the loss is the sum over the images, not their mean";
  }
  auto of_means = torch::zeros_like(expected);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto size = static_cast<double>(kImages / parts.size() + (i < kImages % parts.size()));
    of_means += parts[i] * (static_cast<double>(kImages) / (n * size));
  }
  if (close(got, of_means)) {
    return "the mean of the means of parts: an image of a smaller part counts more";
  }
  auto but_last = parts;
  but_last.pop_back();
  if (close(got, parts.front()) || (!but_last.empty() && close(got, summed(but_last)))) {
    return "the gradients of some replicas are not added";
  }
  auto of_images = gradients_of_parts(images(), kImages);
  of_images.resize(parts.size() > 1 ? kImages / parts.size() * parts.size() : 1);
  return close(got, summed(of_images))
             ? "the images at the end are left out where the replicas do not divide them"
             : "the outputs are joined in another order than the targets";
}

void gradients(const ReplicatedBackward& yours, int replicas) {
  const auto batch = images();
  const auto net = new_net();
  const auto weights = flat_weights(*net);
  const double loss = step_of(yours)(*net, batch, replicas);
  const auto parts = gradients_of_parts(batch, replicas);
  const auto expected = summed(parts);
  const auto got = gradients_after(*net);
  const auto where = fmt::format("{} images on {} replicas", kImages, replicas);
  expect(
      close(got, expected), where + ": the gradients of the plain model",
      fmt::format("gradients {:.3f} times as large", (got.norm() / expected.norm()).item<double>()),
      meaning(got, parts));
  expect(torch::equal(weights, flat_weights(*net)), "unchanged weights", "other weights",
         "backward changes gradients alone");
  const int most = std::min<int>(replicas, kImages);
  expect(net->copies == most && net->runs == 0,
         fmt::format("{}: {} copies of the model", where, most),
         fmt::format("{} copies, and {} runs of the model itself", net->copies, net->runs),
         net->runs > 0        ? "the parts run on the model itself, not on replicas"
         : net->copies > most ? "replicas without an image"
                              : "replicas are kept from one call to the next");
  const double plain =
      basicnet().criterion()(new_net()->forward(batch.inputs), batch.targets).item<double>() /
      static_cast<double>(kImages);
  expect(std::abs(loss - plain) < 1e-5, fmt::format("{}: a loss of {:.5f}", where, plain),
         fmt::format("{:.5f}", loss), "the result is the mean loss over all images");
  expect(torch::equal(got, expected),
         where + ": the sum of the gradients, replica 0 first, bit for bit", "other last bits",
         "the replicas are added in another order");
  result(got);
}

void sizes_of_parts(const ReplicatedBackward& yours) {
  const auto net = new_net();
  step_of(yours)(*net, images(7), 3);
  const auto got = fmt::format("{}", fmt::join(*net->parts, ", "));
  expect(got == "3, 2, 2", "7 images on 3 replicas: parts of 3, 2, 2", got,
         "a part has a rounded size, as those of torch::chunk, or the rest: torch::tensor_split");
  result(gradients_after(*net));
}

void second_call(const ReplicatedBackward& yours) {
  const auto batch = images();
  const auto net = new_net();
  step_of(yours)(*net, batch, 2);
  const auto once = gradients_after(*net);
  step_of(yours)(*net, batch, 2);
  expect(close(gradients_after(*net), 2 * once),
         "a second call doubles the gradients, as backward does",
         fmt::format("{:.2f} times those of the first call",
                     (gradients_after(*net).norm() / once.norm()).item<double>()),
         "the gradients of the model before the call are lost");
  result(gradients_after(*net));
}

void grade(Grader& grader, const ReplicatedBackward& yours) {
  using Group = const ProcessGroup&;
  for (const int replicas : {1, 2, 3, 7}) {
    grader.property(fmt::format("five images on {} replica{}", replicas, replicas == 1 ? "" : "s"),
                    1, [&](Group) { gradients(yours, replicas); });
  }
  grader.property("seven images on 3 replicas", 1, [&](Group) { sizes_of_parts(yours); });
  grader.property("gradients add up over two calls", 1, [&](Group) { second_call(yours); });
  const auto batch_of_64 = [] { return random_batch(64); };
  grader.compare_times(
      1, "a batch of 64 on two replicas",
      [&](Group) {
        const auto net = first_model(basicnet());
        net->eval();
        step_of(yours)(*net, batch_of_64(), 2);
      },
      [&](Group) {
        const auto net = first_model(basicnet());
        net->eval();
        DataParallel parallel(net, {.device_ids = {torch::kCPU, torch::kCPU}});
        loss_of(parallel, basicnet(), batch_of_64()).backward();
      });
}

const Graded<ReplicatedBackward> graded("data-parallel", grade);

}  // namespace
}  // namespace ladder::exercises::data_parallel
