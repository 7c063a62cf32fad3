/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-signal.h>: urcu_signal_*; names without a flavor for those who define URCU_API_MAP. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_SIGNAL_H
#define REPRIEVE_COMPAT_URCU_URCU_SIGNAL_H

/* Else it chooses nothing for headers that come later. */
#if defined(URCU_API_MAP) && !defined(RCU_MB) && !defined(RCU_QSBR) && !defined(RCU_BP) && \
	!defined(RCU_SIGNAL)
#define RCU_SIGNAL
#endif
#include <reprieve/urcu.h>
#if defined(URCU_API_MAP) && !defined(RCU_SIGNAL)
#error "<urcu/urcu-signal.h> with URCU_API_MAP, and another flavor was chosen before"
#endif

#endif
