/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-bp.h>: urcu_bp_*; names without a flavor for those who define URCU_API_MAP. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_BP_H
#define REPRIEVE_COMPAT_URCU_URCU_BP_H

/* Else it chooses nothing for <urcu.h>, which may come later. */
#if defined(URCU_API_MAP) && !defined(RCU_MB) && !defined(RCU_QSBR) && !defined(RCU_BP) && \
	!defined(RCU_SIGNAL)
#define RCU_BP
#endif
#include <reprieve/urcu.h>
#if defined(URCU_API_MAP) && !defined(RCU_BP)
#error "<urcu/urcu-bp.h> with URCU_API_MAP, and another flavor was chosen before"
#endif

#endif
