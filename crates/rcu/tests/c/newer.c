/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Names of liburcu 0.15, and what <urcu.h> brings in. */
#define _LGPL_SOURCE
#include <urcu.h>
#include <urcu/annotate.h>
#include <urcu/assert.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

struct pair {
	int first, second;
};

static CDS_LIST_HEAD(list);
static DEFINE_URCU_TLS(int, number);
urcu_static_assert(sizeof(struct pair) == 2 * sizeof(int), "two numbers", two_numbers);

int main(void)
{
	struct pair pair;
	int *none = NULL, CAA_COMBINE_TOKENS(joined, _name) = 7;
	long x = 0;
	cmm_annotate_define(group);
#if !defined(__cplusplus) && __has_include(<urcu/wfcqueue.h>)
	struct cds_wfcq_head head;
	struct cds_wfcq_tail tail;
	struct cds_wfcq_node node;

	cds_wfcq_init(&head, &tail);
	cds_wfcq_node_init(&node);
	cds_wfcq_enqueue(&head, &tail, &node);
	CHECK(cds_wfcq_dequeue_blocking(&head, &tail) == &node);
#endif

	uatomic_set(&x, 1);
	uatomic_set(&x, 2, CMM_RELEASE);
	uatomic_store(&x, 3);
	uatomic_store(&x, 4, CMM_SEQ_CST_FENCE);
	uatomic_store_mo(&x, 5, CMM_SEQ_CST);
	CHECK(uatomic_read(&x) == 5 && uatomic_read(&x, CMM_ACQUIRE) == 5);
	CHECK(uatomic_load(&x) == 5 && uatomic_load(&x, CMM_CONSUME) == 5);
	CHECK(uatomic_load_mo(&x, CMM_SEQ_CST_FENCE) == 5);
	uatomic_add(&x, 3);
	uatomic_add(&x, 3, CMM_ACQ_REL);
	uatomic_sub_mo(&x, 2, CMM_RELAXED);
	uatomic_inc(&x);
	uatomic_inc_mo(&x, CMM_SEQ_CST_FENCE);
	uatomic_dec(&x, CMM_RELEASE);
	uatomic_or_mo(&x, 64, CMM_RELEASE);
	uatomic_and_mo(&x, ~64L, CMM_ACQUIRE);
	CHECK(uatomic_add_return(&x, 1) == 11 && uatomic_add_return_mo(&x, 1, CMM_ACQUIRE) == 12);
	CHECK(uatomic_sub_return(&x, 1, CMM_SEQ_CST) == 11);
	CHECK(uatomic_xchg(&x, 20) == 11 && uatomic_xchg_mo(&x, 21, CMM_ACQ_REL) == 20);
	CHECK(uatomic_cmpxchg(&x, 20, 1) == 21 && uatomic_cmpxchg(&x, 21, 22) == 21);
	CHECK(uatomic_cmpxchg(&x, 22, 23, CMM_SEQ_CST_FENCE, CMM_RELAXED) == 22);
	CHECK(uatomic_cmpxchg_mo(&x, 0, 1, CMM_ACQ_REL, CMM_ACQUIRE) == 23);
	CHECK(cmm_to_c11(CMM_SEQ_CST_FENCE) == __ATOMIC_SEQ_CST);
	CHECK(cmm_to_c11(CMM_RELEASE) == __ATOMIC_RELEASE);
	cmm_seq_cst_fence_after_atomic(CMM_SEQ_CST_FENCE);
	cmm_emit_legacy_smp_mb();
	cmm_annotate_group_mb_acquire(&group);
	cmm_annotate_group_mb_release(&group);
	cmm_annotate_group_mem_acquire(&group, &x);
	cmm_annotate_group_mem_release(&group, &x);
	cmm_annotate_mem_acquire(&x);
	cmm_annotate_mem_release(&x);
	CHECK(caa_container_of_check_null(&pair.second, struct pair, second) == &pair);
	CHECK(!caa_container_of_check_null(none, struct pair, second));
	CHECK(cmm_ptr_eq(&pair, &pair) && !cmm_ptr_eq(&pair, none));
	CHECK(*cmm_cast_volatile(&x) == 23 && joined_name == 7);
	urcu_posix_assert(x == 23);
	urcu_assert_debug(x == 23);
	assert(cds_list_empty(&list) && !URCU_TLS(number));
	return 0;
}
