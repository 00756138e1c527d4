// SPDX-License-Identifier: Apache-2.0
#include "ladder/comm/init_process_group.h"

#include <arpa/inet.h>
#include <fmt/core.h>
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
#include <filesystem>
#include <memory>
#include <string_view>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "ladder/comm/c10d_group.h"
#include "ladder/comm/errors.h"
#include "ladder/comm/launch_environment.h"
#include "ladder/comm/shared_memory.h"
#include "ladder/core/environment.h"
#include "ladder/core/error.h"
#include "ladder/core/gpus.h"
#include "ladder/core/listening_socket.h"

namespace ladder {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";

struct Address {
  std::string host;
  int port;
};

Address parse_tcp(const std::string& url) {
  const auto colon = url.rfind(':');
  const std::string host = url.substr(kTcp.size(), colon - kTcp.size());
  const auto port = whole_number(std::string_view(url).substr(colon + 1));
  if (colon < kTcp.size() || host.empty() || !port || *port < 1 || *port > 65535) {
    throw UsageError::malformed("init_method", "tcp://HOST:PORT", url);
  }
  return {host, static_cast<int>(*port)};
}

LaunchEnvironment find_launch(const ProcessGroupOptions& options) {
  LaunchOptions explicit_options{.rank = options.rank,
                                 .world_size = options.world_size,
                                 .program = options.program,
                                 .torchrun = options.torchrun};
  if (options.init_method.starts_with(kTcp)) {
    auto [host, port] = parse_tcp(options.init_method);
    explicit_options.master_addr = std::move(host);
    explicit_options.master_port = port;
  } else if (options.init_method.starts_with(kFile)) {
    explicit_options.needs_address = false;
  } else if (options.init_method != "env://") {
    throw UsageError::malformed("init_method", "env://, tcp://HOST:PORT or file:///PATH",
                                options.init_method);
  }
  return options.require_launcher ? require_launcher(explicit_options)
                                  : read_launch_environment(explicit_options);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

// This machine's address on the way to `host`: the source address that the kernel would choose.
// Connecting a datagram socket sends nothing.
std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  if (failed != 0) {
    throw no_rendezvous(host, ::gai_strerror(failed), "check MASTER_ADDR");
  }
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  const int descriptor = ::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  auto* address = reinterpret_cast<sockaddr*>(&own);
  const bool known = descriptor >= 0 &&
                     ::connect(descriptor, list->ai_addr, list->ai_addrlen) == 0 &&
                     ::getsockname(descriptor, address, &size) == 0;
  if (descriptor >= 0) ::close(descriptor);
  std::array<char, NI_MAXHOST> text{};
  if (!known ||
      ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    throw no_rendezvous(host, "no route to this host", "check MASTER_ADDR");
  }
  return text.data();
}

// The address that faces the outside: that towards an address reserved for documentation.
std::string outer_address() {
  try {
    return local_address_towards("192.0.2.1");
  } catch (const DistributedError&) {
    return "127.0.0.1";  // no network: the other "machines" can only be this one
  }
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    throw SystemError::failed("gethostname", "this machine", errno);
  }
  return name.data();
}

// Where the other ranks reach this one, and where rank 0 opens the store for them.
struct OwnAddress {
  std::string gloo;
  std::string store;
};

// Ranks that meet in a file know no address of each other: then the name of the machine counts.
// Many systems give a machine's own name a loopback address, which no other machine reaches.
OwnAddress own_address(const LaunchEnvironment& launch) {
  if (launch.is_single_node()) return {"127.0.0.1", "127.0.0.1"};
  const auto& master = launch.master_addr;
  if (master.empty()) return {host_name(), ""};
  const auto towards = local_address_towards(master);
  const bool is_number = master.find_first_not_of("0123456789.:") == std::string::npos;
  const bool own_name = towards.starts_with("127.") && !is_number && master != "localhost";
  return own_name ? OwnAddress{outer_address(), "0.0.0.0"} : OwnAddress{towards, towards};
}

// The socket of the store: handed over by who started us, or opened here.
int listening_descriptor(const LaunchEnvironment& launch, const std::string& address) {
  if (launch.listen_fd) {
    ::unsetenv("LADDER_LISTEN_FD");  // a second group cannot have it
    return *launch.listen_fd;
  }
  return ListeningSocket(launch.master_port, address).release();
}

