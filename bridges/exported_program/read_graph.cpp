// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "bridges/exported_program/graph.h"
#include "bridges/exported_program/host_operators.h"
#include "bridges/exported_program/schema.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"

namespace ladder::exported {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kSchemaMajor = 8;
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::string_view kAten = "torch.ops.aten.";
constexpr const char* kUnsupported =
    "change this line of the network; docs/exported-network.md lists what to do";

// The trace of Python of a node, or that of the first node in a graph that is its argument.
std::string_view trace_of(const Json& node) {
  static const Json::json_pointer own("/metadata/stack_trace");
  static const Json::json_pointer inner("/arg/as_graph/graph/nodes/0/metadata/stack_trace");
  const auto text = [](const Json& json, const Json::json_pointer& place) -> std::string_view {
    if (!json.contains(place) || !json[place].is_string()) return {};
    return json[place].get_ref<const std::string&>();
  };
  auto trace = text(node, own);
  if (!trace.empty() || !node.contains("inputs")) return trace;
  for (const auto& input : node["inputs"]) {
    if (trace.empty()) trace = text(input, inner);
  }
  return trace;
}

// ", \"net.py, line 12, in forward: y = cond(...)\"", of the last line of a file in a trace.
std::string line_of_python(std::string_view trace) {
  constexpr std::string_view kFile = "File \"", kNoFile = "File \"<";
  auto begin = trace.rfind(kFile);
  while (begin != trace.npos && begin > 0 && trace.substr(begin).starts_with(kNoFile)) {
    begin = trace.rfind(kFile, begin - 1);
  }
  if (begin == trace.npos) return "";
  trace.remove_prefix(begin + kFile.size());
  const auto path = trace.substr(0, trace.find('"'));
  const auto behind = trace.substr(std::min(path.size() + 1, trace.size()));
  const auto place = behind.substr(0, behind.find('\n'));
  const auto code = behind.substr(std::min(place.size() + 1, behind.size()));
  return fmt::format(
      ", {}", quoted_for_message(fmt::format("{}{}: {}", path.substr(path.rfind('/') + 1), place,
                                             without_blanks(code.substr(0, code.find('\n'))))));
}

bool boolean_of(const Json& json, const JsonRefusal& refuse) {
  if (!json.is_boolean()) refuse("true or false", json_for_message(json));
  return json.get<bool>();
}

bool fits(const c10::IValue& value, const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  const auto& inner = optional ? optional->getElementType() : type;
  return (inner->kind() == c10::TypeKind::NumberType && value.isScalar()) ||
         value.type()->isSubtypeOf(*type);
}

class GraphReader {
 public:
  GraphReader(const Json& program, const std::string& where)
      : where_(where), refuse_(json_data_error(where, kExportAgain)), program_(program, refuse_) {}

  Graph read();

 private:
  // A slot has a prototype of its value. The code that passes the values passes these while the
  // graph is read, and the operator's schema checks their types.
  Slot new_slot(c10::IValue prototype);
  void define(const std::string& name, Slot slot);
  Slot slot_of(const Json& name) const;

  void read_input(const Json& spec, const JsonReader& tensors);
  Size read_size(const Json& size) const;
  void read_call(const Json& json);
  void read_aten_call(const JsonReader& node, std::string_view operator_name, Call& call);
  void read_host_call(const JsonReader& node, const std::string& target, Call& call);
  Call::Result read_result(const Json& output);
  void read_output(const Json& spec);
  Argument read_argument(const Json& json, c10::TypePtr type, std::int64_t length) const;
  c10::IValue read_constant(const Union& constant, const c10::TypePtr& type,
                            std::int64_t length) const;
  Argument::Item read_int(const Json& json) const;
  void set_last_uses();

