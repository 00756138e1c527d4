// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "bridges/exported_program/graph.h"
#include "bridges/exported_program/schema.h"
#include "ladder/core/text.h"
#include "ladder/io/json.h"

namespace ladder::exported {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kSchemaMajor = 8;
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
  const auto quote = std::min(trace.find('"'), trace.size());
  const auto path = trace.substr(0, quote);
  const auto lines = split(trace.substr(std::min(quote + 1, trace.size())), '\n');
  return fmt::format(
      ", {}", quoted_for_message(fmt::format("{}{}: {}", path.substr(path.rfind('/') + 1), lines[0],
                                             lines.size() > 1 ? without_blanks(lines[1]) : "")));
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
  Slot define(const Json& name, c10::IValue prototype);
  Slot slot_of(const Json& name);

  void read_input(const Json& spec, const JsonReader& tensors);
  Size read_size(const Json& size) const;
  void read_call(const Json& json);
  std::size_t read_aten_call(const JsonReader& node, std::string_view operator_name, Call& call);
  std::size_t read_host_call(const JsonReader& node, const std::string& target, Call& call);
  Call::Result read_result(const Json& output);
  void read_output(const Json& spec);
  // `length` > 0: of a list for which one number may stand.
  Argument read_argument(const Union& given, const c10::TypePtr& type, std::int64_t length = 0);
  c10::IValue read_constant(const Union& given, const c10::Type& type) const;

  std::string where_;
  JsonRefusal refuse_;  // of the file, or of the node that is read
  JsonReader program_;
  Graph graph_;
  std::unordered_map<std::string, Slot> by_name_;
  Values prototypes_ = {torch::Device(torch::kCPU)};  // of kDeviceSlot
  std::vector<std::size_t> last_uses_ = {std::numeric_limits<std::size_t>::max()};  // calls
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
  for (Slot slot = 0; slot < graph_.slots; ++slot) {
    const auto last = last_uses_[slot];
    if (last < graph_.calls.size()) graph_.calls[last].last_uses.push_back(slot);
  }
  return std::move(graph_);
}

Slot GraphReader::new_slot(c10::IValue prototype) {
  prototypes_.push_back(std::move(prototype));
  last_uses_.push_back(graph_.calls.size());
  return prototypes_.size() - 1;
}

Slot GraphReader::define(const Json& name, c10::IValue prototype) {
  const auto slot = new_slot(std::move(prototype));
  if (!name.is_string() || !by_name_.emplace(name, slot).second) {
    refuse_("every value once, with a name", json_for_message(name));
  }
  return slot;
}

Slot GraphReader::slot_of(const Json& name) {
  const auto found = name.is_string() ? by_name_.find(name) : by_name_.end();
  if (found == by_name_.end()) {
    refuse_("the name of a value that exists", json_for_message(name));
  }
  last_uses_[found->second] = graph_.calls.size();
  return found->second;
}

void GraphReader::read_input(const Json& json, const JsonReader& tensors) {
  static const std::map<std::string_view, std::pair<Graph::Kind, const char*>> weights = {
      {"parameter", {Graph::Kind::kParameter, "parameter_name"}},
      {"buffer", {Graph::Kind::kBuffer, "buffer_name"}},
      {"tensor_constant", {Graph::Kind::kConstant, "tensor_constant_name"}},
  };
  const auto [kind, value] = union_of(json, refuse_);
  if (kind == "constant_input") return;  // a part of the graph since the export
  const JsonReader spec(value, refuse_, " of an input");
  const auto argument = spec.object("arg");
  if (const auto found = weights.find(kind); found != weights.end()) {
    auto [is, name] = found->second;
    if (is == Graph::Kind::kBuffer && !spec.boolean("persistent")) is = Graph::Kind::kConstant;
    graph_.weights.push_back({is, spec.text(name), define(argument.value("name"), tensor_)});
    return;
  }
  if (kind != "user_input" || !argument.contains("as_tensor")) {
    refuse_("inputs that are tensors", quoted_for_message(kind) + " " + json_for_message(value));
  }
  Graph::Input input{.name = argument.object("as_tensor").text("name"), .sizes = {}};
  input.slot = define(input.name, tensor_);
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
  Size size{.symbol = "", .most = std::numeric_limits<std::int64_t>::max()};
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
  const auto results =
      target.starts_with(kAten)
          ? read_aten_call(own, std::string_view(target).substr(kAten.size()), call)
          : read_host_call(own, target, call);
  const auto& outputs = own.array("outputs");
  if (outputs.size() != results) {
    refuse_(fmt::format("{} results", results), fmt::format("{}", outputs.size()));
  }
  for (const auto& output : outputs) call.results.push_back(read_result(output));
  graph_.calls.push_back(std::move(call));
  refuse_ = outer;
}

std::size_t GraphReader::read_aten_call(const JsonReader& node, std::string_view name, Call& call) {
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
    if (!schema.argumentIndexWithName(of)) {
      refuse_("an argument of the operator", quoted_for_message(of));
    }
    given[of] = &argument.value("arg");
  }
  for (const auto& formal : schema.arguments()) {
    const auto argument = given.find(formal.name());
    if (argument != given.end()) {
      call.arguments.push_back(read_argument(union_of(*argument->second, refuse_), formal.type(),
                                             formal.N().value_or(0)));
    } else if (formal.default_value()) {
      call.arguments.push_back({.constant = *formal.default_value()});
    } else {
      refuse_("the argument " + formal.name(), "none");
    }
  }
  call.run = [op = *found](Values& stack) { op.callBoxed(stack); };
  return schema.returns().size();
}

