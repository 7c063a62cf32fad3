/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/system.h> */
#ifndef REPRIEVE_COMPAT_URCU_SYSTEM_H
#define REPRIEVE_COMPAT_URCU_SYSTEM_H

#include <reprieve/uatomic.h>

#endif
