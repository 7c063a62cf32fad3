/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu-qsbr.h>: names without a flavor mean qsbr. */
#ifndef REPRIEVE_COMPAT_URCU_QSBR_H
#define REPRIEVE_COMPAT_URCU_QSBR_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
#if !defined(RCU_MB) && !defined(RCU_QSBR) && !defined(RCU_BP) && !defined(RCU_SIGNAL)
#define RCU_QSBR
#endif
#include <reprieve/urcu.h>
#if defined(URCU_API_MAP) && !defined(REPRIEVE_URCU_IS_QSBR_)
#error "<urcu-qsbr.h> with URCU_API_MAP, and another flavor was chosen before"
#endif

#endif
