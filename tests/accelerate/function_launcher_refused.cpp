// SPDX-License-Identifier: Apache-2.0
// Must not compile: the learning rate is a text. A test runs the compiler on it.
#include <string>
#include <tuple>

#include "ladder/accelerate/function_launcher.h"

void train(const std::string& data, double lr);

int main() { ladder::function_launcher(train, std::tuple("data/mnist", "fast")); }
