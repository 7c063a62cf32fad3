/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/annotate.h>: for thread sanitizers, which atomic operations tell enough here. */
#ifndef REPRIEVE_COMPAT_URCU_ANNOTATE_H
#define REPRIEVE_COMPAT_URCU_ANNOTATE_H

#include <reprieve/uatomic.h>

enum cmm_annotate {
	CMM_ANNOTATE_VOID,
	CMM_ANNOTATE_LOAD,
	CMM_ANNOTATE_STORE,
	CMM_ANNOTATE_MB,
};
typedef enum cmm_annotate cmm_annotate_t __attribute__((__unused__));
#define cmm_annotate_define(name) cmm_annotate_t name = CMM_ANNOTATE_VOID

#define cmm_annotate_group_mb_acquire(group) ((void)(group))
#define cmm_annotate_group_mb_release(group) ((void)(group))
#define cmm_annotate_group_mem_acquire(group, mem) ((void)(group), (void)(mem))
#define cmm_annotate_group_mem_release(group, mem) ((void)(group), (void)(mem))
#define cmm_annotate_mem_acquire(mem) ((void)(mem))
#define cmm_annotate_mem_release(mem) ((void)(mem))

#endif
