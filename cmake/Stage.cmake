# SPDX-License-Identifier: Apache-2.0
# add_stage(stage0_single_gpu): the program build/bin/stage0_single_gpu from stage0_single_gpu/main.cpp.
# add_stage(beyond/pipeline): build/bin/pipeline from beyond/pipeline/main.cpp.
# SPINE: build/bin/NAME_on_spine too, the same object linked without a shelf, for tests.
# The target `stages` builds all of them, without tests: what ./run needs.
add_custom_target(stages)

function(add_stage folder)
  cmake_parse_arguments(arg "SPINE" "" "" ${ARGN})
  get_filename_component(name ${folder} NAME)
  add_library(${name}_main OBJECT ${folder}/main.cpp)
  target_link_libraries(${name}_main PRIVATE $<IF:$<BOOL:${arg_SPINE}>,mnist_lessons,mnist>
    ladder_warnings)
  ladder_use_shared_pch(${name}_main)
  add_executable(${name} $<TARGET_OBJECTS:${name}_main>)
  target_link_libraries(${name} PRIVATE mnist)
  if(arg_SPINE AND LADDER_TESTS)
    add_executable(${name}_on_spine $<TARGET_OBJECTS:${name}_main>)
    target_link_libraries(${name}_on_spine PRIVATE mnist_lessons)
    set_property(GLOBAL APPEND PROPERTY stages_on_spine ${name}_on_spine)
  endif()
  # Installed, it finds LibTorch where the build found it.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "${ladder_torch_rpath}")
  add_dependencies(stages ${name})
  install(TARGETS ${name} RUNTIME COMPONENT programs EXCLUDE_FROM_ALL)
endfunction()
