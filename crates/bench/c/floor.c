/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The loops without any protection: what C itself costs. */
#define NAME(x) reprieve_bench_floor_##x
#define ENTER() ((void)0)
#define LEAVE() ((void)0)
#define LOAD(p) __atomic_load_n(&(p), __ATOMIC_CONSUME)
#define EMPTY() ((void)0)
#define AFTER() ((void)0)
#include "reader.h"