C10dStore open_tcp_store(const LaunchEnvironment& launch, const std::string& own_address,
                         std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  options.isServer = launch.rank == 0 && !launch.use_agent_store;
  if (options.isServer) options.masterListenFd = listening_descriptor(launch, own_address);
  // Ours is on the loopback interface there, whatever name MASTER_ADDR gives this machine.
  const bool is_here = launch.is_single_node() && !launch.use_agent_store;
  const std::string host = is_here ? "127.0.0.1" : launch.master_addr;
  const std::string address = fmt::format("{}:{}", host, launch.master_port);
  const auto store = std::make_shared<C10dStore>();
  run_with_deadline(timeout, address, [=] {
    try {
      *store = c10::make_intrusive<c10d::TCPStore>(host, options);
    } catch (const std::exception& error) {
      throw no_rendezvous(
          address, error.what(),
          "rank 0 opens it: is it running, with the same MASTER_ADDR and MASTER_PORT?");
    }
  });
  return *store;
}

C10dStore open_file_store(const std::string& path, const LaunchEnvironment& launch,
                          std::chrono::milliseconds timeout) {
  const std::filesystem::path file(path);
  if (!file.is_absolute() || !std::filesystem::is_directory(file.parent_path())) {
    throw UsageError::malformed("init_method", "file:// and a full path in a folder that exists",
                                "file://" + path);
  }
  const auto store = std::make_shared<C10dStore>();
  run_with_deadline(timeout, path, [=, world_size = launch.world_size] {
    *store = c10::make_intrusive<c10d::FileStore>(path, world_size);
  });
  return *store;
}

// Keys of an earlier attempt must not be taken for those of this one.
C10dStore open_store(const ProcessGroupOptions& options, const LaunchEnvironment& launch,
                     const std::string& own_address) {
  const C10dLogSilencer quiet;
  C10dStore store;
  if (options.init_method.starts_with(kFile)) {
    store = open_file_store(options.init_method.substr(kFile.size()), launch, options.timeout);
  } else {
    store = open_tcp_store(launch, own_address, options.timeout);
  }
  store->setTimeout(options.timeout);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("attempt_{}", launch.restart_count),
                                                store);
}

std::string arrival_key(int rank) { return fmt::format("arrived/{}", rank); }

// Ranks that wait for one that will never come are woken, so that they find out too.
void release_waiters(c10d::Store& store, const std::string& world_size) {
  for (int rank = 0; rank < std::stoi(world_size); ++rank) {
    if (!store.check({arrival_key(rank)})) store.set(arrival_key(rank), world_size);
  }
}

void require_world_size(c10d::Store& store, const std::string& others,
                        const LaunchEnvironment& launch) {
  if (others == std::to_string(launch.world_size)) return;
  release_waiters(store, others);
  const C10dLogSilencer quiet;
  exit_barrier(store, "world_sizes_disagree", 2);
  throw DistributedError::ranks_disagree(
      fmt::format("WORLD_SIZE of rank {}", launch.rank), others + ", as on another rank",
      std::to_string(launch.world_size), "start all ranks with the same number");
}

// Finds out before the first collective whether the ranks belong together: afterwards, a
// difference would show as a hang.
void register_rank(c10d::Store& store, const LaunchEnvironment& launch,
                   const std::string& backend) {
  const std::string own = std::to_string(launch.world_size);
  if (store.add(fmt::format("copies/{}", launch.rank), 1) != 1) {
    throw DistributedError::ranks_disagree(
        fmt::format("rank {}", launch.rank), "one process", "a second one",
        "give each process a RANK of its own; with file://, a new file for each run");
  }
  store.set(arrival_key(launch.rank), own);
  require_world_size(store, store.compareSet("world_size", "", own), launch);
  const auto others = store.compareSet("backend", "", backend);
  if (others == backend) return;
  throw DistributedError::ranks_disagree(
      fmt::format("backend of rank {}", launch.rank), others + ", as on another rank", backend,
      "some machines have fewer GPUs than ranks: use backend gloo on all ranks");
}

void wait_for_all(c10d::Store& store, const LaunchEnvironment& launch,
                  std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < launch.world_size; ++rank) keys.push_back(arrival_key(rank));
  const auto missing = wait_for_keys(store, keys, timeout);
  if (!missing.empty()) {
    throw ranks_missing(missing, launch.world_size, timeout);
  }
  for (const auto& key : keys) require_world_size(store, store.get_to_str(key), launch);
}

