// SPDX-License-Identifier: Apache-2.0
// A Trainer does what that of transformers does: events, flags, logs, checkpoints and batches of
// the runs in tests/golden/trainer.json.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "ladder/armour/checkpoint_folder.h"
#include "ladder/trainer/progress_callback.h"
#include "ladder/trainer/trainer.h"
#include "tests/support/golden.h"
#include "tests/support/scripted_trainer.h"
#include "tests/support/temporary_folder.h"

namespace ladder::scripted {
namespace {

using nlohmann::json;

const json& golden() { return golden_json("trainer.json"); }

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// "NAME STEP EPOCH FLAGS" each.
std::vector<std::string> expanded_events(const json& entries) {
  std::vector<std::string> events;
  for (const auto& entry : entries) {
    const auto words = words_of(entry.get<std::string>());
    const auto names = words.size() - 3;
    const auto rest =
        fmt::format(" {}", fmt::join(words.begin() + std::ssize(words) - 3, words.end(), " "));
    for (std::size_t i = 0; i < names; ++i) {
      const auto all = words[i] == "step" ? words_of("step_begin pre_optimizer_step optimizer_step")
                                          : words_of(words[i]);
      for (const auto& name : all) events.push_back(name + rest);
    }
  }
  return events;
}

// Notes each event as it comes, then makes the changes of the script.
class Recorder : public EventNoter {
 public:
  explicit Recorder(json changes) : changes_(std::move(changes)) {}
  std::vector<std::string> events;
  ScriptedTrainer* trainer = nullptr;

 private:
  void note(const std::string& name, TrainerEvent& event) override {
    auto& control = event.control;
    const std::tuple<char, const char*, bool*> flags[] = {
        {'T', "should_training_stop", &control.should_training_stop},
        {'E', "should_epoch_stop", &control.should_epoch_stop},
        {'s', "should_save", &control.should_save},
        {'e', "should_evaluate", &control.should_evaluate},
        {'l', "should_log", &control.should_log}};
    std::string set;
    for (const auto& [letter, flag, value] : flags) set += *value ? std::string(1, letter) : "";
    events.push_back(fmt::format("{} {} {} {}", name, event.state.global_step,
                                 python_float(event.state.epoch), set.empty() ? "-" : set));
    for (const auto& change : changes_) {
      if (change.at("event") != name) continue;
      if (change.value("step", event.state.global_step) != event.state.global_step) continue;
      for (const auto& [letter, flag, value] : flags) {
        for (const auto& changed : change.at("set")) *value = *value || changed == flag;
      }
    }
    if (name != "evaluate" && name != "predict") return;
    ++trainer->evaluations;
    trainer->eval_batch = 0.0;
  }

  json changes_;
};

// What a log entry must be: keys in order, and values but for those that differ from run to run.
struct Expected {
  std::vector<std::string> keys;
  std::map<std::string, double> values;
};

Expected expected_log(const std::string& text) {
  Expected expected;
  for (const auto& word : words_of(text)) {
    const auto equal = word.find('=');
    const auto key = word.substr(0, equal);
    if (equal == std::string::npos) {
      const auto prefix = key.substr(0, key.rfind("_times"));
      for (const char* end : {"_runtime", "_samples_per_second", "_steps_per_second"}) {
        expected.keys.push_back(prefix + end);
      }
      continue;
    }
    expected.keys.push_back(key);
    const auto value = word.substr(equal + 1);
    if (value != "*") expected.values[key] = std::strtod(value.c_str(), nullptr);
  }
  return expected;
}

void expect_metrics(const Metrics& got, const Expected& expected, bool in_order,
                    const std::string& where) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : got) keys.push_back(key);
  auto wanted = expected.keys;
  if (!in_order) {
    std::sort(keys.begin(), keys.end());
    std::sort(wanted.begin(), wanted.end());
  }
  EXPECT_EQ(keys, wanted) << where;
  for (const auto& [key, value] : expected.values) {
    const double* const number = find_metric(got, key);
    ASSERT_NE(number, nullptr) << where << ' ' << key;
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(*number)) << where << ' ' << key;
    } else if (key.ends_with("loss")) {  // weights of a third round in other places than Python's
      EXPECT_NEAR(*number, value, 1e-12) << where;
    } else {
      EXPECT_EQ(*number, value) << where << ' ' << key;
    }
  }
}

