// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compiles the next function once per generation of x86-64 vector instructions; the loader chooses
// a version at start, which is too early for ThreadSanitizer. A macro, because an attribute that
// depends on compiler and processor has no other spelling.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define LADDER_SIMD_V3 [[gnu::target_clones("arch=x86-64-v3", "default")]]
#define LADDER_SIMD_V4 [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define LADDER_SIMD_V3
#define LADDER_SIMD_V4
#endif

// Before a loop: its iterations do not depend on each other. Only g++ has this pragma.
#if defined(__GNUC__) && !defined(__clang__)
#define LADDER_IVDEP _Pragma("GCC ivdep")
#else
#define LADDER_IVDEP
#endif
