// SPDX-License-Identifier: Apache-2.0
#include "ladder/trainer/training_arguments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/parallel/replicate_options.h"
#include "ladder/trainer/argument_table.h"
#include "tests/support/expect_error.h"
#include "tests/support/option_refusals.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using Json = nlohmann::json;
using Notes = std::vector<std::string>;

TrainingArguments from(const Json& json, Notes* notes = nullptr) {
  return training_arguments_from(json, "a.json", notes);
}

Json json_of(const TrainingArguments& arguments) { return Json::parse(to_json(arguments).dump()); }

// Every argument has another value than its default.
const Json kAllChanged = Json::parse(R"({
    "output_dir": "out", "run_name": "run", "report_to": ["jsonl", "csv"],
    "num_train_epochs": 0.30000000000000004, "max_steps": 9007199254740993,
    "per_device_train_batch_size": 64, "per_device_eval_batch_size": 128,
    "gradient_accumulation_steps": 4, "optim": "rmsprop", "learning_rate": 0.3333333333333333,
    "weight_decay": 5e-324, "adam_beta1": 0.8, "adam_beta2": 0.9999999999999999,
    "adam_epsilon": 1e-7, "max_grad_norm": 0.0, "label_smoothing_factor": 0.1,
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "lr_scheduler_kwargs": {"factor": 0.1, "mode": "max", "patience": 3},
    "warmup_steps": 0.1, "warmup_ratio": 0.06, "fp16": true, "bf16": true, "tf32": false,
    "cuda_graph": true,
    "logging_strategy": "epoch", "logging_steps": 0.05, "logging_first_step": true,
    "logging_nan_inf_filter": false, "disable_tqdm": true, "banner": "v5",
    "eval_strategy": "steps", "eval_steps": 7, "eval_delay": 1.5, "eval_on_start": true,
    "prediction_loss_only": true, "save_strategy": "best", "save_steps": 21,
    "save_total_limit": 2, "save_only_model": true, "overwrite_output_dir": true,
    "load_best_model_at_end": true, "metric_for_best_model": "accuracy",
    "greater_is_better": true, "resume_from_checkpoint": "out/checkpoint-7",
    "ignore_data_skip": true, "restore_callback_states_from_checkpoint": true,
    "seed": 18446744073709551615, "data_seed": 0, "full_determinism": true,
    "dataloader_num_workers": 3, "dataloader_pin_memory": false, "dataloader_drop_last": true,
    "label_names": ["a", "b"], "ddp_backend": "gloo", "ddp_find_unused_parameters": true,
    "ddp_bucket_cap_mb": 10, "ddp_broadcast_buffers": false, "ddp_timeout": 60,
    "accelerator_config":
        {"split_batches": true, "dispatch_batches": true, "even_batches": false},
    "use_cpu": true, "sums": "exact", "micro_batch": 8, "do_train": true, "do_eval": true,
    "do_predict": true, "fast_dev_run": true, "limit_train_batches": 0.25})");

// As add_sums() does before main() where LibTorch is linked.
const bool has_exact_sums = (sum_names().emplace_back("exact", ""), true);

