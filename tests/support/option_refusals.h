// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/io/option_table.h"
#include "tests/support/expect_error.h"

namespace ladder {

// Values that the row must refuse: of another form, unknown, or just outside of its range.
inline std::vector<nlohmann::json> wrong_values(const OptionColumns& row) {
  const auto& [least, most, below, role, files, alone, variable] = row.details;
  std::vector<nlohmann::json> wrong;
  if (role != PathRole::kNone) return {"no", "None", "--quiet", 3};
  if (row.value.empty() || row.value == "true|false") return {"maybe", 3};
  if (is_choice(row)) return {"none such", 3};
  if (row.value == "N") wrong = {"1.5", "0x10", "3x", " 3", "+3", "18446744073709551616", 1e300};
  if (row.value == "X") wrong = {"1e-3x", "nan", "inf", NAN, true};
  if (std::isfinite(least)) wrong.push_back(text_of(least - 1.0));
  if (std::isfinite(most)) wrong.push_back(text_of(below ? most : most + 1.0));
  if (row.value == "NAMES") wrong = {"a,,b", 3};
  return wrong;
}

// Expects that each row refuses them, by the name that it is given. Returns the number of values.
template <typename S>
int expect_refusals(const auto& table) {
  int values = 0;
  for (const auto& row : table) {
    for (const auto& value : wrong_values(row)) {
      S options;
      SCOPED_TRACE(std::string(row.name) + " " + text_of(value));
      EXPECT_ERROR(row.read(options, "a.json:2: it", value), UsageError, "a.json:2: it: expected ",
                   ", got '");
      ++values;
    }
  }
  return values;
}

}  // namespace ladder
