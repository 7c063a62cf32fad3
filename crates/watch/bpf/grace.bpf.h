/* SPDX-License-Identifier: GPL-2.0 */
/* Times a guest's grace periods. */
#ifndef REPRIEVE_GRACE_BPF_H
#define REPRIEVE_GRACE_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "count.bpf.h"
#include "event.bpf.h"
#include "watch.h"

static __always_inline void grace_event(enum event_kind kind, u64 now, u32 tgid,
					u64 seq)
{
	struct event *event = new_event(kind, now, tgid);

	if (event) {
		event->seq = seq;
		submit(event);
	}
}

/* No more end between two looks. Else the guest has been reset, and other data
 * is where its gp_seq was. */
enum { GRACES_MAX = 1 << 20 };

/*
 * Looks whether the guest's gp_seq has changed. Its upper bits count grace
 * periods, its two lower bits say whether one is in progress. Under load they
 * follow each other without a pause: n|1 becomes (n+1)|1.
 *
 * Several CPUs may look at once and have read at different times. The one whose
 * compare-and-swap succeeds accounts for the change; gp_seq only grows. A CPU
 * may have to wait at any point, so the clock is read last: before, the grace
 * period that is seen to end might not have begun.
 */
static __always_inline void watch_grace(struct vm *vm, u32 tgid)
{
	u64 seq, old, ended, now;

	if (!vm->ready || !vm->gp_seq)
		return;
	if (bpf_probe_read_user(&seq, sizeof(seq), (void *)vm->gp_seq))
		return;
	old = vm->seq;
	if (seq == old || (old != NO_SEQ && (s64)(seq - old) < 0))
		return;
	now = bpf_ktime_get_ns();
	/* The count of grace periods starts below zero. */
	ended = ((seq & ~3ULL) - (old & ~3ULL)) >> 2;
	if (old != NO_SEQ && ended > GRACES_MAX) {
		__sync_val_compare_and_swap(&vm->seq, old, NO_SEQ);
		return;
	}
	if (__sync_val_compare_and_swap(&vm->seq, old, seq) != old)
		return;
	if (old == NO_SEQ)
		return; /* a grace period in progress began before */
	if ((old & 3) && ended) {
		u64 began_seq = vm->began_seq;
		u64 ns;

		barrier();
		ns = now - vm->began;
		if (began_seq >> 2 == old >> 2 && (s64)ns >= 0) {
			u64 max = vm->graces.max_ns;

			/* The next one may end on another CPU meanwhile. */
			__sync_fetch_and_add(&vm->graces.counts[bucket(ns)], 1);
			__sync_fetch_and_add(&vm->graces.total_ns, ns);
			if (ns > max)
				__sync_val_compare_and_swap(&vm->graces.max_ns,
							    max, ns);
		} else if (began_seq != NO_SEQ) {
			/* The CPU that saw it begin has not stored when, or the
			 * next one has begun. */
			__sync_fetch_and_add(&vm->unseen, 1);
		}
		grace_event(EVENT_GRACE_ENDED, now, tgid, old);
		ended--;
	}
	if (ended)
		__sync_fetch_and_add(&vm->unseen, ended);
	if ((seq & 3) && (!(old & 3) || seq >> 2 != old >> 2)) {
		vm->began = now;
		barrier();
		vm->began_seq = seq;
		grace_event(EVENT_GRACE_BEGAN, now, tgid, seq);
	}
}

#endif
