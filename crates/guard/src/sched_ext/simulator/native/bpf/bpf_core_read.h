/* SPDX-License-Identifier: GPL-2.0 */
/*
 * In place of libbpf's header: the kernel's structures are those of kernel.h,
 * and only what a timer's function gets is there (guard.c).
 */
#pragma once

#define bpf_core_field_exists(field) 0
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)
#define NATIVE_1(from, a) (from)->a
#define NATIVE_2(from, a, b) (from)->a->b
#define NATIVE_3(from, a, b, c) (from)->a->b->c
#define NATIVE_READ(a, b, c, name, ...) name
#define BPF_CORE_READ(from, path...) \
	NATIVE_READ(path, NATIVE_3, NATIVE_2, NATIVE_1)(from, path)
#define BPF_CORE_READ_INTO(to, from, path...) \
	(*(to) = BPF_CORE_READ(from, path), 0)
