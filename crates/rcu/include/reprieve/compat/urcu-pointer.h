/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu-pointer.h> */
#ifndef REPRIEVE_COMPAT_URCU_POINTER_H
#define REPRIEVE_COMPAT_URCU_POINTER_H

#include <reprieve/compat/flavorless.h>

#endif
