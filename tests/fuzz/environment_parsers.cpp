// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/core/environment.h"
#include "ladder/core/gpus.h"
#include "ladder/core/text.h"
#include "ladder/launch/launch_environment.h"
#include "tests/fuzz/parsers.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

// An input is a line NAME=VALUE for each variable. Those that begin with dashes are options.
using Table = std::map<std::string, std::string>;

Table table_of(const Bytes& bytes) {
  Table table;
  const std::string text = text_from(bytes);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t equals = std::min(line.find('='), line.size());
    table[line.substr(0, equals)] = line.substr(std::min(equals + 1, line.size()));
    begin = end + 1;
  }
  return table;
}

std::optional<std::string> text_in(const Table& table, const std::string& name) {
  const auto found = table.find(name);
  return found == table.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int> integer_in(const Table& table, const std::string& name) {
  const auto number = parse_number<std::int64_t>(text_in(table, name).value_or(""));
  if (!number || !std::in_range<int>(*number)) return std::nullopt;
  return static_cast<int>(*number);
}

VariableLookup lookup_in(const Table& table) {
  return [&table](const std::string& name) { return text_in(table, name); };
}

LaunchOptions options_in(const Table& table) {
  return {.rank = integer_in(table, "--rank"),
          .world_size = integer_in(table, "--world-size"),
          .master_addr = text_in(table, "--master-addr"),
          .master_port = integer_in(table, "--master-port"),
          .needs_address = !table.contains("--no-address")};
}

void read_launch(const Bytes& bytes) {
  const Table table = table_of(bytes);
  const auto read = table.contains("--require") ? require_launcher : read_launch_environment;
  const auto place = read(options_in(table), lookup_in(table));
  require(!place.description().empty(), "no description");
  require(place.rank >= 0 && place.rank < place.world_size, "a rank out of range");
  require(place.local_rank >= 0 && place.local_rank < place.local_world_size,
          "a local rank out of range");
  require(place.local_world_size <= place.world_size, "more ranks here than there are");
}

Parser launch_environment() {
  return {
      .name = "launch_environment",
      .sources = {"ladder/launch/launch_environment.cpp", "ladder/launch/launch_variables.cpp"},
      .samples = samples_of(
          {"",
           "RANK=3\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nGROUP_WORLD_SIZE=2\n"
           "MASTER_ADDR=10.0.0.1\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=a\n"
           "TORCHELASTIC_USE_AGENT_STORE=True\nTORCHELASTIC_RESTART_COUNT=1\n",
           "RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=::1\nMASTER_PORT=1\nLADDER_LISTEN_FD=3\n",
           "SLURM_STEP_ID=0\nSLURM_PROCID=2\nSLURM_LOCALID=0\nSLURM_NODEID=1\n"
           "SLURM_STEP_NUM_TASKS=5\nSLURM_STEP_TASKS_PER_NODE=2(x2),1\nSLURM_JOB_ID=12345\n"
           "SLURM_STEP_NODELIST=host[5-9,12]-ib,other\n",
           "SLURM_STEP_ID=0\nSLURM_PROCID=0\nSLURM_LOCALID=0\nSLURM_NTASKS=1\n"
           "SLURM_PTY_PORT=1\nSLURM_JOB_NAME=bash\nRANK=0\nWORLD_SIZE=1\n",
           "SLURM_STEP_ID=0\nSLURM_PROCID=1\nSLURM_LOCALID=1\nSLURM_STEP_NUM_TASKS=4\n"
           "SLURM_STEP_TASKS_PER_NODE=2(x2)\nRANK=1\nWORLD_SIZE=4\nMASTER_ADDR=a\nMASTER_PORT=1\n",
           "SLURM_STEP_ID=0\nSLURM_PROCID=1\nSLURM_LOCALID=0\nSLURM_STEP_NUM_TASKS=2\nRANK=3\n"
           "WORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=a\nMASTER_PORT=1\n",
           "SLURM_STEP_ID=0\nSLURM_PROCID=1\nSLURM_LOCALID=0\nSLURM_STEP_NUM_TASKS=2\n"
           "OMPI_COMM_WORLD_RANK=3\nOMPI_COMM_WORLD_SIZE=4\nMASTER_ADDR=a\n",
           "SLURM_STEP_ID=0\nSLURM_PROCID=0\nSLURM_LOCALID=0\nSLURM_STEP_NUM_TASKS=2\n"
           "SLURM_PTY_PORT=1\nSLURM_JOB_NAME=bash\n",
           "RANK=0\nWORLD_SIZE=2\nMASTER_ADDR=a\nMASTER_PORT=1\nTORCHELASTIC_RUN_ID=a\n"
           "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\n",
           "ACCELERATE_MIXED_PRECISION=no\nMASTER_ADDR=127.0.0.1\n",
           "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\n"
           "OMPI_COMM_WORLD_LOCAL_SIZE=2\n",
           "MV2_COMM_WORLD_RANK=0\nMV2_COMM_WORLD_SIZE=2\nMASTER_ADDR=a\n",
           "PMI_RANK=0\nPMI_SIZE=2\nMPI_LOCALRANKID=0\nMPI_LOCALNRANKS=2\nSLURM_STEP_ID=0\n"
           "SLURM_PROCID=0\nSLURM_LOCALID=0\nSLURM_STEP_NUM_TASKS=1\n",
           "--rank=0\n--world-size=2\n--master-addr=a\n--master-port=29500\n",
           "--rank=0\n--world-size=2\n--no-address\nKUBERNETES_SERVICE_HOST=a\n", "--require\n"}),
      .parse = read_launch,
      .refusal = ExitCode::kUsage};
}

Parser accelerate_environment() {
  return {.name = "accelerate_environment",
          .sources = {"ladder/accelerate/accelerate_config.cpp"},
          .samples = samples_of(
              {"ACCELERATE_MIXED_PRECISION=bf16\nACCELERATE_USE_CPU=true\n"
               "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2\nACCELERATE_DEBUG_MODE=0\n",
               "ACCELERATE_TORCH_DEVICE=cuda:1\nFORK_LAUNCHED=n\nACCELERATE_CPU_AFFINITY=1\n"
               "ACCELERATE_DYNAMO_BACKEND=NO\nACCELERATE_MIXED_PRECISION=fp16\n",
               "ACCELERATE_USE_DEEPSPEED=false\nACCELERATE_USE_FSDP=no\n"
               "ACCELERATE_USE_MEGATRON_LM=0\nACCELERATE_USE_PARALLELISM_CONFIG=off\n",
               "ACCELERATE_USE_FSDP=1\n", "ACCELERATE_DYNAMO_BACKEND=inductor\n",
               "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2000000000\n"}),
          .parse =
              [](const Bytes& bytes) {
                const Table table = table_of(bytes);
                const auto config = accelerate_config({.gradient_accumulation = {.num_steps = 3}},
                                                      lookup_in(table));
                const auto name = mixed_precision_name(config.mixed_precision);
                require(parse_mixed_precision("again", name) == config.mixed_precision,
                        "another precision when read again");
              },
          .refusal = ExitCode::kUsage,
          .words = {"fp8", "inductor"}};
}

// The environment of this process, as long as the object lives.
class ProcessEnvironment {
 public:
  explicit ProcessEnvironment(const Table& table) {
    for (const auto& [name, value] : table) lines_.push_back(name + '=' + value);
    for (auto& line : lines_) pointers_.push_back(line.data());
    pointers_.push_back(nullptr);
    environ = pointers_.data();
  }
  ~ProcessEnvironment() { environ = before_; }
  ProcessEnvironment(const ProcessEnvironment&) = delete;
  ProcessEnvironment& operator=(const ProcessEnvironment&) = delete;

 private:
  char** before_ = environ;
  std::vector<std::string> lines_;
  std::vector<char*> pointers_;
};

// Threads and GPUs are read from the environment itself.
Parser process_environment() {
  const auto dev = std::make_shared<const TemporaryFolder>();
  for (const char* name : {"two/nvidia0", "two/nvidia1", "two/nvidiactl", "windows/dxg"}) {
    dev->write(name, "");
  }
  return {.name = "process_environment",
          .sources = {"ladder/core/environment.cpp", "ladder/core/gpus.cpp"},
          .samples = samples_of({"OMP_NUM_THREADS=4, 1\nCUDA_VISIBLE_DEVICES=0,1\nRANK=1\n",
                                 "RANK=1\nWORLD_SIZE=2\nCUDA_VISIBLE_DEVICES=6, 7\n",
                                 "CUDA_VISIBLE_DEVICES=GPU-4a,GPU-5b\nOMP_NUM_THREADS=1,,\n",
                                 "CUDA_VISIBLE_DEVICES=MIG-a,MIG-b\n", "CUDA_VISIBLE_DEVICES=1,1\n",
                                 "CUDA_VISIBLE_DEVICES= +1gpu\n", ""}),
          .parse =
              [dev](const Bytes& bytes) {
                const ProcessEnvironment environment(table_of(bytes));
                for (const auto& [folder, most] : {std::pair("two", 2), {"windows", 1}}) {
                  const GpuSearch search{.dev = dev->file(folder), .has_cuda = true};
                  const int gpus = visible_gpu_count(search);
                  require(gpus >= 0 && gpus <= most, "more GPUs than there are");
                  require(missing_gpus(gpus, search).empty(), "visible GPUs are missing");
                  missing_gpus(0, search);
                  no_gpu_reason(search);
                }
                for (const auto threads : environment_integers("OMP_NUM_THREADS", 1)) {
                  require(threads >= 1, "less than one thread");
                }
                environment_integer("RANK", 0);
                require_gpus_of_launcher("gpu", "0,1");
              },
          .refusal = ExitCode::kUsage};
}

}  // namespace

std::vector<Parser> environment_parsers() {
  return {launch_environment(), accelerate_environment(), process_environment()};
}

}  // namespace ladder
