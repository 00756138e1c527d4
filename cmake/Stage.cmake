# SPDX-License-Identifier: Apache-2.0
# add_stage(stage0_single_gpu): the program build/bin/stage0_single_gpu from stage0_single_gpu/main.cpp.
function(add_stage name)
  add_executable(${name} ${name}/main.cpp)
  target_link_libraries(${name} PRIVATE ladder::ladder ladder_warnings)
  ladder_use_shared_pch(${name})
  install(TARGETS ${name} RUNTIME)
endfunction()
