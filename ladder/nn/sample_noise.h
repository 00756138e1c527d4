// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace ladder {

// Standard normal numbers for the samples of the innermost RandomScope (random_scope.h), such as
// the noise of a VAE or the input of a generator: float32 [samples, shape...] on the CPU. Those of
// a sample are a function of seed, epoch and position, so any number of ranks draws the numbers of
// one rank.
//
//     const RandomScope random({seed, batch.epoch, batch.positions});
//     const auto z = mean + sample_noise(mean.sizes().slice(1)).to(device) * deviation;
//
// torch::randn after one torch::manual_seed draws the same numbers on all ranks: sample 0 of each
// rank has the noise of sample 0 of rank 0.
//
// `stream`: another number for each call within one scope.
//
// Equals: torch::randn, with numbers from Philox by Box and Muller's method.
torch::Tensor sample_noise(torch::IntArrayRef shape, std::uint32_t stream = 0);

}  // namespace ladder
