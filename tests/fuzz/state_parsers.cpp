// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ladder/io/json.h"
#include "ladder/trainer/trainer_state.h"
#include "tests/fuzz/input_file.h"
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

void parse_trainer_state(const std::string& path) {
  TrainerState state;
  state.compute_steps({}, 100);
  state.plan_load(read_untrusted_json(path), "file")();
  const auto saved = state.state_dict().dump();
  TrainerState again;
  again.plan_load(parse_untrusted_json(saved, json_data_error("again")), "again")();
  require(again.state_dict().dump() == saved, "another state when read again");
}

Parser trainer_state() {
  return {.name = "trainer_state",
          .sources = {"ladder/trainer/trainer_state.cpp", "ladder/io/json.cpp"},
          .samples = trainer_states(),
          .parse = [file = std::make_shared<const InputFile>("file.json")](const Bytes& bytes) {
            parse_trainer_state(file->with(bytes));
          }};
}

// As ReduceLROnPlateau reads its state.
void parse_schedule(const Bytes& bytes) {
  const auto refuse = json_data_error("file");
  const auto json = parse_untrusted_json(text_of(bytes), refuse);
  const JsonReader saved(json, refuse);
  saved.expect_only({"last_epoch", "base_lrs", "last_lr", "best"});
  require(saved.count("last_epoch") >= 0, "a negative count");
  require(saved.numbers("base_lrs", 2).size() == 2, "another number of rates");
  saved.numbers("last_lr", 2);
  if (saved.value("best") != "inf") require(std::isfinite(saved.number("best")), "not finite");
}

Parser schedule() {
  return {.name = "schedule",
          .sources = {"ladder/io/json.cpp"},
          .samples = samples_of(
              {R"({"last_epoch":3,"base_lrs":[0.1,0.2],"last_lr":[0.1,0.2],"best":"inf"})",
               R"({"last_epoch":1,"base_lrs":[1,2],"last_lr":[1e-9,2],"best":-0.25})"}),
          .parse = parse_schedule};
}

// As the optimizers read their groups; the names are those of several.
void parse_groups(const Bytes& bytes) {
  const auto refuse = json_data_error("file");
  const auto groups = parse_untrusted_json(text_of(bytes), refuse);
  if (!groups.is_array()) refuse("an array", json_for_message(groups));
  for (const auto& group : groups) {
    const JsonReader saved(group, refuse, " in group 0");
    saved.expect_only({"params", "lr", "betas", "nesterov", "state"});
    for (const auto& name : saved.array("params")) require(!name.is_discarded(), "no value");
    saved.numbers("betas", 2);
    saved.boolean("nesterov");
    require(saved.number("lr", 0.0) >= 0.0, "below its least value");
    if (!saved.contains("state")) continue;
    saved.object("state").counts("shape");
    saved.object("state").text("name");
  }
}

Parser optimizer_groups() {
  return {.name = "optimizer_groups",
          .sources = {"ladder/io/json.cpp"},
          .samples = samples_of({R"([{"lr":0.1,"betas":[0.9,0.99],"nesterov":true,)"
                                 R"("params":["conv1.weight","conv1.bias"]}])",
                                 R"([{"lr":1,"betas":[0,1],"nesterov":false,"params":[null],)"
                                 R"("state":{"shape":[0,2],"name":"w"}}])",
                                 R"({"lr":0.1,"lr":0.2})", "[]"}),
          .parse = parse_groups};
}

}  // namespace

std::vector<Parser> state_parsers() { return {trainer_state(), schedule(), optimizer_groups()}; }

}  // namespace ladder
