// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/gloo_backend.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <future>
#include <tuple>

#include "ladder/comm/errors.h"
#include "ladder/core/tensor_form.h"

namespace ladder {
namespace {

using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

}  // namespace

C10dWork Gloo::send(Tensors& tensors, int to, int /*tag*/) {
  const auto message = tensors.front();
  const auto header = torch::zeros({kHeaderBytes}, torch::kByte);
  const auto form = TensorForm::of_values(message).text();
  std::copy_n(form.c_str(), std::min<std::size_t>(form.size(), kHeaderBytes - 1),
              header.data_ptr<std::uint8_t>());
  const int tag = next_tag(sent_[to]);
  Tensors headers = {header};
  const auto first = ProcessGroupGloo::send(headers, to, tag);
  const auto second = ProcessGroupGloo::send(tensors, to, tag + 1);
  return c10::make_intrusive<FunctionWork>([=](std::chrono::milliseconds timeout) {
    first->wait(timeout);
    second->wait(timeout);
    static_cast<void>(std::tie(header, message));  // they live until here
  });
}

C10dWork Gloo::recv(Tensors& tensors, int from, int /*tag*/) {
  const auto receive = [this, message = tensors.front(), from, tag = next_tag(received_[from])] {
    const auto header = torch::zeros({kHeaderBytes}, torch::kByte);
    Tensors headers = {header};
    ProcessGroupGloo::recv(headers, from, tag)->wait();
    const std::string sent(reinterpret_cast<const char*>(header.const_data_ptr<std::uint8_t>()));
    const auto expected = TensorForm::of_values(message).text().substr(0, kHeaderBytes - 1);
    if (sent != expected) {
      throw another_tensor_sent(getRank(), getSize(), from, sent, expected);
    }
    Tensors messages = {message};
    ProcessGroupGloo::recv(messages, from, tag + 1)->wait();
  };
  // In a thread, so that it proceeds while this rank waits for something else.
  const std::shared_future<void> end = std::async(std::launch::async, receive);
  return c10::make_intrusive<FunctionWork>([=](auto&&...) { end.get(); });
}

c10::intrusive_ptr<Gloo::Options> gloo_options(const ProcessGroup::Setup& setup) {
  auto options = Gloo::Options::create(setup.timeout);
  options->devices.push_back(setup.gloo_interface.empty()
                                 ? Gloo::createDeviceForHostname(setup.gloo_address)
                                 : Gloo::createDeviceForInterface(setup.gloo_interface));
  return options;
}

c10::intrusive_ptr<Gloo> make_gloo(const ProcessGroup::Setup& setup, const C10dStore& store) {
  return c10::make_intrusive<Gloo>(store, setup.rank, setup.world_size, gloo_options(setup));
}

C10dWork completed(const Tensors& tensors) {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(tensors));
  return c10d::Work::create_from_future(future);
}

}  // namespace ladder