json run_named(const std::string& name) {
  for (const auto& run : golden()["runs"]) {
    if (run["name"] == name) return run;
  }
  throw std::runtime_error("no run " + name);
}

class Training {
 public:
  Training(json script, const std::string& folder) : script_(std::move(script)), folder_(folder) {
    json arguments = golden()["common_arguments"];
    arguments.update(script_["arguments"]);
    auto args = training_arguments_from(arguments, "golden");
    args.output_dir = folder;
    recorder_ = std::make_shared<Recorder>(script_.value("changes", json::array()));
    std::vector<std::shared_ptr<TrainerCallback>> callbacks = {table};
    if (script_.contains("early_stopping")) {
      const auto& options = script_["early_stopping"];
      EarlyStoppingOptions stop;
      stop.early_stopping_patience =
          options.value("early_stopping_patience", stop.early_stopping_patience);
      if (options.contains("early_stopping_threshold")) {
        stop.early_stopping_threshold = number(options["early_stopping_threshold"]);
      }
      callbacks.push_back(std::make_shared<EarlyStoppingCallback>(stop));
    }
    // transformers moves a callback that it restores to the end; here it keeps its place.
    const bool is_restored = args.restore_callback_states_from_checkpoint;
    callbacks.insert(is_restored ? callbacks.begin() : callbacks.end(), recorder_);
    auto options = options_with(args, script_["samples"][0], script_["samples"][1]);
    if (script_["samples"][0] == 0) options.train_dataset = nullptr;
    if (script_["samples"][1] == 0) options.eval_dataset = nullptr;
    options.callbacks = callbacks;
    trainer = std::make_unique<ScriptedTrainer>(options, script_);
    recorder_->trainer = trainer.get();
  }

  void make_calls(const std::string& checkpoint = "") {
    const auto calls =
        script_.value("calls", json::array({json::array({"train", json::object()})}));
    for (const auto& call : calls) {
      const auto prefix = [&](const char* standard) {
        return call[1].value("metric_key_prefix", std::string(standard));
      };
      if (call[0] == "train") {
        returned.push_back(trainer->train(checkpoint).metrics);
      } else if (call[0] == "evaluate") {
        returned.push_back(trainer->evaluate(nullptr, prefix("eval")));
      } else {
        returned.push_back(trainer->predict(nullptr, prefix("test")).metrics);
      }
    }
  }

  const json& script() const { return script_; }
  const std::vector<std::string>& events() const { return recorder_->events; }
  std::vector<std::int64_t> checkpoints() const {
    std::vector<std::int64_t> steps;
    for (const auto& checkpoint : list_checkpoints(folder_, "checkpoint-")) {
      steps.push_back(checkpoint.number);
    }
    return steps;
  }

  std::shared_ptr<TableCallback> table = std::make_shared<TableCallback>();
  std::unique_ptr<ScriptedTrainer> trainer;
  std::vector<Metrics> returned;

 private:
  json script_;
  std::string folder_;
  std::shared_ptr<Recorder> recorder_;
};

void expect_as_in_python(const Training& run) {
  const auto& script = run.script();
  const bool resumed = script.contains("resumes");
  EXPECT_EQ(run.events(), expanded_events(script["events"]));
  const auto& history = run.trainer->state().log_history;
  ASSERT_EQ(history.size(), script["logs"].size());
  for (std::size_t i = 0; i < history.size(); ++i) {
    auto entry = history[i].values;
    entry["step"] = static_cast<double>(history[i].step);
    const auto text = script["logs"][i].get<std::string>();
    expect_metrics(entry, expected_log(text), !resumed, text);
  }
  EXPECT_EQ(run.checkpoints(), script["checkpoints"].get<std::vector<std::int64_t>>());
  if (script.contains("batches")) {
    EXPECT_EQ(json(run.trainer->batches), script["batches"]);
  }
  if (script.contains("best")) {
    const auto& state = run.trainer->state();
    EXPECT_EQ(state.best_metric, number(script["best"][0]));
    EXPECT_EQ(state.best_global_step, script["best"][1].get<std::int64_t>());
    const auto path = state.best_model_checkpoint.value_or("");
    const auto name = script["best"][2].is_null() ? "" : script["best"][2].get<std::string>();
    EXPECT_EQ(path.empty(), name.empty());
    EXPECT_TRUE(path.ends_with(name)) << path;
  }
  if (script.contains("returned")) {
    ASSERT_EQ(run.returned.size(), script["returned"].size());
    for (std::size_t i = 0; i < run.returned.size(); ++i) {
      auto metrics = run.returned[i];
      metrics.erase("total_flos");
      const auto text = script["returned"][i].get<std::string>();
      expect_metrics(metrics, expected_log(text), /*in_order=*/true, text);
    }
  }
}

