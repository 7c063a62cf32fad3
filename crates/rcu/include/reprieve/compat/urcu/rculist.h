/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/rculist.h> */
#ifndef REPRIEVE_COMPAT_URCU_RCULIST_H
#define REPRIEVE_COMPAT_URCU_RCULIST_H

#include <reprieve/cds.h>
#include <reprieve/compat/flavorless.h>

#endif
