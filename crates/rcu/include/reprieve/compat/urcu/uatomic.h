/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/uatomic.h> */
#ifndef REPRIEVE_COMPAT_URCU_UATOMIC_H
#define REPRIEVE_COMPAT_URCU_UATOMIC_H

#include <reprieve/uatomic.h>

#endif
