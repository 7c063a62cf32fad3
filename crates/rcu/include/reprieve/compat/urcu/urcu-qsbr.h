/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-qsbr.h>: urcu_qsbr_*; names without a flavor for those who define URCU_API_MAP. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_QSBR_H
#define REPRIEVE_COMPAT_URCU_URCU_QSBR_H

/* Else it chooses nothing for <urcu.h>, which may come later. */
#if defined(URCU_API_MAP) && !defined(RCU_MB) && !defined(RCU_QSBR) && !defined(RCU_BP) && \
	!defined(RCU_SIGNAL)
#define RCU_QSBR
#endif
#include <reprieve/urcu.h>
#if defined(URCU_API_MAP) && !defined(REPRIEVE_URCU_IS_QSBR_)
#error "<urcu/urcu-qsbr.h> with URCU_API_MAP, and another flavor was chosen before"
#endif

#endif
