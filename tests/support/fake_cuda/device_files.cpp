// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include "tests/support/fake_cuda/fake_cuda.h"

// Launchers count the files /dev/nvidia0 and up: the folder /dev seems to have those of this
// device, and no others.
namespace fake_cuda {
namespace {

std::mutex listing_mutex;
std::map<DIR*, int>& shown() {
  static auto& all = *new std::map<DIR*, int>;  // files of ours, by folder that is being read
  return all;
}

bool is_dev(DIR* folder) {
  struct stat ours{}, dev{};
  return ::fstat(::dirfd(folder), &ours) == 0 && ::stat("/dev", &dev) == 0 &&
         ours.st_dev == dev.st_dev && ours.st_ino == dev.st_ino;
}

bool is_of_a_gpu(const dirent* entry) {
  const std::string_view name = entry->d_name;
  return name.starts_with("nvidia") || name == "dxg";
}

dirent* next_of_ours(DIR* folder) {
  thread_local dirent entry;
  const std::lock_guard lock(listing_mutex);
  int& number = shown()[folder];
  if (number == machine_device_count()) {
    shown().erase(folder);
    return nullptr;
  }
  entry = {};
  entry.d_type = DT_CHR;
  std::snprintf(entry.d_name, sizeof entry.d_name, "nvidia%d", number++);
  return &entry;
}

}  // namespace
}  // namespace fake_cuda

extern "C" [[gnu::visibility("default")]] dirent* readdir(DIR* folder) {
  using Function = dirent* (*)(DIR*);
  static const auto original = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "readdir"));
  auto* entry = original(folder);
  if (!fake_cuda::is_dev(folder)) return entry;
  while (entry != nullptr && fake_cuda::is_of_a_gpu(entry)) entry = original(folder);
  return entry != nullptr ? entry : fake_cuda::next_of_ours(folder);
}

// Only LibTorch with CUDA has it, and so this device.
extern "C" [[gnu::visibility("default")]] int cudaGetDeviceCount(int* count) {
  *count = fake_cuda::device_count();
  return *count == 0 ? 100 : 0;  // cudaErrorNoDevice
}
