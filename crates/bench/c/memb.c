/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _LGPL_SOURCE
#define URCU_API_MAP
#include <urcu/urcu-memb.h>

#define NAME(x) reprieve_bench_memb_##x
#include "flavor.h"
