/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-bp.h>: urcu_bp_*; names without a flavor with URCU_API_MAP. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_BP_H
#define REPRIEVE_COMPAT_URCU_URCU_BP_H

#include <reprieve/compat/flavor.h>
#ifdef URCU_API_MAP
#undef REPRIEVE_URCU_
#define REPRIEVE_URCU_(name) urcu_bp_##name
#endif

#endif
