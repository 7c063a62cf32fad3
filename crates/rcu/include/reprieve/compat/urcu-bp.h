/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu-bp.h>: names without a flavor mean bp. */
#ifndef REPRIEVE_COMPAT_URCU_BP_H
#define REPRIEVE_COMPAT_URCU_BP_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
#if !defined(RCU_MB) && !defined(RCU_QSBR) && !defined(RCU_BP) && !defined(RCU_SIGNAL)
#define RCU_BP
#endif
#include <reprieve/urcu.h>
#if defined(URCU_API_MAP) && !defined(RCU_BP)
#error "<urcu-bp.h> with URCU_API_MAP, and another flavor was chosen before"
#endif

#endif
