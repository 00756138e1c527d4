// SPDX-License-Identifier: Apache-2.0
// save_state and load_state: an interrupted run that is resumed.
#include "ladder/checkpoint/training_state.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerator.h"
#include "ladder/armour/checkpoint_folder.h"
#include "ladder/armour/stop_signal.h"
#include "ladder/checkpoint/random_state.h"
#include "ladder/checkpoint/safetensors.h"
#include "ladder/core/error.h"
#include "ladder/data/distributed_sampler.h"
#include "ladder/launch/signals.h"
#include "ladder/nn/state_dict.h"
#include "ladder/optim/adam.h"
#include "ladder/optim/fused_optimizer.h"
#include "ladder/optim/lr_scheduler.h"
#include "ladder/optim/schedules.h"
#include "ladder/parallel/convert_sync_batchnorm.h"
#include "tests/support/accelerators.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

constexpr int kBatches = 8;  // an epoch

struct Settings {
  std::string network = "basicnet";
  Math math = Math::kFast;
  AcceleratorOptions options = {.gradient_accumulation = {.num_steps = 2}};
  bool scales_loss = false;
};

DropoutMasks masks_of(Math math) {
  return math == Math::kFast ? DropoutMasks::kByPosition : DropoutMasks::kByGenerator;
}

std::shared_ptr<Model> make_network(const Recipe& recipe, Math math) {
  if (recipe.name() == "convnet") return first_model(recipe);
  return small_net(masks_of(math));
}

// A small training run with all that a checkpoint holds.
class Trainee {
 public:
  explicit Trainee(Accelerators& ranks, const Settings& settings = {})
      : recipe({.name = settings.network}),
        accelerator(ranks.make(settings.options)),
        network(make_network(recipe, settings.math)),
        sgd(recipe.make_optimizer(network->parameters())) {
    convert_sync_batchnorm(*network, accelerator->process_group());
    // fp16 enables it, on a GPU alone.
    if (settings.scales_loss) accelerator->scaler() = GradScaler({.init_scale = 1024.0});
    schedule = linear_schedule_with_warmup(*sgd, {.warmup_steps = 3, .training_steps = 10});
    auto loader_of_all = image_loader(kSamples, kBatch);
    std::tie(model, optimizer, scheduler) = accelerator->prepare(network, sgd, schedule);
    loader = std::make_unique<AcceleratedDataLoader>(accelerator->prepare(loader_of_all));
    set_seed(1, /*device_specific=*/true, accelerator->process_group());
  }

  // Trains until `end` batches are done in all, counted over the epochs: from the first one, or
  // from where a checkpoint left off.
  void train_until(std::int64_t end) {
    for (std::int64_t epoch = loader->epoch();; ++epoch) {
      loader->set_epoch(epoch);
      std::int64_t done = epoch * kBatches + loader->first_batch();
      for (const Batch& batch : *loader) {
        const auto accumulation = accelerator->accumulate(*model);
        run_backward(*accelerator, *model, recipe, batch);
        optimizer->step();
        scheduler->step();
        optimizer->zero_grad();
        if (++done == end) return;
      }
    }
  }

  // Of all that training has changed.
  std::string fingerprint() const {
    const auto& fused = dynamic_cast<FusedOptimizer&>(*sgd);
    schedule->settle();
    return fmt::format("{}\n{}\n{}\n{}\n{}", weights_sha256(state_dict(*network)),
                       weights_sha256(fused.state_dict(*network).tensors),
                       fused.state_dict(*network).groups.dump(), schedule->state_dict().dump(),
                       weights_sha256(random_state(torch::kCPU)));
  }

  Recipe recipe;
  std::unique_ptr<Accelerator> accelerator;
  std::shared_ptr<Model> network;
  std::shared_ptr<torch::optim::Optimizer> sgd;
  std::shared_ptr<LrScheduler> schedule;
  std::shared_ptr<Model> model;
  std::shared_ptr<AcceleratedOptimizer> optimizer;
  std::shared_ptr<AcceleratedScheduler> scheduler;
  std::unique_ptr<AcceleratedDataLoader> loader;
};

// Runs `fn` on all ranks, each with a Trainee and the same path, where nothing is yet.
void run_trainees(int world_size,
                  const std::function<void(Accelerators&, Trainee&, const std::string& path)>& fn,
                  const Settings& settings = {},
                  std::source_location caller = std::source_location::current()) {
  run_accelerators(
      world_size,
      [&](Accelerators& ranks) {
        Trainee trainee(ranks, settings);
        fn(ranks, trainee, ranks.folder().file("checkpoint"));
      },
      caller);
}

std::map<std::string, Settings> runs() {
  Settings dispatched;
  dispatched.options.data_loader.dispatch_batches = true;
  return {{"FastMath", {}},
          // Dropout from PyTorch's stream: the random states count.
          {"ReferenceMath", {.math = Math::kReference}},
          {"BatchNormOverAllRanks", {.network = "convnet"}},
          {"DispatchedBatches", dispatched},
          // A schedule that follows its optimizer one step later is saved with that step.
          {"GradientScaler", {.scales_loss = true}}};
}

class ResumeOf
    : public testing::TestWithParam<std::tuple<std::pair<const std::string, Settings>, int>> {};
