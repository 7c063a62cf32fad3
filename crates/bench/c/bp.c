/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _LGPL_SOURCE
#define URCU_API_MAP
#include <urcu/urcu-bp.h>

#define NAME(x) reprieve_bench_bp_##x
#include "flavor.h"
