/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu-bp.h>: names without a flavor mean bp. */
#ifndef REPRIEVE_COMPAT_URCU_BP_H
#define REPRIEVE_COMPAT_URCU_BP_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
#include <urcu/urcu-bp.h>

#endif
