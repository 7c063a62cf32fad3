/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-memb.h>: urcu_memb_*; names without a flavor with URCU_API_MAP. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_MEMB_H
#define REPRIEVE_COMPAT_URCU_URCU_MEMB_H

#include <reprieve/compat/flavor.h>
#ifdef URCU_API_MAP
#undef REPRIEVE_URCU_
#define REPRIEVE_URCU_(name) urcu_memb_##name
#endif

#endif