INSTANTIATE_TEST_SUITE_P(Runs, ResumeOf,
                         testing::Combine(testing::ValuesIn(runs()), testing::Values(1, 2)),
                         [](const auto& run) {
                           return fmt::format("{}On{}", std::get<0>(run.param).first,
                                              std::get<1>(run.param));
                         });

// Broken off in the first epoch, at its end, and in the second.
TEST_P(ResumeOf, ARunIsBitEqual) {
  const auto& settings = std::get<0>(GetParam()).second;
  run_accelerators(std::get<1>(GetParam()), [&](Accelerators& ranks) {
    constexpr int kEnd = 2 * kBatches;
    Trainee whole(ranks, settings);
    whole.train_until(kEnd);
    for (const std::int64_t stop : {4, kBatches, 14}) {
      SCOPED_TRACE(stop);
      const auto path = ranks.folder().file("at" + std::to_string(stop));
      Trainee first(ranks, settings);
      first.train_until(stop);
      EXPECT_EQ(first.accelerator->save_state(path), path);
      Trainee second(ranks, settings);
      EXPECT_NE(second.fingerprint(), first.fingerprint());
      EXPECT_EQ(second.accelerator->load_state(path), path);
      EXPECT_EQ(second.fingerprint(), first.fingerprint());
      second.train_until(kEnd);
      EXPECT_EQ(second.fingerprint(), whole.fingerprint());
    }
  });
}

// Two processes go on with what one began: the same batches, so nearly the same weights.
TEST(ResumeElsewhere, WithAnotherNumberOfProcessesGoesOn) {
  const TemporaryFolder folder;
  const auto checkpoint = folder.file("checkpoint");
  const auto weights = folder.file("weights");
  run_accelerators(1, [&](Accelerators& ranks) {
    Trainee trainee(ranks);
    trainee.train_until(4);
    trainee.accelerator->save_state(checkpoint);
    Trainee whole(ranks);
    whole.train_until(12);
    whole.accelerator->save_model(*whole.model, weights);
  });
  run_accelerators(2, [&](Accelerators& ranks) {
    Trainee trainee(ranks);
    const auto random = weights_sha256(random_state(torch::kCPU));
    trainee.accelerator->load_state(checkpoint);
    EXPECT_EQ(weights_sha256(random_state(torch::kCPU)), random) << "of another process";
    EXPECT_EQ(trainee.loader->first_batch(), 4);
    trainee.train_until(12);
    const auto expected = make_network(trainee.recipe, Math::kFast);
    load_model(*expected, weights);
    EXPECT_LE(relative_difference(flat_weights(*trainee.model), flat_weights(*expected)), 2e-3);

    Settings settings;
    settings.options.data_loader.mode = LoaderMode::kPerProcess;
    Trainee per_process(ranks, settings);
    const auto before = per_process.fingerprint();
    EXPECT_THROW(per_process.accelerator->load_state(checkpoint), UsageError);
    EXPECT_EQ(per_process.fingerprint(), before);
  });
}

// --- what does not fit ---

TEST(Resume, IsRefusedForOtherObjectsAndInTheMiddleOfAWindow) {
  run_trainees(2, [](Accelerators& ranks, Trainee& saved, const std::string& path) {
    saved.train_until(1);
    EXPECT_ERROR(saved.accelerator->save_state(path), UsageError, "of an accumulation window");
    EXPECT_FALSE(fs::exists(path));
    saved.train_until(2);
    saved.accelerator->save_state(path);
    Trainee more(ranks);
    const auto extra = more.accelerator->prepare(first_model(convnet()));
    const auto before = more.fingerprint();
    EXPECT_ERROR(more.accelerator->load_state(path), DataError,
                 "expected model_1.safetensors, got a checkpoint without it");
    EXPECT_EQ(more.fingerprint(), before);
    const auto fewer = ranks.make();
    const auto model = fewer->prepare(make_network(saved.recipe, Math::kFast));
    const auto weights = flat_weights(*model);
    EXPECT_ERROR(fewer->load_state(path), DataError, "expected only the state of prepared objects");
    EXPECT_TRUE(torch::equal(flat_weights(*model), weights));
  });
}

// Writes a checkpoint with one file replaced; the manifest is that of the new files.
void replace_file(const std::string& from, const std::string& to, const std::string& name,
                  const std::string& content) {
  CheckpointWriter writer(to, {.latest = false});
  const auto checkpoint = open_checkpoint(from);
  for (const auto& [file, digest] : checkpoint.manifest()) {
    std::ifstream stream(from + "/" + file, std::ios::binary);
    const std::string same{std::istreambuf_iterator<char>(stream), {}};
    const std::string& written = file == name ? content : same;
    writer.write(file, [&](const WriteBytes& write) { write(std::as_bytes(std::span(written))); });
  }
  writer.commit();
}

// `damage` makes a bad checkpoint in `to`, on rank 0 alone.
void expect_refused(Accelerators& ranks, Trainee& trainee, const std::string& to,
                    const std::function<void()>& damage) {
  const auto before = trainee.fingerprint();
  const auto position = trainee.loader->state_dict();
  trainee.accelerator->on_main_process(damage);
  trainee.accelerator->wait_for_everyone();
  try {
    trainee.accelerator->load_state(to);
    ADD_FAILURE() << "loaded";
  } catch (const DataError&) {
  } catch (const DistributedError&) {
    EXPECT_GT(ranks.world_size(), 1) << "another rank saw it";
  }
  EXPECT_EQ(trainee.fingerprint(), before);
  EXPECT_EQ(trainee.loader->state_dict(), position);
}

