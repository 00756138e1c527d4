# SPDX-License-Identifier: Apache-2.0
# add_stage(stage0_single_gpu): the program build/bin/stage0_single_gpu from stage0_single_gpu/main.cpp.
# add_stage(beyond/pipeline): build/bin/pipeline from beyond/pipeline/main.cpp.
# The target `stages` builds all of them, without tests: what ./run needs.
add_custom_target(stages)

function(add_stage folder)
  get_filename_component(name ${folder} NAME)
  add_executable(${name} ${folder}/main.cpp)
  target_link_libraries(${name} PRIVATE mnist ladder_warnings)
  ladder_use_shared_pch(${name})
  # Installed, it finds LibTorch where the build found it.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "${ladder_torch_rpath}")
  add_dependencies(stages ${name})
  install(TARGETS ${name} RUNTIME COMPONENT programs EXCLUDE_FROM_ALL)
endfunction()
