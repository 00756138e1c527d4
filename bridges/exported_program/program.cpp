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
  TensorReader(Archive& archive, LoadedProgram& loaded) : archive_(archive), loaded_(loaded) {}

  // The positions in LoadedProgram::tensors of the weights of `graph`, the model `model`.
  std::vector<std::size_t> read(const std::string& model, const Graph& graph);

 private:
  std::size_t read_tensor(const Graph::Weight& weight, const JsonReader& payload,
                          const std::string& folder);
  torch::Tensor view(const JsonReader& meta, const torch::Tensor& bytes, std::int64_t& left,
                     const JsonRefusal& refuse) const;

  struct Record {
    torch::Tensor bytes;
    std::int64_t left = 0;  // bytes that no tensor has yet
  };

  Archive& archive_;
  LoadedProgram& loaded_;
  std::unordered_map<std::string, Record> records_;
  std::map<std::string, std::size_t> by_view_;  // record, dtype, sizes, strides
  std::unordered_map<std::string, std::size_t> by_name_;
};

std::vector<std::size_t> TensorReader::read(const std::string& model, const Graph& graph) {
  std::vector<std::size_t> tensors;
  const auto weights = fmt::format("data/weights/{}_weights_config.json", model);
  const auto constants = fmt::format("data/constants/{}_constants_config.json", model);
  const Json files[] = {archive_.json(weights), archive_.json(constants)};
  for (const auto& weight : graph.weights) {
    const bool is_constant = weight.kind == Graph::Kind::kConstant;
    const auto refuse = json_data_error(
        fmt::format("{}: {}", archive_.path(), is_constant ? constants : weights), kExportAgain);
    const auto config = JsonReader(files[is_constant ? 1 : 0], refuse).object("config");
    auto tensor = read_tensor(weight, config.object(weight.name),
                              is_constant ? "data/constants/" : "data/weights/");
    const auto [known, is_new] = by_name_.emplace(weight.name, tensor);
    if (is_constant) {  // each model has its copy of a buffer that is not persistent
      const auto& first = loaded_.tensors[known->second];
      const auto& own = loaded_.tensors[tensor];
      if (first.dtype() == own.dtype() && torch::equal(first, own)) tensor = known->second;
    } else if (is_new != (model == "train") || known->second != tensor) {
      refuse("weights that train and eval share", quoted_for_message(weight.name));
    } else if (is_new) {
      loaded_.program.names.push_back({weight.name, weight.kind, tensor});
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

std::size_t TensorReader::read_tensor(const Graph::Weight& weight, const JsonReader& payload,
                                      const std::string& folder) {
  if (payload.boolean("use_pickle")) payload.refuse("a tensor without a pickle", "a pickle");
  const auto meta = payload.object("tensor_meta");
  const auto record = folder + payload.text("path_name");
  auto key = record;
  for (const auto* const part : {"dtype", "sizes", "strides", "storage_offset"}) {
    key += " " + meta.value(part).dump();
  }
  const auto known = by_view_.find(key);
  if (known != by_view_.end()) return known->second;

  auto [place, is_new] = records_.try_emplace(record);
  if (is_new) {
    place->second.bytes = archive_.bytes(record);
    place->second.left = place->second.bytes.numel();
  }
  const JsonRefusal refuse = [&](const auto& expected, const auto& got) {
    meta.refuse(expected, got);
  };
  auto tensor = view(meta, place->second.bytes, place->second.left, refuse);
  tensor.set_requires_grad(weight.kind == Graph::Kind::kParameter &&
                           meta.boolean("requires_grad") && tensor.is_floating_point());
  loaded_.tensors.push_back(std::move(tensor));
  by_view_.emplace(std::move(key), loaded_.tensors.size() - 1);
  return loaded_.tensors.size() - 1;
}

// A tensor of its own with the values and strides of one in `bytes`. `left` becomes smaller by its
// size: tensors of one record that overlap would be separate here, and one tensor in Python.
torch::Tensor TensorReader::view(const JsonReader& meta, const torch::Tensor& bytes,
                                 std::int64_t& left, const JsonRefusal& refuse) const {
  const auto numbers = [&](const char* key) {
    std::vector<std::int64_t> result;
    for (const auto& item : meta.array(key)) {
      const auto [kind, value] = union_of(item, refuse);
      if (kind != "as_int") refuse("constant sizes", json_for_message(item));
      result.push_back(integer_of(value, refuse));
    }
    return result;
  };
  const auto dtype = dtype_of(meta.value("dtype"), refuse);
  const auto sizes = numbers("sizes");
  const auto offset = integer_of(union_of(meta.value("storage_offset"), refuse).value, refuse);
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
    return bytes.view(dtype).as_strided(sizes, numbers("strides"), offset).clone();
  } catch (const c10::Error&) {
    refuse("a part of its record", json_for_message(meta.value("strides")));
  }
  return {};
}

}  // namespace

LoadedProgram load_program(const std::string& path) {
  Archive archive(path);
  LoadedProgram loaded;
  TensorReader tensors(archive, loaded);
  auto& program = loaded.program;
  program.path = path;
  const auto read = [&](const char* model, Graph& graph) {
    const auto file = fmt::format("models/{}.json", model);
    graph = read_graph(archive.json(file), fmt::format("{}: {}", path, file));
    return tensors.read(model, graph);
  };
  program.train_tensors = read("train", program.train);
  program.eval_tensors = read("eval", program.eval);
  return loaded;
}

}  // namespace ladder::exported