TEST(Resume, ChangesNothingWhenAFileIsDamagedOrTheNetworkIsAnother) {
  run_trainees(2, [](Accelerators& ranks, Trainee& trainee, const std::string& good) {
    const auto of_another = ranks.folder().file("of_another");
    Trainee(ranks, {.network = "convnet"}).accelerator->save_state(of_another);
    expect_refused(ranks, trainee, of_another, [] {});
    trainee.train_until(2);
    trainee.accelerator->save_state(good);
    trainee.train_until(4);
    const auto last = fmt::format("random_states_{}.safetensors", ranks.world_size() - 1);
    for (const std::string& name :
         std::vector<std::string>{"model.safetensors", "optimizer.safetensors", "scheduler.json",
                                  "sampler.json", last}) {
      SCOPED_TRACE(name);
      const auto bad = ranks.folder().file("bad_" + name);
      expect_refused(ranks, trainee, bad, [&] { replace_file(good, bad, name, "{}"); });
      const auto flipped = ranks.folder().file("flipped_" + name);
      expect_refused(ranks, trainee, flipped, [&] {
        fs::copy(good, flipped, fs::copy_options::recursive);
        std::fstream(flipped + "/" + name, std::ios::in | std::ios::out).put('#');
      });
    }
    trainee.accelerator->load_state(good);
  });
}

// Also in a checkpoint whose manifest was made again.
TEST(Resume, APositionOutOfRangeOrOfOtherDataIsRefused) {
  run_trainees(1, [](Accelerators&, Trainee& trainee, const std::string&) {
    trainee.train_until(2);
    const auto& loader = *trainee.loader;
    const auto with = [&](const char* key, const nlohmann::json& value, std::int64_t batch = 2) {
      auto position = loader.state_dict();
      position["batch"] = batch;
      position[key] = value;
      return loader.plan_load(position, "sampler.json");
    };
    const auto huge = std::int64_t{1} << 62;
    EXPECT_ERROR(with("epoch", huge), DataError,
                 "sampler.json: expected a whole number from 0 to 1000000000 as \"epoch\", got ");
    EXPECT_ERROR(with("epoch", huge, 0), DataError, "a whole number from 0 to 1000000000");
    EXPECT_ERROR(with("batch", kBatches + 1), DataError, "expected a batch of 8, got batch 9");
    EXPECT_ERROR(with("batches", huge), UsageError, "the position is batch 2 of 4611");
    EXPECT_ERROR(with("data", "other"), UsageError, "sampler.json: it was written with other, and ",
                 "; hint: resume with the data of that run, or from a checkpoint between two");
    EXPECT_NO_THROW(with("data", "other", 0)) << "between two epochs: a warning";
    EXPECT_NO_THROW(with("epoch", 0));
  });
}

TEST(Resume, NamesOptionsOfTheOptimizerThatItChanges) {
  run_trainees(1, [](Accelerators&, Trainee& trainee, const std::string& path) {
    const auto& group = trainee.accelerator->process_group();
    const TrainingState state{.models = {trainee.network},
                              .optimizers = {trainee.sgd},
                              .scaler = std::make_shared<GradScaler>()};
    save_training_state(path, state, group);
    auto& optimizer = dynamic_cast<FusedOptimizer&>(*trainee.sgd);
    auto other = optimizer.state_dict(*trainee.network);
    other.groups[0]["weight_decay"] = 0.5;
    optimizer.plan_load(*trainee.network, other, "other options")();
    testing::internal::CaptureStderr();
    load_training_state(path, state, group, Log());
    EXPECT_EQ(
        testing::internal::GetCapturedStderr(),
        "resumed from " + path + "\nweight_decay 0.01 from the checkpoint, not 0.5 as requested\n");
  });
}

// --- numbers, limits, failures ---

// Settings with a project of its own, and its folder of checkpoints.
struct Project {
  explicit Project(const Accelerators& ranks, int total_limit = 0)
      : folder(ranks.folder().file("project")) {
    settings.options.project.project_dir = folder;
    if (total_limit > 0) settings.options.project.total_limit = total_limit;
  }

  std::string checkpoint(int number) const {
    return fmt::format("{}/checkpoints/checkpoint_{}", folder, number);
  }

  std::string folder;
  Settings settings;
};

