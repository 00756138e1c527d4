// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace ladder {
class Model;
}

namespace mnist {

// The output of a network, which decides the loss that fits (see Recipe::loss).
enum class Head {
  kLogSoftmax,  // log-probabilities, for nll_loss
  kLogits,      // raw scores, for cross_entropy_loss, which takes the log-softmax itself
};

// Two ways to compute the same formulas.
enum class Math {
  kFast,       // channels_last, the operators of nn/ops.h, dropout masks by position
  kReference,  // NCHW, PyTorch's own operations and random numbers: bit-equal to Python
};

struct NetworkOptions {
  Head head = Head::kLogSoftmax;
  Math math = Math::kFast;
  std::int64_t width = 1;  // channel multiplier, also of hidden units
  std::int64_t depth = 8;  // layers of the stack
  int stage = 0;           // see keep_layers; the weights are drawn for all layers
  int stages = 1;
};

// The network of the PyTorch MNIST example: two convolutions, two linear layers, dropout.
//
//     [N, 1, 28, 28] -> conv1, relu -> [N, 32, 26, 26] -> conv2, relu -> [N, 64, 24, 24]
//       -> max-pool 2, dropout 0.25 -> [N, 64, 12, 12] -> flatten -> fc1, relu, dropout 0.5
//       -> [N, 128] -> fc2, head -> [N, 10]
//
// 1,199,882 parameters with the names of Python's BasicNet (conv1, conv2, fc1, fc2), built in its
// order: after the same manual_seed the initial weights are bit-equal to Python's.
std::shared_ptr<ladder::Model> make_basic_net(const NetworkOptions& options = {});

// The small BatchNorm network of the DDP-practice tutorial, whose head is kLogits.
//
//     [N, 1, 28, 28] -> layer1 -> [N, 16, 14, 14] -> layer2 -> [N, 32, 7, 7] -> fc -> [N, 10]
//
// A layer is convolution 5x5 with padding 2, BatchNorm, ReLU, max-pool 2. 29,034 parameters with
// Python's names (layer1.0.weight, layer1.1.running_mean, ...), built in its order: after the same
// manual_seed the initial weights are bit-equal to Python's.
std::shared_ptr<ladder::Model> make_conv_net(const NetworkOptions& options = {
                                                 .head = Head::kLogits});

// `depth` equal layers, so that a stage of a pipeline, a unit of FullyShardedDataParallel and a
// bucket have equal parts of the weights. 98 % of BasicNet's are in one layer.
//
//     [N, 1, 28, 28] -> flatten, input -> [N, 256] -> layers.0 -> ... -> layers.7 -> [N, 256]
//       -> head, log-softmax -> [N, 10]
//
// A layer is a Model: x + down(relu(up(x))), with 1024 hidden units. 525,568 parameters per layer,
// 4,408,074 in all, with the names of Python's StackNet (input, layers.0.up, layers.0.down, ...,
// head), built in its order: after the same manual_seed the initial weights are bit-equal to
// Python's.
std::shared_ptr<ladder::Model> make_stack_net(const NetworkOptions& options = {});

// Drops the layers of `network`, one of these three, but those of one stage of a pipeline: an equal
// number each, in order. BasicNet has the layers conv1, conv2, fc1 and fc2, ConvNet layer1, layer2
// and fc, StackNet layers.0, ...; what precedes the first or follows one of them belongs to it. The
// network's forward then runs these alone, and its parameters keep their names. Throws UsageError
// for more stages than layers.
void keep_layers(ladder::Model& network, int stage, int stages);

}  // namespace mnist
