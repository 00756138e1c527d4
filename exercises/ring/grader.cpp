// SPDX-License-Identifier: Apache-2.0
#include "exercises/ring/ring.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "exercises/grader/grader.h"
#include "exercises/grader/messages.h"
#include "ladder/core/clock.h"
#include "ladder/core/error.h"

namespace ladder::exercises::ring {
namespace {

constexpr const char* kNegative =
    "a negative rank or part: add N before %, because in C++ (0 - 1) % 3 is -1";
constexpr const char* kFewerParts =
    "fewer than N parts: torch::chunk makes fewer of a small tensor, torch::tensor_split always N";

// Calls the learner's function.
void sum(const Ring& yours, torch::Tensor& tensor, const ProcessGroup& group) {
  running(fmt::format("size {} on {} ranks", tensor.numel(), group.world_size()),
          fmt::format("an index outside the parts ({})",
                      tensor.numel() > 50 ? kNegative : kFewerParts));
  try {
    yours.sum_over_ring(tensor, group);
    running("");
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    const auto has = [&](const char* text) { return what.find(text) != std::string_view::npos; };
    const std::string got(what.substr(0, what.find('\n')));
    if (has("this rank expected")) {
      const bool dtype = has("sent Long") && has("expected Float");
      throw Wrong{"a rank receives a part of the size and dtype that its neighbour sends", got,
                  dtype ? "torch::empty() makes floats: empty_like(part)"
                        : "sender and receiver mean different parts: the part that rank r receives "
                          "is the one that rank r - 1 sends in this round"};
    }
    if (has(", got -") || has("range_check")) {  // of ProcessGroup, and of vector::at
      const bool negative = has(", got -") || has("(which is 18446744073709551");
      throw Wrong{
          fmt::format("size {}: ranks and parts 0 to {}", tensor.numel(), group.world_size() - 1),
          got, negative ? kNegative : kFewerParts};
    }
    throw;
  }
}

// The ranks whose numbers are in a sum of powers of two, such as "the sum of ranks 0, 2".
std::string ranks_in(std::int64_t sum) {
  std::vector<int> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    if ((sum >> rank & 1) != 0) ranks.push_back(rank);
  }
  if (ranks.empty()) return "0";
  return ranks.size() == 1 ? fmt::format("rank {} alone", ranks[0])
                           : fmt::format("the sum of ranks {}", fmt::join(ranks, ", "));
}

// Whether rank 1 returns before rank 0, whose numbers it needs, calls the function.
bool returns_early(const Ring& yours, const ProcessGroup& group) {
  auto tensor = torch::ones({420});
  if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  const double start = steady_seconds();
  sum(yours, tensor, group);
  const bool early = steady_seconds() - start < 0.5;
  return group.all_gather_into_tensor(torch::tensor(early ? 1 : 0))[1].item<int>() == 1;
}

// The second send of a rank, of at least three, has what it added in the first round.
bool adds(const Messages& messages) {
  int sends = 0;
  for (const auto& message : messages.all()) {
    if (message.operation != "send" || ++sends < 2) continue;
    const bool is_sum = message.first > 0 && message.first < 256;
    return is_sum && std::popcount(static_cast<unsigned>(message.first)) == 2;
  }
  return false;
}

// `got` holds sums of 2^rank, so each shows which ranks are in it. `messages`: of this rank.
std::string meaning(const torch::Tensor& got, std::int64_t wrong, const ProcessGroup& group,
                    const Messages& messages) {
  const std::int64_t n = group.world_size();
  const auto sends = messages.count("send");
  const double all = std::ldexp(1.0, group.world_size()) - 1;
  if (sends == n - 1) return "the second phase is missing";
  if (sends < 2 * (n - 1)) return "a round is missing: each phase has N - 1 of them";
  if (sends > 2 * (n - 1)) return "a round too many: each phase has N - 1 of them";
  if ((got == std::ldexp(1.0, group.rank())).all().item<bool>()) {
    return "the tensor of the caller is unchanged: the parts are copies, or nothing is added";
  }
  if ((got > all).any().item<bool>()) {
    return "a part is added once more than there are ranks: the second phase has to copy";
  }
  if (wrong >= got.numel() / n * n) {
    return "elements at the end are left out where the ranks do not divide the size";
  }
  if (n > 2 && adds(messages) && !(got == all).any().item<bool>()) {
    return "the second phase begins with the own part, which is not complete: rank r has the sum "
           "of part r + 1";
  }
  return (got == all).any().item<bool>()
             ? "a rank passes on another part than the one that is complete, or a part was "
               "replaced, not changed in place: `+=`"
             : "a received part is not added to the own one, or each round sends the same part";
}

void sums(const Ring& yours, const ProcessGroup& group, std::int64_t size) {
  const auto all = (std::int64_t{1} << group.world_size()) - 1;
  auto summed = torch::full({size}, std::ldexp(1.0, group.rank()), torch::kFloat32);
  const Messages messages;
  sum(yours, summed, group);
  const auto tensor = summed.clone();  // what arrives later does not count
  const auto different = (tensor != static_cast<double>(all)).nonzero();
  // Every rank sees the others' failure, so that the first message is that of rank 0.
  auto failures = group.all_gather_into_tensor(torch::tensor(different.numel()));
  if (failures.sum().item<std::int64_t>() == 0) return result(tensor);
  const auto wrong = different.numel() == 0 ? 0 : different[0][0].item<std::int64_t>();
  const auto usually = meaning(tensor, wrong, group, messages);
  const bool early = returns_early(yours, group);
  if (different.numel() == 0) group.barrier();
  const auto got = tensor[wrong].item<double>();
  throw Wrong{
      fmt::format("{} elements on {} ranks: each {}", size, group.world_size(), ranks_in(all)),
      got >= 0 && got <= static_cast<double>(all)
          ? fmt::format("element {} of rank {}: {}", wrong, group.rank(),
                        ranks_in(static_cast<std::int64_t>(got)))
          : fmt::format("element {} has more than one number of a rank", wrong),
      early ? "wait() of irecv is missing: the tensor is used before the part has arrived"
            : usually};
}

// Different numbers in each element, so that a part in the wrong place is seen.
void places(const Ring& yours, const ProcessGroup& group) {
  constexpr std::int64_t kSize = 1'003;
  const auto first = static_cast<std::int64_t>(fresh_seed() % 1'000);
  const auto numbers = torch::arange(first, first + kSize, torch::kInt64);
  auto tensor = numbers * (group.rank() + 1);
  const auto of_caller = tensor;
  sum(yours, tensor, group);
  const auto n = group.world_size();
  const auto expected = numbers * (n * (n + 1) / 2);
  expect(torch::equal(tensor, expected), "element i is the sum of elements i",
         "sums of other elements", "a part is received into the place of another one");
  expect(torch::equal(of_caller, expected), "the memory of the tensor has the sum",
         "another tensor has it", "`tensor = ...` changes the variable: copy_() into the tensor");
  result(of_caller);
}

void bytes(const Ring& yours, const ProcessGroup& group) {
  constexpr std::int64_t kSize = 420'000;  // every tested number of ranks divides it
  auto tensor = torch::full({kSize}, static_cast<double>(fresh_seed() % 1'000 + 1));
  const Messages messages;
  sum(yours, tensor, group);
  std::int64_t sent = 0;
  for (const auto& message : messages.all()) {
    if (message.operation == "send") sent += message.bytes;
  }
  const std::int64_t n = group.world_size();
  const auto expected = 2 * (n - 1) * 4 * kSize / n;
  expect(
      sent == expected,
      fmt::format("{} bytes sent on each of {} ranks, 2 (N - 1) / N of {}", expected, n, 4 * kSize),
      fmt::format("{}", sent),
      messages.count("send") > 2 * (n - 1) ? "a round too many: each phase has N - 1 of them"
      : sent > expected ? "the whole tensor is sent in each round, instead of one part"
                        : "messages do not pass through send or isend");
  result(tensor);
}

// Parts larger than the buffers of a connection: a send ends when its receiver reads.
void large_parts(const Ring& yours, const ProcessGroup& group, std::int64_t size) {
  auto tensor = torch::full({size}, static_cast<double>(fresh_seed() % 1'000 + 1));
  try {
    sum(yours, tensor, group);
    result(tensor);
  } catch (const DistributedError& error) {
    const std::string_view what = error.what();
    if (!what.starts_with("send") || what.find("timed out") == std::string_view::npos) throw;
    throw Wrong{"each send meets a recv of its neighbour",
                std::string(what.substr(0, what.find('\n'))),
                "every rank sends first and waits for its neighbour: begin with isend"};
  }
}

void grade(Grader& grader, const Ring& yours) {
  using Group = const ProcessGroup&;
  for (const int world_size : {1, 3, 2, 4, 7}) {
    grader.property(fmt::format("the sum over {} rank{}", world_size, world_size == 1 ? "" : "s"),
                    world_size, [&](Group group) {
                      for (const std::int64_t size : {421, 100, 11, 1}) sums(yours, group, size);
                      places(yours, group);
                    });
  }
  grader.property("a million elements on 3 ranks", 3,
                  [&](Group group) { sums(yours, group, 1'000'000); });
  for (const int world_size : {2, 3, 4}) {
    grader.property(fmt::format("the bytes of a ring on {} ranks", world_size), world_size,
                    [&](Group group) { bytes(yours, group); });
  }
  grader.property("four million elements on 2 ranks", 2,
                  [&](Group group) { large_parts(yours, group, 4'000'000); });
  const auto repeated = [](const auto& sum_once) {
    auto tensor = torch::zeros({1'200'000});
    for (int i = 0; i < 5; ++i) sum_once(tensor);
  };
  grader.compare_times(
      2, "five sums of 4.8 MB on two ranks",
      [&](Group group) { repeated([&](torch::Tensor& t) { yours.sum_over_ring(t, group); }); },
      [&](Group group) { repeated([&](torch::Tensor& t) { group.all_reduce(t); }); });
}

const Graded<Ring> graded("ring", grade);

}  // namespace
}  // namespace ladder::exercises::ring
