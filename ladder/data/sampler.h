// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace ladder {

// The order in which the samples of a data set are read, epoch by epoch.
//
// A sampler holds no state: the order is a function of the epoch, so a resumed run and every rank
// can compute it. Python's counterpart: torch.utils.data.Sampler.
//
// A sampler may be one rank's part of an order that several ranks share; then it overrides the
// other functions too, and the global batch size follows without communication.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Number of samples of this rank in an epoch.
  virtual std::int64_t size() const = 0;

  // This rank's indices into the data set, in reading order. Epochs count from 0.
  virtual std::vector<std::int64_t> order(std::int64_t epoch) const = 0;

  // Number of ranks that share the epoch's order.
  virtual std::int64_t world_size() const { return 1; }

  // size() on `rank`. By default equal on all ranks.
  virtual std::int64_t part_size(std::int64_t /*rank*/) const { return size(); }

  // Number of samples of the shared order, without repeated ones. By default the sum of the parts.
  virtual std::int64_t whole_size() const;

  // Position in the shared order of this rank's k-th index; no other rank has the same. Repeated
  // samples, which pad an order that the ranks do not divide, have positions from whole_size() on.
  // Dropout masks are a function of this position, so no two ranks draw the same.
  virtual std::int64_t position(std::int64_t k) const { return k; }

  // Whether ranks may get parts of different size. In training they would take different numbers
  // of steps and wait for each other without end, so a loader with such a sampler refuses to train.
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

// A new random order each epoch: randperm(size) of a generator seeded with seed + epoch. Equal,
// index by index, to Accelerate's SeedableRandomSampler.
class RandomSampler : public Sampler {
 public:
  RandomSampler(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {}

  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> order(std::int64_t epoch) const override;

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

// A RandomSampler or a SequentialSampler.
std::shared_ptr<const Sampler> make_sampler(std::int64_t size, bool shuffle, std::uint64_t seed);

// One rank's samples of one batch.
struct BatchIndices {
  std::vector<std::int64_t> indices;    // into the data set; may be empty
  std::vector<std::int64_t> positions;  // in the epoch's order; as many
  std::int64_t global_size = 0;         // samples of the batch over all ranks
  std::int64_t world_size = 1;          // ranks that share it
  std::int64_t micro_batch = 0;         // see Batch
};

inline constexpr std::int64_t kDefaultBatchSize = 64;

// Cuts the order of a sampler into batches. The last one is shorter if `batch_size` does not
// divide the number of samples; `drop_last` drops it.
//
// With one rank's part of an order, each rank reads `batch_size` samples, and batch k of the run
// consists of the k-th batches of all ranks.
//
// For batches of your own, derive from it and override batches_of() and size(), and whole_size() if
// they are not the sampler's samples. Python's counterpart: torch.utils.data.BatchSampler.
class BatchSampler {
 public:
  // Throws UsageError for a batch_size below 1 or above kMaxSamplesPerBatch, and for drop_last
  // with an evaluation sampler.
  BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, bool drop_last);
  virtual ~BatchSampler() = default;

  // Number of batches in an epoch.
  virtual std::int64_t size() const;

  // All batches of an epoch, in order.
  virtual std::vector<BatchIndices> batches_of(std::int64_t epoch) const;

  // As given: the size of all batches but a short last one.
  std::int64_t batch_size() const { return batch_size_; }
  bool drop_last() const { return drop_last_; }

  // Number of ranks that share the batches. With more than one, this is one rank's part.
  virtual std::int64_t world_size() const { return sampler_->world_size(); }

  // Number of samples in the epoch's order over all ranks. Samples with a position at or past it
  // are repetitions.
  virtual std::int64_t whole_size() const { return sampler_->whole_size(); }

  // Samples of which ranks get whole multiples; 0 = any number. See Batch.
  virtual std::int64_t micro_batch() const { return 0; }

  // Whether ranks may get different numbers of batches; see Sampler.
  virtual bool evaluation_only() const { return sampler_->evaluation_only(); }

 private:
  std::int64_t global_size(std::int64_t begin) const;

  std::shared_ptr<const Sampler> sampler_;
  std::int64_t batch_size_;
  bool drop_last_;
};

// The first min(batches, whole->size()) batches of each epoch of another sampler.
class LimitedBatchSampler : public BatchSampler {
 public:
  // Throws UsageError unless batches >= 1.
  LimitedBatchSampler(std::shared_ptr<const BatchSampler> whole, std::int64_t batches);

  std::int64_t size() const override { return batches_; }
  std::vector<BatchIndices> batches_of(std::int64_t epoch) const override;
  std::int64_t world_size() const override { return whole_->world_size(); }
  std::int64_t whole_size() const override { return samples_; }
  std::int64_t micro_batch() const override { return whole_->micro_batch(); }
  bool evaluation_only() const override { return whole_->evaluation_only(); }

 private:
  std::shared_ptr<const BatchSampler> whole_;
  std::int64_t batches_;
  std::int64_t samples_ = 0;
};

// For samplers that give one rank its part; `where` begins the message. The first throws UsageError
// unless 0 <= rank < world_size, the second if `world_size` ranks share the order to divide, so
// that it is one rank's part already.
void require_rank(std::string_view where, std::int64_t rank, std::int64_t world_size);
void require_whole(std::string_view where, std::int64_t world_size);

}  // namespace ladder
