/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _LGPL_SOURCE
#define URCU_API_MAP
#include <urcu/urcu-mb.h>

#define NAME(x) reprieve_bench_mb_##x
#include "flavor.h"
