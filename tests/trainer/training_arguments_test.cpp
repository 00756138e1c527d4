// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/training_arguments.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/trainer/argument_table.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Json = nlohmann::json;
using Notes = std::vector<std::string>;

TrainingArguments from(const Json& json, Notes* notes = nullptr) {
  return training_arguments_from(json, "a.json", notes);
}

Json json_of(const TrainingArguments& arguments) { return Json::parse(to_json(arguments).dump()); }

// Every field has another value than its default.
TrainingArguments all_changed() {
  return {.output_dir = "out",
          .run_name = "run",
          .report_to = {"jsonl", "csv"},
          .num_train_epochs = 0.1 + 0.2,
          .max_steps = 9'007'199'254'740'993,
          .per_device_train_batch_size = 64,
          .per_device_eval_batch_size = 128,
          .gradient_accumulation_steps = 4,
          .optim = OptimizerName::kRmsprop,
          .learning_rate = 1.0 / 3.0,
          .weight_decay = 5e-324,
          .adam_beta1 = 0.8,
          .adam_beta2 = std::nextafter(1.0, 0.0),
          .adam_epsilon = 1e-7,
          .max_grad_norm = 0.0,
          .label_smoothing_factor = 0.1,
          .lr_scheduler_type = SchedulerType::kReduceLrOnPlateau,
          .lr_scheduler_kwargs = R"({"factor":0.1,"mode":"max","patience":3})",
          .warmup_steps = 0.1,
          .warmup_ratio = 0.06,
          .fp16 = true,
          .bf16 = true,
          .tf32 = false,
          .logging_strategy = IntervalStrategy::kEpoch,
          .logging_steps = 0.05,
          .logging_first_step = true,
          .logging_nan_inf_filter = false,
          .disable_tqdm = true,
          .banner = Banner::kV5,
          .eval_strategy = IntervalStrategy::kSteps,
          .eval_steps = 7.0,
          .eval_delay = 1.5,
          .eval_on_start = true,
          .prediction_loss_only = true,
          .save_strategy = SaveStrategy::kBest,
          .save_steps = 21.0,
          .save_total_limit = 2,
          .save_only_model = true,
          .overwrite_output_dir = true,
          .load_best_model_at_end = true,
          .metric_for_best_model = "accuracy",
          .greater_is_better = true,
          .resume_from_checkpoint = "out/checkpoint-7",
          .ignore_data_skip = true,
          .restore_callback_states_from_checkpoint = true,
          .seed = std::numeric_limits<std::uint64_t>::max(),
          .data_seed = 0,
          .full_determinism = true,
          .dataloader_num_workers = 3,
          .dataloader_pin_memory = false,
          .dataloader_drop_last = true,
          .label_names = {"a", "b"},
          .ddp_backend = "gloo",
          .ddp_find_unused_parameters = true,
          .ddp_bucket_cap_mb = 10,
          .ddp_broadcast_buffers = false,
          .ddp_timeout = 60,
          .accelerator_config = {.split_batches = true,
                                 .dispatch_batches = true,
                                 .even_batches = false},
          .use_cpu = true,
          .sums = Sums::kExact,
          .micro_batch = 8,
          .do_train = true,
          .do_eval = true,
          .do_predict = true,
          .fast_dev_run = true,
          .limit_train_batches = 0.25};
}

