/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* The policy as a library, for its tests in user space. */
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
#define POLICY_FN
#include "guard_policy.h"
