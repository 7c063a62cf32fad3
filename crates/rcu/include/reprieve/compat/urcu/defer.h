/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/defer.h> */
#ifndef REPRIEVE_COMPAT_URCU_DEFER_H
#define REPRIEVE_COMPAT_URCU_DEFER_H

#include <reprieve/compat/flavorless.h>

#endif