  std::string where_;
  JsonRefusal refuse_;  // of the file, or of the node that is read
  JsonReader program_;
  Graph graph_;
  std::unordered_map<std::string, Slot> by_name_;
  Values prototypes_ = {torch::Device(torch::kCPU)};  // of kDeviceSlot
  torch::Tensor tensor_ = torch::empty({0});
};

Graph GraphReader::read() {
  const auto version = program_.object("schema_version").count("major");
  if (version != kSchemaMajor) {
    refuse_(fmt::format("version {} of torch.export's schema, of PyTorch 2.11", kSchemaMajor),
            fmt::format("{}", version));
  }
  const auto module = program_.object("graph_module");
  const auto graph = module.object("graph");
  const auto signature = module.object("signature");
  const auto tensors = graph.object("tensor_values");
  for (const auto& spec : signature.array("input_specs")) read_input(spec, tensors);
  for (const auto& node : graph.array("nodes")) read_call(node);
  for (const auto& spec : signature.array("output_specs")) read_output(spec);
  if (graph_.inputs.empty()) refuse_("a network with an input", "none");
  graph_.slots = prototypes_.size();
  set_last_uses();
  return std::move(graph_);
}

Slot GraphReader::new_slot(c10::IValue prototype) {
  prototypes_.push_back(std::move(prototype));
  return prototypes_.size() - 1;
}

void GraphReader::define(const std::string& name, Slot slot) {
  if (!by_name_.emplace(name, slot).second) {
    refuse_("every value once", quoted_for_message(name) + " twice");
  }
}

Slot GraphReader::slot_of(const Json& name) const {
  if (name.is_string()) {
    const auto found = by_name_.find(name.get_ref<const std::string&>());
    if (found != by_name_.end()) return found->second;
  }
  refuse_("the name of a value that exists", json_for_message(name));
  return {};
}

void GraphReader::read_input(const Json& json, const JsonReader& tensors) {
  static const std::map<std::string_view, std::pair<Graph::Kind, const char*>> weights = {
      {"parameter", {Graph::Kind::kParameter, "parameter_name"}},
      {"buffer", {Graph::Kind::kBuffer, "buffer_name"}},
      {"tensor_constant", {Graph::Kind::kConstant, "tensor_constant_name"}},
  };
  const auto [kind, value] = union_of(json, refuse_);
  const JsonReader spec(value, refuse_, " of an input");
  if (kind == "constant_input") return;  // a part of the graph since the export
  const auto slot = new_slot(tensor_);
  if (const auto found = weights.find(kind); found != weights.end()) {
    auto [is, name] = found->second;
    if (is == Graph::Kind::kBuffer && !spec.boolean("persistent")) is = Graph::Kind::kConstant;
    define(spec.object("arg").text("name"), slot);
    graph_.weights.push_back({is, spec.text(name), slot});
    return;
  }
  if (kind != "user_input") refuse_("inputs that are tensors", quoted_for_message(kind));
  const auto argument = spec.object("arg");
  if (!argument.contains("as_tensor")) {
    refuse_("inputs that are tensors", json_for_message(value));
  }
  Graph::Input input{.name = argument.object("as_tensor").text("name"), .slot = slot, .sizes = {}};
  define(input.name, slot);
  for (const auto& size : tensors.object(input.name).array("sizes")) {
    input.sizes.push_back(read_size(size));
  }
  graph_.inputs.push_back(std::move(input));
}

// A symbol is printed as "Symbol('s77', integer=True)"; other expressions follow from symbols.
Size GraphReader::read_size(const Json& json) const {
  const auto [kind, value] = union_of(json, refuse_);
  if (kind == "as_int") {
    const auto size = integer_of(value, refuse_);
    return {.symbol = "", .least = size, .most = size};
  }
  constexpr std::string_view kSymbol = "Symbol('";
  Size size{.symbol = "", .least = 0, .most = kLargest};
  const std::string_view text = JsonReader(value, refuse_, " of a size").text("expr_str");
  if (text.rfind("Symbol(") != 0 || !text.starts_with(kSymbol)) return size;
  size.symbol = text.substr(kSymbol.size(), text.find('\'', kSymbol.size()) - kSymbol.size());
  const auto ranges = program_.object("range_constraints");
  if (!ranges.contains(size.symbol)) return size;
  const auto range = ranges.object(size.symbol);
  const auto& least = range.value("min_val");
  const auto& most = range.value("max_val");
  // As in Python, a dimension from 2 on takes 0 and 1 too: the export only assumes that it varies.
  if (least.is_number() && integer_of(least, refuse_) > 2) size.least = integer_of(least, refuse_);
  if (most.is_number()) size.most = integer_of(most, refuse_);
  return size;
}

void GraphReader::read_call(const Json& json) {
  const JsonReader node(json, refuse_, " of a node");
  const auto& target = node.text("target");
  if (target == "torch.ops.aten._assert_tensor_metadata.default") return;  // false under autocast
  Call call;
  call.name = target + line_of_python(trace_of(json));
  const auto outer = std::exchange(
      refuse_, json_data_error(fmt::format("{}: {}", where_, call.name), kUnsupported));
  const JsonReader own(json, refuse_);
  if (target.starts_with(kAten)) {
    read_aten_call(own, std::string_view(target).substr(kAten.size()), call);
  } else {
    read_host_call(own, target, call);
  }
  graph_.calls.push_back(std::move(call));
  refuse_ = outer;
}

void GraphReader::read_aten_call(const JsonReader& node, std::string_view name, Call& call) {
  const auto dot = std::min(name.find('.'), name.size());
  auto overload = std::string(name.substr(std::min(dot + 1, name.size())));
  if (overload == "default") overload.clear();
  const auto found = c10::Dispatcher::singleton().findSchema(
      {fmt::format("aten::{}", name.substr(0, dot)), overload});
  if (!found) refuse_("an operator of this LibTorch", "another");
  const auto& schema = found->schema();
  if (schema.argumentIndexWithName("filename")) refuse_("an operator without files", "another");

  std::unordered_map<std::string, const Json*> given;
  for (const auto& input : node.array("inputs")) {
    const JsonReader argument(input, refuse_, " of an argument");
    const auto& of = argument.text("name");
    if (!schema.argumentIndexWithName(of))
      refuse_("an argument of the operator", quoted_for_message(of));
    given[of] = &argument.value("arg");
  }
  for (const auto& formal : schema.arguments()) {
    const auto argument = given.find(formal.name());
    if (argument != given.end()) {
      call.arguments.push_back(
          read_argument(*argument->second, formal.type(), formal.N().value_or(0)));
      if (!fits(call.arguments.back().value(prototypes_), formal.type())) {
        refuse_(fmt::format("{} as {}", formal.type()->str(), formal.name()),
                json_for_message(*argument->second));
      }
    } else if (formal.default_value()) {
      call.arguments.push_back({.constant = *formal.default_value()});
    } else {
      refuse_("the argument " + formal.name(), "none");
    }
  }
  const auto& outputs = node.array("outputs");
  if (outputs.size() != schema.returns().size()) {
    refuse_(fmt::format("{} results", schema.returns().size()), fmt::format("{}", outputs.size()));
  }
  for (const auto& output : outputs) call.results.push_back(read_result(output));
  call.run = [op = *found](Values& stack) { op.callBoxed(stack); };
}

void GraphReader::read_host_call(const JsonReader& node, const std::string& target, Call& call) {
  const auto found = find_host_operator(target);
  if (!found) refuse_("an operator of torch.ops.aten, or of Python on sizes", "another");
  for (const auto& input : node.array("inputs")) {
    const JsonReader argument(input, refuse_, " of an argument");
    call.arguments.push_back(read_argument(argument.value("arg"), c10::AnyType::get(), 0));
    const auto value = call.arguments.back().value(prototypes_);
    if (!value.isScalar()) refuse_("a number", json_for_message(argument.value("arg")));
  }
  const auto& outputs = node.array("outputs");
  if (call.arguments.size() != found->arguments || outputs.size() != 1) {
    refuse_(fmt::format("{} arguments and one result", found->arguments),
            fmt::format("{} and {}", call.arguments.size(), outputs.size()));
  }
  call.results.push_back(read_result(outputs.front()));
  call.run = found->run;
}

Call::Result GraphReader::read_result(const Json& output) {
  const auto [kind, value] = union_of(output, refuse_);
  const auto named = [&](const Json& json, const char* key, c10::IValue prototype) {
    const auto slot = new_slot(std::move(prototype));
    define(JsonReader(json, refuse_, " of a result").text(key), slot);
    return slot;
  };
  if (kind == "as_none") return {.is_list = false, .slots = {new_slot({})}};
  if (kind == "as_tensor") return {.is_list = false, .slots = {named(value, "name", tensor_)}};
  if (kind == "as_sym_int") return {.is_list = false, .slots = {named(value, "as_name", 0)}};
  if (kind == "as_sym_float") return {.is_list = false, .slots = {named(value, "as_name", 0.0)}};
  if (kind == "as_sym_bool") return {.is_list = false, .slots = {named(value, "as_name", false)}};
  if (kind != "as_tensors" || !value.is_array())
    refuse_("tensors as results", json_for_message(output));
  Call::Result list{.is_list = true, .slots = {}};
  for (const auto& tensor : value) list.slots.push_back(named(tensor, "name", tensor_));
  return list;
}

Argument GraphReader::read_argument(const Json& json, c10::TypePtr type,
                                    std::int64_t length) const {
  using Form = Argument::Form;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const bool is_tensor = type->kind() == c10::TypeKind::TensorType;
  const auto given = union_of(json, refuse_);
  const auto& [kind, value] = given;
  const auto name_of = [&](const Json& named, const char* key) {
    return slot_of(JsonReader(named, refuse_, " of an argument").value(key));
  };
  if (kind == "as_none") return {};
  if (kind == "as_optional_tensor") return read_argument(value, type, length);
  if (kind == "as_tensor") return {.form = Form::kSlot, .items = {{name_of(value, "name")}}};
  if (kind == "as_device") return {.form = Form::kSlot, .items = {{kDeviceSlot}}};
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
    if (value.contains("as_name")) {
      return {.form = is_tensor ? Form::kNumberAsTensor : Form::kSlot,
              .items = {{name_of(value, "as_name")}}};
    }
    return read_argument(value, type, length);
  }
  if (kind == "as_sym_ints" && value.is_array()) {
    Argument list{.form = Form::kInts};
    for (const auto& item : value) list.items.push_back(read_int(item));
    return list;
  }
  if ((kind == "as_tensors" || kind == "as_optional_tensors") && value.is_array()) {
    const auto elements = type->cast<c10::ListType>();
    const bool optional =
        elements && elements->getElementType()->kind() == c10::TypeKind::OptionalType;
    Argument list{.form = optional ? Form::kOptionalTensors : Form::kTensors};
    for (const auto& item : value) {
      if (optional && item.contains("as_none")) {
        list.items.emplace_back();
        continue;
      }
      const auto slot = name_of(item.contains("as_tensor") ? item["as_tensor"] : item, "name");
      if (!prototypes_[slot].isTensor()) refuse_("a list of tensors", json_for_message(value));
      list.items.push_back({slot});
    }
    return list;
  }
  const auto constant = read_constant(given, type, length);
  return {.constant = is_tensor && constant.isScalar() ? number_as_tensor(constant) : constant};
}

