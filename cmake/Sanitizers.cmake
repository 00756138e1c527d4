# SPDX-License-Identifier: Apache-2.0
# -DLADDER_SANITIZE=address;undefined or thread: for every target of the build (presets asan and tsan).
set(LADDER_SANITIZE "" CACHE STRING "Sanitizers to compile with, separated by ';'")

# Compiles and links one target with the given sanitizers.
function(ladder_sanitize target)
  list(JOIN ARGN "," names)
  target_compile_options(${target} PRIVATE -fsanitize=${names} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(${target} PRIVATE -fsanitize=${names})
endfunction()

if(LADDER_SANITIZE)
  list(JOIN LADDER_SANITIZE "," ladder_sanitizers)
  add_compile_options(-fsanitize=${ladder_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ladder_sanitizers})
  if("thread" IN_LIST LADDER_SANITIZE)  # g++ warns of fences; that of ladder/shm orders no data
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()
