/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/config.h> */
#ifndef REPRIEVE_COMPAT_URCU_CONFIG_H
#define REPRIEVE_COMPAT_URCU_CONFIG_H

#include <reprieve/uatomic.h>

#endif