TEST(Resume, NumbersCheckpointsAndKeepsTheLast) {
  run_accelerators(2, [](Accelerators& ranks) {
    const Project project(ranks, 2);
    std::string last;
    {
      Trainee trainee(ranks, project.settings);
      EXPECT_THROW(trainee.accelerator->load_state(), DataError);
      for (int number = 0; number < 3; ++number) {
        trainee.train_until(4);
        EXPECT_EQ(trainee.accelerator->save_state(), project.checkpoint(number));
      }
      last = trainee.fingerprint();
      trainee.accelerator->wait_for_everyone();
    }
    Trainee trainee(ranks, project.settings);
    EXPECT_EQ(trainee.accelerator->load_state(), project.checkpoint(2));
    EXPECT_EQ(trainee.fingerprint(), last);
    EXPECT_EQ(trainee.accelerator->save_state(), project.checkpoint(3));
    std::vector<std::int64_t> numbers;
    for (const auto& each : list_checkpoints(project.folder + "/checkpoints")) {
      numbers.push_back(each.number);
    }
    EXPECT_EQ(numbers, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(fs::read_symlink(project.folder + "/checkpoints/latest"), "checkpoint_3");
    trainee.accelerator->wait_for_everyone();
  });
}

TEST(SaveState, EndsARunThatASignalStopsInASave) {
  run_accelerators(2, [](Accelerators& ranks) {
    const Project project(ranks);
    Trainee trainee(ranks, project.settings);
    StopSignal stop(trainee.accelerator->process_group());
    if (trainee.accelerator->is_main_process()) std::raise(SIGTERM);
    EXPECT_THROW(trainee.accelerator->save_state(), StoppedBySignal);
    EXPECT_TRUE(fs::exists(project.checkpoint(0)));
  });
}

TEST(ResumeAuto, TakesTheNewestIntactCheckpointOrStartsAnew) {
  run_accelerators(2, [](Accelerators& ranks) {
    const Project project(ranks);
    Trainee trainee(ranks, project.settings);
    const auto fresh = trainee.fingerprint();
    EXPECT_EQ(trainee.accelerator->load_state("auto"), "");
    EXPECT_EQ(trainee.fingerprint(), fresh);
    std::vector<std::string> states;
    for (int number = 0; number < 3; ++number) {
      trainee.train_until(2 * (number + 1));
      trainee.accelerator->save_state();
      states.push_back(trainee.fingerprint());
    }
    EXPECT_EQ(trainee.accelerator->load_state("auto"), project.checkpoint(2));
    EXPECT_EQ(trainee.fingerprint(), states[2]);
    trainee.accelerator->wait_for_everyone();
    trainee.accelerator->on_main_process([&] {
      const auto damaged = project.checkpoint(2) + "/model.safetensors";
      std::fstream(damaged, std::ios::in | std::ios::out).put('#');
      fs::create_directory(project.checkpoint(3));
    });
    trainee.accelerator->wait_for_everyone();
    EXPECT_EQ(trainee.accelerator->load_state("auto"), project.checkpoint(1));
    EXPECT_EQ(trainee.fingerprint(), states[1]);
    EXPECT_THROW(trainee.accelerator->load_state(project.checkpoint(2)), DataError);
    EXPECT_EQ(trainee.accelerator->save_state(), project.checkpoint(4)) << "3 is no checkpoint";
    EXPECT_THROW(trainee.accelerator->load_state("./auto"), DataError) << "a folder of this name";
    trainee.accelerator->wait_for_everyone();
  });
}

// Each rank has a folder of this name on a disk of its own, which the current folder stands for.
class OwnDisks {
 public:
  explicit OwnDisks(const Accelerators& ranks)
      : before_(fs::current_path()),
        own_(ranks.folder().file(std::string("disk_") + getenv("RANK"))) {
    fs::create_directories(own_);
    fs::current_path(own_);
  }
  ~OwnDisks() { fs::current_path(before_); }
  OwnDisks(const OwnDisks&) = delete;
  OwnDisks& operator=(const OwnDisks&) = delete;

 private:
  fs::path before_;
  fs::path own_;
};

void expect_not_shared(const std::function<void()>& fn, const std::string& got) {
  EXPECT_ERROR(fn(), DistributedError,
               got + "; hint: name a folder on a disk that all ranks share");
}

TEST(Resume, IsRefusedForACheckpointThatRanksDoNotShare) {
  run_trainees(2, [](Accelerators& ranks, Trainee& trainee, const std::string&) {
    const auto shared = [&](int number) { return ranks.folder().file(std::to_string(number)); };
    for (const int number : {0, 1}) {
      trainee.train_until(2 * (number + 1));
      trainee.accelerator->save_state(shared(number));
    }
    trainee.accelerator->wait_for_everyone();
    const OwnDisks disks(ranks);
    expect_not_shared([&] { trainee.accelerator->save_state("new"); },
                      "save_state: ./.new.partial: expected the folder that rank 0 created on all "
                      "ranks, got none on rank 1");
    trainee.accelerator->wait_for_everyone();
    EXPECT_TRUE(fs::is_empty(fs::current_path()));
    const int rank = trainee.accelerator->process_index();
    const auto before = trainee.fingerprint();
    const auto load = [&](const char* path) { trainee.accelerator->load_state(path); };
    fs::copy(shared(rank), "checkpoint");
    expect_not_shared([&] { load("checkpoint"); },
                      "load_state: checkpoint: expected the checkpoint of rank 0 on all ranks, got "
                      "another one on rank 1");
    if (rank == 1) fs::rename("checkpoint", "aside");
    expect_not_shared([&] { load("checkpoint"); }, "checkpoint, got none)");
    if (rank == 1) fs::copy(shared(0), "checkpoint");
    load("checkpoint");
    EXPECT_NE(trainee.fingerprint(), before);
  });
}

TEST(Resume, TakesTheLatestOfRank0) {
  run_accelerators(2, [](Accelerators& ranks) {
    const Project project(ranks);
    Trainee trainee(ranks, project.settings);
    trainee.train_until(2);
    trainee.accelerator->save_state();
    const auto first = trainee.fingerprint();
    trainee.train_until(4);
    trainee.accelerator->save_state();
    trainee.accelerator->wait_for_everyone();
    const OwnDisks disks(ranks);
    const std::string own = "project/checkpoints/";
    fs::create_directories(own);
    for (const int n : {0, 1})
      fs::copy(project.checkpoint(n), own + fmt::format("checkpoint_{}", n));
    fs::create_symlink(fmt::format("checkpoint_{}", trainee.accelerator->process_index()),
                       own + "latest");
    EXPECT_EQ(trainee.accelerator->load_state("project"), own + "checkpoint_0");
    EXPECT_EQ(trainee.fingerprint(), first);
  });
}

// Limits what this process can write to a file, as a full disk does.
class NoSpace {
 public:
  NoSpace() {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &none);
  }
  ~NoSpace() { setrlimit(RLIMIT_FSIZE, &before_); }
  NoSpace(const NoSpace&) = delete;
  NoSpace& operator=(const NoSpace&) = delete;

 private:
  rlimit before_{};
};

