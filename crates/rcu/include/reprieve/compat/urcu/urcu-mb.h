/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-mb.h>: urcu_mb_*; names without a flavor for those who define URCU_API_MAP. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_MB_H
#define REPRIEVE_COMPAT_URCU_URCU_MB_H

/* Else it chooses nothing for headers that come later. */
#if defined(URCU_API_MAP) && !defined(RCU_MB) && !defined(RCU_QSBR) && !defined(RCU_BP) && \
	!defined(RCU_SIGNAL)
#define RCU_MB
#endif
#include <reprieve/urcu.h>
#if defined(URCU_API_MAP) && !defined(RCU_MB)
#error "<urcu/urcu-mb.h> with URCU_API_MAP, and another flavor was chosen before"
#endif

#endif
