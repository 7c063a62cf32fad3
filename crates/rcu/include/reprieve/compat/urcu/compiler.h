/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/compiler.h> */
#ifndef REPRIEVE_COMPAT_URCU_COMPILER_H
#define REPRIEVE_COMPAT_URCU_COMPILER_H

#include <reprieve/uatomic.h>

#endif
