// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "ladder/comm/errors.h"
#include "ladder/core/error.h"
#include "ladder/core/text.h"
#include "ladder/io/sha256.h"

namespace ladder {

std::string broadcast_text(std::string text, const ProcessGroup& group, int from) {
  auto size = torch::tensor(std::ssize(text), torch::kInt64);
  group.broadcast(size, from);
  text.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
  if (text.empty()) return text;
  auto bytes = torch::from_blob(text.data(), {std::ssize(text)}, torch::kUInt8);
  group.broadcast(bytes, from);
  return text;
}

std::vector<std::string> all_gather_text(std::string text, const ProcessGroup& group) {
  const auto bytes = torch::from_blob(text.data(), {std::ssize(text)}, torch::kUInt8);
  std::vector<std::string> texts;
  for (const auto& gathered : group.all_gather(bytes)) {
    const auto contiguous = gathered.contiguous();
    const auto* first = contiguous.const_data_ptr<std::uint8_t>();
    texts.emplace_back(first, first + contiguous.numel());
  }
  return texts;
}

std::optional<Disagreement> first_disagreement(const std::vector<std::string>& lines,
                                               const ProcessGroup& group) {
  const auto text = fmt::format("{}", fmt::join(lines, "\n"));
  constexpr std::int64_t kDigits = 32;  // the first half: 128 bits
  auto digest = sha256_hex(std::as_bytes(std::span(text)));
  const auto digests =
      group.all_gather_into_tensor(torch::from_blob(digest.data(), {kDigits}, torch::kUInt8));
  if (digests.eq(digests[0]).all().item<bool>()) return std::nullopt;
  std::vector<std::vector<std::string>> of_ranks;
  for (const auto& other : all_gather_text(text, group)) of_ranks.push_back(split(other, '\n'));
  const auto& first = of_ranks.front();
  std::ptrdiff_t line = std::ssize(first);
  for (const auto& other : of_ranks) {
    line = std::min(line, std::ranges::mismatch(first, other).in1 - first.begin());
  }
  const auto text_of = [&](const std::vector<std::string>& own) {
    return line < std::ssize(own) ? own[static_cast<std::size_t>(line)] : "nothing more";
  };
  std::string got;
  std::vector<int> ranks;
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const auto own = text_of(of_ranks[rank]);
    if (own == text_of(first)) continue;
    if (ranks.empty()) got = own;
    if (own == got) ranks.push_back(static_cast<int>(rank));
  }
  return Disagreement{static_cast<std::size_t>(line), text_of(first) + ", as on rank 0",
                      fmt::format("{} on {}", got, ranks_text(ranks))};
}

void require_agreement(const ProcessGroup& group, std::string_view where,
                       const std::vector<std::string>& lines, std::string_view hint) {
  const auto odd = first_disagreement(lines, group);
  if (odd) throw DistributedError::ranks_disagree(where, odd->expected, odd->got, hint);
}

}  // namespace ladder
