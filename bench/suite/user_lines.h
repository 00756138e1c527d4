// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

namespace ladder::bench {

// The lines of a C++ or Python source (.py) that are code: neither blank nor a comment, a docstring
// or an import. Unset if there is no such file.
std::optional<double> user_lines(const std::filesystem::path& source);

}  // namespace ladder::bench
