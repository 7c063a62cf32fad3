/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Which step of a histogram a run time is in. Each power of two is divided into
 * equal steps, so a step's width is an eighth of its times or less, whether a
 * run takes 50 ns on hardware or 50 us in an emulated machine. Plain C,
 * compiled into the eBPF programs and, for its tests, into a user-space
 * library. The includer defines u32 and u64, COST_STEPS and COST_STEP_BITS.
 */
#ifndef REPRIEVE_COST_STEPS_H
#define REPRIEVE_COST_STEPS_H

#define COST_FN static inline __attribute__((always_inline, unused))

/* Index of the highest bit. */
COST_FN u32 log2_u32(u32 v)
{
	u32 r, shift;

	r = (v > 0xffff) << 4;
	v >>= r;
	shift = (v > 0xff) << 3;
	v >>= shift;
	r |= shift;
	shift = (v > 0xf) << 2;
	v >>= shift;
	r |= shift;
	shift = (v > 0x3) << 1;
	v >>= shift;
	r |= shift;
	return r | (v >> 1);
}

/* The step of a time in ns; the last one is that of all times from 4 s on. */
COST_FN u32 cost_step(u64 ns)
{
	u32 time = ns >> 32 ? ~0U : (u32)ns, shift;

	if (time < 1U << COST_STEP_BITS)
		return time;
	shift = log2_u32(time) - COST_STEP_BITS;
	return ((shift + 1) << COST_STEP_BITS) +
	       (time >> shift & ((1U << COST_STEP_BITS) - 1));
}

#endif
