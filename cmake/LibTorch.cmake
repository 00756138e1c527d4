# SPDX-License-Identifier: Apache-2.0
# One target, ladder::torch: LibTorch and what it needs, from one of three places.
#
#   Torch_DIR, CMAKE_PREFIX_PATH   set by the user: LibTorch's own TorchConfig.cmake. It wants nvcc when
#                                  LibTorch was built with CUDA, and under CMake 3.25 also
#                                  TORCH_CUDA_ARCH_LIST.
#   LADDER_TORCH_DIR               a folder with include/ and lib/: an unpacked LibTorch, or the `torch`
#                                  folder of a PyPI wheel. A CMake or an environment variable.
#   .venv                          the wheel that tools/setup.sh installed: the default.
#
# The last two are imported file by file, which needs neither nvcc nor a GPU: CUDA and NCCL come from the
# wheel's own nvidia packages, and a LibTorch without CUDA gives a target without CUDA.
#
# ladder_torch_cuda_options compile the sources that call CUDA or NCCL. All others of this project are
# compiled without, so that one compiler cache serves builds with and without CUDA.
#
# The installed package sets ladder_built_with, such as "2.11 with CUDA 13": no other LibTorch fits it.

if(TARGET ladder::torch)  # found before
  return()
endif()
set(LADDER_TORCH_OLDEST 2.9)   # releases that were tried, from this one
set(LADDER_TORCH_VERSION 2.11) # to this one, which tools/setup.sh installs
option(LADDER_TORCH_CUDA "Link LibTorch's CUDA part; OFF treats a LibTorch with CUDA as one without" ON)

function(ladder_find_wheel result)
  file(GLOB folders LIST_DIRECTORIES true
    "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../.venv/lib/python3*/site-packages/torch")
  list(APPEND folders "")
  list(GET folders 0 folder)
  if(folder)
    get_filename_component(folder "${folder}" REALPATH)
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# Stops for a LibTorch that does not fit, warns of a release that was not tried, and sets what the package states:
#   ladder_torch_kind     such as "2.11 with CUDA 13"
#   ladder_torch_cudart   libcudart.so.13, or libcudart-0123abcd.so.12 in an unpacked LibTorch; empty without CUDA
function(ladder_check_torch where lib version)
  string(REGEX MATCH "^[0-9]+[.][0-9]+" version "${version}")
  if(NOT version)
    set(version "none")
  endif()
  if(version VERSION_LESS LADDER_TORCH_OLDEST)
    message(FATAL_ERROR "LibTorch in ${where}: expected version ${LADDER_TORCH_OLDEST} to ${LADDER_TORCH_VERSION}, "
      "got ${version}; hint: point LADDER_TORCH_DIR to one of these releases")
  endif()
  set(kind "${version} without CUDA")
  if(LADDER_TORCH_CUDA AND EXISTS "${lib}/libtorch_cuda.so")
    file(STRINGS "${lib}/libc10_cuda.so" cudart REGEX "^libcudart[-0-9a-f]*[.]so[.][0-9.]+$" LIMIT_COUNT 1)
    string(REGEX MATCH "[.]so[.]([0-9]+)" kind "${cudart}")
    set(kind "${version} with CUDA ${CMAKE_MATCH_1}")
  endif()
  if(ladder_built_with AND NOT kind STREQUAL ladder_built_with)
    message(FATAL_ERROR "LibTorch in ${where}: expected ${ladder_built_with}, which this ladder was built with, got "
      "${kind}; hint: point LADDER_TORCH_DIR to such a LibTorch, or build ladder with this one")
  elseif(version VERSION_GREATER LADDER_TORCH_VERSION)
    message(WARNING "LibTorch in ${where}: ${version} was not tried; the newest release that was is "
      "${LADDER_TORCH_VERSION}")
  endif()
  set(ladder_torch_kind "${kind}" PARENT_SCOPE)
  set(ladder_torch_cudart "${cudart}" PARENT_SCOPE)
