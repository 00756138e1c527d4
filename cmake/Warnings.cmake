# SPDX-License-Identifier: Apache-2.0
# The warnings our own files are compiled with. Not exported: users keep their own.
option(LADDER_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})

add_library(ladder_warnings INTERFACE)
# Options structs are filled by name and leave the rest to their defaults: no warning about those.
target_compile_options(ladder_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers
  $<$<BOOL:${LADDER_UNITY}>:-Wno-subobject-linkage>  # takes the sources of a group for headers
  $<$<BOOL:${LADDER_WERROR}>:-Werror>)
