// SPDX-License-Identifier: Apache-2.0
#include "ladder/kernels/batch_norm_relu_max_pool.h"
#include "ladder/kernels/conv_relu_max_pool.h"
#include "ladder/kernels/dropout_flatten.h"
#include "ladder/kernels/dropout_mask.h"
#include "ladder/kernels/first_conv2d.h"
#include "ladder/kernels/onednn_linear.h"
#include "ladder/kernels/relu_max_pool.h"
#include "ladder/nn/ops.h"

extern "C" const bool ladder_add_kernels;
const bool ladder_add_kernels = [] {
  ladder::ops() = {.relu_max_pool2d = ladder::relu_max_pool2d,
                   .conv2d_relu_max_pool2d = ladder::conv2d_relu_max_pool2d,
                   .first_conv2d = ladder::first_conv2d,
                   .batch_norm_relu_max_pool2d = ladder::batch_norm_relu_max_pool2d,
                   .dropout_flatten = ladder::dropout_flatten,
                   .linear = ladder::onednn_linear,
                   .counter_mask = ladder::counter_mask};
  return true;
}();
