/* SPDX-License-Identifier: GPL-2.0 */
/* Events for a recording. */
#ifndef REPRIEVE_EVENT_BPF_H
#define REPRIEVE_EVENT_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "maps.bpf.h"
#include "watch.h"

static __always_inline struct event *new_event(enum event_kind kind, u64 now,
					       u32 tgid)
{
	struct event *event;

	if (!with_events)
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__sync_val_compare_and_swap(&lost_first, 0, now);
		lost_last = now;
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->time = now;
	event->tgid = tgid;
	event->pid = NO_PID;
	return event;
}

/* No wake-up: user space polls the buffer. */
static __always_inline void submit(struct event *event)
{
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

#endif
