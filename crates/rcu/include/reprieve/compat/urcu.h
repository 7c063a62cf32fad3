/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu.h>: the flavor by RCU_MB or RCU_SIGNAL, else memb. */
#ifndef REPRIEVE_COMPAT_URCU_H
#define REPRIEVE_COMPAT_URCU_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
/* Its flavors are mb, signal and memb, as liburcu's. */
#define REPRIEVE_URCU_PLAIN_
#include <reprieve/urcu.h>
#undef REPRIEVE_URCU_PLAIN_
#ifdef REPRIEVE_URCU_IS_QSBR_
#error "<urcu.h>, and the flavor qsbr was chosen before"
#endif

#endif
