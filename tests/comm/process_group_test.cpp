// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/process_group.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ladder/comm/c10d_group.h"
#include "ladder/comm/sent_bytes.h"
#include "ladder/comm/texts.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/shm/shared_memory.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/sockets.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Dtypes = std::vector<torch::ScalarType>;

const Dtypes kDtypes = {torch::kFloat32, torch::kFloat64, torch::kInt64, torch::kFloat16,
                        torch::kBFloat16};

milliseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
}

void expect_equal(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(torch::equal(got, expected)) << "got\n"
                                           << got.flatten().slice(0, 0, 20) << "\nexpected\n"
                                           << expected.flatten().slice(0, 0, 20);
}

const torch::Tensor& of_rank(int rank, const std::vector<torch::Tensor>& all) {
  return all.at(static_cast<std::size_t>(rank));
}

// Different on every rank and at every place.
torch::Tensor rows_of(int rank, std::int64_t rows, torch::ScalarType dtype = torch::kFloat32) {
  return torch::arange(rows * 3, dtype).reshape({rows, 3}) + 100 * rank;
}

void all_reduce_sums_and_finds_minima_and_maxima(const ProcessGroup& group) {
  const int world = group.world_size();
  for (const auto dtype : kDtypes) {
    SCOPED_TRACE(torch::toString(dtype));
    const auto own = torch::tensor({group.rank() + 1, -group.rank(), 10}, torch::kInt64).to(dtype);
    auto sum = own.clone();
    group.all_reduce(sum);
    const int triangle = world * (world - 1) / 2;
    expect_equal(sum, torch::tensor({triangle + world, -triangle, 10 * world}).to(dtype));
    auto least = own.clone();
    group.all_reduce(least, ReduceOp::kMin);
    expect_equal(least, torch::tensor({1, 1 - world, 10}).to(dtype));
    auto most = own.clone();
    group.all_reduce(most, ReduceOp::kMax);
    expect_equal(most, torch::tensor({world, 0, 10}).to(dtype));
  }
}

// More than one piece of shared memory, in every dtype, and in rows that do not lie together.
void all_reduce_and_all_gather_take_large_tensors(const ProcessGroup& group) {
  const int world = group.world_size();
  for (const auto dtype : kDtypes) {
    SCOPED_TRACE(torch::toString(dtype));
    const auto numbers = [&](int rank) {
      return ((torch::arange(150'003) % 7) + rank).view({3, 50'001}).to(dtype).t();
    };
    auto expected = numbers(0).clone();
    for (int rank = 1; rank < world; ++rank) expected += numbers(rank);
    auto sum = numbers(group.rank());
    group.all_reduce(sum);
    expect_equal(sum, expected);
    const auto all = group.all_gather_into_tensor(numbers(group.rank()));
    for (int rank = 0; rank < world; ++rank) expect_equal(all[rank], numbers(rank));
  }
}

void reduce_gives_the_result_to_any_root(const ProcessGroup& group) {
  for (int root = 0; root < group.world_size(); ++root) {
    const auto own = torch::tensor({group.rank(), -1}, torch::kInt64);
    auto sum = own.clone();
    group.reduce(sum, root);
    auto most = own.clone();
    group.reduce(most, root, ReduceOp::kMax);
    if (group.rank() != root) continue;
    const int world = group.world_size();
    expect_equal(sum, torch::tensor({world * (world - 1) / 2, -world}).to(torch::kInt64));
    expect_equal(most, torch::tensor({world - 1, -1}).to(torch::kInt64));
  }
}

void broadcast_overwrites_with_that_of_any_root(const ProcessGroup& group) {
  for (int root = 0; root < group.world_size(); ++root) {
    auto tensor = rows_of(group.rank(), 2);
    group.broadcast(tensor, root);
    expect_equal(tensor, rows_of(root, 2));
  }
}

void all_gather_gives_every_rank_copies_of_all_in_rank_order(const ProcessGroup& group) {
  const auto expect_all = [&](const std::function<torch::Tensor(int rank)>& of) {
    const auto own = of(group.rank());
    const auto all = group.all_gather(own);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(group.world_size()));
    for (int rank = 0; rank < group.world_size(); ++rank) {
      auto tensor = of_rank(rank, all);
      expect_equal(tensor, of(rank));
      EXPECT_TRUE(tensor.is_contiguous());
      tensor.zero_();  // shares no memory with the next ones, nor with that of this rank
    }
    expect_equal(own, of(group.rank()));
  };
  for (const auto dtype : kDtypes) {
    expect_all([&](int rank) { return rows_of(rank, 4, dtype); });
    expect_all([&](int rank) { return rows_of(rank, rank == 0 ? 0 : 6 - rank, dtype); });
  }
  expect_all([](int) { return torch::empty({0, 2}); });
  expect_all([](int rank) { return rows_of(rank, 4).t(); });
  const auto scalars = group.all_gather(torch::tensor(group.rank() + 0.5, torch::kFloat64));
  for (int rank = 0; rank < group.world_size(); ++rank) {
    expect_equal(of_rank(rank, scalars), torch::tensor({rank + 0.5}, torch::kFloat64));
  }
}

