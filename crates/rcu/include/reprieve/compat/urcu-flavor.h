/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu-flavor.h> */
#ifndef REPRIEVE_COMPAT_URCU_FLAVOR_TOP_H
#define REPRIEVE_COMPAT_URCU_FLAVOR_TOP_H

#include <reprieve/compat/flavorless.h>

#endif
