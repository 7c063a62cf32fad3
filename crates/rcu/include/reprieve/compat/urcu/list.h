/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/list.h> */
#ifndef REPRIEVE_COMPAT_URCU_LIST_H
#define REPRIEVE_COMPAT_URCU_LIST_H

#include <reprieve/cds.h>
#include <reprieve/compat/flavorless.h>

#endif
