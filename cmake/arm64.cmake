# SPDX-License-Identifier: Apache-2.0
# Cross-build for 64-bit Arm with Debian's compiler; tools/arm64.sh makes the two folders.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build-arm64/sysroot)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# ctest uses it. SVE is slow to emulate.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -cpu max,sve=off -L ${CMAKE_SYSROOT})
set(LADDER_TORCH_DIR ${CMAKE_CURRENT_LIST_DIR}/../build-arm64/wheels/torch)
