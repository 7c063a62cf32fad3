/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/urcu_ref.h>, the older name of <urcu/ref.h> */
#ifndef REPRIEVE_COMPAT_URCU_URCU_REF_H
#define REPRIEVE_COMPAT_URCU_URCU_REF_H

#include <urcu/ref.h>

#endif
