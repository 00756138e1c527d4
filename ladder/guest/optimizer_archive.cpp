// SPDX-License-Identifier: Apache-2.0
#include "ladder/guest/optimizer_archive.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "ladder/checkpoint/stateful_optimizer.h"
#include "ladder/core/error.h"
#include "ladder/io/json.h"
#include "ladder/optim/fused_optimizer.h"

namespace ladder {
namespace {

using c10::IValue;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr const char* kArchive = "archive";
constexpr const char* kClass = "class";
constexpr const char* kValues = "values";
constexpr const char* kTensors = "tensors";  // the length of a list of tensors
constexpr const char* kNested = "nested";    // an archive, which may be empty

std::string class_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

std::string bytes_of(OutputArchive& archive) {
  std::string bytes;
  archive.save_to([&bytes](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  return bytes;
}

// LibTorch calls a parameter by its address: the number that it gets here instead.
std::map<std::string, std::string> numbers_of(const torch::optim::Optimizer& optimizer) {
  std::map<std::string, std::string> numbers;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto address = reinterpret_cast<std::size_t>(parameter.unsafeGetTensorImpl());
      numbers.emplace(std::to_string(address), std::to_string(numbers.size()));
    }
  }
  return numbers;
}

// An archive as tensors and JSON; "a.b" is the entry b of the archive a in it.
class Flattener {
 public:
  explicit Flattener(const torch::optim::Optimizer& optimizer)
      : class_(class_of(optimizer)), numbers_(numbers_of(optimizer)) {}

  void add(InputArchive& archive, const std::string& prefix) {
    for (const auto& key : archive.keys()) {
      const auto name = prefix + renamed(key);
      InputArchive nested;
      if (archive.try_read(key, nested)) {
        values_[name + "."] = kNested;
        add(nested, name + ".");
        continue;
      }
      IValue value;
      archive.read(key, value);
      add(value, name);
    }
  }

  SafetensorsFile file() && {
    const nlohmann::json archive = {{kClass, class_}, {kValues, values_}};
    return {std::move(tensors_), {{"format", "pt"}, {kArchive, archive.dump()}}};
  }

 private:
  std::string renamed(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? name : found->second;
  }

  void add(const IValue& value, const std::string& name) {
    if (value.isTensor()) {
      tensors_.emplace(name, value.toTensor());
    } else if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      values_[name] = {{kTensors, list.size()}};
      for (std::size_t i = 0; i < list.size(); ++i) {
        tensors_.emplace(name + "." + std::to_string(i), list[i]);
      }
    } else {
      values_[name] = json_of(value);
    }
  }

  nlohmann::json json_of(const IValue& value) const {
    if (value.isNone()) return nullptr;
    if (value.isBool()) return value.toBool();
    if (value.isInt()) return value.toInt();
    if (value.isDouble()) return value.toDouble();
    if (value.isString()) return renamed(value.toStringRef());
    if (value.isTuple()) {
      auto items = nlohmann::json::array();
      for (const auto& item : value.toTupleRef().elements()) items.push_back(json_of(item));
      return items;
    }
    throw UsageError::conflict(class_, "its save() writes a " + value.tagKind(),
                               "write tensors, lists of them, numbers, flags and texts");
  }