TEST(SaveState, FailsOnAllWhenOneRankCannotWrite) {
  run_trainees(2, [](Accelerators&, Trainee& trainee, const std::string& path) {
    trainee.accelerator->save_state(path);
    const auto digest = [&] {
      return open_checkpoint(path).manifest().at("model.safetensors").sha256;
    };
    const auto old = digest();
    trainee.train_until(4);
    for (const int failing : {0, 1}) {
      if (trainee.accelerator->process_index() == failing) {
        const NoSpace limit;
        EXPECT_THROW(trainee.accelerator->save_state(path), SystemError);
      } else {
        EXPECT_ERROR(trainee.accelerator->save_state(path), DistributedError,
                     fmt::format("rank {} failed in save_state", failing));
      }
      trainee.accelerator->wait_for_everyone();
      EXPECT_EQ(digest(), old);
    }
    trainee.accelerator->save_state(path);
    EXPECT_NE(digest(), old);
    trainee.accelerator->wait_for_everyone();
  });
}

TEST(SaveState, RefusesWeightsAndOptimizersThatAreNotFinite) {
  run_trainees(2, [](Accelerators&, Trainee& trainee, const std::string& path) {
    trainee.train_until(2);
    const torch::NoGradGuard no_grad;
    const auto expect_refused = [&](const std::string& file, const std::string& name) {
      if (trainee.accelerator->is_main_process()) {
        EXPECT_ERROR(
            trainee.accelerator->save_state(path), NumericError,
            file + ".safetensors: expected finite weights, got NaN or infinity in " + name);
      } else {
        EXPECT_THROW(trainee.accelerator->save_state(path), DistributedError);
      }
      EXPECT_FALSE(fs::exists(path));
    };
    auto& optimizer = dynamic_cast<FusedOptimizer&>(*trainee.sgd);
    const auto tensors = optimizer.state_dict(*trainee.network).tensors;
    const auto value = tensors.begin()->second.view(-1)[0];
    value.fill_(NAN);
    expect_refused("optimizer", tensors.begin()->first);
    value.fill_(1.0F);
    auto bias = trainee.network->named_parameters()["linear.bias"];
    bias[3] = INFINITY;
    expect_refused("model", "linear.bias");
    bias.set_requires_grad(false);  // as a mask
    EXPECT_EQ(trainee.accelerator->save_state(path), path);
  });
}

TEST(SaveState, NeedsAFolderAndTheModelOfAnOptimizer) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto path = ranks.folder().file("checkpoint");
    const auto accelerator = ranks.make();
    EXPECT_ERROR(accelerator->save_state(), UsageError, "project.project_dir");
    EXPECT_ERROR(accelerator->load_state(), UsageError, "project.project_dir");
    const auto network = first_model(basicnet());
    const auto optimizer = accelerator->prepare(plain_sgd(*network));
    EXPECT_ERROR(accelerator->save_state(path), UsageError, "call accelerator.prepare(model) too");
    EXPECT_FALSE(fs::exists(path));
  });
}

// --- registered objects ---

// Checks and applies in one.
struct Counter {
  int value = 0;
  nlohmann::json state_dict() const { return {{"value", value}}; }
  void load_state_dict(const nlohmann::json& state, std::string_view /*origin*/) {
    value = state.at("value");
  }
};

// Checks first.
struct Planned : Counter {
  std::function<void()> plan_load(const nlohmann::json& state, std::string_view origin) {
    const int loaded = state.at("value");
    if (loaded < 0) throw DataError::mismatch(origin, "a value >= 0", "one below", "none");
    return [this, loaded] { value = loaded; };
  }
};
static_assert(LoadsState<Counter> && !PlansLoading<Counter>);
static_assert(PlansLoading<Planned>);
static_assert(!LoadsState<std::string> && !PlansLoading<std::string>);

TEST(Resume, IncludesRegisteredObjects) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto path = ranks.folder().file("checkpoint");
    const auto accelerator = ranks.make();
    Counter named{1};
    Counter counter{2};
    Planned planned{{3}};
    accelerator->register_for_checkpointing(named, "my_counter.json");
    accelerator->register_for_checkpointing(counter);
    accelerator->register_for_checkpointing(planned);
    accelerator->save_state(path);
    EXPECT_TRUE(fs::exists(path + "/my_counter.json"));
    EXPECT_TRUE(fs::exists(path + "/custom_checkpoint_0.json"));
    named.value = counter.value = planned.value = 0;
    accelerator->load_state(path);
    EXPECT_EQ(std::tuple(named.value, counter.value, planned.value), std::tuple(1, 2, 3));

    planned.value = -1;
    accelerator->save_state(path);
    counter.value = 5;
    EXPECT_ERROR(accelerator->load_state(path), DataError, "custom_checkpoint_1.json");
    EXPECT_EQ(counter.value, 5) << "applied when all was checked";
  });
}