c10::IValue GraphReader::read_constant(const Union& constant, const c10::TypePtr& type,
                                       std::int64_t length) const {
  const auto& [kind, value] = constant;
  const auto list = type->cast<c10::ListType>();
  const auto& scalar = list ? list->getElementType() : type;
  const bool real = scalar->kind() == c10::TypeKind::FloatType;
  const auto list_of = [&]<typename Number>(Number (*number_of)(const Json&, const JsonRefusal&)) {
    c10::List<Number> numbers;
    for (const auto& number : value) numbers.push_back(number_of(number, refuse_));
    return numbers;
  };
  if (kind == "as_int" || (kind == "as_float" && !list)) {
    if (list && length > 0) {
      const std::vector<std::int64_t> equal(static_cast<std::size_t>(length),
                                            integer_of(value, refuse_));
      return c10::List<std::int64_t>(c10::ArrayRef<std::int64_t>(equal));
    }
    if (real || kind == "as_float") return real_of(value, refuse_);
    return integer_of(value, refuse_);
  }
  if (kind == "as_bool") return boolean_of(value, refuse_);
  if (kind == "as_string" && value.is_string()) return value.get<std::string>();
  if (kind == "as_scalar_type") return static_cast<std::int64_t>(dtype_of(value, refuse_));
  if (kind == "as_memory_format") {
    return static_cast<std::int64_t>(memory_format_of(value, refuse_));
  }
  if (kind == "as_layout" && value == 7) return static_cast<std::int64_t>(torch::kStrided);
  if ((kind == "as_ints" || kind == "as_floats") && value.is_array()) {
    if (real || kind == "as_floats") return list_of(real_of);
    return list_of(integer_of);
  }
  if (kind == "as_bools" && value.is_array()) return list_of(boolean_of);
  refuse_("an argument of a known kind",
          fmt::format("{} {}", quoted_for_message(kind), json_for_message(value)));
  return {};
}

