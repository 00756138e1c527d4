// SPDX-License-Identifier: Apache-2.0
// Do two images show the same digit? The data, the transform, the network and the loss that ddp.cpp
// and trainer.cpp share. It needs the installed library and zlib. Replace it with your own.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/core.h>
#include <ladder/core/error.h>
#include <ladder/core/philox.h>
#include <ladder/data/dataset.h>
#include <ladder/nn/model.h>
#include <ladder/nn/state_dict.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pairs {

// The items of a compressed IDX file, uint8: images [N, 28, 28] or labels [N]. An IDX file begins
// with two zeros, the item type, the number of dimensions D, and D sizes of four bytes each, most
// significant byte first. Throws DataError.
inline torch::Tensor read_idx(const std::string& path) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) {
    throw ladder::DataError::missing_file(path, "give the folder of the MNIST files: --data DIR");
  }
  const auto read = [&](void* bytes, std::size_t count) {
    if (gzread(file.get(), bytes, static_cast<unsigned>(count)) == static_cast<int>(count)) return;
    throw ladder::DataError::mismatch(path, "an IDX file", "a damaged file", "copy it again");
  };
  std::array<std::uint8_t, 4> word{};
  read(word.data(), word.size());
  std::vector<std::int64_t> sizes(word[3]);
  for (auto& size : sizes) {
    read(word.data(), word.size());
    for (const auto byte : word) size = size * 256 + byte;
  }
  const auto items = torch::empty(sizes, torch::kUInt8);
  read(items.data_ptr(), items.nbytes());
  return items;
}

// Pairs of MNIST images. Exactly half of them show the same digit. A function of file, size and
// seed: pairs.py draws the same pairs.
//
// Batch: inputs "left" and "right", float32 [N, 784] from 0 to 1; targets float32 [N], 1 = same.
class Pairs : public ladder::Dataset {
 public:
  // `split`: "train" or "t10k", as the files are called.
  Pairs(const std::string& folder, const std::string& split, std::int64_t size, std::uint64_t seed)
      : images_(read_idx(folder + "/" + split + "-images-idx3-ubyte.gz").flatten(1)) {
    const auto digits = read_idx(folder + "/" + split + "-labels-idx1-ubyte.gz").to(torch::kInt64);
    const auto by_digit = digits.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    const auto count = digits.bincount({}, 10);
    const auto first = count.cumsum(0) - count;  // of each digit, in by_digit

    const auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto same = torch::randperm(size, random, torch::kInt64).lt(size / 2);
    left_ = torch::randint(0, digits.size(0), {size}, random, torch::kInt64);
    const auto digit = digits.index_select(0, left_);
    const auto other = (digit + torch::randint(1, 10, {size}, random, torch::kInt64)) % 10;
    const auto wanted = torch::where(same, digit, other);
    const auto which = torch::rand({size}, random, torch::kFloat64) * count.index_select(0, wanted);
    right_ = by_digit.index_select(0, first.index_select(0, wanted) + which.to(torch::kInt64));
    same_ = same.to(torch::kFloat32);
  }

  std::int64_t size() const override { return same_.size(0); }

  ladder::Batch get_batch(std::span<const std::int64_t> indices) const override {
    const auto rows = torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kInt64);
    const auto images = [&](const torch::Tensor& side) {
      return images_.index_select(0, side.index_select(0, rows)).to(torch::kFloat32).div_(255);
    };
    return {.inputs = {{"left", images(left_)}, {"right", images(right_)}},
            .targets = same_.index_select(0, rows)};
  }

 private:
  torch::Tensor images_;  // uint8 [images, 784]
  torch::Tensor left_;    // int64 [size]: rows of images_
  torch::Tensor right_;   // the same
  torch::Tensor same_;    // float32 [size]
};

// Exchanges the two images in half of the pairs, other ones in each epoch.
class SwapSides : public ladder::Transform {
 public:
  explicit SwapSides(std::uint64_t seed) : seed_(seed) {}

  void apply(ladder::Inputs& inputs, std::span<const std::int64_t> indices,
             std::int64_t epoch) const override {
    const auto swap = torch::empty({static_cast<std::int64_t>(indices.size()), 1}, torch::kBool);
    auto* swaps = swap.data_ptr<bool>();
    for (const auto index : indices) {
      const auto words = ladder::philox4x32(
          {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(epoch), 0xB0000000, 0},
          seed_);
      *swaps++ = words[0] % 2 == 1;
    }
    const auto left = inputs.at("left");
    const auto right = inputs.at("right");
    inputs.set("left", torch::where(swap, right, left));
    inputs.set("right", torch::where(swap, left, right));
  }

