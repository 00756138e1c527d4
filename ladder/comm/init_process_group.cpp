// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/init_process_group.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "ladder/comm/backends.h"
#include "ladder/comm/c10d_group.h"
#include "ladder/comm/errors.h"
#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/system_limits.h"
#include "ladder/core/text.h"
#include "ladder/core/unique_fd.h"
#include "ladder/io/atomic_file.h"
#include "ladder/io/json.h"
#include "ladder/launch/failure_kind.h"
#include "ladder/launch/launch_environment.h"
#include "ladder/launch/listening_socket.h"
#include "ladder/launch/spawn.h"

namespace ladder {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";

LaunchEnvironment find_launch(const ProcessGroupOptions& options) {
  LaunchOptions launch{.rank = options.rank,
                       .world_size = options.world_size,
                       .program = options.program,
                       .torchrun = options.torchrun};
  const auto& url = options.init_method;
  if (url.starts_with(kTcp)) {
    const auto colon = url.rfind(':');
    auto host = url.substr(kTcp.size(), colon - kTcp.size());
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    launch.master_addr = host;
    launch.master_port = parse_number<int>(std::string_view(url).substr(colon + 1));
    const int port = launch.master_port.value_or(0);
    if (colon < kTcp.size() || launch.master_addr->empty() || port < 1 || port > 65535) {
      throw UsageError::malformed("init_method", "tcp://HOST:PORT", url,
                                  "such as tcp://127.0.0.1:29500");
    }
  } else if (url.starts_with(kFile)) {
    launch.needs_address = false;
  } else if (url != "env://") {
    throw UsageError::malformed("init_method", "env://, tcp://HOST:PORT or file:///PATH", url,
                                "such as tcp://127.0.0.1:29500");
  }
  return options.require_launcher ? require_launcher(launch) : read_launch_environment(launch);
}

// This machine's address towards `host`: the source address that the kernel would choose.
// Connecting a datagram socket sends nothing.
std::string local_address_towards(const std::string& host, const char* hint = "check MASTER_ADDR") {
  struct Free {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  const std::unique_ptr<addrinfo, Free> list(found);
  if (failed != 0) throw no_rendezvous(host, ::gai_strerror(failed), hint);
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  auto* address = reinterpret_cast<sockaddr*>(&own);
  const UniqueFd probe(::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::array<char, NI_MAXHOST> text{};
  const bool known =
      probe && ::connect(probe.get(), list->ai_addr, list->ai_addrlen) == 0 &&
      ::getsockname(probe.get(), address, &size) == 0 &&
      ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  if (!known) throw no_rendezvous(host, "no route to this host", hint);
  return text.data();
}

// The address towards other machines: that towards an address reserved for documentation.
std::string outer_address() {
  try {
    return local_address_towards("192.0.2.1");
  } catch (const DistributedError&) {
    return "127.0.0.1";  // no network: all "machines" are this one
  }
}

// The addresses at which the other ranks reach this one, and the store if rank 0 opens it.
struct OwnAddress {
  std::string gloo;
  std::string store;
};

// Ranks that rendezvous in a file know no address of each other, so the machine's name counts.
// Many systems map a machine's own name to a loopback address, which no other machine reaches.
OwnAddress own_address(const LaunchEnvironment& launch) {
  if (launch.is_single_node()) {
    const auto own = local_address_towards("127.0.0.1", "start the loopback: ip link set lo up");
    return {own, own};
  }
  const auto& master = launch.master_addr;
  if (master.empty()) {
    std::array<char, HOST_NAME_MAX + 1> name{};
    if (::gethostname(name.data(), name.size() - 1) == 0) return {name.data(), ""};
    throw SystemError::failed("gethostname", "this machine", errno);
  }
  const auto towards = local_address_towards(master);
  const bool is_number = master.find_first_not_of("0123456789.:") == std::string::npos;
  const bool own_name = towards.starts_with("127.") && !is_number && master != "localhost";
  return own_name ? OwnAddress{outer_address(), "0.0.0.0"} : OwnAddress{towards, towards};
}

C10dStore open_tcp_store(const LaunchEnvironment& launch, const std::string& own_address,
                         std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  options.isServer = launch.rank == 0 && !launch.use_agent_store;
  if (options.isServer && launch.listen_fd) {
    options.masterListenFd = *launch.listen_fd;
    ::unsetenv("LADDER_LISTEN_FD");  // the socket serves one group
  } else if (options.isServer) {
    ListeningSocket socket(launch.master_port, own_address);
    options.port = static_cast<std::uint16_t>(socket.port());
    options.masterListenFd = socket.release();
  }
  // On one machine rank 0 opens it on the loopback interface, whatever MASTER_ADDR is.
  const bool is_here = launch.is_single_node() && !launch.use_agent_store;
  const std::string host = is_here ? "127.0.0.1" : launch.master_addr;
  const std::string address = fmt::format("{}:{}", host, options.port);
  const auto store = std::make_shared<C10dStore>();
  run_with_deadline(timeout, address, [=] {
    try {
      *store = c10::make_intrusive<c10d::TCPStore>(host, options);
    } catch (const std::exception& error) {
      if (failure_kind(error) == FailureKind::kLimit) throw;
      throw no_rendezvous(
          address, message_of(error),
          "rank 0 opens it: is it running, with the same MASTER_ADDR and MASTER_PORT?");
    }
  });
  return *store;
}

C10dStore open_file_store(const std::string& path, const LaunchEnvironment& launch,
                          std::chrono::milliseconds timeout) {
  if (!path.starts_with('/')) {
    throw UsageError::malformed("init_method", "file:// and a full path", "file://" + path,
                                "such as file:///tmp/store");
  }
  require_writable_folder("init_method", path);
  // FileStore tries again until the timeout, whatever the reason.
  if (!UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644))) {
    throw SystemError::failed("open", path, errno);
  }
  const auto store = std::make_shared<C10dStore>();
  run_with_deadline(timeout, path, [=, world_size = launch.world_size] {
    *store = c10::make_intrusive<c10d::FileStore>(path, world_size);
  });
  return *store;
}

std::string arrival_key(int rank) { return fmt::format("arrived/{}", rank); }

void require_world_size(c10d::Store& store, const std::string& others,
                        const LaunchEnvironment& launch) {
  if (others == std::to_string(launch.world_size)) return;
  // Wake the ranks that wait for one that does not exist, so that they fail, too.
  for (int rank = 0; rank < std::stoi(others); ++rank) {
    if (!store.check({arrival_key(rank)})) store.set(arrival_key(rank), others);
  }
  exit_barrier(store, "world_sizes_disagree", 2);
  throw DistributedError::ranks_disagree(
      fmt::format("WORLD_SIZE of rank {}", launch.rank), others + ", as on another rank",
      std::to_string(launch.world_size), "start all ranks with the same number");
}

using Settings = std::map<std::string, std::string>;
using Difference = std::array<std::string, 4>;  // where, expected, got, hint

DistributedError ranks_differ(const Difference& difference) {
  const auto& [where, expected, got, hint] = difference;
  return DistributedError::ranks_disagree(where, expected + ", as on another rank", got, hint);
}

// The first of the settings of this rank that is not that of another one.
Difference difference_of(const Settings& own, const Settings& other, int rank) {
  const auto text = [](const Settings& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? name + " unset" : fmt::format("{} {}", name, found->second);
  };
  auto all = own;
  all.insert(other.begin(), other.end());
  const auto differs = std::ranges::find_if(all, [&](const auto& setting) {
    return text(own, setting.first) != text(other, setting.first);
  });
  return {fmt::format("settings of rank {}", rank), text(other, differs->first),
          text(own, differs->first), "start all ranks with the same flags and variables"};
}

std::optional<Difference> compare_with_others(c10d::Store& store, int rank,
                                              const Settings& settings,
                                              const std::string& backend) {
  const auto own = json_text(nlohmann::json(settings));
  const auto others = store.compareSet("settings", "", own);
  if (others != own) {
    return difference_of(settings, nlohmann::json::parse(others).get<Settings>(), rank);
  }
  const auto their_backend = store.compareSet("backend", "", backend);
  if (their_backend == backend) return std::nullopt;
  return Difference{fmt::format("backend of rank {}", rank), their_backend, backend,
                    "use backend gloo on all ranks; auto depends on GPUs and LOCAL_WORLD_SIZE"};
}

// Begins what a rank that differs arrives with, so that the others end with the same error.
constexpr std::string_view kDiffers = "differs: ";

// Compares the settings of the ranks before the first collective, in which a difference would show
// as a hang, or not at all.
void register_rank(c10d::Store& store, const LaunchEnvironment& launch, const Settings& settings,
                   const std::string& backend) {
  const std::string own = std::to_string(launch.world_size);
  if (store.add(fmt::format("copies/{}", launch.rank), 1) != 1) {
    throw DistributedError::ranks_disagree(
        fmt::format("rank {}", launch.rank), "one process", "a second one",
        "give each process a RANK of its own; with file://, a new file for each run; or use the "
        "group that this program has made: an Accelerator makes its own (process_group())");
  }
  require_world_size(store, store.compareSet("world_size", "", own), launch);
  const auto difference = compare_with_others(store, launch.rank, settings, backend);
  store.set(arrival_key(launch.rank),
            difference ? std::string(kDiffers) + json_text(nlohmann::json(*difference)) : own);
}

void wait_for_all(c10d::Store& store, const LaunchEnvironment& launch,
                  std::chrono::milliseconds timeout, const std::string& address) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < launch.world_size; ++rank) keys.push_back(arrival_key(rank));
  const auto missing = wait_for_keys(store, keys, timeout, address);
  if (!missing.empty()) throw ranks_missing(missing, launch.world_size, timeout);
  for (const auto& key : keys) {
    const auto arrived = store.get_to_str(key);
    if (!arrived.starts_with(kDiffers)) {
      require_world_size(store, arrived, launch);
      continue;
    }
    exit_barrier(store, "ranks_differ", keys.size());
    throw ranks_differ(nlohmann::json::parse(arrived.substr(kDiffers.size())).get<Difference>());
  }
}

