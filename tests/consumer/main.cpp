// SPDX-License-Identifier: Apache-2.0
// One training step of BasicNet on random images, with the installed library alone.
#include <ladder/checkpoint/state_dict.h>
#include <ladder/nn/basic_net.h>
#include <ladder/nn/random_scope.h>
#include <ladder/optim/adamw.h>

#include <iostream>

int main() {
  torch::manual_seed(42);
  ladder::BasicNet model;
  ladder::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  const ladder::RandomScope random({.seed = 42, .epoch = 0, .positions = torch::arange(4)});
  const auto before = ladder::weights_sha256(ladder::state_dict(model));
  model.forward(torch::randn({4, 1, 28, 28})).sum().backward();
  optimizer.step();
  const auto after = ladder::weights_sha256(ladder::state_dict(model));
  std::cout << (before == after ? "nothing moved" : "one step taken") << '\n';
  return before == after ? 1 : 0;
}
