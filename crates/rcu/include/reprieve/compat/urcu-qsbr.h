/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu-qsbr.h>: names without a flavor mean qsbr. */
#ifndef REPRIEVE_COMPAT_URCU_QSBR_H
#define REPRIEVE_COMPAT_URCU_QSBR_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
#include <urcu/urcu-qsbr.h>

#endif
