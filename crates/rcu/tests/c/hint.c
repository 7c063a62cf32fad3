/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Hints and locks from C: sections nest, answers are known or not, locks exclude. */
#include <assert.h>
#include <pthread.h>
#include <reprieve/hint.h>
#include <reprieve/hint_region.h>
#include <stddef.h>

#define THREADS 4
#define SECTIONS 2000

static struct reprieve_mutex mutex = REPRIEVE_MUTEX_INIT;
static struct reprieve_spin_lock spin = REPRIEVE_SPIN_LOCK_INIT;
static struct reprieve_rw_lock rw = REPRIEVE_RW_LOCK_INIT;
static struct reprieve_rw_semaphore semaphore = REPRIEVE_RW_SEMAPHORE_INIT;
static long counts[4];

static void *work(void *unused)
{
	(void)unused;
	for (int i = 0; i < SECTIONS; i++) {
		reprieve_mutex_lock(&mutex);
		counts[0]++;
		reprieve_mutex_unlock(&mutex);
		reprieve_spin_lock(&spin);
		counts[1]++;
		reprieve_spin_unlock(&spin);
		reprieve_rw_write_lock(&rw);
		counts[2]++;
		reprieve_rw_write_unlock(&rw);
		reprieve_rwsem_down_write(&semaphore);
		counts[3]++;
		reprieve_rwsem_up_write(&semaphore);
		reprieve_rw_read_lock(&rw);
		assert(counts[2] > 0);
		reprieve_rw_read_unlock(&rw);
		reprieve_rwsem_down_read(&semaphore);
		assert(counts[3] > 0);
		reprieve_rwsem_up_read(&semaphore);
	}
	return NULL;
}

static void layout(void)
{
	assert(sizeof(struct reprieve_hint_line) == 64);
	assert(offsetof(struct reprieve_hint_line, generation) == 8);
	assert(offsetof(struct reprieve_hint_line, waited) == 24);
	assert(offsetof(struct reprieve_hint_line, slot) == 32);
	assert(sizeof(struct reprieve_region) == REPRIEVE_REGION_BYTES);
	assert(offsetof(struct reprieve_region, beat) == 8);
	assert(offsetof(struct reprieve_region, vcpus) == 64);
	assert(offsetof(struct reprieve_region, slots) == REPRIEVE_REGION_BYTES / 2);
	assert(sizeof(struct reprieve_region_slot) == 64);
	assert(offsetof(struct reprieve_region_slot, non_preemptable) == 4);
	assert(offsetof(struct reprieve_region_slot, preemptable) == 8);
}

int main(void)
{
	pthread_t threads[THREADS];
	int known;

	layout();
	reprieve_activate_non_preemptable_ecs();
	reprieve_activate_preemptable_ecs();
	reprieve_activate_preemptable_ecs();
	assert(reprieve_hint_line()->non_preemptable == 1);
	assert(reprieve_hint_line()->preemptable == 2);
	reprieve_deactivate_preemptable_ecs();
	reprieve_deactivate_preemptable_ecs();
	reprieve_deactivate_preemptable_ecs();
	reprieve_deactivate_non_preemptable_ecs();
	assert(reprieve_hint_line()->non_preemptable == 0);
	assert(reprieve_hint_line()->preemptable == 0);

	assert(reprieve_has_time_slice_extensions() == (reprieve_hint_line()->slice != 0));

	/* Known in a guest only, whose host says so. */
	known = reprieve_is_vcpu_preempted(0) != -1;
	assert(known || reprieve_is_preempted(reprieve_current_thread()) == -1);
	assert(known || reprieve_is_overloaded(0) == -1);

	reprieve_mutex_lock(&mutex);
	assert(reprieve_hint_line()->preemptable == 1);
	assert(!reprieve_mutex_trylock(&mutex));
	reprieve_mutex_unlock(&mutex);
	assert(reprieve_hint_line()->preemptable == 0);
	for (int i = 0; i < THREADS; i++)
		assert(!pthread_create(&threads[i], NULL, work, NULL));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 4; i++)
		assert(counts[i] == THREADS * SECTIONS);
	return 0;
}
