/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * <reprieve/urcu.h> for headers that stand for no flavor. A program may include them before the
 * header of its flavor, which decides what the names without a flavor mean.
 */
#define REPRIEVE_URCU_NO_MAP_
#include <reprieve/urcu.h>
#undef REPRIEVE_URCU_NO_MAP_