// What one process trains on, as the environments of reinforcement learning.
struct Environment {
  std::int64_t seed = 0;
  std::int64_t steps = 0;

  Batch next() { return random_batch(4, static_cast<std::uint64_t>(seed + ++steps)); }
  nlohmann::json state_dict() const { return {{"seed", seed}, {"steps", steps}}; }
  void load_state_dict(const nlohmann::json& state, std::string_view /*origin*/) {
    seed = state.at("seed");
    steps = state.at("steps");
  }
};

struct SharedEnvironment : Environment {
  Apply plan_load_of_ranks(const std::vector<nlohmann::json>& states, std::string_view /*origin*/) {
    return [this, states] { load_state_dict(states.back(), ""); };
  }
};

std::string train_in_environments(Accelerators& ranks, const std::string& path, bool resumes) {
  const auto accelerator = ranks.make();
  Environment environment{.seed = resumes ? 0 : 1000 * accelerator->process_index()};
  accelerator->register_for_checkpointing(environment);
  const auto network = small_net();
  auto [model, optimizer] = accelerator->prepare(network, plain_sgd(*network));
  if (resumes) accelerator->load_state(path);
  while (environment.steps < 6) {
    run_backward(*accelerator, *model, basicnet(), environment.next());
    optimizer->step();
    optimizer->zero_grad();
    if (environment.steps == 3 && !resumes) accelerator->save_state(path);
  }
  return weights_sha256(state_dict(*network));
}

TEST(Resume, GivesEachProcessItsOwnStateOfAnObject) {
  const TemporaryFolder folder;
  const auto path = folder.file("checkpoint");
  const auto first = path + "/custom_checkpoint_0_rank_0.json";
  run_accelerators(2, [&](Accelerators& ranks) {
    const auto whole = train_in_environments(ranks, path, false);
    EXPECT_TRUE(fs::exists(first));
    EXPECT_EQ(train_in_environments(ranks, path, true), whole);
  });
  run_accelerators(1, [&](Accelerators& ranks) {
    EXPECT_ERROR(train_in_environments(ranks, path, true), UsageError,
                 "custom_checkpoint_0_rank_0.json and so on hold the state of each of 2 processes, "
                 "and this run has 1; hint: start it with 2 processes");
    const auto accelerator = ranks.make();
    SharedEnvironment environment;
    accelerator->register_for_checkpointing(environment);
    const auto network = small_net();
    auto [model, optimizer] = accelerator->prepare(network, plain_sgd(*network));
    accelerator->load_state(path);
    EXPECT_EQ(environment.seed, 1000);
  });
}

std::vector<std::string> files_of(const std::string& path);

// Saves in the second of three epochs, or resumes there.
std::string train_with_new_objects(Accelerators& ranks, const std::string& path, bool resumes) {
  const auto accelerator = ranks.make();
  Counter epoch;
  accelerator->register_for_checkpointing(epoch);
  const auto images = image_loader(kSamples, kBatch);
  const auto network = small_net();
  bool loads = resumes;
  do {
    const auto model = accelerator->prepare(network);
    auto adamw = std::make_shared<AdamW>(model->parameters(), AdamWOptions{.lr = 0.01});
    std::shared_ptr<LrScheduler> halved =
        std::make_shared<StepLR>(*adamw, StepLrOptions{.step_size = 2, .gamma = 0.5});
    auto [loader, optimizer, scheduler] = accelerator->prepare(DataLoader(images), adamw, halved);
    if (std::exchange(loads, false)) accelerator->load_state(path);
    loader.set_epoch(epoch.value);
    std::int64_t done = loader.first_batch();
    for (const Batch& batch : loader) {
      run_backward(*accelerator, *model, basicnet(), batch);
      optimizer->step();
      scheduler->step();
      optimizer->zero_grad();
      if (++done == 3 && epoch.value == 1 && !resumes) accelerator->save_state(path);
    }
  } while (++epoch.value < 3);
  return weights_sha256(state_dict(*network));
}

TEST(Resume, TakesAnObjectThatReplacesAnotherForTheSame) {
  for (const int world : {1, 2}) {
    run_accelerators(world, [&](Accelerators& ranks) {
      const auto path = ranks.folder().file("checkpoint");
      const auto whole = train_with_new_objects(ranks, path, false);
      const auto files = files_of(path);
      EXPECT_EQ(std::ranges::count(files, "optimizer.safetensors"), 1);
      for (const char* second : {"optimizer_1.safetensors", "scheduler_1.json", "sampler_1.json"}) {
        EXPECT_EQ(std::ranges::count(files, second), 0) << second;
      }
      EXPECT_EQ(train_with_new_objects(ranks, path, true), whole);
    });
  }
}

