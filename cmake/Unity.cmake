# SPDX-License-Identifier: Apache-2.0
# With LADDER_UNITY, sources of one folder are compiled together, up to eight at a time: the headers of
# LibTorch, most of the work, are then read once for all of them. Without it a changed source is
# compiled alone, which also finds the #include that it lacks.
option(LADDER_UNITY "Compile the sources of a folder together" OFF)
if(LADDER_UNITY) # below 1.5 GB g++ does not collect garbage: an eighth of its time
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1500000>)
endif()

# ladder_unity(target): the folders are those of the target's sources, relative to its CMakeLists.txt.
function(ladder_unity target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    math(EXPR count_${folder} "${count_${folder}} + 0")
    math(EXPR group "${count_${folder}} / 8")
    math(EXPR count_${folder} "${count_${folder}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${folder}${group}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LADDER_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()