void all_gather_into_tensor_stacks_the_tensors_in_rank_order(const ProcessGroup& group) {
  const auto expect_stacked = [&](const std::function<torch::Tensor(int rank)>& of) {
    const auto own = of(group.rank());
    const auto all = group.all_gather_into_tensor(own);
    std::vector<torch::Tensor> expected;
    for (int rank = 0; rank < group.world_size(); ++rank) expected.push_back(of(rank));
    expect_equal(all, torch::stack(expected));
    EXPECT_TRUE(all.is_contiguous());
    EXPECT_FALSE(all.is_alias_of(own));
    expect_equal(own, of(group.rank()));
  };
  for (const auto dtype : kDtypes) {
    SCOPED_TRACE(torch::toString(dtype));
    expect_stacked([&](int rank) { return torch::tensor(rank + 5).to(dtype); });
    expect_stacked([&](int rank) { return rows_of(rank, 4, dtype).flatten(); });
    expect_stacked([&](int rank) { return rows_of(rank, 4, dtype); });
    expect_stacked([&](int rank) { return rows_of(rank, 4, dtype).reshape({2, 3, 1, 2}); });
    expect_stacked([&](int rank) { return rows_of(rank, 0, dtype); });
  }
  expect_stacked([](int rank) { return rows_of(rank, 4).t(); });
  expect_stacked([](int rank) { return rows_of(rank, 6).slice(0, 1, 6, 2); });
  expect_stacked([](int rank) { return torch::tensor(rank).expand({2, 3}); });
}

// share_memory() changes where a tensor lies, and nothing else.
void shared_tensors_get_the_results_of_others(const ProcessGroup& group) {
  for (const std::int64_t rows : {1, 100'000}) {
    auto plain = rows_of(group.rank(), rows).flatten() / 7;
    auto shared = plain.clone();
    const auto view = shared.narrow(0, 0, 2);
    share_memory(group, {shared});
    expect_equal(shared, plain);
    EXPECT_TRUE(view.is_alias_of(shared));
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
      group.all_reduce(plain, op);
      group.all_reduce(shared, op);
      expect_equal(shared, plain);
      expect_equal(view, plain.narrow(0, 0, 2));
      shared += group.rank();
      plain += group.rank();
    }
    auto all = torch::zeros({group.world_size() * plain.numel()});
    share_memory(group, {all});
    auto own = all.view({group.world_size(), -1})[group.rank()];
    own.copy_(plain);
    group.all_gather_into_tensor(all, own);
    expect_equal(all, group.all_gather_into_tensor(plain).flatten());
    all = all.to(torch::kFloat64);
    EXPECT_ERROR(group.all_gather_into_tensor(all, own), UsageError,
                 "all_gather_into_tensor: expected Float on cpu, got 'Double on cpu'");
  }
}

void gather_gives_all_to_the_root_and_nothing_to_the_others(const ProcessGroup& group) {
  for (int root = 0; root < group.world_size(); ++root) {
    const auto all = group.gather(rows_of(group.rank(), group.rank()), root);
    const int count = group.rank() == root ? group.world_size() : 0;
    ASSERT_EQ(static_cast<int>(all.size()), count);
    for (int rank = 0; rank < count; ++rank) {
      expect_equal(of_rank(rank, all), rows_of(rank, rank));
    }
  }
}

void collectives_write_to_parameters_and_set_flags(const ProcessGroup& group) {
  const int last = group.world_size() - 1;
  const auto ranks = static_cast<float>(group.world_size());
  for (const auto layout : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
    auto parameter = torch::full({2, 3, 4, 4}, 1.0 + group.rank()).contiguous(layout);
    parameter.requires_grad_();
    group.broadcast(parameter, last);
    group.all_reduce(parameter);
    expect_equal(parameter.detach(), torch::full({2, 3, 4, 4}, ranks * ranks));
  }
  auto conjugated = torch::complex(torch::ones({2}), torch::ones({2})).conj();
  group.broadcast(conjugated, last);
  group.all_reduce(conjugated);
  EXPECT_EQ(torch::imag(conjugated)[0].item<float>(), -ranks);
  auto flags = torch::tensor({true, group.rank() == last, false});
  group.all_reduce(flags);
  expect_equal(torch::from_blob(flags.data_ptr(), {3}, torch::kUInt8),
               torch::tensor({1, 1, 0}, torch::kUInt8));
}

// A [2, 3, 4, 4] tensor of some strides, whose gaps belong to other tensors.
struct View {
  torch::Tensor whole;
  torch::Tensor part;
};
const std::vector<std::function<View()>> kViews = {
    [] {
      const auto whole = torch::zeros({4, 4, 3, 2});
      return View{whole, whole.permute({3, 2, 1, 0})};
    },
    [] {
      const auto whole = torch::zeros({2, 6, 4, 5});
      return View{whole, whole.slice(1, 0, 6, 2).slice(3, 0, 4)};
    },
    [] {
      const auto whole =
          torch::empty({2, 3, 4, 4}).zero_().contiguous(torch::MemoryFormat::ChannelsLast);
      return View{whole, whole};
    }};

