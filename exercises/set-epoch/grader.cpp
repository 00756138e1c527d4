// SPDX-License-Identifier: Apache-2.0
#include "exercises/set-epoch/set-epoch.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "exercises/grader/grader.h"
#include "exercises/grader/images.h"

namespace ladder::exercises::set_epoch {
namespace {

constexpr std::int64_t kSize = 101;
constexpr std::int64_t kEpochs = 3;

using Order = std::vector<std::int64_t>;

DataLoader new_loader() {
  return DataLoader(std::make_shared<Images>(kSize),
                    {.batch_size = 8, .shuffle = true, .seed = fresh_seed() + 42});
}

void append(Order& order, const Batch& batch) {
  const auto* first = batch.indices.const_data_ptr<std::int64_t>();
  order.insert(order.end(), first, first + batch.indices.numel());
}

// The samples of epoch `epoch` as they are to be read.
Order order_of(std::int64_t epoch) {
  auto loader = new_loader();
  loader.set_epoch(epoch);
  Order order;
  for (const Batch& batch : loader) append(order, batch);
  return order;
}

// What the learner's loop reads, epoch by epoch.
std::vector<Order> orders(const SetEpoch& yours, std::int64_t first_epoch) {
  auto loader = new_loader();
  Order all;
  yours.train(loader, first_epoch, kEpochs, [&](const Batch& batch) { append(all, batch); });
  const auto expected = (kEpochs - first_epoch) * kSize;
  expect(std::ssize(all) == expected,
         fmt::format("{} samples from epoch {} to {}", expected, first_epoch, kEpochs - 1),
         fmt::format("{}", all.size()),
         "the loop does not begin with first_epoch or leaves out epochs");
  std::vector<Order> epochs;
  for (auto at = all.begin(); at != all.end(); at += kSize) epochs.emplace_back(at, at + kSize);
  result(torch::tensor(all));
  return epochs;
}

void new_orders(const SetEpoch& yours) {
  const auto got = orders(yours, 0);
  for (std::size_t epoch = 1; epoch < got.size(); ++epoch) {
    if (got[epoch] != got[epoch - 1]) continue;
    throw Wrong{
        fmt::format("epochs {} and {} in different orders", epoch - 1, epoch), "the same order",
        got[0] == got[1] && got[1] != got[2] ? "set_epoch follows the pass that it is meant for"
        : got[0] == order_of(0) ? "set_epoch is not called, or always with the same number"
                                : "set_epoch is called once, before the loop over epochs"};
  }
}

void order_of_the_library(const SetEpoch& yours) {
  const auto got = orders(yours, 0);
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto& order = got[static_cast<std::size_t>(epoch)];
    expect(order == order_of(epoch),
           fmt::format("epoch {} in the order of set_epoch({})", epoch, epoch), "another order",
           order == order_of(epoch + 1) ? "epochs count from 0, and here from 1"
                                        : "the number is not that of the epoch");
  }
}

void resumes(const SetEpoch& yours) {
  const auto got = orders(yours, 1);
  expect(got[0] == order_of(1), "a run resumed with first_epoch 1 reads the order of epoch 1",
         got[0] == order_of(0) ? "the order of epoch 0" : "another order",
         got[1] == order_of(2)
             ? "set_epoch follows the pass: the first one of a resumed run has none before it"
             : "a resumed run counts its epochs from 0 again");
}

void grade(Grader& grader, const SetEpoch& yours) {
  using Group = const ProcessGroup&;
  grader.property("each epoch has a new order", 1, [&](Group) { new_orders(yours); });
  grader.property("epoch k has the order of set_epoch(k)", 1,
                  [&](Group) { order_of_the_library(yours); });
  grader.property("a resumed run continues with the next order", 1, [&](Group) { resumes(yours); });
}

const Graded<SetEpoch> graded("set-epoch", grade);

}  // namespace
}  // namespace ladder::exercises::set_epoch
