/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* This project's quiescent states by its C headers, in the loops of liburcu's (qsbr.c). */
#include <reprieve/reprieve.h>

#define NAME(x) reprieve_bench_online_##x
#define ENTER() ((void)0)
#define LEAVE() ((void)0)
#define LOAD(p) reprieve_dereference(p)
#define EMPTY() reprieve_qsbr_quiescent_state()
#define AFTER() reprieve_qsbr_quiescent_state()
#include "reader.h"
