# SPDX-License-Identifier: Apache-2.0
# The warnings our own files are compiled with. Not exported: users keep their own.
# Warnings are errors in the developers' presets alone: a newer compiler has newer warnings, and no user should stop
# at one. The continuous integration sets CXXFLAGS=-Werror.
option(LADDER_WERROR "Treat warnings as errors" OFF)

add_library(ladder_warnings INTERFACE)
# Options structs are filled by name and leave the rest to their defaults: no warning about those.
target_compile_options(ladder_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers
  # With unity builds, g++ takes the sources of a group for headers.
  $<$<AND:$<BOOL:${LADDER_UNITY}>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>
  $<$<BOOL:${LADDER_WERROR}>:-Werror>)
