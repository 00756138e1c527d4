// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace ladder {

// A text from a file that nobody vouches for, made safe to stand in a message: in quotes, on one
// line, in ASCII, at most its first 80 bytes. For those who read such files.
std::string in_quotes(std::string_view text);

}  // namespace ladder
