/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu-poll.h> */
#ifndef REPRIEVE_COMPAT_URCU_URCU_POLL_H
#define REPRIEVE_COMPAT_URCU_URCU_POLL_H

#include <reprieve/compat/flavorless.h>

#endif
