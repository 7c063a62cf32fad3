/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu.h>: names without a flavor mean that of RCU_MB or RCU_SIGNAL, else memb. */
#ifndef REPRIEVE_COMPAT_URCU_H
#define REPRIEVE_COMPAT_URCU_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
#include <reprieve/compat/flavor.h>
#undef REPRIEVE_URCU_
#if defined(RCU_MB)
#define REPRIEVE_URCU_(name) urcu_mb_##name
#elif defined(RCU_SIGNAL)
#define REPRIEVE_URCU_(name) urcu_signal_##name
#else
#define REPRIEVE_URCU_(name) urcu_memb_##name
#endif

#endif
