/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu.h>: as <urcu.h>. */
#ifndef REPRIEVE_COMPAT_URCU_URCU_H
#define REPRIEVE_COMPAT_URCU_URCU_H

#ifndef URCU_API_MAP
#define URCU_API_MAP
#endif
#include <reprieve/urcu.h>

#endif
