// SPDX-License-Identifier: Apache-2.0
//
// Feeds each parser of files that come from elsewhere 100,000 damaged inputs. Each must be
// parsed or refused by a DataError, a configuration by a UsageError; anything else, a report of the
// sanitizers included, is a failure, and so is a parser that accepts all of them or none.
//
// The inputs follow from a fixed seed, so a failure comes back:
//     parser_mutations                  all parsers, a line each
//     parser_mutations SEED             the same with other inputs
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ladder/accelerate/accelerate_config.h"
#include "ladder/checkpoint/checkpoint_manifest.h"
#include "ladder/checkpoint/safetensors_header.h"
#include "ladder/core/error.h"
#include "ladder/data/gzip_file.h"
#include "ladder/data/idx.h"
#include "ladder/trainer/argument_file.h"
#include "ladder/trainer/training_arguments.h"
#include "tests/support/sample_files.h"

namespace ladder {
namespace {

constexpr int kMutations = 100'000;
constexpr std::uint64_t kDefaultSeed = 20'110'303;

// Damages valid files.
class Mutator {
 public:
  Mutator(std::vector<Bytes> valid, std::uint64_t seed) : valid_(std::move(valid)), random_(seed) {}

  // A valid file with up to four damages; sometimes none, so that valid files count too.
  Bytes next() {
    Bytes bytes = valid_[below(valid_.size())];
    for (std::size_t damages = below(5); damages > 0; --damages) damage(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  std::uint8_t any_byte() { return static_cast<std::uint8_t>(random_()); }
  std::ptrdiff_t any_place(const Bytes& bytes) {
    return static_cast<std::ptrdiff_t>(below(bytes.size() + 1));
  }

  void damage(Bytes& bytes) {
    using Damage = void (Mutator::*)(Bytes&);
    constexpr std::array<Damage, 8> kDamages = {
        &Mutator::flip_bit,    &Mutator::set_byte, &Mutator::truncate,      &Mutator::insert,
        &Mutator::erase_bytes, &Mutator::splice,   &Mutator::change_number, &Mutator::change_digit};
    (this->*kDamages[below(kDamages.size())])(bytes);
  }

  void flip_bit(Bytes& bytes) {
    if (!bytes.empty()) bytes[below(bytes.size())] ^= static_cast<std::uint8_t>(1U << below(8));
  }

  void set_byte(Bytes& bytes) {
    if (!bytes.empty()) bytes[below(bytes.size())] = any_byte();
  }

  void truncate(Bytes& bytes) { bytes.resize(below(bytes.size() + 1)); }

  void insert(Bytes& bytes) {
    bytes.insert(bytes.begin() + any_place(bytes), 1 + below(8), any_byte());
  }

  void erase_bytes(Bytes& bytes) {
    const auto begin = bytes.begin() + any_place(bytes);
    bytes.erase(begin, begin + std::min<std::ptrdiff_t>(bytes.end() - begin, 8));
  }

  // The head of this file and the tail of another.
  void splice(Bytes& bytes) {
    const Bytes& other = valid_[below(valid_.size())];
    bytes.resize(below(bytes.size() + 1));
    bytes.insert(bytes.end(), other.begin() + any_place(other), other.end());
  }

  // Overwrites one of the first numbers of four bytes by one that parsers stumble over.
  void change_number(Bytes& bytes) {
    constexpr std::array<std::uint32_t, 8> kNumbers = {
        0, 1, 2, 28, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    const std::uint32_t number = kNumbers[below(kNumbers.size())];
    const std::size_t begin = 4 * below(5);
    for (std::size_t i = begin; i < std::min(begin + 4, bytes.size()); ++i) {
      bytes[i] = static_cast<std::uint8_t>(number >> (8 * (begin + 3 - i)));
    }
  }

  // Changes a number written in text, if there is one.
  void change_digit(Bytes& bytes) {
    const auto is_digit = [](std::uint8_t byte) { return byte >= '0' && byte <= '9'; };
    const auto digit = std::find_if(bytes.begin() + any_place(bytes), bytes.end(), is_digit);
    if (digit != bytes.end()) *digit = static_cast<std::uint8_t>('0' + below(10));
  }

  std::vector<Bytes> valid_;
  std::mt19937_64 random_;
};

struct Parser {
  std::string name;
  std::vector<Bytes> valid;
  std::function<void(const Bytes&)> parse;  // throws an error with `refusal`, or returns
  ExitCode refusal = ExitCode::kData;
};

std::vector<Bytes> safetensors_files() {
  return {safetensors_file("{}", 0),
          safetensors_file(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}   )", 24),
          safetensors_file(R"({"__metadata__":{"format":"pt","a":"\u00e9"},)"
                           R"("w":{"dtype":"U8","shape":[7],"data_offsets":[0,7]},)"
                           R"("none":{"dtype":"F64","shape":[0,9],"data_offsets":[7,7]},)"
                           R"("b":{"dtype":"BF16","shape":[],"data_offsets":[7,9]}})",
                           9)};
}

std::vector<Bytes> checkpoint_manifests() {
  std::vector<Bytes> files;
  for (const CheckpointManifest& manifest :
       {CheckpointManifest{}, CheckpointManifest{{"m", {0, std::string(64, '0')}}},
        CheckpointManifest{{"model.safetensors", {4'800, std::string(64, 'a')}},
                           {"rng_0.json", {17, std::string(64, '9')}}}}) {
    const std::string text = make_checkpoint_manifest(manifest);
    files.emplace_back(text.begin(), text.end());
  }
  return files;
}

std::vector<Bytes> accelerate_configurations() {
  return {bytes_of("compute_environment: LOCAL_MACHINE\ndeepspeed_config: {}\n"
                   "distributed_type: MULTI_GPU\nmixed_precision: 'bf16'\nnum_processes: 2\n"),
          bytes_of(R"({"distributed_type": "NO", "use_cpu": true, "tpu_env": [], "debug": "y"})"),
          bytes_of("---\ndistributed_type: \"NO\"  # one\ndynamo_config:\n  dynamo_backend: 'NO'\n"
                   "  list:\n  - a\n  - {b: [c, ~]}\ngpu_ids: >-\n  0,1\n...\n"),
          bytes_of("? distributed_type\n: MULTI_CPU\nmain_process_ip: |\n  10.0.0.1\n")};
}

std::vector<Bytes> training_arguments() {
  return {bytes_of("{\"learning_rate\": 5e-05, \"seed\": 42, \"fp16\": false, \"tf32\": null,\n"
                   " \"eval_strategy\": \"epoch\", \"label_names\": [\"labels\"],\n"
                   " \"accelerator_config\": {\"split_batches\": true},\n"
                   " \"lr_scheduler_kwargs\": {\"num_cycles\": 0.5, \"power\": \"2\"}}\n"),
          bytes_of("{\"evaluation_strategy\": \"no\", \"report_to\": \"all\", \"fsdp\": \"\",\n"
                   " \"lr_scheduler_kwargs\": \"{\\\"power\\\": 1}\", \"max_steps\": -1}"),
          bytes_of("{}")};
}

void take_arguments(const std::string& bytes) {
  TrainingArguments arguments;
  std::vector<std::string> notes;
  for (const auto& entry : parse_argument_file(bytes, "file.json", notes)) {
    take_argument(entry, arguments, notes);
  }
  resolve(arguments);
  static_cast<void>(to_json(arguments).dump());
}

std::vector<Parser> parsers() {
  const Bytes labels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Bytes images = idx_images_file(3, 5, 4);
  return {
      {"idx images",
       {images, idx_images_file(1, 28, 28), idx_images_file(2, 1, 1)},
       [](const Bytes& bytes) { parse_idx_images(bytes, "file"); }},
      {"idx labels",
       {idx_labels_file(labels), idx_labels_file({0}), idx_labels_file(Bytes(40, 9))},
       [](const Bytes& bytes) { parse_idx_labels(bytes, "file"); }},
      {"gzip",
       {gzip(images), gzip(Bytes(20'000)), gzip({}), gzip(idx_labels_file(labels))},
       [](const Bytes& bytes) { inflate_gzip(bytes, 10'000'000, "file"); }},
      {"safetensors header", safetensors_files(),
       [](const Bytes& bytes) { parse_safetensors_header(bytes, bytes.size(), "file"); }},
      {"checkpoint manifest", checkpoint_manifests(),
       [](const Bytes& bytes) {
         parse_checkpoint_manifest(bytes, "file", [] { return std::string(); });
       }},
      {"accelerate configuration", accelerate_configurations(),
       [](const Bytes& bytes) {
         parse_config_file(std::string(bytes.begin(), bytes.end()), "file");
       },
       ExitCode::kUsage},
      {"training arguments", training_arguments(),
       [](const Bytes& bytes) { take_arguments({bytes.begin(), bytes.end()}); }, ExitCode::kUsage}};
}

// Returns whether the parser passed, and prints its line.
bool run(const Parser& parser, std::uint64_t seed) {
  Mutator mutator(parser.valid, seed);
  int refused = 0;
  for (int mutation = 0; mutation < kMutations; ++mutation) {
    try {
      parser.parse(mutator.next());
    } catch (const std::exception& error) {
      const auto* refusal = dynamic_cast<const Error*>(&error);
      if (refusal == nullptr || refusal->exit_code() != parser.refusal) {
        fmt::print("{}: seed {}, mutation {}: another error: {}\n", parser.name, seed, mutation,
                   error.what());
        return false;
      }
      ++refused;
    }
  }
  const int accepted = kMutations - refused;
  fmt::print("{}: {} accepted, {} refused\n", parser.name, accepted, refused);
  return accepted > 0 && refused > 0;
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : ladder::kDefaultSeed;
  bool passed = true;
  for (const auto& parser : ladder::parsers()) passed = ladder::run(parser, seed) && passed;
  return passed ? 0 : 1;
}