// Prepared after both optimizers, so that both places are free at once.
TEST(Resume, KeepsTheOrderOfSchedulesThatReplaceOthers) {
  run_accelerators(1, [&](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    const auto first = small_net();
    const auto second = small_net();
    accelerator->prepare(first, second);
    std::vector<std::string> states;
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto path = ranks.folder().file(std::to_string(epoch));
      const auto of_first = std::make_shared<AdamW>(first->parameters(), AdamWOptions{.lr = 0.1});
      const auto of_second = std::make_shared<AdamW>(second->parameters(), AdamWOptions{.lr = 0.2});
      std::shared_ptr<LrScheduler> a = std::make_shared<StepLR>(*of_first, StepLrOptions{});
      std::shared_ptr<LrScheduler> b = std::make_shared<StepLR>(*of_second, StepLrOptions{});
      const auto prepared = accelerator->prepare(of_first, of_second, a, b);
      accelerator->save_state(path);
      states.push_back(ranks.folder().read(std::to_string(epoch) + "/scheduler.json"));
    }
    EXPECT_EQ(states[1], states[0]);
  });
}

TEST(FreeMemory, ReleasesOneObject) {
  run_accelerators(2, [&](Accelerators& ranks) {
    const auto path = ranks.folder().file("checkpoint");
    const auto accelerator = ranks.make();
    const auto network = small_net();
    const auto adamw = std::make_shared<AdamW>(network->parameters(), AdamWOptions{});
    std::shared_ptr<LrScheduler> step_lr = std::make_shared<StepLR>(*adamw, StepLrOptions{});
    auto [model, optimizer, scheduler, loader] =
        accelerator->prepare(network, adamw, step_lr, image_loader(kSamples, kBatch));
    accelerator->free_memory(*optimizer);
    accelerator->save_state(path);
    EXPECT_EQ(files_of(path).size(), 5U) << "manifest, model, position, random states";
    accelerator->free_memory(*model);
    accelerator->free_memory(loader);
    accelerator->save_state(path);
    EXPECT_EQ(files_of(path).size(), 3U);
  });
}

// One of the two would be lost.
TEST(SaveState, RefusesTwoObjectsWithOneFile) {
  for (const char* file : {"counter.json", "model.safetensors", "random_states_0.safetensors"}) {
    run_accelerators(1, [&](Accelerators& ranks) {
      const auto accelerator = ranks.make();
      const auto model = accelerator->prepare(small_net());
      Counter first;
      Counter second;
      accelerator->register_for_checkpointing(first, "counter.json");
      accelerator->register_for_checkpointing(second, file);
      EXPECT_ERROR(accelerator->save_state(ranks.folder().file("checkpoint")), UsageError,
                   std::string("a second object with the file ") + file);
    });
  }
}

TEST(SaveTrainingState, NeedsNoScaler) {
  const TemporaryFolder folder;
  const auto path = folder.file("checkpoint");
  const TrainingState state{.models = {small_net()}};
  save_training_state(path, state, ProcessGroup::single());
  EXPECT_EQ(load_training_state(path, state, ProcessGroup::single(), Log()), path);
}

// Has a setting as a TrainingMonitor.
struct Seeded : Counter {
  std::string seed = "1";
  nlohmann::json state_dict() const { return {{"value", value}, {"settings", {{"--seed", seed}}}}; }
};

// Otherwise a limit would remove the checkpoints of that run, and "auto" would load them.
TEST(Project, OfAnotherRunIsRefusedBeforeTheFirstStep) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto project = ranks.folder().file("project");
    const auto run = [&](const std::string& seed, const std::string& checkpoint) {
      const auto accelerator = ranks.make({.project = {.project_dir = project, .total_limit = 1}});
      Seeded seeded{.seed = seed};
      accelerator->register_for_checkpointing(seeded);
      if (!checkpoint.empty()) accelerator->load_state(checkpoint);
      auto weight = torch::ones({}, torch::requires_grad());
      accelerator->backward(weight * weight);
      accelerator->save_state();
      accelerator->wait_for_everyone();
    };
    const auto first = project + "/checkpoints/checkpoint_0";
    run("1", "");
    for (const char* resume : {"", "auto"}) {
      try {
        run("2", resume);
        ADD_FAILURE() << "no error";
      } catch (const UsageError& error) {
        EXPECT_EQ(
            std::string(error.what()),
            "project_dir " + project + ": " + first +
                R"( is of another run: --seed is "1" there, and "2" here; hint: name another )"
                "project_dir, or resume from that checkpoint by its name");
      } catch (const DistributedError&) {  // of the other rank
      }
    }
    EXPECT_TRUE(fs::exists(first));
    run("2", first);
    EXPECT_TRUE(fs::exists(project + "/checkpoints/checkpoint_1")) << "chosen by its name";
    run("2", "");
  });
}

