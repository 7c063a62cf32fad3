/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Everything of one flavor, as src/peer/urcu.rs finds it: the same fields in the same order. */
struct functions {
	const struct loops *loops;
	void (*register_thread)(int writer);
	void (*unregister)(void);
	void (*synchronize)(void);
	void (*retire)(struct node *node);
	void (*barrier)(void);
	int (*per_cpu)(void);
	void (*no_per_cpu)(void);
	uint64_t (*slot_size)(void);
	void (*register_slots)(struct slot *slots, uint64_t n);
	uint64_t (*check_slots)(const struct slot *slots, uint64_t n);
	struct cds_lfht *(*lfht_new)(void);
	uint64_t (*lfht_lookups)(struct cds_lfht *ht, uint64_t *seed, uint64_t key_mask,
				 uint64_t n);
	int (*lfht_insert)(struct cds_lfht *ht, uint64_t key);
	int (*lfht_remove)(struct cds_lfht *ht, uint64_t key);
	int (*lfht_free)(struct cds_lfht *ht);
};

const struct functions NAME(functions) = {
	.loops = &NAME(loops),
	.register_thread = NAME(register),
	.unregister = NAME(unregister),
	.synchronize = NAME(synchronize),
	.retire = NAME(retire),
	.barrier = NAME(barrier),
	.per_cpu = NAME(per_cpu),
	.no_per_cpu = NAME(no_per_cpu),
	.slot_size = NAME(slot_size),
	.register_slots = NAME(register_slots),
	.check_slots = NAME(check_slots),
	.lfht_new = NAME(lfht_new),
	.lfht_lookups = NAME(lfht_lookups),
	.lfht_insert = NAME(lfht_insert),
	.lfht_remove = NAME(lfht_remove),
	.lfht_free = NAME(lfht_free),
};