TEST(TrainingArguments, ARoundTripKeepsEveryFieldToItsLastBit) {
  EXPECT_TRUE(has_exact_sums);
  const auto standard = json_of({});
  EXPECT_EQ(kAllChanged.size(), standard.size());
  for (const auto& [name, value] : kAllChanged.items()) {
    EXPECT_NE(value, standard.at(name)) << name << " is not changed, so nothing is shown of it";
  }
  const auto read = from(kAllChanged);
  EXPECT_EQ(read.learning_rate, 1.0 / 3.0);
  EXPECT_EQ(read.num_train_epochs, 0.1 + 0.2);
  EXPECT_EQ(read.weight_decay, 5e-324);
  EXPECT_EQ(read.adam_beta2, std::nextafter(1.0, 0.0));
  EXPECT_EQ(read.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(read.max_steps, 9'007'199'254'740'993);
  EXPECT_EQ(json_of(read), kAllChanged);
  EXPECT_EQ(json_of(from(standard)), standard);
}

// What the command line does: every value out as a text, and in again.
TEST(TrainingArguments, ATextKeepsEveryFieldToItsLastBit) {
  for (const auto& arguments : {TrainingArguments{}, from(kAllChanged)}) {
    TrainingArguments read = from(kAllChanged);
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
  const auto json = json_of({});
  for (const char* name : {"run_name", "warmup_ratio", "tf32", "eval_steps", "save_total_limit",
                           "metric_for_best_model", "greater_is_better", "resume_from_checkpoint",
                           "data_seed", "ddp_backend", "ddp_bucket_cap_mb"}) {
    EXPECT_TRUE(json.at(name).is_null()) << name;
  }
  EXPECT_EQ(json.at("optim"), "adamw_torch_fused");
  EXPECT_EQ(to_json({.output_dir = ""}).at("output_dir"), "");
  EXPECT_EQ(from({{"output_dir", ""}}).output_dir, "");
}

// The texts are those of a command line, to take back what a file contains.
TEST(TrainingArguments, ANullOrATextUnsets) {
  for (const char* name : {"output_dir", "eval_steps", "disable_tqdm", "label_names",
                           "accelerator_config", "lr_scheduler_kwargs"}) {
    EXPECT_EQ(json_of(from({{name, nullptr}})), json_of({})) << name;
  }
  const auto read = from({{"save_total_limit", "none"},
                          {"tf32", "none"},
                          {"report_to", "none"},
                          {"ddp_backend", "auto"},
                          {"resume_from_checkpoint", "False"}});
  EXPECT_EQ(json_of(read), json_of({}));
  EXPECT_EQ(from({{"resume_from_checkpoint", false}}).resume_from_checkpoint, "");
  EXPECT_EQ(from({{"resume_from_checkpoint", true}}).resume_from_checkpoint, "true");
  EXPECT_EQ(from({{"resume_from_checkpoint", "True"}}).resume_from_checkpoint, "true");
}

TEST(TrainingArguments, EachRefusesWhatItsRowExcludes) {
  EXPECT_GT(expect_refusals<TrainingArguments>(training_argument_table()), 250);
}

TEST(TrainingArguments, RefusesValuesOfAnotherKindByName) {
  for (const auto& [json, text] : std::vector<std::pair<std::string, std::string>>{
           {R"("max_steps": 18446744073709551615)", "a whole number, got '18446744073709551615'"},
           {R"("learning_rate": null)", "a number >= 0, got 'null'; hint: the default is 5e-05"},
           {R"("save_total_limit": 0)", "a whole number >= 1, got '0'; hint: leave it unset for"},
           {R"("eval_strategy": "epochs")", "did you mean epoch?"},
           {R"("report_to": ["wandb"])", "one of jsonl"},
           {R"("accelerator_config": {"split_batch": true})", "did you mean split_batches?"},
           {R"("accelerator_config": "{split")", "a JSON object"},
           {R"("lr_scheduler_kwargs": ")" + std::string(100'000, '[') + '"', "a JSON object"}}) {
    const auto name = json.substr(1, json.find(':') - 2);
    EXPECT_ERROR(from(Json::parse("{" + json + "}")), UsageError, "a.json: " + name + ": expected ",
                 text);
  }
  EXPECT_ERROR(from({{"accelerator_config", {{"use_seedable_sampler", false}}}}), UsageError,
               "a.json: accelerator_config.use_seedable_sampler: expected true, got 'false'");
  EXPECT_ERROR(from({{"lr_scheduler_kwargs", {{"a", {{"b", 1}}}}}}), UsageError,
               "a.json: lr_scheduler_kwargs.a: expected a number");
  EXPECT_ERROR(from(Json::array()), UsageError, "a.json: not a map of names to values");
}

TEST(TrainingArguments, TheNestedOnesAreObjectsOrTheirText) {
  const auto read = from({{"accelerator_config", R"({"split_batches": true})"},
                          {"lr_scheduler_kwargs", {{"num_cycles", "2"}, {"power", "0.5"}}}});
  EXPECT_TRUE(read.accelerator_config.split_batches);
  EXPECT_TRUE(read.accelerator_config.even_batches);
  EXPECT_EQ(read.lr_scheduler_kwargs, R"({"num_cycles":2,"power":0.5})");
}

TEST(TrainingArguments, UnknownNamesComeWithTheNearestAndThoseOfTransformersWithAReason) {
  EXPECT_ERROR(from({{"learning_rat", 1}}), UsageError, "a.json: learning_rat: no such training",
               "did you mean learning_rate?");
  EXPECT_ERROR(from({{"zzzzzzzzzzzzzzzz", 1}}), UsageError, "see the fields of TrainingArguments");
  for (const auto& [name, value] : {std::pair("gradient_checkpointing", "true"),
                                    {"push_to_hub", "\"yes\""},
                                    {"skip_memory_metrics", "false"},
                                    {"fsdp", "\"full_shard\""}}) {
    EXPECT_ERROR(from({{name, Json::parse(value)}}), UsageError,
                 std::string("a.json: ") + name + ": belongs to transformers and is not supported");
  }
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
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(notes[0].starts_with("remove_unused_columns: accepted, without effect"));
}

TEST(TrainingArguments, OfTransformers4PassWithTheirDefaults) {
  const Json json = {{"fp16_opt_level", "O1"},
                     {"half_precision_backend", "auto"},
                     {"include_num_input_tokens_seen", false},
                     {"fsdp_config", {{"min_num_params", 0}, {"xla", false}, {"names", {}}}},
                     {"past_index", -1},
                     {"split_batches", nullptr}};
  EXPECT_EQ(json_of(from(json)), json_of({}));
  EXPECT_ERROR(from({{"fsdp_config", {{"xla", true}}}}), UsageError, "fsdp_config: belongs to");
  EXPECT_ERROR(from({{"include_num_input_tokens_seen", "all"}}), UsageError, "belongs to");
}

TEST(TrainingArguments, AllThatAreRefusedAreListedAtOnce) {
  const Json json = {{"adafactor", true}, {"fsdp", "full_shard"}, {"lr", 1}, {"optim", "adamw_hf"},
                     {"seed", 7},         {"warmup_ratio", 2}};
  EXPECT_ERROR(from(json), UsageError,
               "a.json: adafactor, fsdp: belongs to transformers and is not supported here; "
               "warmup_ratio: expected a number >= 0 and below 1, got '2'; "
               "optim: expected one of adamw_torch_fused, adam, sgd, adagrad, rmsprop, got "
               "'adamw_hf'; lr: no such training argument, did you mean learning_rate?; hint: ");
}

TEST(TrainingArguments, AFileOfAnotherKindIsNamed) {
  for (const auto& [key, file] : {std::pair{"zero_optimization", "a configuration of DeepSpeed"},
                                  {"sagemaker_program", "hyperparameters of SageMaker"},
                                  {"compute_environment", "a configuration of accelerate"},
                                  {"log_history", "the trainer_state.json"}}) {
    EXPECT_ERROR(from({{key, "x"}, {"learning_rate", 1}}), UsageError,
                 std::string("a.json: has ") + key + ": it is ", file);
  }
}

TEST(TrainingArguments, OldNamesAreTakenWithANote) {
  Notes notes;
  const auto read = from({{"evaluation_strategy", "epoch"}}, &notes);
  EXPECT_EQ(read.eval_strategy, IntervalStrategy::kEpoch);
  EXPECT_EQ(notes, (Notes{"evaluation_strategy: old name of eval_strategy"}));
  EXPECT_TRUE(from({{"no_cuda", true}, {"use_cpu", false}}).use_cpu);  // as transformers 4 writes
  EXPECT_TRUE(from({{"no_cuda", false}, {"use_cpu", true}}).use_cpu);
  EXPECT_ERROR(from({{"evaluation_strategy", "epoch"}, {"eval_strategy", "steps"}}), UsageError,
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

TEST(ArgumentFile, JsonAndYamlSayTheSame) {
  const TemporaryFolder folder;
  for (const char* name : {"a.json", "a.yml"}) {  // JSON is YAML
    const auto read = read_training_arguments(folder.write(name, kAllChanged.dump(2)));
    EXPECT_EQ(json_of(read), kAllChanged) << name;
  }
  const auto lines = read_training_arguments(
      folder.write("a.yaml",
                   "learning-rate: 1e-3\nfp16: no\ntf32: ~\nlabel_names: [a, b]\n"
                   "accelerator_config:\n  split_batches: true\n"
                   "lr_scheduler_kwargs: {num_cycles: 0.5}\nresume_from_checkpoint: true\n"));
  EXPECT_EQ(lines.learning_rate, 1e-3);
  EXPECT_EQ(lines.label_names, (Notes{"a", "b"}));
  EXPECT_TRUE(lines.accelerator_config.split_batches);
  EXPECT_EQ(lines.lr_scheduler_kwargs, R"({"num_cycles":0.5})");
  EXPECT_EQ(lines.resume_from_checkpoint, "true");
}

TEST(ArgumentFile, ErrorsBeginWithFileAndLine) {
  struct Case {
    std::string name, content, message;
  };
  const TemporaryFolder folder;
  for (const auto& [name, content, message] : std::vector<Case>{
           {"a.yaml", "seed: 1\n\nlearning_rate: fast\n", ":3: learning_rate: expected a number"},
           {"a.yaml", "seed: 1\nsede: 2\n", ":2: sede: no such training argument"},
           {"a.yaml", "data_seed: 1\ndata-seed: 2\n", ":2: data-seed: sets data_seed again"},
           {"a.yaml", "learning_rate:\n", ":1: learning_rate: expected"},
           {"a.json", "{\"seed\": 1,\n \"sede\"}",
            ": expected valid JSON, got an error at byte 20"},
           {"a.json", R"({"seed": 1, "seed": 2})", ": expected every key once, got \"seed\" twice"},
           {"a.json", std::string(60'000, '['), ": expected"},
           {"a.json", "{\"a\":" + std::string(99, '[') + std::string(99, ']') + "}",
            ": expected JSON of at most 16 levels"},
           {"a.json", "{\"learning_rate\": 1e999}", ": expected"},
           {"a.json", std::string(65'537, ' '), ": expected at most 65536 bytes"},
           {"a.toml", "", ": expected a name that ends in .json, .yaml or .yml"}}) {
    const auto path = folder.write(name, content);
    EXPECT_ERROR(read_training_arguments(path), UsageError, path + message);
  }
  for (const char* name : {"none.json", "none.yaml"}) {
    EXPECT_ERROR(read_training_arguments(folder.file(name)), UsageError,
                 folder.file(name) + ": expected a readable file, got none");
  }
}

// --- What follows from other arguments ---

TrainingArguments resolved(TrainingArguments arguments) {
  resolve(arguments);
  return arguments;
}

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
  const auto arguments = resolved({.report_to = {"all"},
                                   .eval_strategy = IntervalStrategy::kSteps,
                                   .load_best_model_at_end = true,
                                   .use_cpu = true});
  EXPECT_TRUE(arguments.do_eval);
  EXPECT_EQ(arguments.eval_steps, 500.0);
  EXPECT_EQ(arguments.metric_for_best_model, "loss");
  EXPECT_EQ(arguments.greater_is_better, false);
  EXPECT_EQ(arguments.report_to, (Notes{"jsonl", "csv", "tensorboard"}));
  EXPECT_FALSE(arguments.dataloader_pin_memory);
}

TEST(ResolveTrainingArguments, GreaterIsBetterUnlessTheNameEndsInLoss) {
  for (const auto& [metric, greater] : {std::pair("eval_accuracy", true),
                                        {"eval_loss", false},
                                        {"loss", false},
                                        {"losses", true}}) {
    EXPECT_EQ(resolved({.metric_for_best_model = metric}).greater_is_better, greater) << metric;
  }
  const auto given = resolved({.metric_for_best_model = "accuracy", .greater_is_better = false});
  EXPECT_EQ(given.greater_is_better, false);
}

TEST(ResolveTrainingArguments, WarmupStepsWinOverTheRatio) {
  TrainingArguments arguments{.warmup_steps = 10.0, .warmup_ratio = 0.1};
  EXPECT_EQ(resolve(arguments), (Notes{"warmup_ratio: without effect beside warmup_steps"}));
  EXPECT_EQ(arguments.warmup_steps, 10.0);
  EXPECT_FALSE(arguments.warmup_ratio.has_value());
}

TEST(ResolveTrainingArguments, ATildeIsTheHomeFolder) {
  EXPECT_EQ(resolved({.output_dir = "~/out"}).output_dir,
            environment_variable("HOME").value_or("~") + "/out");
  EXPECT_EQ(resolved({.output_dir = "~other/out"}).output_dir, "~other/out");
}

// Products of the largest ones must fit 64 bits: an overflow trained nothing and ended well.
TEST(ResolveTrainingArguments, RefusesNumbersOutsideTheirRangeByName) {
  std::istringstream cases(R"(max_steps=0 max_steps=-2 max_steps=9223372036854775807 logging_steps=0
      logging_steps=1.5 logging_steps=-1 save_steps=0 save_steps=1.5 save_steps=-1 save_steps=1e18
      limit_train_batches=0 limit_train_batches=1.5)");
  for (std::string text; cases >> text;) {
    const auto equal = text.find('=');
    const auto name = text.substr(0, equal);
    EXPECT_ERROR(resolved(from({{name, text.substr(equal + 1)}})), UsageError, name + ": expected ",
                 ", got ");
  }
  for (const auto* name : {"per_device_train_batch_size", "per_device_eval_batch_size",
                           "micro_batch", "gradient_accumulation_steps"}) {
    EXPECT_LE(find_argument(name)->details.most, 1e7) << name;
  }
}

TEST(ResolveTrainingArguments, RefusesWhatContradictsItself) {
  const auto resolved_json = [](const std::string& json) {
    return resolved(from(Json::parse("{" + json + "}")));
  };
  const std::string best = R"("eval_strategy": "steps", "load_best_model_at_end": true, )";
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("fp16": true, "bf16": true)", "fp16: bf16 is set too"},
           {R"("output_dir": "")", "output_dir: expected a folder for the checkpoints"},
           {R"("lr_scheduler_type": "reduce_lr_on_plateau")", "needs evaluations"},
           {R"("eval_strategy": "epoch", "save_strategy": "best")",
            "save_strategy: expected metric_for_best_model beside best"},
           {R"("save_strategy": "best", "metric_for_best_model": "accuracy")",
            "save_strategy: there is no best model without evaluation"},
           {R"("load_best_model_at_end": true)",
            "load_best_model_at_end: there is no best model without evaluation"},
           {R"("eval_strategy": "steps", "eval_steps": 2.5)", "eval_steps: expected"},
           {R"("sums": "exact")", "sums: exact, and the batches of this accelerator_config"},
           {R"("sums": "exact", "accelerator_config": {"split_batches": true})",
            "sums: exact, and the batches of this accelerator_config"},
           {R"("eval_strategy": "epoch", "load_best_model_at_end": true)",
            "load_best_model_at_end: eval_strategy and save_strategy differ"},
           {best + R"("save_steps": 100, "eval_steps": 30)",
            "save_steps: expected a multiple of 30"},
           {best + R"("save_steps": 0.3, "eval_steps": 0.2)",
            "save_steps: expected a multiple of 0.2"},
           {best + R"("save_steps": 100, "eval_steps": 0.1)",
            "eval_steps 0.1: one is a fraction"}}) {
    EXPECT_ERROR(resolved_json(json), UsageError, message);
  }
  EXPECT_ERROR(resolved({.ddp_backend = "mpi"}), UsageError, "ddp_backend: expected one of gloo");
  EXPECT_ERROR(resolved({.report_to = {"wandb"}}), UsageError, "report_to: expected one of jsonl");
  EXPECT_ERROR(resolved({.lr_scheduler_kwargs = "[1]"}), UsageError, "expected a JSON object");
  resolved_json(best + R"("save_steps": 90, "eval_steps": 30)");
  resolved_json(best + R"("save_steps": 0.3, "eval_steps": 0.1)");
  resolved_json(best + R"("save_strategy": "best")");
  resolved_json(R"("output_dir": "", "save_strategy": "no")");
  resolved_json(R"("logging_strategy": "no", "logging_steps": 0, "eval_steps": 2.5)");  // unused
  resolved_json(R"("save_strategy": "epoch", "save_steps": 1.5)");
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