Argument::Item GraphReader::read_int(const Json& json) const {
  const auto [kind, value] = union_of(json, refuse_);
  if (kind == "as_int") return {.slot = std::nullopt, .number = integer_of(value, refuse_)};
  const auto slot = slot_of(value);
  if (!prototypes_[slot].isInt()) refuse_("a size", json_for_message(value));
  return {.slot = slot};
}

void GraphReader::read_output(const Json& json) {
  const auto [kind, value] = union_of(json, refuse_);
  const JsonReader spec(value, refuse_, " of an output");
  const auto argument = spec.object("arg");
  if (kind != "user_output" || !argument.contains("as_tensor")) {
    refuse_("outputs that are tensors",
            fmt::format("{} {}", quoted_for_message(kind), json_for_message(value)));
  }
  graph_.outputs.push_back(slot_of(argument.object("as_tensor").value("name")));
}

void GraphReader::set_last_uses() {
  constexpr auto kNever = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> last(graph_.slots, kNever);
  for (std::size_t i = 0; i < graph_.calls.size(); ++i) {
    for (const auto& argument : graph_.calls[i].arguments) {
      for (const auto& item : argument.items) {
        if (item.slot) last[*item.slot] = i;
      }
    }
    for (const auto& result : graph_.calls[i].results) {
      for (const auto slot : result.slots) last[slot] = i;
    }
  }
  last[kDeviceSlot] = kNever;
  for (const auto slot : graph_.outputs) last[slot] = kNever;
  for (Slot slot = 0; slot < last.size(); ++slot) {
    if (last[slot] != kNever) graph_.calls[last[slot]].last_uses.push_back(slot);
  }
}

}  // namespace

Graph read_graph(const Json& program, const std::string& where) {
  return GraphReader(program, where).read();
}

}  // namespace ladder::exported
