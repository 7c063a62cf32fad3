/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/uatomic_arch.h> */
#ifndef REPRIEVE_COMPAT_URCU_UATOMIC_ARCH_H
#define REPRIEVE_COMPAT_URCU_UATOMIC_ARCH_H

#include <reprieve/uatomic.h>

#endif
