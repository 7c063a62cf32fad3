/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu.h>: the flavor by RCU_MB and the like, else memb. */
#ifndef REPRIEVE_COMPAT_URCU_H
#define REPRIEVE_COMPAT_URCU_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
#include <reprieve/urcu.h>

#endif
