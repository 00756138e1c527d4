// SPDX-License-Identifier: Apache-2.0
#include "bridges/exported_program/host_operators.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "ladder/core/error.h"

namespace ladder::exported {
namespace {

using c10::IValue;
using Unary = IValue (*)(const IValue& a);
using Binary = IValue (*)(const IValue& a, const IValue& b);

double number(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
}

bool are_ints(const IValue& a, const IValue& b) { return a.isInt() && b.isInt(); }

// Integers wrap around, as no size does: a damaged file has no undefined result.
template <typename Op>
IValue arithmetic(const IValue& a, const IValue& b, const Op& op) {
  if (!are_ints(a, b)) return op(number(a), number(b));
  return static_cast<std::int64_t>(
      op(static_cast<std::uint64_t>(a.toInt()), static_cast<std::uint64_t>(b.toInt())));
}

template <typename Op>
IValue comparison(const IValue& a, const IValue& b, const Op& op) {
  return are_ints(a, b) ? IValue(op(a.toInt(), b.toInt())) : IValue(op(number(a), number(b)));
}

// Python's a // b, which rounds down.
IValue floor_divide(const IValue& a, const IValue& b) {
  if (!are_ints(a, b)) return std::floor(number(a) / number(b));
  const auto dividend = a.toInt(), divisor = b.toInt();
  if (divisor == 0) {
    throw UsageError::conflict("exported network", "a division of sizes by zero",
                               "check the sizes of the inputs");
  }
  if (divisor == -1) return arithmetic(std::int64_t{0}, a, std::minus<>());
  return dividend / divisor - (dividend % divisor != 0 && (dividend < 0) != (divisor < 0) ? 1 : 0);
}

// Throws for a number beyond 64 bits.
IValue truncate(const IValue& a) { return at::Scalar(number(a)).toLong(); }

const std::map<std::string_view, Unary> kUnary = {
    {"_operator.neg",
     [](const IValue& a) { return arithmetic(std::int64_t{0}, a, std::minus<>()); }},
    {"math.trunc", truncate},
    {"torch.sym_int", truncate},
    {"torch.sym_float", [](const IValue& a) { return IValue(number(a)); }},
};

using A = const IValue&;
const std::map<std::string_view, Binary> kBinary = {
    {"_operator.add", [](A a, A b) { return arithmetic(a, b, std::plus<>()); }},
    {"_operator.sub", [](A a, A b) { return arithmetic(a, b, std::minus<>()); }},
    {"_operator.mul", [](A a, A b) { return arithmetic(a, b, std::multiplies<>()); }},
    {"_operator.floordiv", floor_divide},
    {"_operator.mod",
     [](A a, A b) {
       return arithmetic(a, arithmetic(floor_divide(a, b), b, std::multiplies<>()), std::minus<>());
     }},
    {"_operator.truediv", [](A a, A b) { return IValue(number(a) / number(b)); }},
    {"_operator.eq", [](A a, A b) { return comparison(a, b, std::equal_to<>()); }},
    {"_operator.ne", [](A a, A b) { return comparison(a, b, std::not_equal_to<>()); }},
    {"_operator.lt", [](A a, A b) { return comparison(a, b, std::less<>()); }},
    {"_operator.le", [](A a, A b) { return comparison(a, b, std::less_equal<>()); }},
    {"_operator.gt", [](A a, A b) { return comparison(a, b, std::greater<>()); }},
    {"_operator.ge", [](A a, A b) { return comparison(a, b, std::greater_equal<>()); }},
    {"torch.sym_max", [](A a, A b) { return number(a) < number(b) ? b : a; }},
    {"torch.sym_min", [](A a, A b) { return number(b) < number(a) ? b : a; }},
};

}  // namespace

std::optional<HostOperator> find_host_operator(std::string_view name) {
  if (const auto found = kUnary.find(name); found != kUnary.end()) {
    return HostOperator{1, [run = found->second](Values& stack) { stack = {run(stack.at(0))}; }};
  }
  if (const auto found = kBinary.find(name); found != kBinary.end()) {
    return HostOperator{
        2, [run = found->second](Values& stack) { stack = {run(stack.at(0), stack.at(1))}; }};
  }
  return std::nullopt;
}

}  // namespace ladder::exported