TEST(TrainingArguments, ARoundTripKeepsEveryFieldToItsLastBit) {
  const auto written = json_of(all_changed());
  const auto standard = json_of({});
  for (const auto& [name, value] : written.items()) {
    EXPECT_NE(value, standard.at(name)) << name << " is not changed, so nothing is shown of it";
  }
  const auto read = from(written);
  EXPECT_EQ(read.learning_rate, 1.0 / 3.0);
  EXPECT_EQ(read.num_train_epochs, 0.1 + 0.2);
  EXPECT_EQ(read.weight_decay, 5e-324);
  EXPECT_EQ(read.adam_beta2, std::nextafter(1.0, 0.0));
  EXPECT_EQ(read.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(read.max_steps, 9'007'199'254'740'993);
  EXPECT_EQ(json_of(read), written);
  EXPECT_EQ(json_of(from(standard)), standard);
}

// What the command line does: every value out as a text, and in again.
TEST(TrainingArguments, ATextKeepsEveryFieldToItsLastBit) {
  for (const auto& arguments : {TrainingArguments{}, all_changed()}) {
    TrainingArguments read = all_changed();
    for (const auto& row : training_argument_table()) {
      const auto value = row.write(arguments);
      if (value.is_null()) {
        row.read(read, "a", value);
      } else {
        row.read(read, "a", text_of(value));
      }
    }
    EXPECT_EQ(json_of(read), json_of(arguments));
  }
}

TEST(TrainingArguments, WhatIsUnsetIsNull) {
  const auto json = to_json(TrainingArguments{});
  for (const char* name : {"run_name", "warmup_ratio", "tf32", "eval_steps", "save_total_limit",
                           "metric_for_best_model", "greater_is_better", "resume_from_checkpoint",
                           "data_seed", "ddp_backend", "ddp_bucket_cap_mb"}) {
    EXPECT_TRUE(json.at(name).is_null()) << name;
  }
  EXPECT_EQ(to_json({.output_dir = ""}).at("output_dir"), "");
  EXPECT_EQ(from({{"output_dir", ""}}).output_dir, "");
}

TEST(TrainingArguments, ANullUnsetsButIsNoNumber) {
  const auto read = from({{"output_dir", nullptr},
                          {"eval_steps", nullptr},
                          {"disable_tqdm", nullptr},
                          {"label_names", nullptr},
                          {"accelerator_config", nullptr},
                          {"lr_scheduler_kwargs", nullptr}});
  EXPECT_EQ(json_of(read), json_of({}));
  EXPECT_ERROR(from({{"learning_rate", nullptr}}), UsageError,
               "a.json: learning_rate: expected a number, got 'null'");
  EXPECT_ERROR(from({{"optim", nullptr}}), UsageError,
               "a.json: optim: expected one of adamw_torch");
}

// What a command line says to take back what a file says.
TEST(TrainingArguments, ATextUnsets) {
  const auto read = from({{"save_total_limit", "none"},
                          {"tf32", "none"},
                          {"report_to", "none"},
                          {"ddp_backend", "auto"},
                          {"resume_from_checkpoint", "False"}});
  EXPECT_EQ(json_of(read), json_of({}));
  EXPECT_EQ(from({{"resume_from_checkpoint", false}}).resume_from_checkpoint, "");
  EXPECT_EQ(from({{"resume_from_checkpoint", true}}).resume_from_checkpoint, "true");
  EXPECT_EQ(from({{"resume_from_checkpoint", "True"}}).resume_from_checkpoint, "true");
  EXPECT_ERROR(from({{"resume_from_checkpoint", "no"}}), UsageError,
               "resume_from_checkpoint: expected a path, got 'no'; hint: omit it, or write ./no");
}

TEST(TrainingArguments, BothNamesOfAdamW) {
  EXPECT_EQ(from({{"optim", "adamw_torch"}}).optim, OptimizerName::kAdamW);
  EXPECT_EQ(from({{"optim", "adamw_torch_fused"}}).optim, OptimizerName::kAdamW);
  EXPECT_EQ(to_json(TrainingArguments{}).at("optim"), "adamw_torch_fused");
  EXPECT_ERROR(from({{"optim", "adafactor"}}), UsageError,
               "a.json: optim: expected one of adamw_torch_fused, adam, sgd, adagrad, rmsprop");
}

TEST(TrainingArguments, EveryScheduleHasItsName) {
  const Notes names = {"linear",
                       "cosine",
                       "cosine_with_restarts",
                       "polynomial",
                       "constant",
                       "constant_with_warmup",
                       "inverse_sqrt",
                       "reduce_lr_on_plateau"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto read = from({{"lr_scheduler_type", names[i]}});
    EXPECT_EQ(read.lr_scheduler_type, static_cast<SchedulerType>(i));
    EXPECT_EQ(to_json(read).at("lr_scheduler_type"), names[i]);
  }
  EXPECT_EQ(from({{"lr_scheduler_type", "inverse_sqrt"}}).lr_scheduler_type,
            SchedulerType::kInverseSqrt);
}

TEST(TrainingArguments, RefusesValuesOfAnotherKind) {
  EXPECT_ERROR(from({{"seed", -1}}), UsageError, "seed: expected a whole number >= 0, got '-1'");
  EXPECT_ERROR(from({{"max_steps", 1.5}}), UsageError, "max_steps: expected a whole number");
  EXPECT_ERROR(from({{"max_steps", 1e300}}), UsageError, "max_steps: expected a whole number");
  EXPECT_ERROR(from({{"gradient_accumulation_steps", 3'000'000'000}}), UsageError,
               "gradient_accumulation_steps: expected a whole number, got '3000000000'");
  EXPECT_ERROR(from(Json::parse(R"({"gradient_accumulation_steps": 3000000000})")), UsageError,
               "gradient_accumulation_steps: expected a whole number, got '3000000000'");
  EXPECT_ERROR(from(Json::parse(R"({"max_steps": 18446744073709551615})")), UsageError,
               "max_steps: expected a whole number, got '18446744073709551615'");
  EXPECT_ERROR(from({{"learning_rate", "1e-3x"}}), UsageError, "expected a number, got '1e-3x'");
  EXPECT_ERROR(from({{"learning_rate", "nan"}}), UsageError, "expected a number, got 'nan'");
  EXPECT_ERROR(from({{"learning_rate", true}}), UsageError, "expected a number, got 'true'");
  EXPECT_ERROR(from({{"fp16", 1}}), UsageError, "fp16: expected true or false, got '1'");
  EXPECT_ERROR(from({{"fp16", "maybe"}}), UsageError, "fp16: expected true or false");
  EXPECT_ERROR(from({{"run_name", 3}}), UsageError, "run_name: expected a text, got '3'");
  EXPECT_ERROR(from({{"label_names", {1, 2}}}), UsageError, "label_names: expected a text");
  EXPECT_ERROR(from({{"label_names", "a,,b"}}), UsageError, "label_names: expected names");
  EXPECT_ERROR(from({{"eval_strategy", "epochs"}}), UsageError, "did you mean epoch?");
  EXPECT_ERROR(from({{"report_to", {"wandb"}}}), UsageError, "report_to: expected one of jsonl");
  EXPECT_ERROR(from({{"ddp_backend", "mpi"}}), UsageError, "ddp_backend: expected one of gloo");
  EXPECT_ERROR(from(Json::array()), UsageError, "a.json: not a map of names to values");
}

TEST(TrainingArguments, TheNestedOnesAreObjectsOrTheirText) {
  const auto read = from({{"accelerator_config", R"({"split_batches": true})"},
                          {"lr_scheduler_kwargs", {{"num_cycles", "2"}, {"power", "0.5"}}}});
  EXPECT_TRUE(read.accelerator_config.split_batches);
  EXPECT_TRUE(read.accelerator_config.even_batches);
  EXPECT_EQ(read.lr_scheduler_kwargs, R"({"num_cycles":2,"power":0.5})");
  EXPECT_ERROR(from({{"accelerator_config", {{"split_batch", true}}}}), UsageError,
               "a.json: accelerator_config: expected one of split_batches, dispatch_batches, "
               "even_batches, got 'split_batch'; hint: did you mean split_batches?");
  EXPECT_ERROR(from({{"accelerator_config", {{"use_seedable_sampler", false}}}}), UsageError,
               "a.json: accelerator_config.use_seedable_sampler: expected true, got 'false'");
  EXPECT_ERROR(from({{"accelerator_config", "{split"}}), UsageError, "expected a JSON object");
  EXPECT_ERROR(from({{"lr_scheduler_kwargs", {{"a", {{"b", 1}}}}}}), UsageError,
               "a.json: lr_scheduler_kwargs.a: expected a number");
  const auto deep = std::string(100'000, '[');
  EXPECT_ERROR(from({{"lr_scheduler_kwargs", deep}}), UsageError, "expected a JSON object");
}

TEST(TrainingArguments, UnknownNamesComeWithTheNearest) {
  EXPECT_ERROR(
      from({{"learning_rat", 1}}), UsageError,
      "a.json: learning_rat: no such training argument; hint: did you mean learning_rate?");
  EXPECT_ERROR(from({{"zzzzzzzzzzzzzzzz", 1}}), UsageError, "see the fields of TrainingArguments");
}

TEST(TrainingArguments, WhatTransformersAloneHasIsRefusedByName) {
  EXPECT_ERROR(from({{"gradient_checkpointing", true}}), UsageError,
               "a.json: gradient_checkpointing: belongs to transformers and is not supported here");
  EXPECT_ERROR(from({{"push_to_hub", "yes"}}), UsageError, "push_to_hub: belongs to transformers");
  EXPECT_ERROR(from({{"skip_memory_metrics", false}}), UsageError, "skip_memory_metrics: belongs");
  EXPECT_ERROR(from({{"fsdp", "full_shard"}}), UsageError, "fsdp: belongs to transformers");
}

TEST(TrainingArguments, WhatMakesNoDifferenceIsPassedOver) {
  Notes notes;
  const Json json = {{"remove_unused_columns", false},
                     {"gradient_checkpointing", false},
                     {"push_to_hub", "no"},
                     {"fsdp", ""},
                     {"deepspeed", Json::object()},
                     {"include_for_metrics", Json::array()},
                     {"skip_memory_metrics", true}};
  EXPECT_EQ(json_of(from(json, &notes)), json_of({}));
  EXPECT_EQ(notes, (Notes{"remove_unused_columns: accepted, without effect: data_collator "
                          "defines the contents of a batch"}));
}

TEST(TrainingArguments, OldNamesAreTakenWithANote) {
  Notes notes;
  const auto read = from({{"evaluation_strategy", "epoch"}}, &notes);
  EXPECT_EQ(read.eval_strategy, IntervalStrategy::kEpoch);
  EXPECT_EQ(notes, (Notes{"evaluation_strategy: old name of eval_strategy"}));
  EXPECT_ERROR(from({{"evaluation_strategy", "epoch"}, {"eval_strategy", "no"}}), UsageError,
               "a.json: evaluation_strategy: sets eval_strategy again");
}

TEST(TrainingArguments, NoNameStandsInTwoTables) {
  std::set<std::string_view> names;
  for (const auto& row : training_argument_table()) EXPECT_TRUE(names.insert(row.name).second);
  for (const auto& row : unsupported_argument_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
  for (const auto& old : deprecated_names()) {
    EXPECT_TRUE(names.contains(old.now) && names.insert(old.old).second) << old.old;
  }
}

// --- Files ---

class ArgumentFile : public testing::Test {
 protected:
  TrainingArguments read(std::string_view name, std::string_view text, Notes* notes = nullptr) {
    return read_training_arguments(folder_.write(name, text), notes);
  }
  std::string at(const std::string& rest) const { return folder_.path() + "/" + rest; }

  TemporaryFolder folder_;
};

TEST_F(ArgumentFile, JsonAndYamlSayTheSame) {
  const auto json = read("a.json", to_json(all_changed()).dump(2));
  EXPECT_EQ(json_of(json), json_of(all_changed()));
  const auto yaml = read("a.yml", to_json(all_changed()).dump(2));  // JSON is YAML
  EXPECT_EQ(json_of(yaml), json_of(all_changed()));
  const auto lines = read("a.yaml",
                          "learning-rate: 1e-3\nfp16: no\ntf32: ~\nlabel_names: [a, b]\n"
                          "accelerator_config:\n  split_batches: true\n"
                          "lr_scheduler_kwargs: {num_cycles: 0.5}\nresume_from_checkpoint: true\n");
  EXPECT_EQ(lines.learning_rate, 1e-3);
  EXPECT_EQ(lines.label_names, (Notes{"a", "b"}));
  EXPECT_TRUE(lines.accelerator_config.split_batches);
  EXPECT_EQ(lines.lr_scheduler_kwargs, R"({"num_cycles":0.5})");
  EXPECT_EQ(lines.resume_from_checkpoint, "true");
}

TEST_F(ArgumentFile, ErrorsBeginWithFileAndLine) {
  EXPECT_ERROR(read("a.yaml", "seed: 1\n\nlearning_rate: fast\n"), UsageError,
               at("a.yaml:3: learning_rate: expected a number, got 'fast'"));
  EXPECT_ERROR(read("a.yaml", "seed: 1\nsede: 2\n"), UsageError,
               at("a.yaml:2: sede: no such training argument; hint: did you mean seed?"));
  EXPECT_ERROR(read("a.yaml", "data_seed: 1\ndata-seed: 2\n"), UsageError,
               at("a.yaml:2: data-seed: sets data_seed again"));
  EXPECT_ERROR(read("a.yaml", "learning_rate:\n"), UsageError, "a.yaml:1: learning_rate: expected");
  EXPECT_ERROR(read("a.json", "{\"seed\": 1,\n \"sede\"}"), UsageError,
               at("a.json: expected valid JSON, got an error at byte 20, line 2; hint: write "));
  EXPECT_ERROR(read("a.json", R"({"seed": 1, "seed": 2})"), UsageError,
               at("a.json: expected every key once, got \"seed\" twice"));
  EXPECT_ERROR(read("a.json", std::string(60'000, '[')), UsageError, "a.json");
  EXPECT_ERROR(read("a.json", "{\"a\":" + std::string(99, '[') + std::string(99, ']') + "}"),
               UsageError, at("a.json: expected JSON of at most 16 levels, got more"));
  EXPECT_ERROR(read("a.json", "{\"learning_rate\": 1e999}"), UsageError, "a.json");
  EXPECT_ERROR(read("a.json", std::string(65'537, ' ')), UsageError, "at most 65536 bytes");
  EXPECT_ERROR(read("a.toml", ""), UsageError, "a name that ends in .json, .yaml or .yml");
  EXPECT_ERROR(read_training_arguments(at("none.json")), UsageError,
               "expected a readable file, got none; hint: write 'name: value'");
  EXPECT_ERROR(read_training_arguments(folder_.path() + "/none.yaml"), UsageError, "none.yaml");
}

// --- What follows from other arguments ---

TEST(ResolveTrainingArguments, DefaultsAreCompleteAndASecondCallChangesNothing) {
  TrainingArguments standard;
  EXPECT_TRUE(resolve(standard).empty());
  EXPECT_EQ(json_of(standard), json_of({}));
  TrainingArguments changed{.report_to = {"all"},
                            .warmup_ratio = 0.1,
                            .eval_strategy = IntervalStrategy::kSteps,
                            .load_best_model_at_end = true};
  EXPECT_EQ(resolve(changed), (Notes{"warmup_ratio: deprecated, used as warmup_steps=0.1",
                                     "eval_steps: not set, logging_steps used: 500"}));
  const auto once = json_of(changed);
  EXPECT_TRUE(resolve(changed).empty());
  EXPECT_EQ(json_of(changed), once);
}

TEST(ResolveTrainingArguments, DerivesWhatTransformersDerives) {
  TrainingArguments arguments{.report_to = {"all"},
                              .eval_strategy = IntervalStrategy::kSteps,
                              .load_best_model_at_end = true,
                              .use_cpu = true};
  resolve(arguments);
  EXPECT_TRUE(arguments.do_eval);
  EXPECT_EQ(arguments.eval_steps, 500.0);
  EXPECT_EQ(arguments.metric_for_best_model, "loss");
  EXPECT_EQ(arguments.greater_is_better, false);
  EXPECT_EQ(arguments.report_to, (Notes{"jsonl", "csv", "tensorboard"}));
  EXPECT_FALSE(arguments.dataloader_pin_memory);
}

TEST(ResolveTrainingArguments, GreaterIsBetterUnlessTheNameEndsInLoss) {
  for (const auto& [metric, greater] :
       {std::pair("eval_accuracy", true), std::pair("eval_loss", false), std::pair("loss", false),
        std::pair("losses", true)}) {
    TrainingArguments arguments{.metric_for_best_model = metric};
    resolve(arguments);
    EXPECT_EQ(arguments.greater_is_better, greater) << metric;
  }
  TrainingArguments given{.metric_for_best_model = "accuracy", .greater_is_better = false};
  resolve(given);
  EXPECT_EQ(given.greater_is_better, false);
}

TEST(ResolveTrainingArguments, WarmupStepsWinOverTheRatio) {
  TrainingArguments arguments{.warmup_steps = 10.0, .warmup_ratio = 0.1};
  EXPECT_EQ(resolve(arguments), (Notes{"warmup_ratio: without effect beside warmup_steps"}));
  EXPECT_EQ(arguments.warmup_steps, 10.0);
  EXPECT_FALSE(arguments.warmup_ratio.has_value());
}

TEST(ResolveTrainingArguments, ATildeIsTheHomeFolder) {
  TrainingArguments arguments{.output_dir = "~/out"};
  resolve(arguments);
  EXPECT_EQ(arguments.output_dir, environment_variable("HOME").value_or("~") + "/out");
  TrainingArguments other{.output_dir = "~other/out"};
  resolve(other);
  EXPECT_EQ(other.output_dir, "~other/out");
}

void expect_refused(TrainingArguments arguments, const std::string& message) {
  EXPECT_ERROR(resolve(arguments), UsageError, message);
}

// Their products must fit 64 bits: an overflow trained nothing and ended well.
TEST(ResolveTrainingArguments, RefusesNumbersNearTheEndOfTheirTypes) {
  constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
  constexpr int kLargestInt = std::numeric_limits<int>::max();
  expect_refused({.max_steps = kLargest}, "max_steps: expected 1 to 1000000000, or -1, got ");
  expect_refused({.per_device_train_batch_size = kLargest},
                 "per_device_train_batch_size: expected");
  expect_refused({.per_device_eval_batch_size = kLargest}, "per_device_eval_batch_size: expected");
  expect_refused(
      {.gradient_accumulation_steps = kLargestInt},
      "gradient_accumulation_steps: expected a number from 1 to 1000000, got 2147483647; "
      "hint: the default is 1");
  expect_refused({.dataloader_num_workers = kLargestInt},
                 "dataloader_num_workers: expected a number from 0 to 1024, got 2147483647");
  expect_refused({.ddp_bucket_cap_mb = kLargestInt},
                 "ddp_bucket_cap_mb: expected a number from 1 to 1000000, got 2147483647; hint: "
                 "leave it unset for the default: gradient bucket size in MiB [25]");
  expect_refused({.micro_batch = kLargest}, "micro_batch: expected a number from 1 to 10000000");
  expect_refused({.save_steps = 1e18}, "save_steps: expected a whole number from 1 to 1000000000");
}

TEST(ResolveTrainingArguments, RefusesNumbersOutsideTheirRange) {
  expect_refused({.num_train_epochs = -1.0},
                 "num_train_epochs: expected a number from 0 to 1000000000, got -1");
  expect_refused({.max_steps = 0},
                 "max_steps: expected 1 to 1000000000, or -1, got 0; hint: with -1");
  expect_refused({.max_steps = -2}, "max_steps: expected 1 to 1000000000, or -1, got -2");
  expect_refused(
      {.per_device_train_batch_size = 0},
      "per_device_train_batch_size: expected a number from 1 to 10000000, got 0; hint: the "
      "default is 8");
  expect_refused({.per_device_eval_batch_size = 0}, "per_device_eval_batch_size: expected");
  expect_refused({.gradient_accumulation_steps = 0}, "gradient_accumulation_steps: expected");
  expect_refused({.learning_rate = -1.0}, "learning_rate: expected a number >= 0");
  expect_refused({.learning_rate = NAN}, "learning_rate: expected a number >= 0");
  expect_refused({.weight_decay = -1.0}, "weight_decay: expected");
  expect_refused({.adam_beta1 = 1.0}, "adam_beta1: expected a number >= 0 and below 1, got 1");
  expect_refused({.adam_beta2 = -0.1}, "adam_beta2: expected");
  expect_refused({.adam_epsilon = -1.0}, "adam_epsilon: expected");
  expect_refused({.max_grad_norm = -1.0}, "max_grad_norm: expected");
  expect_refused({.label_smoothing_factor = 1.1},
                 "label_smoothing_factor: expected a number from 0 to 1, got 1.1");
  expect_refused({.warmup_steps = -1.0},
                 "warmup_steps: expected a number from 0 to 1000000000, got -1");
  expect_refused({.warmup_ratio = 1.0}, "warmup_ratio: expected a number >= 0 and below 1, got 1");
  expect_refused({.eval_delay = -1.0}, "eval_delay: expected");
  expect_refused({.save_total_limit = 0}, "save_total_limit: expected a number >= 1, got 0");
  expect_refused({.dataloader_num_workers = -1}, "dataloader_num_workers: expected");
  expect_refused({.ddp_bucket_cap_mb = 0}, "ddp_bucket_cap_mb: expected");
  expect_refused({.ddp_timeout = 0}, "ddp_timeout: expected a number from 1 to 604800, got 0");
  expect_refused({.micro_batch = 0}, "micro_batch: expected a number from 1 to 10000000, got 0");
  expect_refused({.limit_train_batches = 0.0}, "limit_train_batches: expected a whole number");
  expect_refused({.limit_train_batches = 1.5}, "limit_train_batches: expected a whole number");
}

TEST(ResolveTrainingArguments, StepsAreWholeOrAPartOfAll) {
  const char* form =
      "expected a whole number from 1 to 1000000000, or a fraction above 0 and below 1, got ";
  for (const auto& [steps, text] :
       {std::pair(0.0, "0"), std::pair(1.5, "1.5"), std::pair(-1.0, "-1")}) {
    expect_refused({.logging_steps = steps}, fmt::format("logging_steps: {}{}", form, text));
    expect_refused({.save_steps = steps}, fmt::format("save_steps: {}{}", form, text));
  }
  expect_refused({.eval_strategy = IntervalStrategy::kSteps, .eval_steps = 2.5}, "eval_steps: ");
  TrainingArguments unused{.logging_strategy = IntervalStrategy::kNo,
                           .logging_steps = 0.0,
                           .eval_steps = 2.5,
                           .save_strategy = SaveStrategy::kEpoch,
                           .save_steps = 1.5};
  EXPECT_NO_THROW(resolve(unused));
}

TEST(ResolveTrainingArguments, RefusesWhatContradictsItself) {
  expect_refused({.fp16 = true, .bf16 = true}, "fp16: bf16 is set too");
  expect_refused({.output_dir = ""}, "output_dir: expected a folder for the checkpoints");
  expect_refused({.lr_scheduler_type = SchedulerType::kReduceLrOnPlateau},
                 "lr_scheduler_type: reduce_lr_on_plateau needs evaluations");
  expect_refused({.eval_strategy = IntervalStrategy::kEpoch, .save_strategy = SaveStrategy::kBest},
                 "save_strategy: expected metric_for_best_model beside best");
  expect_refused({.save_strategy = SaveStrategy::kBest, .metric_for_best_model = "accuracy"},
                 "save_strategy: there is no best model without evaluation");
  expect_refused({.load_best_model_at_end = true},
                 "load_best_model_at_end: there is no best model without evaluation");
  expect_refused({.ddp_backend = "mpi"}, "ddp_backend: expected one of gloo");
  expect_refused({.report_to = {"wandb"}}, "report_to: expected one of jsonl");
  expect_refused({.lr_scheduler_kwargs = "[1]"}, "lr_scheduler_kwargs: expected a JSON object");
  for (const bool split : {false, true}) {
    expect_refused({.accelerator_config = {.split_batches = split, .even_batches = split},
                    .sums = Sums::kExact},
                   "sums exact: the batches of this accelerator_config depend on the number of "
                   "processes; hint: set accelerator_config to {\"split_batches\": true, "
                   "\"even_batches\": false}");
  }
  TrainingArguments nothing_saved{.output_dir = "", .save_strategy = SaveStrategy::kNo};
  EXPECT_NO_THROW(resolve(nothing_saved));
}

TrainingArguments best_of(double save, double eval) {
  return {.eval_strategy = IntervalStrategy::kSteps,
          .eval_steps = eval,
          .save_steps = save,
          .load_best_model_at_end = true};
}

TEST(ResolveTrainingArguments, TheBestModelMustHaveBeenSaved) {
  expect_refused({.eval_strategy = IntervalStrategy::kEpoch, .load_best_model_at_end = true},
                 "load_best_model_at_end: eval_strategy and save_strategy differ");
  expect_refused(best_of(100, 30), "save_steps: expected a multiple of 30, got 100");
  expect_refused(best_of(0.3, 0.2), "save_steps: expected a multiple of 0.2, got 0.3");
  expect_refused(best_of(100, 0.1), "save_steps 100 and eval_steps 0.1: one is a fraction");
  for (const auto& [save, eval] : {std::pair(90.0, 30.0), std::pair(0.3, 0.1)}) {
    TrainingArguments arguments = best_of(save, eval);
    EXPECT_NO_THROW(resolve(arguments)) << save;
  }
  TrainingArguments best{.eval_strategy = IntervalStrategy::kSteps,
                         .save_strategy = SaveStrategy::kBest,
                         .load_best_model_at_end = true};
  EXPECT_NO_THROW(resolve(best));
}

TEST(AcceleratorConfig, TheTwoSettingsMakeTheThreeModes) {
  EXPECT_EQ((AcceleratorConfig{}.mode()), LoaderMode::kPerProcess);
  EXPECT_EQ((AcceleratorConfig{.even_batches = false}.mode()), LoaderMode::kPerProcess);
  EXPECT_EQ((AcceleratorConfig{.split_batches = true}.mode()), LoaderMode::kSplitBatches);
  EXPECT_EQ((AcceleratorConfig{.split_batches = true, .even_batches = false}.mode()),
            LoaderMode::kGlobal);
}

}  // namespace
}  // namespace ladder
