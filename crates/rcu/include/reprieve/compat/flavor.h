/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What liburcu's header of any flavor brings in. The last of those decides what names without a
 * flavor mean.
 */
#include <reprieve/urcu.h>
#ifndef REPRIEVE_COMPAT_FLAVOR_H
#define REPRIEVE_COMPAT_FLAVOR_H

#include <assert.h>
#if defined(__has_include)
#if __has_include(<urcu/wfcqueue.h>)
#include <urcu/wfcqueue.h>
#endif
#endif
#ifdef _LGPL_SOURCE
#include <urcu/list.h>
#include <urcu/tls-compat.h>
#endif

#endif
