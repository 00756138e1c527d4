// SPDX-License-Identifier: Apache-2.0
#include "bridges/exported_program/program.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "bridges/exported_program/archive.h"
#include "bridges/exported_program/schema.h"
#include "ladder/io/json.h"

namespace ladder::exported {
namespace {

using Json = nlohmann::json;

// The tensors of one archive. A record may hold several, which a table of names describes.
class TensorReader {
 public:
  explicit TensorReader(Archive& archive) : archive_(archive) {}

  // Sets the tensor of each weight of `graph`, the model `model`.
  void read(const std::string& model, Graph& graph);

  std::vector<torch::Tensor> tensors;

 private:
  std::size_t read_tensor(const Graph::Weight& weight, const JsonReader& payload,
                          const std::string& folder);

  struct Record {
    torch::Tensor bytes;
    std::int64_t left = 0;  // bytes that no tensor has yet
  };

  Archive& archive_;
  std::unordered_map<std::string, Record> records_;
  std::map<std::string, std::size_t> by_view_;  // record, dtype, sizes, strides
  std::unordered_map<std::string, std::size_t> by_name_;
};

void TensorReader::read(const std::string& model, Graph& graph) {
  const auto read_all = [&](const char* folder, bool constants) {
    const auto path =
        fmt::format("{}{}_{}_config.json", folder, model, constants ? "constants" : "weights");
    const auto json = archive_.json(path);
    const auto refuse = json_data_error(fmt::format("{}: {}", archive_.path(), path), kExportAgain);
    const auto config = JsonReader(json, refuse).object("config");
    for (auto& weight : graph.weights) {
      if ((weight.kind == Graph::Kind::kConstant) != constants) continue;
      weight.tensor = read_tensor(weight, config.object(weight.name), folder);
      const auto [known, is_new] = by_name_.emplace(weight.name, weight.tensor);
      if (!constants && (is_new != (model == "train") || known->second != weight.tensor)) {
        refuse("weights that train and eval share", quoted_for_message(weight.name));
      }
      if (!constants) continue;  // each model has its copy of a buffer that is not persistent
      const auto &first = tensors[known->second], &own = tensors[weight.tensor];
      if (first.dtype() == own.dtype() && torch::equal(first, own)) weight.tensor = known->second;
    }
  };
  read_all("data/weights/", /*constants=*/false);
  read_all("data/constants/", /*constants=*/true);
}

// A tensor of its own with the values and strides of one in `bytes`. `left` becomes smaller by its
// size: tensors of one record that overlap would be separate here, and one tensor in Python.
torch::Tensor view(const JsonReader& meta, const torch::Tensor& bytes, std::int64_t& left) {
  const JsonRefusal refuse = [&](const auto& expected, const auto& got) {
    meta.refuse(expected, got);
  };
  const auto number = [&](const Json& json) {
    const auto [kind, value] = union_of(json, refuse);
    if (kind != "as_int") refuse("constant sizes", json_for_message(json));
    return integer_of(value, refuse);
  };
  std::vector<std::int64_t> sizes, strides;
  for (const auto& item : meta.array("sizes")) sizes.push_back(number(item));
  for (const auto& item : meta.array("strides")) strides.push_back(number(item));
  const auto dtype = dtype_of(meta.value("dtype"), refuse);
  auto size = static_cast<std::int64_t>(torch::elementSize(dtype));
  for (const auto count : sizes) {
    if (count < 0 || (count > 0 && size > left / count)) {
      refuse(fmt::format("at most {} bytes", left), json_for_message(sizes));
    }
    size *= count;
  }
  left -= size;
  if (size == 0) return torch::empty(sizes, dtype);
  try {
    return bytes.view(dtype)
        .as_strided(sizes, strides, number(meta.value("storage_offset")))
        .clone();
  } catch (const c10::Error&) {
    refuse("a part of its record", json_for_message(strides));
  }
  return {};
}

std::size_t TensorReader::read_tensor(const Graph::Weight& weight, const JsonReader& payload,
                                      const std::string& folder) {
  if (payload.boolean("use_pickle")) payload.refuse("a tensor without a pickle", "a pickle");
  const auto meta = payload.object("tensor_meta");
  const auto name = folder + payload.text("path_name");
  auto key = name;
  for (const auto* const part : {"dtype", "sizes", "strides", "storage_offset"}) {
    key += " " + meta.value(part).dump();
  }
  const auto [known, is_new] = by_view_.emplace(key, tensors.size());
  if (!is_new) return known->second;
  auto& record = records_[name];
  if (!record.bytes.defined()) {
    record.bytes = archive_.bytes(name);
    record.left = record.bytes.numel();
  }
  const auto tensor = view(meta, record.bytes, record.left);
  tensors.push_back(tensor.set_requires_grad(weight.kind == Graph::Kind::kParameter &&
                                             meta.boolean("requires_grad") &&
                                             tensor.is_floating_point()));
  return known->second;
}

}  // namespace

LoadedProgram load_program(const std::string& path) {
  Archive archive(path);
  TensorReader reader(archive);
  const auto read = [&](const char* model) {
    const auto file = fmt::format("models/{}.json", model);
    auto graph = read_graph(archive.json(file), fmt::format("{}: {}", path, file));
    reader.read(model, graph);
    return graph;
  };
  Program program{.path = path, .train = read("train"), .eval = read("eval")};
  return {std::make_shared<const Program>(std::move(program)), std::move(reader.tensors)};
}

}  // namespace ladder::exported
