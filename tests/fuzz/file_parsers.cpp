// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "ladder/armour/checkpoint_manifest.h"
#include "ladder/checkpoint/safetensors_header.h"
#include "ladder/io/json.h"
#include "ladder/trainer/trainer_state.h"
#include "mnist/files.h"
#include "mnist/idx.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/parsers.h"

namespace ladder {
namespace {

Parser idx_images() {
  return {
      .name = "idx_images",
      .sources = {"mnist/idx.cpp"},
      .samples = {idx_images_file(3, 5, 4), idx_images_file(1, 28, 28), idx_images_file(2, 1, 1)},
      .parse = [](const Bytes& bytes) {
        const auto images = mnist::parse_idx_images(bytes, "file");
        require(images.count * images.rows * images.columns ==
                    static_cast<std::int64_t>(images.pixels.size()),
                "sizes that are not those of the pixels");
      }};
}

Parser idx_labels() {
  return {.name = "idx_labels",
          .sources = {"mnist/idx.cpp"},
          .samples = {idx_labels_file({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), idx_labels_file({0}),
                      idx_labels_file(Bytes(40, 9)), idx_labels_file({10})},
          .parse = [](const Bytes& bytes) { mnist::parse_idx_labels(bytes, "file"); }};
}

// The images of a data set; its labels are intact.
Parser gzip_file() {
  constexpr std::size_t kSizeLimit = 10'000;
  const auto images = std::make_shared<const InputFile>("t10k-images-idx3-ubyte.gz");
  const auto folder = std::filesystem::path(images->with({})).parent_path();
  const Bytes labels = idx_labels_file({7, 3});
  std::ofstream(folder / "t10k-labels-idx1-ubyte", std::ios::binary)
      .write(reinterpret_cast<const char*>(labels.data()),
             static_cast<std::streamsize>(labels.size()));
  return {.name = "gzip",
          .sources = {"mnist/files.cpp"},
          .samples = {gzip(idx_images_file(3, 5, 4)),
                      gzip(idx_images_file(2, 28, 28)),
                      gzip(idx_images_file(3, 28, 28)),
                      gzip(Bytes(kSizeLimit)),
                      gzip(Bytes(kSizeLimit + 1)),
                      gzip({}),
                      idx_images_file(2, 28, 28),
                      {}},
          .parse = [images, folder](const Bytes& bytes) {
            const std::string path = bytes.size() == 1 ? folder.string() : images->with(bytes);
            const auto read = mnist::read_gzip_or_plain(path, kSizeLimit);
            require(read.bytes.size() <= kSizeLimit, "more than the limit");
            // A path of a folder and a set that is missing are refused too.
            mnist::read_files(folder, bytes.empty() ? mnist::Split::kTrain : mnist::Split::kTest);
          }};
}

std::vector<Bytes> safetensors_samples() {
  const std::string shape_of_65 = [] {
    std::string ones = "1";
    for (int i = 1; i < 65; ++i) ones += ",1";
    return ones;
  }();
  return {safetensors_file("{}", 0),
          safetensors_file(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}   )", 24),
          safetensors_file(R"({"__metadata__":{"format":"pt","a":"\u00e9"},)"
                           R"("w":{"dtype":"U8","shape":[7],"data_offsets":[0,7]},)"
                           R"("none":{"dtype":"F64","shape":[0,9],"data_offsets":[7,7]},)"
                           R"("b":{"dtype":"BF16","shape":[],"data_offsets":[7,9]}})",
                           9),
          safetensors_file(
              R"({"w":{"dtype":"U8","shape":[)" + shape_of_65 + R"(],"data_offsets":[0,1]}})", 1),
          safetensors_file(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
          {1, 0, 0, 1, 0, 0, 0, 0}};  // a hole; a header of 16 MiB and a byte
}

// The header ends with the last '}'.
void repair_safetensors(Bytes& bytes) {
  constexpr std::size_t kSizeBytes = 8;
  const auto last = std::find(bytes.rbegin(), bytes.rend(), '}').base();
  const auto end = static_cast<std::size_t>(last - bytes.begin());
  if (end < kSizeBytes) return;
  for (std::size_t i = 0; i < kSizeBytes; ++i) {
    bytes[i] = static_cast<std::uint8_t>((end - kSizeBytes) >> (8 * i));
  }
}

bool same(const TensorEntry& a, const TensorEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin &&
         a.end == b.end;
}

void parse_safetensors(const Bytes& bytes) {
  const auto header = parse_safetensors_header(bytes, bytes.size(), "file");
  const std::string text = make_safetensors_header(header.metadata, header.entries);
  const auto file_size = text.size() + bytes.size() - header.data_offset;
  const auto again = parse_safetensors_header(bytes_of(text), file_size, "again");
  require(again.metadata == header.metadata, "other metadata when read again");
  require(std::equal(again.entries.begin(), again.entries.end(), header.entries.begin(),
                     header.entries.end(), same),
          "other tensors when read again");
}

Parser safetensors() {
  return {.name = "safetensors",
          .sources = {"ladder/checkpoint/safetensors_header.cpp", "ladder/io/json.cpp"},
          .samples = safetensors_samples(),
          .parse = parse_safetensors,
          .words = {"BOOL", "I8", "I16", "U16", "F16", "I32", "U32", "I64", "U64"},
          .repair = repair_safetensors};
}

std::vector<Bytes> manifest_samples() {
  std::vector<Bytes> samples;
  for (const CheckpointManifest& manifest :
       {CheckpointManifest{}, CheckpointManifest{{"m", {0, std::string(64, '0')}}},
        CheckpointManifest{{"model.safetensors", {4'800, std::string(64, 'a')}},
                           {"rng_0.json", {17, std::string(64, '9')}}}}) {
    samples.push_back(bytes_of(make_checkpoint_manifest(manifest)));
  }
  return samples;
}

// More files than a manifest may have, and more bytes.
std::vector<Bytes> large_manifests() {
  CheckpointManifest many;
  for (int i = 0; i <= 10'000; ++i) many[fmt::format("f{}", i)].sha256 = std::string(64, '0');
  return {bytes_of(make_checkpoint_manifest(many)), Bytes(kLargestManifest + 1, ' ')};
}

void parse_manifest(const Bytes& bytes) {
  const auto manifest = parse_checkpoint_manifest(bytes, json_data_error("file"));
  const auto text = bytes_of(make_checkpoint_manifest(manifest));
  require(parse_checkpoint_manifest(text, json_data_error("again")) == manifest,
          "another manifest");
}

Parser manifest() {
  return {.name = "manifest",
          .sources = {"ladder/armour/checkpoint_manifest.cpp", "ladder/io/json.cpp"},
          .samples = manifest_samples(),
          .parse = parse_manifest,
          .large = large_manifests()};
}

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
  const auto json = parse_untrusted_json(text_from(bytes), refuse);
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
  const auto groups = parse_untrusted_json(text_from(bytes), refuse);
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

std::vector<Parser> file_parsers() {
  return {idx_images(), idx_labels(),    gzip_file(), safetensors(),
          manifest(),   trainer_state(), schedule(),  optimizer_groups()};
}

}  // namespace ladder
