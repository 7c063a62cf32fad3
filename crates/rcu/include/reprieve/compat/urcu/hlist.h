/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/hlist.h> */
#ifndef REPRIEVE_COMPAT_URCU_HLIST_H
#define REPRIEVE_COMPAT_URCU_HLIST_H

#include <reprieve/cds.h>
#include <reprieve/compat/flavorless.h>

#endif