// Ranks with tensors of different strides, and gaps that stay as they are.
void collectives_take_elements_in_any_strides(const ProcessGroup& group) {
  const int world = group.world_size();
  const auto values = [](int rank) {
    return torch::arange(96, torch::kFloat32).view({2, 3, 4, 4}) * (rank + 1);
  };
  for (std::size_t k = 0; k < kViews.size(); ++k) {
    SCOPED_TRACE(k);
    const auto place = (k + static_cast<std::size_t>(group.rank())) % kViews.size();
    const auto expect_result = [&](const auto& collective, int factor) {
      auto [whole, part] = kViews[place]();
      part.copy_(values(group.rank()));
      const auto before = whole.sum() - part.sum();
      collective(part);
      expect_equal(part.contiguous(), values(0) * factor);
      expect_equal(whole.sum() - part.sum(), before);
      part.zero_();
      EXPECT_EQ(whole.abs().sum().item<float>(), 0.0F) << "a neighbour was overwritten";
    };
    const int triangle = world * (world + 1) / 2;
    expect_result([&](auto& part) { group.all_reduce(part); }, triangle);
    expect_result([&](auto& part) { group.broadcast(part, world - 1); }, world);
    expect_result(
        [&](auto& part) {
          group.reduce(part, 0);
          if (group.rank() != 0) part.copy_(values(0) * triangle);  // undefined there
        },
        triangle);
    auto [whole, part] = kViews[place]();
    part.copy_(values(group.rank()));
    const auto all = group.gather(part, 0);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      expect_equal(all[rank], values(static_cast<int>(rank)));
    }
  }
  auto expanded = torch::ones({1}).expand({4});
  if (group.backend() != "single") {
    EXPECT_ANY_THROW(group.broadcast(expanded));
  }
}

