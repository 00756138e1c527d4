// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "bridges/exported_program/graph.h"
#include "ladder/core/error.h"

namespace ladder::exported {
namespace {

using A = const c10::IValue&;

double number(A value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
}

bool are_ints(A a, A b) { return a.isInt() && b.isInt(); }

// Integers wrap around, as no size does: a damaged file has no undefined result.
template <typename Op>
c10::IValue arithmetic(A a, A b) {
  if (!are_ints(a, b)) return Op()(number(a), number(b));
  return static_cast<std::int64_t>(
      Op()(static_cast<std::uint64_t>(a.toInt()), static_cast<std::uint64_t>(b.toInt())));
}

template <typename Op>
c10::IValue comparison(A a, A b) {
  return are_ints(a, b) ? Op()(a.toInt(), b.toInt()) : Op()(number(a), number(b));
}

c10::IValue negative(A a, A /*b*/) { return arithmetic<std::minus<>>(std::int64_t{0}, a); }

// Python's a // b, which rounds down.
c10::IValue floor_divide(A a, A b) {
  if (!are_ints(a, b)) return std::floor(number(a) / number(b));
  const auto dividend = a.toInt(), divisor = b.toInt();
  if (divisor == 0) {
    throw UsageError::conflict("exported network", "a division of sizes by zero",
                               "check the sizes of the inputs");
  }
  if (divisor == -1) return negative(a, {});
  return dividend / divisor - (dividend % divisor != 0 && (dividend < 0) != (divisor < 0) ? 1 : 0);
}

c10::IValue modulo(A a, A b) {
  return arithmetic<std::minus<>>(a, arithmetic<std::multiplies<>>(floor_divide(a, b), b));
}

// Throws for a number beyond 64 bits.
c10::IValue truncate(A a, A /*b*/) { return at::Scalar(number(a)).toLong(); }

const std::map<std::string_view, HostOperator> kOperators = {
    {"_operator.neg", {1, negative}},
    {"math.trunc", {1, truncate}},
    {"torch.sym_int", {1, truncate}},
    {"torch.sym_float", {1, [](A a, A /*b*/) { return c10::IValue(number(a)); }}},
    {"_operator.add", {2, arithmetic<std::plus<>>}},
    {"_operator.sub", {2, arithmetic<std::minus<>>}},
    {"_operator.mul", {2, arithmetic<std::multiplies<>>}},
    {"_operator.floordiv", {2, floor_divide}},
    {"_operator.mod", {2, modulo}},
    {"_operator.truediv", {2, [](A a, A b) { return c10::IValue(number(a) / number(b)); }}},
    {"_operator.eq", {2, comparison<std::equal_to<>>}},
    {"_operator.ne", {2, comparison<std::not_equal_to<>>}},
    {"_operator.lt", {2, comparison<std::less<>>}},
    {"_operator.le", {2, comparison<std::less_equal<>>}},
    {"_operator.gt", {2, comparison<std::greater<>>}},
    {"_operator.ge", {2, comparison<std::greater_equal<>>}},
    {"torch.sym_max", {2, [](A a, A b) { return number(a) < number(b) ? b : a; }}},
    {"torch.sym_min", {2, [](A a, A b) { return number(b) < number(a) ? b : a; }}},
};

}  // namespace

const HostOperator* find_host_operator(std::string_view name) {
  const auto found = kOperators.find(name);
  return found == kOperators.end() ? nullptr : &found->second;
}

}  // namespace ladder::exported
