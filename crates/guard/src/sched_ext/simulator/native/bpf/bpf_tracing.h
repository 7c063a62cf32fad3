/* SPDX-License-Identifier: GPL-2.0 */
/* In place of libbpf's header: arguments come as the kernel passes them. */
#pragma once
#define BPF_PROG(name, args...) name(args)