  std::string class_;
  std::map<std::string, std::string> numbers_;
  StateDict tensors_;
  nlohmann::json values_ = nlohmann::json::object();
};

IValue value_of(const nlohmann::json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  std::vector<IValue> items;
  for (const auto& item : json) items.push_back(value_of(item));
  return c10::ivalue::Tuple::create(std::move(items));
}

// The entries of the archive, by their full names, on the device of the parameters.
std::map<std::string, IValue> entries_of(const SafetensorsFile& file, const nlohmann::json& values,
                                         const torch::Device& device, const JsonRefusal& refuse) {
  std::map<std::string, IValue> entries;
  auto tensors = file.tensors;
  for (const auto& [name, value] : values.items()) {
    if (!value.is_object()) {
      entries[name] = value_of(value);
      continue;
    }
    c10::List<torch::Tensor> list;
    const JsonReader entry(value, refuse, " of " + name);
    const auto size = entry.count(kTensors, std::ssize(file.tensors));
    for (std::int64_t i = 0; i < size; ++i) {
      const auto node = tensors.extract(name + "." + std::to_string(i));
      if (node.empty()) entry.refuse_value(std::to_string(i) + " tensors", kTensors);
      list.push_back(node.mapped().to(device));
    }
    entries[name] = list;
  }
  for (const auto& [name, tensor] : tensors) entries[name] = tensor.to(device);
  return entries;
}

// Writes the entries that begin with `prefix`.
void write_entries(OutputArchive& archive, const std::map<std::string, IValue>& entries,
                   const std::string& prefix) {
  for (auto it = entries.lower_bound(prefix); it != entries.end();) {
    if (!it->first.starts_with(prefix)) break;
    const auto key = it->first.substr(prefix.size());
    const auto dot = key.find('.');
    if (key.empty()) {  // the mark of this archive
      ++it;
      continue;
    }
    if (dot == std::string::npos) {
      archive.write(key, it->second);
      ++it;
      continue;
    }
    const auto nested_prefix = prefix + key.substr(0, dot + 1);
    OutputArchive nested(archive.compilation_unit());
    write_entries(nested, entries, nested_prefix);
    archive.write(key.substr(0, dot), nested);
    while (it != entries.end() && it->first.starts_with(nested_prefix)) ++it;
  }
}

// Texts are the numbers of parameters: in other groups, there are others.
void require_same_parameters(const nlohmann::json& values, const torch::optim::Optimizer& optimizer,
                             std::string_view origin) {
  const auto own = archive_of(optimizer);
  const auto texts = [](const nlohmann::json& all) {
    nlohmann::json found;
    for (const auto& [name, value] : all.items()) {
      if (value.is_string() && value != kNested) found[name] = value;
    }
    return found;
  };
  const auto expected = nlohmann::json::parse(own.metadata.at(kArchive)).at(kValues);
  if (texts(values) == texts(expected)) return;
  throw DataError::mismatch(origin, "the parameter groups of this optimizer", "others",
                            "resume with the model and the groups of the run that wrote it");
}

}  // namespace

void require_savable(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const FusedOptimizer*>(&optimizer) != nullptr) return;
  const auto file = archive_of(optimizer);
  if (!file.tensors.empty() ||
      !nlohmann::json::parse(file.metadata.at(kArchive)).at(kValues).empty()) {
    return;
  }
  throw UsageError::conflict(
      class_of(optimizer), "its save() writes nothing, so no checkpoint could restore it",
      "override save and load of torch::optim::Optimizer, or use the optimizer without prepare");
}

SafetensorsFile archive_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& [key, state] : optimizer.state()) {
    // Undefined tensors between two steps, which LibTorch cannot save, and which a step replaces.
    auto* const lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(state.get());
    if (lbfgs != nullptr) lbfgs->al(std::nullopt);
  }
  OutputArchive output;
  optimizer.save(output);
  const auto bytes = bytes_of(output);
  InputArchive input;
  input.load_from(bytes.data(), bytes.size());
  Flattener flattener(optimizer);
  flattener.add(input, "");
  return std::move(flattener).file();
}

std::function<void()> plan_load_archive(torch::optim::Optimizer& optimizer,
                                        const SafetensorsFile& file, std::string_view origin) {
  const auto found = file.metadata.find(kArchive);
  const auto refuse = json_data_error(origin);
  const auto archive = found == file.metadata.end() ? nlohmann::json::object()
                                                    : parse_untrusted_json(found->second, refuse);
  const JsonReader saved(archive, refuse);
  const auto name = saved.contains(kClass) ? saved.text(kClass) : "none";
  if (name != class_of(optimizer)) {
    throw DataError::mismatch(origin, "the state of " + class_of(optimizer), name,
                              "resume with the optimizer of the run that wrote it");
  }
  const auto& values = saved.value(kValues);
  if (!values.is_object()) saved.refuse_value("an object", kValues);
  require_same_parameters(values, optimizer, origin);
  torch::Device device = torch::kCPU;
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) device = group.params().front().device();
  }
  OutputArchive output;
  write_entries(output, entries_of(file, values, device, refuse), "");
  const auto input = std::make_shared<InputArchive>();
  const auto bytes = bytes_of(output);
  input->load_from(bytes.data(), bytes.size());
  return [&optimizer, input] {
    optimizer.state().clear();  // of parameters without a saved one
    optimizer.load(*input);
  };
}

namespace {

class OfLibTorch : public StatefulOptimizer {
 public:
  explicit OfLibTorch(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  SafetensorsFile saved(const torch::nn::Module& /*module*/) const override {
    return archive_of(optimizer_);
  }
  std::function<void()> plan_load(const torch::nn::Module& /*module*/, SafetensorsFile file,
                                  const std::string& origin) override {
    return plan_load_archive(optimizer_, file, origin);
  }

 private:
  torch::optim::Optimizer& optimizer_;
};

}  // namespace

extern "C" const bool ladder_optimizer_archive;
const bool ladder_optimizer_archive =
    adapt_other_optimizers([](auto& optimizer) -> std::unique_ptr<StatefulOptimizer> {
      return std::make_unique<OfLibTorch>(optimizer);
    });

}  // namespace ladder