std::size_t GraphReader::read_host_call(const JsonReader& node, const std::string& target,
                                        Call& call) {
  const auto* const found = find_host_operator(target);
  if (found == nullptr) refuse_("an operator of torch.ops.aten, or of Python on sizes", "another");
  for (const auto& input : node.array("inputs")) {
    const JsonReader argument(input, refuse_, " of an argument");
    call.arguments.push_back(
        read_argument(union_of(argument.value("arg"), refuse_), c10::NumberType::get()));
  }
  if (call.arguments.size() != found->arguments) {
    refuse_(fmt::format("{} arguments", found->arguments),
            fmt::format("{}", call.arguments.size()));
  }
  call.run = [found](Values& stack) { stack = {found->run(stack.front(), stack.back())}; };
  return 1;
}

Call::Result GraphReader::read_result(const Json& output) {
  struct Form {
    const char* name;
    c10::IValue prototype;
  };
  static const std::map<std::string_view, Form> forms = {{"as_tensor", {"name", tensor_}},
                                                         {"as_sym_int", {"as_name", 0}},
                                                         {"as_sym_float", {"as_name", 0.0}},
                                                         {"as_sym_bool", {"as_name", false}}};
  const auto [kind, value] = union_of(output, refuse_);
  const auto named = [&](const Json& json, const Form& form) {
    return define(JsonReader(json, refuse_, " of a result").value(form.name), form.prototype);
  };
  if (kind == "as_none") return {.slots = {new_slot({})}};
  if (const auto found = forms.find(kind); found != forms.end()) {
    return {.slots = {named(value, found->second)}};
  }
  if (kind != "as_tensors" || !value.is_array()) {
    refuse_("tensors as results", json_for_message(output));
  }
  Call::Result list{.is_list = true, .slots = {}};
  for (const auto& tensor : value) list.slots.push_back(named(tensor, forms.at("as_tensor")));
  return list;
}

Argument GraphReader::read_argument(const Union& given, const c10::TypePtr& type,
                                    std::int64_t length) {
  static const std::map<std::string_view, std::string> lists = {
      {"as_ints", "as_int"},
      {"as_floats", "as_float"},
      {"as_bools", "as_bool"},
      {"as_tensors", "as_tensor"},
      {"as_sym_ints", "as_sym_int"},
      {"as_int", "as_int"},
      {"as_optional_tensors", "as_optional_tensor"}};
  const auto& [kind, value] = given;
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool" ||
      kind == "as_optional_tensor") {
    return read_argument(union_of(value, refuse_), type, length);
  }
  const auto optional = type->cast<c10::OptionalType>();
  const auto& inner = optional ? optional->getElementType() : type;
  const auto list = inner->cast<c10::ListType>();
  const auto item = list ? lists.find(kind) : lists.end();
  Argument argument{.is_tensor = inner->kind() == c10::TypeKind::TensorType};
  if (item != lists.end() && (value.is_array() || (kind == "as_int" && length > 0))) {
    argument.elements = list->getElementType();
    const auto add = [&](const Json& element) {
      argument.items.push_back(read_argument({item->second, element}, argument.elements));
    };
    if (value.is_array()) std::for_each(value.begin(), value.end(), add);
    for (; !value.is_array() && length > 0; --length) add(value);
  } else if (kind == "as_tensor") {
    argument.slot = slot_of(JsonReader(value, refuse_, " of an argument").value("name"));
  } else if (kind == "as_name") {
    argument.slot = slot_of(value);
  } else if (kind == "as_device") {
    argument.slot = kDeviceSlot;
  } else {
    argument.constant = read_constant(given, *inner);
  }
  if (!fits(argument.value(prototypes_), type)) {
    refuse_(type->str(), fmt::format("{} {}", quoted_for_message(kind), json_for_message(value)));
  }
  return argument;
}

c10::IValue GraphReader::read_constant(const Union& given, const c10::Type& type) const {
  const auto& [kind, value] = given;
  if (kind == "as_none") return {};
  if (kind == "as_float" || (kind == "as_int" && type.kind() == c10::TypeKind::FloatType)) {
    return real_of(value, refuse_);
  }
  if (kind == "as_int") return integer_of(value, refuse_);
  if (kind == "as_bool" && value.is_boolean()) return value.get<bool>();
  if (kind == "as_string" && value.is_string()) return value.get<std::string>();
  if (kind == "as_scalar_type") return static_cast<std::int64_t>(dtype_of(value, refuse_));
  if (kind == "as_memory_format") {
    return static_cast<std::int64_t>(memory_format_of(value, refuse_));
  }
  if (kind == "as_layout" && value == 7) return static_cast<std::int64_t>(torch::kStrided);
  refuse_("an argument of a known kind",
          fmt::format("{} {}", quoted_for_message(kind), json_for_message(value)));
  return {};
}

void GraphReader::read_output(const Json& json) {
  const auto [kind, value] = union_of(json, refuse_);
  const auto argument = JsonReader(value, refuse_, " of an output").object("arg");
  if (kind != "user_output" || !argument.contains("as_tensor")) {
    refuse_("outputs that are tensors", quoted_for_message(kind) + " " + json_for_message(value));
  }
  graph_.outputs.push_back(slot_of(argument.object("as_tensor").value("name")));
}

}  // namespace

Graph read_graph(const Json& program, const std::string& where) {
  return GraphReader(program, where).read();
}

}  // namespace ladder::exported
