/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/rcuhlist.h> */
#ifndef REPRIEVE_COMPAT_URCU_RCUHLIST_H
#define REPRIEVE_COMPAT_URCU_RCUHLIST_H

#include <reprieve/cds.h>
#include <reprieve/compat/flavorless.h>

#endif
