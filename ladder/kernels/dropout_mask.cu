// SPDX-License-Identifier: Apache-2.0
// counter_mask on a GPU (dropout_mask_cuda.h). NVRTC compiles this text at run time, behind those
// of philox_constants.h and counter_mask_arguments.h. A test compiles it for the CPU.
//
// Each thread draws one Philox block of a sample. The four words of a block belong to elements that
// are a quarter of the sample apart, as in philox_fill.
extern "C" __global__ void counter_mask(ladder::CounterMaskArguments given) {
  const unsigned quarter = (given.elements + 3) / 4;
  const unsigned block = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned pixels = given.elements / given.channels;
  if (block >= quarter) return;
  for (unsigned sample = blockIdx.y; sample < given.samples; sample += gridDim.y) {
    const long long position =
        given.positions == nullptr ? given.first + sample * given.step : given.positions[sample];
    const unsigned epoch = given.with_epochs ? static_cast<unsigned>(position >> 32) : given.epoch;
    unsigned word[4] = {epoch, static_cast<unsigned>(position), given.layer, block};
    unsigned key0 = static_cast<unsigned>(given.seed);
    unsigned key1 = static_cast<unsigned>(given.seed >> 32);
    for (int round = 0; round < ladder::kPhiloxRounds; ++round) {
      const unsigned long long product0 = 1ULL * ladder::kPhiloxMultiplier0 * word[0];
      const unsigned long long product1 = 1ULL * ladder::kPhiloxMultiplier1 * word[2];
      word[0] = static_cast<unsigned>(product1 >> 32) ^ word[1] ^ key0;
      word[1] = static_cast<unsigned>(product1);
      word[2] = static_cast<unsigned>(product0 >> 32) ^ word[3] ^ key1;
      word[3] = static_cast<unsigned>(product0);
      key0 += ladder::kPhiloxKeyStep0;
      key1 += ladder::kPhiloxKeyStep1;
    }
    float* const row = given.mask + 1ULL * sample * given.elements;
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned element = j * quarter + block;
      if (element >= given.elements) continue;
      row[element % pixels * given.channels + element / pixels] =
          word[j] < given.threshold ? 0.0F : given.kept;
    }
  }
}