// Ranks whose launcher was killed get the SIGTERM that it would have sent. Ranks that a user
// started from a shell outlive it, as other programs do; spawn has its own means.
void die_with_launcher(const std::string& launcher) {
  const bool by_hand = launcher == "env" || launcher == "options" || launcher == "single";
  if (!by_hand && launcher != "spawn") ::prctl(PR_SET_PDEATHSIG, SIGTERM);
}

// The network interface that a user chose for Gloo, whose own error names none.
std::string gloo_interface() {
  constexpr const char* kVariable = "GLOO_SOCKET_IFNAME";
  const auto name = environment_variable(kVariable).value_or("");
  if (name.empty() || ::if_nametoindex(name.c_str()) != 0) return name;
  throw UsageError::malformed(kVariable, "one network interface of this machine", name,
                              "ip -brief link lists them; or: unset GLOO_SOCKET_IFNAME");
}

// A library that reaches a limit in the middle of a rendezvous makes other ranks wait.
void require_resources(const LaunchEnvironment& launch) {
  constexpr int kFiles = 20;           // the store, Gloo's loop, files of the program
  constexpr int kFilesOfEachRank = 2;  // two connections; on this machine also two processes
  const auto where = fmt::format("rank {} of {}", launch.rank, launch.world_size);
  require_open_files(where,
                     kFiles + kFilesOfEachRank * (launch.world_size + launch.local_world_size));
  require_stack(where);
  require_threads(where, kGroupThreads);
}

}  // namespace

