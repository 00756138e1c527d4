// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "ladder/checkpoint/safetensors.h"
#include "ladder/nn/state_dict.h"
#include "ladder/parallel/distributed_data_parallel.h"
#include "traps/ranks.h"
#include "traps/report.h"

namespace ladder::traps {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    auto name = (fs::temp_directory_path() / "ladder-traps-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "no temporary folder: is TMPDIR writable?");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

// How many tensors of the plain network a file has under their names.
std::int64_t found_in(const std::string& file, const Model& network) {
  const auto tensors = load_safetensors(file).tensors;
  std::int64_t found = 0;
  for (const auto& [name, tensor] : state_dict(network)) found += tensors.contains(name) ? 1 : 0;
  return found;
}

}  // namespace

void module_prefix() {
  on_processes(1, [] {
    const Recipe recipe({.name = "basicnet"});
    const Folder folder;
    const DistributedDataParallel ddp(seeded_model(recipe), ProcessGroup::single());
    const auto wrong = folder.file("wrong.safetensors");
    const auto right = folder.file("right.safetensors");
    save_safetensors(wrong, {.tensors = state_dict(ddp), .metadata = {}});  // ddp.state_dict()
    save_model(ddp, right);
    const auto network = recipe.make_model();
    require(found_in(wrong, *network) == 0, "the names have no prefix");
    require(found_in(right, *network) == 8, "save_model kept the prefix");
    load_model(*network, wrong);
    require(weights_sha256(state_dict(*network)) == weights_sha256(unwrapped_state_dict(ddp)),
            "load_model did not remove the prefix");
    mistake("first name in the file", load_safetensors(wrong).tensors.begin()->first);
    mistake("tensors found by name", "0 of 8");
    guard("first name in the file", load_safetensors(right).tensors.begin()->first);
    guard("tensors found by name", "8 of 8");
    guard("load_model accepts both", "yes");
  });
}

}  // namespace ladder::traps
