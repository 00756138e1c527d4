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
//
// A sampler may be one rank's part of an order that several ranks share. Then it also says how
// its part lies in the whole, and that is enough to know the size of a batch over all ranks
// without asking them. A sampler of your own that shares nothing needs size() and order() only.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Number of samples in an epoch: those of this rank.
  virtual std::int64_t size() const = 0;

  // Indices into the data set in reading order: those of this rank. Epochs count from 0.
  virtual std::vector<std::int64_t> order(std::int64_t epoch) const = 0;

  // Number of ranks that share the epoch's order.
  virtual std::int64_t world_size() const { return 1; }

  // What size() is on `rank`. Equal on all ranks unless said otherwise.
  virtual std::int64_t part_size(std::int64_t /*rank*/) const { return size(); }

  // Number of samples of the shared order, repeated ones not counted. Unless said otherwise, what
  // the ranks have together.
  virtual std::int64_t whole_size() const;

  // Place in the shared order of the k-th index given here; no other rank has the same place.
  // Repeated samples, which fill up an order that the ranks do not divide, have places past its
  // end: at whole_size() and beyond. Dropout masks are drawn by this place, so that no two ranks
  // draw the same.
  virtual std::int64_t position(std::int64_t k) const { return k; }

  // Whether ranks may get parts of different size. In training they would take different numbers
  // of steps, and the rank with one step more would wait for the others for ever; so a loader
  // with such a sampler refuses to train.
  virtual bool evaluation_only() const { return false; }
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

// The samples of one batch on one rank: what to read, and where each stands in the epoch's order.
struct BatchIndices {
  std::vector<std::int64_t> indices;    // into the data set; empty if the others took all
  std::vector<std::int64_t> positions;  // as many
  std::int64_t global_size = 0;         // samples of the batch over all ranks
  std::int64_t world_size = 1;          // ranks that share it
};

// Cuts the order of a sampler into batches. The last one is shorter if `batch_size` does not
// divide the number of samples, unless `drop_last` leaves it out.
//
// With one rank's part of an order, `batch_size` samples are read by each rank, and batch k of
// the run is the k-th batches of all ranks.
//
// For batches of your own, derive from it and give plan() and size(), and whole_size() if they are
// not the sampler's samples. What divides the batches of another BatchSampler asks these.
// Python's counterpart: torch.utils.data.BatchSampler.
class BatchSampler {
 public:
  // Throws UsageError unless batch_size > 0, and for drop_last with a sampler for evaluation.
  BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, bool drop_last);
  virtual ~BatchSampler() = default;

  // Number of batches in an epoch.
  virtual std::int64_t size() const;

  // All batches of an epoch, in order.
  virtual std::vector<BatchIndices> plan(std::int64_t epoch) const;

  // As it was given: the size of all batches but a short last one.
  std::int64_t batch_size() const { return batch_size_; }
  bool drop_last() const { return drop_last_; }

  // Number of ranks that share the batches. With more than one, this is one rank's part.
  virtual std::int64_t world_size() const { return sampler_->world_size(); }

  // Number of samples in the epoch's order, over all ranks, repeated ones not counted. A position
  // below it is that of a sample, and one at or past it that of a repetition; so sums that leave
  // repetitions out have counted every sample once.
  virtual std::int64_t whole_size() const { return sampler_->whole_size(); }

  // Whether ranks may get different numbers of batches; see Sampler. That of the sampler.
  virtual bool evaluation_only() const { return sampler_->evaluation_only(); }

 private:
  std::int64_t global_size(std::int64_t begin) const;

  std::shared_ptr<const Sampler> sampler_;
  std::int64_t batch_size_;
  bool drop_last_;
};

}  // namespace ladder
