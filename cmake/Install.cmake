# SPDX-License-Identifier: Apache-2.0
# `cmake --install build --prefix DIR`: the library as the CMake package ladder, for
#
#     find_package(ladder REQUIRED)
#     target_link_libraries(my_program PRIVATE ladder::ladder)
#
# LibTorch is not copied. The package imports the same LibTorch that ladder was built with; set
# LADDER_TORCH_DIR or Torch_DIR to name another one of the same release.
include(CMakePackageConfigHelpers)

set(ladder_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ladder)
install(TARGETS ladder ladder_base EXPORT ladderTargets)
install(EXPORT ladderTargets NAMESPACE ladder:: DESTINATION ${ladder_package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/ladder DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/cmake/LibTorch.cmake DESTINATION ${ladder_package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ladderConfig.cmake.in
  ${PROJECT_BINARY_DIR}/ladderConfig.cmake INSTALL_DESTINATION ${ladder_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ladderConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ladderConfig.cmake ${PROJECT_BINARY_DIR}/ladderConfigVersion.cmake
  DESTINATION ${ladder_package_dir})