// One GPU a rank is what NCCL needs: two ranks on one GPU are refused by it, late and cryptically.
std::string choose_backend(const ProcessGroupOptions& options, const LaunchEnvironment& launch) {
  const std::array<std::string, 4> names = {"auto", "gloo", "nccl", "shm"};
  if (std::find(names.begin(), names.end(), options.backend) == names.end()) {
    throw UsageError::unknown_name("backend", options.backend, names);
  }
  // Ranks that all name the same GPU share it, however many there are.
  const bool shared = options.device.find(':') != std::string::npos && launch.local_world_size > 1;
  const int gpus = shared ? 1 : visible_gpu_count();
  if (options.backend == "nccl" && gpus < launch.local_world_size) {
    throw UsageError::conflict(
        "backend nccl",
        fmt::format("{} ranks on this machine but {} GPU{}", launch.local_world_size, gpus,
                    gpus == 1 ? "" : "s"),
        "start as many ranks as GPUs, or use backend gloo, which can share them");
  }
  if (options.backend != "auto") return options.backend;
  const bool on_gpu = options.device != "cpu" && gpus >= launch.local_world_size && gpus > 0;
  if (launch.world_size == 1) return "single";
  if (on_gpu) return "nccl";
  return launch.is_single_node() ? "shm" : "gloo";
}

// With backend shm, all ranks call this, or none.
[[noreturn]] void refuse_shared_memory(c10d::Store& store, const LaunchEnvironment& launch) {
  exit_barrier(store, "no_shared_memory", static_cast<std::size_t>(launch.world_size));
  throw UsageError::conflict(
      "backend shm",
      fmt::format("{} ranks that do not share one machine's memory", launch.world_size),
      fmt::format("use backend auto; up to {} ranks of one user can share it, all outside of "
                  "containers or all in the same",
                  SharedMemory::kMostRanks));
}

// Ranks whose launcher was killed get SIGTERM, as it would have sent them. Those that a person has
// started from a shell outlive it, as other programs do; those of spawn have their own arrangement.
void die_with_launcher(const std::string& launcher) {
  const bool by_hand = launcher == "env" || launcher == "options" || launcher == "single";
  if (!by_hand && launcher != "spawn") ::prctl(PR_SET_PDEATHSIG, SIGTERM);
}

}  // namespace

ProcessGroup init_process_group(const ProcessGroupOptions& options) {
  const auto launch = find_launch(options);
  const auto backend = choose_backend(options, launch);
  die_with_launcher(launch.launcher);
  // NCCL opens sockets of its own: on one machine nobody outside need reach them.
  if (backend == "nccl" && launch.is_single_node()) {
    ::setenv("NCCL_SOCKET_IFNAME", "lo", /*replace=*/0);
  }
  if (backend == "single") return ProcessGroup::single(launch.description());
  const auto address = own_address(launch);
  ProcessGroup::Setup setup{
      .rank = launch.rank,
      .world_size = launch.world_size,
      .local_rank = launch.local_rank,
      .local_world_size = launch.local_world_size,
      .backend = backend,
      .description = launch.description(),
      .timeout = options.timeout,
      .store = open_store(options, launch, address.store),
      .gloo_interface = environment_variable("GLOO_SOCKET_IFNAME").value_or(""),
      .gloo_address = address.gloo};
  const auto rendezvous = fmt::format("{}:{}", launch.master_addr, launch.master_port);
  const auto store = setup.store;
  run_with_deadline(options.timeout, rendezvous, [=, timeout = options.timeout] {
    register_rank(*store, launch, backend);
    wait_for_all(*store, launch, timeout);
  });
  ProcessGroup group(std::move(setup));
  // Gloo reports a connection to one end before the other: a rank that ended between the two would
  // fail a peer that is still connecting.
  const C10dLogSilencer quiet;
  run_with_deadline(options.timeout, rendezvous, [store, world_size = launch.world_size] {
    exit_barrier(*store, "connected", static_cast<std::size_t>(world_size));
  });
  if (options.backend == "shm" && group.backend() != "shm") refuse_shared_memory(*store, launch);
  return group;
}

}  // namespace ladder
