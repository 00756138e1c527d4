// SPDX-License-Identifier: Apache-2.0
#include "ladder/core/versions.h"

#include <ATen/Version.h>
#include <fmt/core.h>
#include <openssl/opensslv.h>
#include <torch/version.h>

#include <nlohmann/json_fwd.hpp>

#ifdef LADDER_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace ladder {
namespace {

std::string dotted(int major, int minor, int patch) {
  return fmt::format("{}.{}.{}", major, minor, patch);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::vector<std::pair<std::string, std::string>> library_versions() {
  return {
      {"ladder", LADDER_VERSION},
      {"libtorch", TORCH_VERSION},
#ifdef LADDER_CUDA
      {"cuda", fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10)},
      {"nccl", dotted(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)},
#endif
      {"mkl", first_line(at::get_mkl_version())},
      {"onednn", first_line(at::get_mkldnn_version())},
      {"openssl", OPENSSL_VERSION_STR},
      {"fmt", dotted(FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"nlohmann-json", dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                               NLOHMANN_JSON_VERSION_PATCH)},
      {"compiler", __VERSION__},
  };
}

}  // namespace ladder
