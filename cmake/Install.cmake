# SPDX-License-Identifier: Apache-2.0
# `cmake --install build --prefix DIR`: the library as the CMake package ladder, for
#
#     find_package(ladder REQUIRED)
#     target_link_libraries(my_program PRIVATE ladder::ladder)  # or ladder::spine
#
# The prefix may be moved. LibTorch is not copied: the package imports the one that ladder was built with; set
# LADDER_TORCH_DIR or Torch_DIR to name another one of the same release and CUDA version. The stages are in
# a component of their own: `--component programs`.
include(CMakePackageConfigHelpers)

set(ladder_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ladder)
get_property(ladder_archives GLOBAL PROPERTY ladder_archives)
install(TARGETS ${ladder_archives} EXPORT ladderTargets)
install(EXPORT ladderTargets NAMESPACE ladder:: DESTINATION ${ladder_package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/ladder DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake DESTINATION ${ladder_package_dir})
install(PROGRAMS ${PROJECT_SOURCE_DIR}/tools/convert_checkpoint.py TYPE BIN)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ladderConfig.cmake.in
  ${PROJECT_BINARY_DIR}/ladderConfig.cmake INSTALL_DESTINATION ${ladder_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ladderConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ladderConfig.cmake ${PROJECT_BINARY_DIR}/ladderConfigVersion.cmake
  DESTINATION ${ladder_package_dir})
