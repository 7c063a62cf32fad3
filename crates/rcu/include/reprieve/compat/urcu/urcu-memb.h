/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-memb.h>: urcu_memb_*; names without a flavor for those who define URCU_API_MAP. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_MEMB_H
#define REPRIEVE_COMPAT_URCU_URCU_MEMB_H

#include <reprieve/urcu.h>
#if defined(URCU_API_MAP) && !defined(RCU_MEMBARRIER)
#error "<urcu/urcu-memb.h> with URCU_API_MAP, and another flavor was chosen before"
#endif

#endif
