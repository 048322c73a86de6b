// One build of a function for each instruction set, chosen when the program is loaded.
//
// Where a module is built without contracting products and sums (CMakeLists.txt), all of them give the same bits.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define PLACEWRIGHT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PLACEWRIGHT_CLONES
#endif
