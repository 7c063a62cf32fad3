/* SPDX-License-Identifier: GPL-2.0 */
/* The findings about a vCPU at the moment at which it lost its CPU. */
#ifndef REPRIEVE_OBSERVATION_BPF_H
#define REPRIEVE_OBSERVATION_BPF_H

#include "kernel.h"
#include "watch.h"

struct observation {
	u64 task; /* address in the guest */
	u64 task_host;
	u64 rip;
	u32 class; /* enum class */
	u32 reader;
	enum spins_for spins; /* with preemption off */
	u32 announced; /* by a program of the guest: a non-preemptable section
			*/
	s32 pid;
	/* The processor's state: -1 where it is not known. */
	s32 privilege;
	s32 interrupts;
};

#endif
