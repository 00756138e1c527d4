// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace ladder {

// Decides in which order the samples of a data set are read, epoch by epoch.
//
// A sampler holds no state: the order is a function of the epoch, so that a resumed run and
// every rank can compute it. Python's counterpart: torch.utils.data.Sampler.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Number of samples in an epoch.
  virtual std::int64_t size() const = 0;

  // Indices into the data set in reading order. Epochs count from 0.
  virtual std::vector<std::int64_t> order(std::int64_t epoch) const = 0;
};

// 0, 1, 2, ...: for evaluation.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t size) : size_(size) {}

  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> order(std::int64_t epoch) const override;

 private:
  std::int64_t size_;
};

// A new random order each epoch: randperm(size) of a generator seeded with seed + epoch.
// Equal, index by index, to Accelerate's SeedableRandomSampler and to the order from which
// Python's DistributedSampler deals.
class RandomSampler : public Sampler {
 public:
  RandomSampler(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {}

  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> order(std::int64_t epoch) const override;

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

// The samples of one batch: what to read, and where each stands in the epoch's order.
struct BatchPlan {
  std::vector<std::int64_t> indices;    // into the data set
  std::vector<std::int64_t> positions;  // as many
  std::int64_t global_size = 0;         // samples of the batch over all ranks
  std::int64_t world_size = 1;          // ranks that share it
};

// Cuts the order of a sampler into batches. The last one is shorter if `batch_size` does not
// divide the number of samples, unless `drop_last` leaves it out.
// Python's counterpart: torch.utils.data.BatchSampler.
class BatchSampler {
 public:
  // Throws UsageError unless batch_size > 0.
  BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, bool drop_last);
  virtual ~BatchSampler() = default;

  // Number of batches in an epoch.
  virtual std::int64_t size() const;

  // All batches of an epoch, in order.
  virtual std::vector<BatchPlan> plan(std::int64_t epoch) const;

 private:
  std::shared_ptr<const Sampler> sampler_;
  std::int64_t batch_size_;
  bool drop_last_;
};

}  // namespace ladder