// Rows of more than one piece of shared memory, whose bounds are not those of pieces.
void reduce_scatter_gives_each_rank_its_row_of_the_sum(const ProcessGroup& group) {
  const int world = group.world_size();
  for (const auto dtype : kDtypes) {
    SCOPED_TRACE(torch::toString(dtype));
    const auto own =
        ((torch::arange(70'001 * world) % 7) + group.rank()).to(dtype).view({world, -1});
    auto all = own.clone();
    group.all_reduce(all);
    expect_equal(group.reduce_scatter(own), all[group.rank()]);
    expect_equal(group.reduce_scatter(own.t().contiguous().t()), all[group.rank()]);
  }
  const auto own = torch::full({world, 2}, group.rank());
  expect_equal(group.reduce_scatter(own, ReduceOp::kMax), torch::full({2}, world - 1));
  expect_equal(group.reduce_scatter(own, ReduceOp::kMin), torch::full({2}, 0));
  EXPECT_ERROR(group.reduce_scatter(torch::zeros({5, 2})), UsageError,
               "reduce_scatter: expected " + std::to_string(world) + " rows, got 5");
}

// Each rank sends to the next, all at once and more than shared memory holds.
void transfers_go_round_a_ring_in_order(const ProcessGroup& group) {
  const int world = group.world_size();
  if (world == 1) return;
  const int next = (group.rank() + 1) % world;
  const int previous = (group.rank() + world - 1) % world;
  const auto numbers = [](int rank) { return torch::arange(300'000, torch::kInt64) + rank; };
  auto large = torch::zeros({300'000}, torch::kInt64);
  auto rows = torch::zeros({4, 3}).t();
  auto none = torch::ones({0, 3});
  auto early = group.irecv(large, previous);
  auto sent = group.isend(numbers(group.rank()), next);
  group.barrier();  // a collective lets transfers proceed
  sent.wait();
  early.wait();
  early.wait();
  expect_equal(large, numbers(previous));
  std::vector<Work> more;
  more.push_back(group.isend(torch::empty({0, 3}), next));
  more.push_back(group.isend(rows_of(group.rank(), 4).t(), next));
  more.push_back(group.isend(torch::ones({1}).expand({4}), next));
  auto ones = torch::zeros({4});
  group.recv(none, previous);
  group.recv(rows, previous);
  group.recv(ones, previous);
  expect_equal(ones, torch::ones({4}));
  for (auto& work : more) work.wait();
  expect_equal(rows, rows_of(previous, 4).t());
  EXPECT_ERROR(group.send(rows, group.rank()), UsageError, "send: expected a rank from 0 to ");
  EXPECT_ERROR(group.recv(rows, world), UsageError, "recv: expected a rank from 0 to ");
}

// Rank 0 requests an answer before it asks, as a pipeline does for gradients.
void transfers_that_wait_do_not_stop_others(const ProcessGroup& group) {
  if (group.world_size() == 1 || group.rank() > 1) return;
  auto answer = torch::zeros({200'000});
  if (group.rank() == 0) {
    auto work = group.irecv(answer, 1);
    for (int i = 1; i <= 3; ++i) group.send(torch::full({200'000}, i), 1);
    work.wait();
    expect_equal(answer, torch::full({200'000}, 6.0F));
    return;
  }
  for (int i = 1; i <= 3; ++i) {
    auto part = torch::zeros({200'000}, torch::kInt64);
    group.recv(part, 0);
    answer += part;
  }
  group.send(answer, 0);
}

void texts_are_bytes_of_any_length(const ProcessGroup& group) {
  const int last = group.world_size() - 1;
  const auto of = [](int rank) {
    return rank == 0 ? std::string("a\0\xffz", 4)
                     : std::string(static_cast<std::size_t>(rank), 'x');
  };
  EXPECT_EQ(broadcast_text(of(group.rank()), group), of(0));
  EXPECT_EQ(broadcast_text(of(group.rank()), group, last), of(last));
  EXPECT_EQ(broadcast_text(group.rank() == 0 ? "" : "much", group), "");
  const auto all = all_gather_text(group.rank() == last ? "" : of(group.rank()), group);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(group.world_size()));
  for (int rank = 0; rank < last; ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)], of(rank));
  EXPECT_EQ(all.back(), "");
}

void agreement_names_the_first_other_line_and_its_ranks(const ProcessGroup& group) {
  const int last = group.world_size() - 1;
  const auto require = [&](const std::vector<std::string>& first,
                           const std::vector<std::string>& others) {
    require_agreement(group, "files", group.rank() == 0 ? first : others, "copy them");
  };
  EXPECT_NO_THROW(require({"a 1", "", "c"}, {"a 1", "", "c"}));
  EXPECT_NO_THROW(require({}, {}));
  if (last == 0) return;
  const std::string ranks = last == 1 ? "rank 1" : "ranks 1, 2";
  const auto names = [&](const auto& first, const auto& others, const std::string& message) {
    EXPECT_ERROR(require(first, others), DistributedError,
                 "files: expected " + message + " on " + ranks + "; hint: copy them");
  };
  using Lines = std::vector<std::string>;
  names(Lines{"a 1", "b", "c"}, Lines{"a 1", "b 2", "d"}, "b, as on rank 0, got b 2");
  names(Lines{"a"}, Lines{"a", "b"}, "nothing more, as on rank 0, got b");
  names(Lines{"a", "b"}, Lines{"a"}, "b, as on rank 0, got nothing more");
  const auto odd = first_disagreement({"a", std::to_string(group.rank())}, group);
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->line, 1U);
  EXPECT_EQ(odd->expected + " " + odd->got, "0, as on rank 0 1 on rank 1");
}

// They agree on it before they exchange values, so the group stays usable.
void gathers_refuse_tensors_of_other_forms(const ProcessGroup& group) {
  const bool last = group.rank() + 1 == group.world_size();
  if (group.world_size() == 1) return;
  const std::vector<std::tuple<torch::Tensor, torch::Tensor, const char*>> forms = {
      {torch::ones({2, 3}), torch::ones({2, 4}), "expected Float [N, 3], as on rank 0"},
      {torch::ones({1, 2, 3}), torch::ones({1, 3, 2}), "got Float [N, 3, 2] on rank "},
      {torch::ones({6}), torch::ones({2, 3}), "got Float [N, 3] on rank "},
      {torch::ones({2}), torch::ones({2}, torch::kInt32), "got Int [N] on rank "}};
  for (const auto& [first, other, message] : forms) {
    EXPECT_ERROR(group.all_gather(last ? other : first), DistributedError, message);
    EXPECT_ERROR(group.gather(last ? other : first), DistributedError, message);
  }
}

const std::vector<void (*)(const ProcessGroup&)> kChecks = {
    all_reduce_sums_and_finds_minima_and_maxima,
    all_reduce_and_all_gather_take_large_tensors,
    reduce_gives_the_result_to_any_root,
    broadcast_overwrites_with_that_of_any_root,
    all_gather_gives_every_rank_copies_of_all_in_rank_order,
    all_gather_into_tensor_stacks_the_tensors_in_rank_order,
    shared_tensors_get_the_results_of_others,
    gather_gives_all_to_the_root_and_nothing_to_the_others,
    gathers_refuse_tensors_of_other_forms,
    collectives_take_elements_in_any_strides,
    collectives_write_to_parameters_and_set_flags,
    reduce_scatter_gives_each_rank_its_row_of_the_sum,
    transfers_go_round_a_ring_in_order,
    transfers_that_wait_do_not_stop_others,
    texts_are_bytes_of_any_length,
    agreement_names_the_first_other_line_and_its_ranks,
};

class Collective : public testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  static int world() { return std::get<0>(GetParam()); }
  static void run(const std::function<void(const ProcessGroup&)>& fn) {
    run_ranks(world(), fn, {.backend = std::get<1>(GetParam())});
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Collective,
                         testing::Combine(testing::Range(1, 4), testing::Values("gloo", "shm")));

// One start of the ranks for all, because a start costs more than the collectives.
TEST_P(Collective, GivesItsResultAndInSharedMemoryNeedsNoSocket) {
  const auto by_sockets = [] { return sent_bytes() - counted_sent_bytes(); };
  run([&](const ProcessGroup& group) {
    group.barrier();
    const auto before = by_sockets();
    for (std::size_t i = 0; i < kChecks.size(); ++i) {
      SCOPED_TRACE(i);
      kChecks[i](group);
      group.barrier();
      EXPECT_TRUE(group.backend() == "gloo" || by_sockets() == before) << by_sockets() - before;
    }
  });
}

// A ring sends each of `world` parts 2 (world - 1) times; in shared memory the others read it.
TEST_P(Collective, CountsTheBytesThatItSends) {
  run([&](const ProcessGroup& group) {
    constexpr double kBytes = 1.2e6;  // divided by 1, 2 and 3
    auto tensor = torch::ones({static_cast<std::int64_t>(kBytes) / 4});
    group.all_reduce(tensor);  // Gloo connects
    const auto before = sent_bytes();
    const auto shared_before = counted_sent_bytes();
    group.all_reduce(tensor);
    const auto sent = static_cast<double>(sent_bytes() - before);
    const auto shared = static_cast<double>(counted_sent_bytes() - shared_before);
    group.barrier();  // a rank that leaves closes the sockets of the others
    const double world = group.world_size();
    const double expected = group.backend() == "gloo"  ? 2.0 * (world - 1.0) / world * kBytes
                            : group.backend() == "shm" ? kBytes
                                                       : 0.0;
    // A socket of the rendezvous may close meanwhile, and its bytes are then missing in `sent`.
    EXPECT_GE(group.backend() == "shm" ? shared : sent, expected);
    EXPECT_LT(sent, expected + 10'000) << "headers, and no more";
  });
}

TEST_P(Collective, BarriersWaitForTheLastRank) {
  const TemporaryFolder folder;
  run([&](const ProcessGroup& group) {
    const auto arrive = [&](const std::string& name) {
      const bool is_last = group.rank() == group.world_size() - 1;
      // So that the others leave a barrier that does not wait before there are all names.
      if (is_last) std::this_thread::sleep_for(milliseconds(30));
      folder.write(name + std::to_string(group.rank()), "");
    };
    const auto world = static_cast<std::size_t>(group.world_size());
    arrive("barrier");
    group.barrier();
    EXPECT_GE(folder.names().size(), world);
    arrive("monitored");
    group.monitored_barrier();
    EXPECT_GE(folder.names().size(), 2 * world);
  });
}

TEST(ProcessGroup, HasItsRankRefusesARootThatIsNoneAndIsSharedByItsCopies) {
  const auto check = [](const ProcessGroup& group) {
    EXPECT_EQ(group.world_size(), 2);
    EXPECT_EQ(group.local_world_size(), 2);
    EXPECT_EQ(group.rank(), std::stoi(getenv("RANK")));
    EXPECT_EQ(group.local_rank(), group.rank());
    EXPECT_EQ(group.backend(), "gloo");
    EXPECT_EQ(group.timeout(), milliseconds(7'000));
    const std::string start = "rank " + std::to_string(group.rank()) + " of 2, ";
    EXPECT_TRUE(group.description().starts_with(start)) << group.description();
    auto tensor = torch::zeros({2});
    EXPECT_ERROR(group.broadcast(tensor, 2), UsageError, "broadcast: expected a root from 0 to 1");
    EXPECT_ERROR(group.reduce(tensor, -1), UsageError, "reduce: expected a root from 0 to 1");
    EXPECT_ERROR(group.gather(tensor, 2), UsageError, "gather: expected a root from 0 to 1");
    auto shorts = torch::zeros({2}, torch::kInt16);
    const std::string dtype = ": expected a dtype that Gloo sends, got 'Short'; hint: convert the";
    EXPECT_ERROR(group.all_reduce(shorts), UsageError, "all_reduce" + dtype);
    EXPECT_ERROR(group.all_gather_into_tensor(shorts), UsageError, "all_gather" + dtype);
    if (group.rank() == 0) {
      EXPECT_THROW(group.broadcast(tensor, 7), UsageError);
    }
    group.all_reduce(tensor);
    {
      const ProcessGroup copy = group;
    }  // NOLINT: its end must not end the group
    auto sum = torch::ones({1});
    ProcessGroup(group).all_reduce(sum);
    EXPECT_EQ(sum.item<float>(), 2.0F);
  };
  run_ranks(2, check, {.timeout = milliseconds(7'000)});
}

TEST(ProcessGroup, RefusesTensorsWithoutValuesOrWithoutStrides) {
  const auto group = ProcessGroup::single();
  for (auto tensor : {torch::Tensor(), torch::eye(2).to_sparse()}) {
    const auto* const message = tensor.defined() ? "got 'a sparse one'" : "got 'an undefined one'";
    EXPECT_ERROR(group.all_reduce(tensor), UsageError, message);
    EXPECT_ERROR(group.reduce(tensor), UsageError, message);
    EXPECT_ERROR(group.broadcast(tensor), UsageError, message);
    EXPECT_ERROR(group.all_gather(tensor), UsageError, message);
    EXPECT_ERROR(group.gather(tensor), UsageError, message);
    EXPECT_ERROR(group.all_gather_into_tensor(tensor), UsageError, message);
  }
}

TEST_ALONE(SingleGroup, GivesTheResultsOfOneRankAndOpensNoSocket) {
  const auto sockets = socket_inodes();
  const auto group = ProcessGroup::single();
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.world_size(), 1);
  EXPECT_EQ(group.local_world_size(), 1);
  EXPECT_EQ(group.backend(), "single");
  for (const auto& check : kChecks) check(group);
  group.barrier();
  group.monitored_barrier();
  auto rows = rows_of(1, 4);
  EXPECT_THROW(group.send(rows, 0), UsageError);
  EXPECT_THROW(group.broadcast(rows, 1), UsageError);
  EXPECT_EQ(socket_inodes(), sockets);
}

TEST_ON_RANKS(MonitoredBarrier, NamesTheMissingRanksLetsThemThroughLaterAndThenServesAllAgain, 4) {
  group.monitored_barrier();
  const auto start = Clock::now();
  if (group.rank() % 2 == 0) {
    EXPECT_ERROR(group.monitored_barrier(milliseconds(300)), DistributedError,
                 "rendezvous: timed out after 0.3 s waiting for ranks 1, 3 of 4; ");
    EXPECT_GE(since(start), milliseconds(300));
    EXPECT_LT(since(start), milliseconds(5'000));
  }
  group.barrier();
  if (group.rank() % 2 == 1) group.monitored_barrier();
  group.monitored_barrier();
}

// What all_reduce throws on this rank, called again and again while rank 1 goes.
std::string error_of_all_reduce(const ProcessGroup& group, bool in_place) {
  auto tensor = torch::ones({1'000'000});
  if (in_place) share_memory(group, {tensor});
  for (int step = 0; step < 1'000; ++step) {
    try {
      group.all_reduce(tensor);
    } catch (const DistributedError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kDistributed);
      return error.what();
    }
  }
  return "no error";
}

class LostRank : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, LostRank, testing::Values("gloo", "shm"));

TEST_P(LostRank, ThatIsKilledInACollectiveEndsTheOthersWithinSeconds) {
  for (const bool in_place : {false, true}) {
    SCOPED_TRACE(in_place);
    const TemporaryFolder folder;
    const auto start = Clock::now();
    const auto end = end_of_group(
        3,
        [&](const ProcessGroup& group) {
          signal(SIGTERM, SIG_IGN);  // of spawn; here each rank must detect the loss itself
          group.barrier();
          if (group.rank() == 1) {
            std::thread([] {
              std::this_thread::sleep_for(milliseconds(50));
              kill(getpid(), SIGKILL);
            }).detach();
          }
          folder.write(std::to_string(group.rank()), error_of_all_reduce(group, in_place));
        },
        {.backend = GetParam()});
    EXPECT_LT(since(start), milliseconds(10'000));
    EXPECT_EQ(end.exit_code, 4);
    EXPECT_NE(end.error.find("rank 1: expected exit code 0, got signal 9 (Killed)"),
              std::string::npos)
        << end.error;
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"0", "2"}));
    for (const std::string rank : {"0", "2"}) {
      EXPECT_TRUE(folder.read(rank).starts_with("all_reduce on rank " + rank + " of 3: "))
          << folder.read(rank);
    }
    // Shared memory knows the rank; the second one may have lost both.
    const auto both = folder.read("0") + folder.read("2");
    const auto* const expected = GetParam() == "gloo"
                                     ? "hint: another rank ended or is late: see its"
                                     : "of 3: rank 1 has ended";
    EXPECT_NE(both.find(expected), std::string::npos) << both;
  }
}

// As in a backward: the error is no DistributedError, and the group is gone when it is reported.
TEST(LostRank, IsReportedForACollectiveInsideOfLibTorch) {
  const auto run = [](const ProcessGroup& group) {
    signal(SIGTERM, SIG_IGN);
    group.barrier();
    if (group.rank() == 1) kill(getpid(), SIGKILL);
    std::vector<at::Tensor> tensors = {torch::ones({1'000})};
    c10d_group(group)->allreduce(tensors)->wait();
  };
  expect_ended_with(end_of_group(2, run), 4,
                    "[rank 0] error: collective: expected all ranks to take part, got \"");
}

// Of shared memory in shared_memory_test.cpp.
TEST(LostRank, ThatIsStoppedEndsTheOthersAfterTheTimeoutAndIsNamed) {
  const auto start = Clock::now();
  const auto run = [](const ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 1) raise(SIGSTOP);
    auto tensor = torch::ones({1'000});
    group.all_reduce(tensor);
  };
  const auto end = end_of_group(2, run, {.timeout = milliseconds(500), .grace = milliseconds(200)});
  EXPECT_GE(since(start), milliseconds(500));
  EXPECT_LT(since(start), milliseconds(10'000));
  EXPECT_NE(end.error.find("rank 1 (stopped) hung"), std::string::npos) << end.error;
  expect_ended_with(end, 4, "gloo: timed out after 0.5 s waiting for another rank");
  expect_ended_with(end, 4, "all_reduce on rank ");
}

// Stops both ranks, in this order, for longer than their timeout, and lets them go on.
[[noreturn]] void stop_and_continue(const std::vector<pid_t>& ranks) {
  for (const auto rank : ranks) kill(rank, SIGSTOP);
  poll(nullptr, 0, 1'200);
  for (const auto rank : ranks) kill(rank, SIGCONT);
  _exit(0);
}

// As a paused container does. Rank 1 is on its way meanwhile, and rank 0 waits for it.
TEST_P(LostRank, IsNoRankThatWasStoppedTogetherWithTheOthers) {
  const auto run = [](const ProcessGroup& group) {
    const auto all = group.all_gather_into_tensor(torch::tensor(getpid(), torch::kInt64));
    const auto pid = [&](int rank) { return static_cast<pid_t>(all[rank].item<std::int64_t>()); };
    const auto wait_of = [&](const std::function<void()>& wait) {
      if (group.rank() == 1) {
        const auto child = fork();
        if (child == 0) stop_and_continue({pid(0), pid(1)});
        waitpid(child, nullptr, 0);
      }
      wait();
    };
    wait_of([&] { group.barrier(); });
    wait_of([&] {
      auto received = torch::zeros({1});
      group.rank() == 0 ? group.recv(received, 1) : group.send(received, 0);
    });
    wait_of([&] { group.monitored_barrier(milliseconds(600)); });
  };
  run_ranks(2, run, {.backend = GetParam(), .timeout = milliseconds(600)});
}

TEST_P(LostRank, ThatThrowsReleasesTheGroupAndItsErrorIsTheOneReported) {
  const auto start = Clock::now();
  const auto run = [](const ProcessGroup& group) {
    if (group.rank() == 1) throw std::runtime_error("a mistake on rank 1");
    auto tensor = torch::ones({1'000});
    group.all_reduce(tensor);
  };
  const auto end = end_of_group(2, run, {.backend = GetParam()});
  EXPECT_LT(since(start), milliseconds(8'000));
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_NE(end.error.find("a mistake on rank 1"), std::string::npos) << end.error;
}

struct Loss {
  const char* name;
  void (*act)(const ProcessGroup&);
  const char* error[2];  // of each rank; empty = it is lost
  // Gloo's collectives name no other rank, and do not compare their tensors.
  bool is_collective = false;
};

void broadcast_zeros(const ProcessGroup& group, std::int64_t size, int root) {
  auto tensor = torch::zeros({size});
  group.broadcast(tensor, root);
}

// Rank 1 is lost, or passes another tensor, while rank 0 waits for it.
const std::vector<Loss> kLosses = {
    {"lost while the other receives",
     [](const ProcessGroup& group) {
       if (group.rank() == 1) kill(getpid(), SIGKILL);
       auto tensor = torch::zeros({8});
       group.recv(tensor, 1);
     },
     {"recv", ""}},
    {"lost while the other sends",
     [](const ProcessGroup& group) {
       if (group.rank() == 1) kill(getpid(), SIGKILL);
       group.send(torch::zeros({1'000'000}), 1);
     },
     {"send", ""}},
    {"another shape",
     [](const ProcessGroup& group) {
       auto tensor = torch::zeros({group.rank() == 0 ? 1'000'000 : 8});
       group.rank() == 0 ? group.send(tensor, 1) : group.recv(tensor, 0);
     },
     {"send", "rank 0 sent Float [1000000], this rank expected Float [8]"}},
    {"another dtype",
     [](const ProcessGroup& group) {
       auto tensor = torch::zeros({1'000'000}, group.rank() == 0 ? torch::kInt32 : torch::kFloat32);
       group.rank() == 0 ? group.send(tensor, 1) : group.recv(tensor, 0);
     },
     {"send", "rank 0 sent Int [1000000], this rank expected Float [1000000]"}},
    {"lost while the other receives its broadcast",
     [](const ProcessGroup& group) {
       if (group.rank() == 1) kill(getpid(), SIGKILL);
       broadcast_zeros(group, 8, 1);
     },
     {"broadcast on rank 0 of 2: ", ""},
     /*is_collective=*/true},
    {"lost while the other broadcasts",
     [](const ProcessGroup& group) {
       if (group.rank() == 1) kill(getpid(), SIGKILL);
       broadcast_zeros(group, 1'000'000, 0);
     },
     {"broadcast on rank 0 of 2: ", ""},
     /*is_collective=*/true},
    {"lost in a reduce_scatter",
     [](const ProcessGroup& group) {
       if (group.rank() == 1) kill(getpid(), SIGKILL);
       group.reduce_scatter(torch::zeros({2, 1'000'000}));
     },
     {"all_gather on rank 0 of 2: ", ""},  // of the shapes, which comes first
     /*is_collective=*/true},
    {"another size in a broadcast",
     [](const ProcessGroup& group) { broadcast_zeros(group, group.rank() == 0 ? 8 : 16, 0); },
     {"rank 1 called broadcast (float, 64 bytes of rank 0), this rank called broadcast (float, 32",
      "rank 0 called broadcast (float, 32 bytes of rank 0), this rank called broadcast (float, 64"},
     /*is_collective=*/true},
    {"another root in a reduce",
     [](const ProcessGroup& group) {
       auto tensor = torch::zeros({8});
       group.reduce(tensor, group.rank());
     },
     {"rank 1 called reduce (sum to rank 1, float, 32 bytes), this rank called reduce (sum to rank "
      "0",
      "rank 0 called reduce (sum to rank 0, float, 32 bytes), this rank called reduce (sum to rank "
      "1"},
     /*is_collective=*/true},
    {"another shape in a reduce_scatter",
     [](const ProcessGroup& group) {
       group.reduce_scatter(torch::zeros({2, 4, 8}).view({2, group.rank() == 0 ? 4 : 8, -1}));
     },
     {"reduce_scatter: expected Float [N, 4, 8], as on rank 0, got Float [N, 8, 4] on rank 1",
      "Float [N, 4, 8], as on rank 0"}},
};

// Without rank 0's help no more than the first pieces leave rank 1.
TEST(LostRank, ThatIsKilledInTheMiddleOfWhatItSendsIsNamed) {
  const auto run = [](const ProcessGroup& group) {
    signal(SIGTERM, SIG_IGN);
    auto tensor = torch::zeros({4'000'000});
    if (group.rank() == 1) {
      const auto begun = group.isend(tensor, 0);
      group.barrier();
      kill(getpid(), SIGKILL);
    }
    group.barrier();
    group.recv(tensor, 1);
  };
  const auto end = end_of_group(2, run, {.backend = "shm"});
  EXPECT_NE(end.messages.find("recv on rank 0 of 2: rank 1 has ended"), std::string::npos)
      << end.messages;
}

TEST(LostRank, ThatGetsAnotherTensorFailsTheGroupAtOnce) {
  const auto run = [](const ProcessGroup& group) {
    auto eight = torch::zeros({8});
    auto four = torch::zeros({4});
    if (group.rank() == 0) group.send(eight, 1);
    group.barrier();
    if (group.rank() == 0) {
      EXPECT_ERROR(group.recv(eight, 1), DistributedError, "rank 1 has failed");
    } else {
      EXPECT_ERROR(static_cast<void>(group.irecv(four, 0)), DistributedError,
                   "rank 0 sent Float [8]");
    }
    group.monitored_barrier(milliseconds(10'000));
  };
  run_ranks(2, run, {.backend = "shm", .timeout = milliseconds(3'000)});
}

TEST_P(LostRank, ThatStaysSilentEndsATransferAfterTheTimeout) {
  const auto run = [](const ProcessGroup& group) {
    auto tensor = torch::zeros({1'000'000});
    if (group.rank() == 0) {
      auto work = group.irecv(tensor, 1);
      EXPECT_ERROR(work.wait(), DistributedError, " on rank 0 of 3: ");
      EXPECT_ERROR(work.wait(), DistributedError, "");
    } else if (group.rank() == 1) {
      EXPECT_ERROR(group.send(tensor, 2), DistributedError, " on rank 1 of 3: ");
    }
    group.monitored_barrier(milliseconds(10'000));
  };
  const auto start = Clock::now();
  expect_well(end_of_group(3, run, {.backend = GetParam(), .timeout = milliseconds(1'000)}));
  EXPECT_LT(since(start), milliseconds(10'000));
}

TEST_P(LostRank, OrAnotherTensorIsAnErrorOnEachRankThatIsLeft) {
  for (const auto& loss : kLosses) {
    const bool of_gloo = loss.is_collective && GetParam() == "gloo";
    if (of_gloo && *loss.error[1] != '\0') continue;
    SCOPED_TRACE(loss.name);
    const TemporaryFolder folder;
    const auto start = Clock::now();
    end_of_group(2,
                 [&](const ProcessGroup& group) {
                   signal(SIGTERM, SIG_IGN);
                   group.barrier();
                   try {
                     loss.act(group);
                   } catch (const DistributedError& error) {
                     folder.write(std::to_string(group.rank()), error.what());
                     throw;
                   }
                 },
                 {.backend = GetParam()});
    EXPECT_LT(since(start), milliseconds(10'000));
    for (const int rank : {0, 1}) {
      if (*loss.error[rank] == '\0') continue;
      const auto text = folder.read(std::to_string(rank));
      EXPECT_NE(text.find(loss.error[rank]), std::string::npos) << text;
      const auto* const other = of_gloo ? "another rank" : rank == 0 ? "rank 1" : "rank 0";
      EXPECT_NE(text.find(other), std::string::npos) << text;
    }
  }
}

TEST(ProcessGroup, ReducesTensorsOnAGpuByWayOfGloo) {
  if (visible_gpu_count() == 0) GTEST_SKIP() << "skipped: no GPU";
  run_ranks(2, [](const ProcessGroup& group) {
    auto sum = torch::full({3}, group.rank() + 1.0, torch::kCUDA);
    group.all_reduce(sum);
    expect_equal(sum.cpu(), torch::full({3}, 3.0));
    const auto all = group.all_gather(torch::full({2}, group.rank(), torch::kCUDA));
    expect_equal(all.at(1).cpu(), torch::full({2}, 1));
    const auto stacked = group.all_gather_into_tensor(torch::full({}, group.rank(), torch::kCUDA));
    expect_equal(stacked.cpu(), torch::tensor({0, 1}));
    auto other = torch::zeros({3}, torch::kCUDA);
    auto sent = group.isend(torch::full({3}, 1.0 * group.rank(), torch::kCUDA), 1 - group.rank());
    group.recv(other, 1 - group.rank());
    sent.wait();
    expect_equal(other.cpu(), torch::full({3}, 1.0 - group.rank()));
  });
}

}  // namespace
}  // namespace ladder