endfunction()

# MAJOR.MINOR of the LibTorch in `folder`, or nothing.
function(ladder_torch_folder_version folder result)
  set(lines)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)  # 2.9: the second
    if(EXISTS "${folder}/include/${header}")
      file(STRINGS "${folder}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
      break()
    endif()
  endforeach()
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  list(JOIN numbers "." version)
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# The first file that one of the patterns matches, or a hard stop that names them.
function(ladder_first_file result what)
  file(GLOB found ${ARGN})
  if(NOT found)
    list(JOIN ARGN ", " patterns)
    message(FATAL_ERROR "${what}: expected one of ${patterns}, got none; hint: run tools/setup.sh again; with a LibTorch "
      "of your own, set CUDA_HOME to a toolkit and install NCCL's header, or set LADDER_TORCH_CUDA=OFF")
  endif()
  list(GET found 0 found)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# The LibTorch in `folder`, linked even where no symbol of it is named: its kernels register themselves
# when it is loaded. stdc++ comes first, because libtorch.so exports std::filesystem functions of
# another libstdc++: found first, they crash (remove_all jumps to address 0).
function(ladder_import_torch_folder folder)
  set(lib "${folder}/lib")
  set(include_dirs "${folder}/include" "${folder}/include/torch/csrc/api/include")
  set(libraries "${lib}/libtorch_cpu.so" "${lib}/libc10.so")  # libtorch.so would load both parts
  set(definitions USE_DISTRIBUTED USE_C10D_GLOO)
  set(nvidia "${folder}/../nvidia")
  file(GLOB hidden LIST_DIRECTORIES true "${nvidia}/*/lib")
  if(ladder_torch_cudart)
    ladder_first_file(cudart "CUDA runtime of LibTorch" "${nvidia}/*/lib/${ladder_torch_cudart}"
      "${lib}/${ladder_torch_cudart}")
    file(GLOB cuda_includes LIST_DIRECTORIES true "${nvidia}/*/include")
    if(NOT cuda_includes AND IS_DIRECTORY "$ENV{CUDA_HOME}/include")
      set(cuda_includes "$ENV{CUDA_HOME}/include")
    endif()
    foreach(header cuda_runtime_api.h nccl.h)
      list(TRANSFORM cuda_includes APPEND "/${header}" OUTPUT_VARIABLE headers)
      ladder_first_file(header "CUDA headers of LibTorch" ${headers} "/usr/include/${header}")
    endforeach()
    list(PREPEND libraries "${lib}/libtorch.so")
    list(APPEND libraries "${lib}/libtorch_cuda.so" "${lib}/libc10_cuda.so" "${cudart}")
    list(TRANSFORM cuda_includes PREPEND "-isystem")
    set(ladder_torch_cuda_options -DUSE_C10D_NCCL -DLADDER_CUDA ${cuda_includes} PARENT_SCOPE)
    get_filename_component(cudart_dir "${cudart}" DIRECTORY)
  endif()
  # g++ gets LibTorch's own OpenMP runtime, never a second one from the compiler.
  file(GLOB gomp "${lib}/libgomp*.so*")
  list(APPEND libraries $<$<CXX_COMPILER_ID:GNU>:${gomp}>)

  add_library(ladder_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(ladder_torch SYSTEM INTERFACE ${include_dirs})
  target_compile_definitions(ladder_torch INTERFACE ${definitions})
  target_link_libraries(ladder_torch INTERFACE "-Wl,--no-as-needed" stdc++ ${libraries} "-Wl,--as-needed")
  foreach(dir IN LISTS hidden)
    target_link_options(ladder_torch INTERFACE "-Wl,-rpath-link,${dir}")
  endforeach()
  set(ladder_torch_rpath "${lib}" ${cudart_dir} PARENT_SCOPE)  # for installed programs
endfunction()

# The LibTorch that the user's own TorchConfig.cmake describes, if there is one.
macro(ladder_find_torch_package)
  find_package(Torch QUIET)
  if(Torch_FOUND)
    ladder_check_torch("${Torch_DIR}" "${TORCH_INSTALL_PREFIX}/lib" "${Torch_VERSION}")
    file(GLOB gomp "${TORCH_INSTALL_PREFIX}/lib/libgomp*.so*")
    add_library(ladder_torch INTERFACE IMPORTED GLOBAL)
    target_link_libraries(ladder_torch INTERFACE "-Wl,--no-as-needed" stdc++ ${TORCH_LIBRARIES} ${gomp})
    target_compile_definitions(ladder_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
    if(TARGET torch_cuda)
      set(ladder_torch_cuda_options -DUSE_C10D_NCCL -DLADDER_CUDA)
    endif()
    set(ladder_torch_folder "${TORCH_INSTALL_PREFIX}")
    set(ladder_torch_rpath "${TORCH_INSTALL_PREFIX}/lib")
    message(STATUS "LibTorch: ${Torch_DIR}")
  endif()
endmacro()

# A folder from the environment is kept: a later ninja configures again where the variable may be unset.
# An empty variable ends that, and so does the other one.
foreach(name Torch_DIR LADDER_TORCH_DIR)
  if(DEFINED ENV{${name}})
    if(NOT "$ENV{${name}}" STREQUAL "")
      unset(ladder_environment_Torch_DIR CACHE)
      unset(ladder_environment_LADDER_TORCH_DIR CACHE)
    endif()
    set(ladder_environment_${name} "$ENV{${name}}" CACHE INTERNAL "${name} of the environment")
  endif()
  if(NOT ${name} AND ladder_environment_${name})
    set(${name} "${ladder_environment_${name}}")
  endif()
endforeach()

if(NOT LADDER_TORCH_DIR AND (Torch_DIR OR CMAKE_PREFIX_PATH))
  ladder_find_torch_package()
endif()
if(NOT TARGET ladder_torch)
  set(ladder_torch_folder "${LADDER_TORCH_DIR}")
  if(NOT ladder_torch_folder)
    ladder_find_wheel(ladder_torch_folder)
  endif()
  if(NOT EXISTS "${ladder_torch_folder}/lib/libtorch_cpu.so")
    set(hint "run tools/setup.sh, which installs it into .venv, or set LADDER_TORCH_DIR to the folder")
    if(ladder_built_with)
      set(hint "set LADDER_TORCH_DIR to the folder of LibTorch ${ladder_built_with}")
    endif()
    message(FATAL_ERROR "LibTorch: expected ${ladder_torch_folder}/lib/libtorch_cpu.so, got none; hint: ${hint} "
      "that holds include/ and lib/")
  endif()
  ladder_torch_folder_version("${ladder_torch_folder}" ladder_torch_version)
  ladder_check_torch("${ladder_torch_folder}" "${ladder_torch_folder}/lib" "${ladder_torch_version}")
  ladder_import_torch_folder("${ladder_torch_folder}")
  message(STATUS "LibTorch: ${ladder_torch_folder}")
endif()

if(NOT CMAKE_SOURCE_DIR STREQUAL ladder_SOURCE_DIR)  # another project, which may call CUDA anywhere
  target_compile_options(ladder_torch INTERFACE ${ladder_torch_cuda_options})
endif()

# at::parallel_for is inlined into our files: without this flag it would silently run on one thread.
# clang's own runtime also serves LibTorch, whose calls its symbols of libgomp's names catch.
option(LADDER_OPENMP "Run our own loops on all threads" ON)
if(LADDER_OPENMP)
  target_compile_options(ladder_torch INTERFACE -fopenmp)
  target_link_options(ladder_torch INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fopenmp>)
endif()
# clang 18 began to mangle constrained templates otherwise than the g++ that built LibTorch.
target_compile_options(ladder_torch INTERFACE
  $<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>)
add_library(ladder::torch ALIAS ladder_torch)