ProcessGroup init_process_group(const ProcessGroupOptions& options) {
  const auto launch = find_launch(options);
  die_with_launcher(launch.launcher);
  const auto& row = find_backend(options, launch);
  const auto& backend = row.name;
  // NCCL opens sockets of its own; on one machine the loopback interface is enough.
  if (backend == "nccl" && launch.is_single_node()) {
    ::setenv("NCCL_SOCKET_IFNAME", "lo", /*replace=*/0);
  }
  if (backend == "single") return ProcessGroup::single(launch.description());
  require_resources(launch);
  const auto interface = backend == "nccl" ? std::string() : gloo_interface();
  const auto address = own_address(launch);
  const bool in_file = options.init_method.starts_with(kFile);
  const auto rendezvous = in_file ? options.init_method.substr(kFile.size())
                                  : fmt::format("{}:{}", launch.master_addr, launch.master_port);
  const auto opened = in_file ? open_file_store(rendezvous, launch, options.timeout)
                              : open_tcp_store(launch, address.store, options.timeout);
  opened->setTimeout(options.timeout);
  // A store that outlives the ranks holds the keys of earlier attempts; the prefix separates them.
  // Rank 0's own store is new. There, each of torchrun's agents may count other restarts: one that
  // joins later begins with 0.
  const bool is_new = !in_file && !launch.use_agent_store;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("attempt_{}", is_new ? 0 : launch.restart_count), opened);
  run_with_deadline(options.timeout, rendezvous,
                    [=, timeout = options.timeout, settings = options.settings] {
                      register_rank(*store, launch, settings, backend);
                      wait_for_all(*store, launch, timeout, rendezvous);
                    });
  ProcessGroup group(ProcessGroup::Setup{.rank = launch.rank,
                                         .world_size = launch.world_size,
                                         .local_rank = launch.local_rank,
                                         .local_world_size = launch.local_world_size,
                                         .backend = backend,
                                         .make = row.make,
                                         .description = launch.description(),
                                         .timeout = options.timeout,
                                         .store = store,
                                         .address = in_file ? rendezvous : "rank 0",
                                         .gloo_interface = interface,
                                         .gloo_address = address.gloo});
  // Gloo reports a connection to one end before the other: a rank that ended between the two would
  // fail a peer that is still connecting.
  run_with_deadline(options.timeout, rendezvous, [store, world_size = launch.world_size] {
    exit_barrier(*store, "connected", static_cast<std::size_t>(world_size));
  });
  // On all ranks, or none.
  if (options.backend == backend && group.backend() != backend) throw row.refused(options, launch);
  return group;
}

}  // namespace ladder
