# SPDX-License-Identifier: Apache-2.0
# Small libraries: the system's packages where there are some (Debian: tools/setup.sh installs them),
# otherwise fetched and built. One spelling for both.
include(FetchContent)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(Threads REQUIRED)

FetchContent_Declare(fmt GIT_REPOSITORY https://github.com/fmtlib/fmt GIT_TAG 9.1.0
  SYSTEM FIND_PACKAGE_ARGS 9.1)
FetchContent_Declare(nlohmann_json GIT_REPOSITORY https://github.com/nlohmann/json GIT_TAG v3.11.2
  SYSTEM FIND_PACKAGE_ARGS 3.11)
FetchContent_Declare(CLI11 GIT_REPOSITORY https://github.com/CLIUtils/CLI11 GIT_TAG v2.1.2
  SYSTEM FIND_PACKAGE_ARGS 2.1)
FetchContent_Declare(yaml-cpp GIT_REPOSITORY https://github.com/jbeder/yaml-cpp GIT_TAG yaml-cpp-0.9.0
  SYSTEM FIND_PACKAGE_ARGS 0.7)
set(FMT_INSTALL ON)
set(JSON_Install ON)
set(YAML_CPP_INSTALL ON)
set(YAML_CPP_BUILD_TOOLS OFF)
set(YAML_CPP_BUILD_TESTS OFF)
FetchContent_MakeAvailable(fmt nlohmann_json yaml-cpp)
if(PROJECT_IS_TOP_LEVEL) # of the programs
  find_package(ZLIB REQUIRED)
  FetchContent_MakeAvailable(CLI11)
endif()
if(NOT TARGET yaml-cpp::yaml-cpp) # before 0.8 its package called it yaml-cpp
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

if(LADDER_TESTS)
  FetchContent_Declare(googletest GIT_REPOSITORY https://github.com/google/googletest
    GIT_TAG release-1.12.1 SYSTEM FIND_PACKAGE_ARGS 1.12 NAMES GTest)
  FetchContent_MakeAvailable(googletest)
endif()
if(LADDER_BENCH)
  FetchContent_Declare(benchmark GIT_REPOSITORY https://github.com/google/benchmark
    GIT_TAG v1.7.1 SYSTEM FIND_PACKAGE_ARGS 1.7)
  set(BENCHMARK_ENABLE_TESTING OFF)
  FetchContent_MakeAvailable(benchmark)
endif()