// The names of all files of a checkpoint, sorted.
std::vector<std::string> files_of(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(path)) names.push_back(file.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(SaveState, WritesOnlyTheModelOnRequestAndNothingThatWasFreed) {
  using Names = std::vector<std::string>;
  run_trainees(2, [](Accelerators& ranks, Trainee& trainee, const std::string& path) {
    const auto again = ranks.folder().file("again");
    Counter counter{1};
    trainee.accelerator->register_for_checkpointing(counter);
    trainee.accelerator->save_state(path, {.only_model = true, .latest = false});
    EXPECT_EQ(files_of(path),
              (Names{"custom_checkpoint_0.json", "manifest.json", "model.safetensors"}));
    EXPECT_FALSE(fs::exists(ranks.folder().file("latest")));
    EXPECT_ERROR(trainee.accelerator->load_state(path), DataError, "optimizer.safetensors");
    trainee.accelerator->free_memory();
    trainee.accelerator->save_state(path);
    EXPECT_EQ(files_of(path),
              (Names{"custom_checkpoint_0.json", "manifest.json", "random_states_0.safetensors",
                     "random_states_1.safetensors"}));
    auto network = small_net();
    trainee.accelerator->prepare(network);
    trainee.accelerator->save_state(again);
    EXPECT_TRUE(fs::exists(again + "/model.safetensors"));
    const auto evaluation =
        trainee.accelerator->prepare_eval_loader(numbered_loader(23, {.batch_size = 4}));
    EXPECT_EQ(evaluation.size(), 6);
    trainee.accelerator->save_state(path);
    EXPECT_FALSE(fs::exists(path + "/sampler.json")) << "a loader of evaluation has no position";
  });
}

// --- the loader's position ---

using Labels = std::vector<std::vector<std::int64_t>>;

Labels labels_of(const AcceleratedDataLoader& loader, std::int64_t end = 1'000) {
  Labels labels;
  for (const Batch& batch : loader) {
    const auto* first = batch.targets.const_data_ptr<std::int64_t>();
    labels.emplace_back(first, first + batch.targets.numel());
    if (std::ssize(labels) == end) break;
  }
  return labels;
}

AcceleratedDataLoader shuffled_loader(Accelerator& accelerator) {
  return accelerator.prepare(numbered_loader(23, {.batch_size = 4, .shuffle = true}));
}

TEST(Resume, SkipsTheFirstBatches) {
  run_accelerators(2, [](Accelerators& ranks) {
    for (const auto mode : {LoaderMode::kGlobal, LoaderMode::kPerProcess}) {
      const auto accelerator = ranks.make({.data_loader = {.mode = mode}});
      auto loader = shuffled_loader(*accelerator);
      loader.set_epoch(1);
      const auto all = labels_of(loader);
      for (std::int64_t skip = 0; skip <= loader.size(); ++skip) {
        auto rest = Accelerator::skip_first_batches(loader, skip);
        for (int pass = 0; pass < 2; ++pass) {  // of every pass
          rest.set_epoch(1);
          EXPECT_EQ(labels_of(rest), Labels(all.begin() + skip, all.end()));
        }
      }
      loader.set_epoch(1);
      EXPECT_EQ(labels_of(loader), all);
      EXPECT_ERROR(Accelerator::skip_first_batches(loader, loader.size() + 1), UsageError,
                   "the batches of an epoch");
      EXPECT_THROW(Accelerator::skip_first_batches(loader, -1), UsageError);
    }
  });
}

// As the package's loaders do. Else the second epoch would repeat the first, order and masks.
TEST(Resume, ContinuesWithTheNextEpochWithoutSetEpoch) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto accelerator = ranks.make();
    auto with_set_epoch = shuffled_loader(*accelerator);
    const auto without = shuffled_loader(*accelerator);
    for (const std::int64_t epoch : {0, 1, 2}) {
      with_set_epoch.set_epoch(epoch);
      EXPECT_EQ(labels_of(without), labels_of(with_set_epoch));
      EXPECT_EQ(without.epoch(), epoch + 1);
    }
  });
}

TEST(Resume, RestoresThePositionOfTheLoader) {
  run_accelerators(2, [](Accelerators& ranks) {
    const auto path = ranks.folder().file("checkpoint");
    const auto before = ranks.make();
    auto broken_off = shuffled_loader(*before);
    auto finished = shuffled_loader(*before);
    finished.set_epoch(4);
    labels_of(finished);
    broken_off.set_epoch(1);
    const auto second_epoch = labels_of(broken_off);
    broken_off.set_epoch(1);
    labels_of(broken_off, 2);
    before->save_state(path);

    for (const std::int64_t epoch : {1, 2}) {
      const auto after = ranks.make();
      auto loader = shuffled_loader(*after);
      const auto next = shuffled_loader(*after);
      after->load_state(path);
      EXPECT_EQ(next.epoch(), 5);
      EXPECT_EQ(next.first_batch(), 0);
      EXPECT_EQ(loader.epoch(), 1);
      EXPECT_EQ(loader.first_batch(), 2);
      loader.set_epoch(epoch);
      if (epoch == 1) {
        EXPECT_EQ(labels_of(loader), Labels(second_epoch.begin() + 2, second_epoch.end()));
        loader.set_epoch(epoch);
        EXPECT_EQ(labels_of(loader), second_epoch);  // once
      } else {
        EXPECT_EQ(loader.first_batch(), 0);
        EXPECT_EQ(std::ssize(labels_of(loader)), loader.size());
      }
    }
    const auto another = ranks.make({.data_loader = {.data_seed = 7}});
    const auto loader = shuffled_loader(*another);
    const auto next = shuffled_loader(*another);
    EXPECT_ERROR(another->load_state(path), UsageError, "an epoch with other batches");
    EXPECT_EQ(loader.first_batch(), 0);
  });
}

// A sampler without epochs: the position still marks a complete pass.
TEST(ResumeOfEvaluation, RepeatsThePass) {
  run_accelerators(1, [](Accelerators& ranks) {
    const auto path = ranks.folder().file("checkpoint");
    const auto accelerator = ranks.make();
    const auto loader = accelerator->prepare(
        numbered_loader(5, {.batch_size = 2, .sampler = std::make_shared<ExactEvalSampler>(5)}));
    const auto all = labels_of(loader);
    accelerator->save_state(path);
    accelerator->load_state(path);
    EXPECT_EQ(labels_of(loader), all);
  });
}

}  // namespace
}  // namespace ladder
