/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* <urcu/tls-compat.h> */
#ifndef REPRIEVE_COMPAT_URCU_TLS_COMPAT_H
#define REPRIEVE_COMPAT_URCU_TLS_COMPAT_H

#include <reprieve/uatomic.h>
#include <stdlib.h>

#if defined(__cplusplus) && __cplusplus >= 201103L
#define URCU_TLS_STORAGE_CLASS thread_local
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define URCU_TLS_STORAGE_CLASS _Thread_local
#else
#define URCU_TLS_STORAGE_CLASS __thread
#endif

#define DECLARE_URCU_TLS(type, name) URCU_TLS_STORAGE_CLASS type name
#define DEFINE_URCU_TLS(type, name) URCU_TLS_STORAGE_CLASS type name
#define DEFINE_URCU_TLS_INIT(type, name, init) URCU_TLS_STORAGE_CLASS type name = (init)
#define URCU_TLS(name) (name)

#endif
