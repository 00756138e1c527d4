// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/checkpoint/state_dict.h"

namespace ladder {

// All that an optimizer has gathered in its steps: what a run needs to go on as if it had never
// stopped.
//
// AdamW remembers a mean gradient for each weight, SGD a momentum: as many numbers as the network
// has, or two or three times as many. They go by the names of the parameters and not by their
// numbers, so that a reader can tell whose they are, and a state meets another network with an
// error.
struct OptimizerState {
  // "<parameter>.<name>", names as in Python and without the prefix "module.":
  //   AdamW, Adam        exp_avg, exp_avg_sq (shape and dtype of the parameter), step (F32 scalar)
  //   SGD with momentum  momentum_buffer
  //   Adagrad            sum, step
  //   RMSprop            square_avg, step, with momentum momentum_buffer, centered grad_avg
  // A parameter that was never moved has none. Shared with the optimizer, as a StateDict is.
  StateDict tensors;

  // An array, one object a parameter group: its options under Python's names, and "params", the
  // names of its parameters in their order.
  //   AdamW    lr, betas (two numbers), eps, weight_decay
  //   Adam     the same, and decoupled_weight_decay (false)
  //   SGD      lr, momentum, dampening, weight_decay, nesterov (true or false)
  //   Adagrad  lr, lr_decay, weight_decay, initial_accumulator_value, eps
  //   RMSprop  lr, alpha, eps, weight_decay, momentum, centered (true or false)
  nlohmann::json groups;
};

// The state as a file: `groups` is JSON text in its metadata, under "groups". A safetensors file
// can hold no code, which Python's optimizer.bin, a pickle, can.
SafetensorsFile to_safetensors(const OptimizerState& state);

// The state in a file that load_safetensors has read. Throws DataError, which begins with
// `origin`, if there are no groups in its metadata or they are no JSON array; the rest is for
// FusedOptimizer::plan_load to check.
OptimizerState optimizer_state_from(SafetensorsFile file, std::string_view origin);

}  // namespace ladder