TEST(TrainerGolden, EveryRunIsThatOfTransformers) {
  for (const auto& script : golden()["runs"]) {
    SCOPED_TRACE(script["name"].get<std::string>());
    const TemporaryFolder folder;
    const auto out = folder.file("out");
    std::string checkpoint;
    if (script.contains("resumes")) {
      Training before(run_named(script["resumes"][0]), out);
      before.make_calls();
      checkpoint = fmt::format("{}/checkpoint-{}", out, script["resumes"][1].get<std::int64_t>());
    }
    Training run(script, out);
    run.make_calls(checkpoint);
    expect_as_in_python(run);
  }
}

TEST(TrainerGolden, TheTableIsThatOfANotebook) {
  for (const auto& script : golden()["notebook_tables"]) {
    SCOPED_TRACE(script["name"].get<std::string>());
    const TemporaryFolder folder;
    Training run(script, folder.file("out"));
    run.make_calls();
    auto rows = json::array();
    rows.push_back(run.table->table().columns());
    for (const auto& row : run.table->table().rows()) rows.push_back(row);
    if (script.contains("calls")) {  // a table of its own, whose columns are in our order
      for (std::size_t i = 0; i < 2; ++i) std::sort(rows[i].begin(), rows[i].end());
      auto expected = script["rows"];
      for (auto& row : expected) std::sort(row.begin(), row.end());
      EXPECT_EQ(rows, expected);
      continue;
    }
    EXPECT_EQ(rows, script["rows"]);
  }
}

// JSON has no NaN and no infinity: here they are null.
TEST(TrainerGolden, TheFilesOfMetricsHaveTheSameNumbers) {
  for (const auto& saved : golden()["save_metrics"]) {
    const TemporaryFolder folder;
    const Training run(golden()["runs"][0], folder.path());
    for (const auto& call : saved["calls"]) {
      Metrics metrics;
      for (const auto& [name, value] : call[1].items()) metrics[name] = number(value);
      run.trainer->save_metrics(call[0], metrics);
    }
    auto names = folder.names();
    std::erase(names, ".lock");  // of the Trainer that lives
    EXPECT_EQ(names.size(), saved["files"].size());
    for (const auto& [name, text] : saved["files"].items()) {
      auto expected = text.get<std::string>();
      for (const char* odd : {"-Infinity", "NaN"}) {
        const auto at = expected.find(odd);
        if (at != std::string::npos) expected.replace(at, std::string(odd).size(), "null");
      }
      EXPECT_EQ(json::parse(folder.read(name)), json::parse(expected)) << name;
    }
  }
}

TEST(TrainerGolden, TheSavedStateHasItsKeysAndValues) {
  const std::set<std::string> not_ours = {"is_hyper_param_search", "num_input_tokens_seen",
                                          "trial_name", "trial_params"};
  for (const auto& saved : golden()["trainer_states"]) {
    SCOPED_TRACE(saved["of"].get<std::string>());
    const TemporaryFolder folder;
    Training run(run_named(saved["of"]), folder.file("out"));
    run.make_calls();
    std::ifstream file(fmt::format("{}/checkpoint-{}/trainer_state.json", folder.file("out"),
                                   saved["checkpoint"].get<std::int64_t>()));
    ASSERT_TRUE(file.is_open());
    auto got = json::parse(file);
    auto expected = json::parse(saved["text"].get<std::string>());
    for (const auto& name : not_ours) expected.erase(name);
    for (auto* state : {&got, &expected}) {
      if ((*state)["best_model_checkpoint"].is_string()) {
        const std::string path = (*state)["best_model_checkpoint"];
        (*state)["best_model_checkpoint"] = path.substr(path.rfind('/'));
      }
      for (auto& entry : (*state)["log_history"]) {
        for (auto& [key, value] : entry.items()) {
          if (key.ends_with("_runtime") || key.ends_with("_per_second")) value = 0;
        }
      }
    }
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace ladder::scripted