 private:
  std::uint64_t seed_;
};

struct PairNetOptions {
  std::int64_t width = 128;  // of the hidden layers
};

// Encodes both images with one encoder and compares the two codes.
// Inputs "left" and "right", [N, 784]; output [N]: the score of "same digit", above 0 = yes.
class PairNet : public ladder::Model {
 public:
  explicit PairNet(PairNetOptions options = {})
      : options_(options),
        pixels_(register_module("pixels", torch::nn::Linear(784, options.width))),
        code_(register_module("code", torch::nn::Linear(options.width, options.width))),
        compare_(register_module("compare", torch::nn::Linear(3 * options.width, options.width))),
        score_(register_module("score", torch::nn::Linear(options.width, 1))) {}

  torch::Tensor forward(const ladder::Inputs& inputs) override {
    const auto left = encode(inputs.at("left"));
    const auto right = encode(inputs.at("right"));
    const auto both = torch::cat({left, right, (left - right).abs()}, 1);
    return score_->forward(torch::relu(compare_->forward(both))).squeeze(1);
  }

  std::shared_ptr<ladder::Model> new_like() const override {
    return ladder::new_network_like(*this, options_);
  }

 private:
  torch::Tensor encode(const torch::Tensor& images) {
    return torch::relu(code_->forward(torch::relu(pixels_->forward(images))));
  }

  PairNetOptions options_;
  torch::nn::Linear pixels_;
  torch::nn::Linear code_;
  torch::nn::Linear compare_;
  torch::nn::Linear score_;
};

// The loss, summed over the pairs: every rank adds up its own, and the batch divides by all.
inline torch::Tensor loss_sum(const torch::Tensor& scores, const torch::Tensor& same) {
  return torch::binary_cross_entropy_with_logits(scores, same, /*weight=*/{}, /*pos_weight=*/{},
                                                 at::Reduction::Sum);
}

// 1 for each pair that is decided correctly, else 0.
inline torch::Tensor correct(const torch::Tensor& scores, const torch::Tensor& same) {
  return scores.gt(0).eq(same.gt(0)).to(torch::kFloat64);
}

constexpr std::int64_t kBatchSize = 64;  // pairs per step, over all processes
constexpr double kLearningRate = 1e-3;

struct Settings {
  std::string data = "data/mnist";  // folder of the four MNIST files
  int nprocs = 2;                   // processes, on this machine
  std::int64_t pairs = 60000;       // training pairs
  std::int64_t epochs = 3;          // passes over them
  std::uint64_t seed = 42;          // for weights, shuffling, transform
};

// The command line of both programs: `--data DIR`, and numbers for the other fields.
// Throws UsageError. Creates no tensor, because the programs fork afterwards.
inline Settings settings_from(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    const bool is_number = !value.empty() && value.size() < 10 &&
                           value.find_first_not_of("0123456789") == std::string::npos;
    const auto number = is_number ? std::stoi(value) : 0;
    if (flag == "--data" && !value.empty()) {
      settings.data = value;
    } else if (flag == "--nprocs" && is_number) {
      settings.nprocs = number;
    } else if (flag == "--pairs" && is_number) {
      settings.pairs = number;
    } else if (flag == "--epochs" && is_number) {
      settings.epochs = number;
    } else if (flag == "--seed" && is_number) {
      settings.seed = static_cast<std::uint64_t>(number);
    } else {
      throw ladder::UsageError::malformed(
          flag, "--data DIR, --nprocs N, --pairs N, --epochs N or --seed N", value,
          "type --data data/mnist --nprocs 2");
    }
  }
  return settings;
}

// The pairs do not depend on the seed of the run. Those of the test are of other images.
inline std::shared_ptr<const Pairs> train_pairs(const Settings& settings) {
  return std::make_shared<Pairs>(settings.data, "train", settings.pairs, /*seed=*/1);
}
inline std::shared_ptr<const Pairs> test_pairs(const Settings& settings) {
  return std::make_shared<Pairs>(settings.data, "t10k", /*size=*/10000, /*seed=*/2);
}

// What both programs print: a line after each epoch, and the hash of the weights at the end.
inline std::string epoch_line(std::int64_t epoch, double loss, double accuracy) {
  return fmt::format("epoch {}: test loss {:.4f}, accuracy {:.2f} %", epoch, loss, 100 * accuracy);
}
inline std::string weights_line(const ladder::Model& network) {
  return "weights " + ladder::weights_sha256(ladder::state_dict(network));
}

}  // namespace pairs
