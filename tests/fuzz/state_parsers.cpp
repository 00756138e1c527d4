// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/checkpoint/saved_json.h"
#include "ladder/optim/saved_options.h"
#include "ladder/optim/saved_schedule.h"
#include "ladder/trainer/trainer_state.h"
#include "tests/fuzz/parsers.h"

namespace ladder {
namespace {

std::vector<Bytes> trainer_states() {
  TrainerState evaluated;
  evaluated.epoch = 1.5;
  evaluated.global_step = 3;
  evaluated.log_history.push_back({.step = 1, .values = {{"loss", 2.25}}});
  evaluated.log_history.push_back({.step = 3, .values = {{"eval_loss", std::nan("")}}});
  evaluated.best_metric = 0.5;
  evaluated.best_global_step = 3;
  evaluated.best_model_checkpoint = "out/checkpoint-3";
  evaluated.stateful_callbacks = {{"EarlyStoppingCallback", {{"args", {{"patience", 1}}}}}};
  auto wrong = evaluated.state_dict();
  wrong["best_metric"] = "high";
  return {bytes_of(evaluated.state_dict().dump(4)), bytes_of(TrainerState{}.state_dict().dump()),
          bytes_of(wrong.dump())};
}

void parse_trainer_state(const Bytes& bytes) {
  TrainerState state;
  state.compute_steps({}, 100);
  state.plan_load(parse_saved_json(text_of(bytes), "file"), "file")();
  const auto saved = state.state_dict().dump();
  TrainerState again;
  again.plan_load(parse_saved_json(saved, "again"), "again")();
  require(again.state_dict().dump() == saved, "another state when read again");
}

Parser trainer_state() {
  return {.name = "trainer_state",
          .sources = {"ladder/trainer/trainer_state.cpp", "ladder/checkpoint/saved_json.cpp"},
          .samples = trainer_states(),
          .parse = parse_trainer_state};
}

// As ReduceLROnPlateau reads it, whose state has all kinds of values.
void parse_schedule(const Bytes& bytes) {
  const auto json = parse_saved_json(text_of(bytes), "file");
  const SavedSchedule saved(json, "file");
  saved.expect_names({"last_epoch", "base_lrs", "_last_lr", "best"});
  require(saved.count("last_epoch") >= 0, "a negative count");
  require(saved.rates("base_lrs", 2).size() == 2, "another number of rates");
  saved.rates("_last_lr", 2);
  const double best = saved.number_or_infinity("best");
  require(saved_number_or_infinity(best) == json.at("best"), "another value when written again");
}

Parser schedule() {
  return {.name = "schedule",
          .sources = {"ladder/optim/saved_schedule.cpp", "ladder/checkpoint/saved_json.cpp"},
          .samples = samples_of(
              {R"({"last_epoch":3,"base_lrs":[0.1,0.2],"_last_lr":[0.1,0.2],"best":"inf"})",
               R"({"last_epoch":0,"base_lrs":[1,2],"_last_lr":[1e-9,2],"best":"-inf"})",
               R"({"last_epoch":1,"base_lrs":[1,2],"_last_lr":[1,2],"best":0.25})"}),
          .parse = parse_schedule};
}

// As the optimizers read their groups; the names are those of several.
void parse_groups(const Bytes& bytes) {
  const auto groups = parse_saved_json(text_of(bytes), "file");
  if (!groups.is_array()) throw DataError::mismatch("file", "an array", "something else", "");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const SavedOptions saved(groups[i], i, "file");
    saved.expect_params({"conv1.weight", "conv1.bias"});
    saved.expect_names({"lr", "betas", "nesterov"});
    const auto [beta1, beta2] = saved.two_numbers("betas");
    saved.yes_or_no("nesterov");
    const double rate = saved.number("lr");
    saved.check({non_negative("lr", rate), from_zero_below_one("beta1", beta1),
                 from_zero_below_one("beta2", beta2)});
    check_options("SGD", {non_negative("lr", rate)});  // as for a rate that code gives
  }
}

Parser optimizer_groups() {
  return {.name = "optimizer_groups",
          .sources = {"ladder/optim/saved_options.cpp", "ladder/checkpoint/saved_json.cpp"},
          .samples = samples_of({R"([{"lr":0.1,"betas":[0.9,0.99],"nesterov":true,)"
                                 R"("params":["conv1.weight","conv1.bias"]}])",
                                 "[]"}),
          .parse = parse_groups};
}

}  // namespace

std::vector<Parser> state_parsers() { return {trainer_state(), schedule(), optimizer_groups()}; }

}  // namespace ladder
