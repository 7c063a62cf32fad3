// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * <reprieve/rcu> and <reprieve/hazard_pointer> after the wording of C++26, [saferecl]: what each
 * call promises, and the standard's and cppreference's examples. With REPRIEVE_IN_STD the names are
 * the standard's own.
 */
#include <reprieve/hazard_pointer>
#include <reprieve/rcu>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#define CHECK(x) \
	((x) ? void() : (std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), std::abort()))

#ifdef REPRIEVE_IN_STD
namespace names = std;
#else
namespace names = reprieve;
#endif

static std::atomic<int> alive, deleted;

/* A base in front, so that neither head nor deleter is at the object's address. */
struct padding {
	virtual ~padding() = default;
	std::string name = "padding";
};

template <template <class, class> class Base>
struct object : padding, Base<object<Base>, std::default_delete<object<Base>>> {
	explicit object(int value)
	    : value(value)
	{
		++alive;
	}
	object(const object &other)
	    : padding(other)
	    , Base<object, std::default_delete<object>>(other)
	    , value(other.value)
	{
		++alive;
	}
	~object() override
	{
		value = -1;
		--alive;
	}
	int value;
};

using rcu_object = object<names::rcu_obj_base>;
using hazard_object = object<names::hazard_pointer_obj_base>;

/* A deleter with a state, moved and called once. */
struct counter {
	template <class T> void operator()(T *p) const
	{
		*count += 1;
		delete p;
	}
	std::atomic<int> *count = &deleted;
};

struct counted : names::rcu_obj_base<counted, counter> {
};

struct hazard_counted : names::hazard_pointer_obj_base<hazard_counted, counter> {
};

static_assert(!std::is_copy_constructible_v<names::rcu_domain>);
static_assert(!std::is_copy_assignable_v<names::rcu_domain>);
static_assert(!std::is_default_constructible_v<names::rcu_domain>);
static_assert(noexcept(names::rcu_default_domain()) && noexcept(names::rcu_synchronize()) &&
	      noexcept(names::rcu_barrier()));
static_assert(noexcept(std::declval<counted &>().retire()));
static_assert(noexcept(std::declval<hazard_counted &>().retire()));
static_assert(!std::is_default_constructible_v<names::rcu_obj_base<counted>>);
static_assert(std::is_nothrow_default_constructible_v<names::hazard_pointer>);
static_assert(std::is_nothrow_move_constructible_v<names::hazard_pointer>);
static_assert(std::is_nothrow_move_assignable_v<names::hazard_pointer>);
static_assert(!std::is_copy_constructible_v<names::hazard_pointer>);
static_assert(std::is_nothrow_swappable_v<names::hazard_pointer>);

/* [saferecl.rcu.domain]: regions nest, and try_lock gives true. */
static void regions()
{
	names::rcu_domain &domain = names::rcu_default_domain();
	std::scoped_lock outer(domain);

	CHECK(&domain == &names::rcu_default_domain());
	CHECK(domain.try_lock());
	domain.lock();
	domain.unlock();
	domain.unlock();
	CHECK(reprieve_read_ongoing());
}

/* [saferecl.rcu.base], [saferecl.rcu.func]: deleters run, all of them before the barrier returns. */
static void retirement()
{
	int before = deleted;
	std::atomic<int> own = 0;

	for (int i = 0; i < 100; i++) {
		(new counted)->retire();
		(new counted)->retire(counter{ &own }, names::rcu_default_domain());
		names::rcu_retire(new int(i));
		names::rcu_retire(new std::string("text"), [&own](std::string *text) {
			own += text->size() == 4;
			delete text;
		});
		(new hazard_counted)->retire();
		(new rcu_object(*std::make_unique<rcu_object>(i)))->retire();
	}
	names::rcu_barrier();
	CHECK(deleted == before + 200 && own == 200 && alive == 0);
}

/* [saferecl.rcu.general]: an update and its readers. */
static void readers_and_updates()
{
	std::atomic<rcu_object *> name(new rcu_object(0));
	std::atomic<bool> stop = false;
	std::vector<std::thread> readers;

	for (int i = 0; i < 3; i++)
		readers.emplace_back([&] {
			for (int last = 0; !stop;) {
				std::scoped_lock lock(names::rcu_default_domain());
				rcu_object *found = name.load(std::memory_order_acquire);

				CHECK(found->value >= last && found->name == "padding");
				last = found->value;
			}
		});
	for (int i = 1; i <= 2000; i++) {
		rcu_object *old = name.exchange(new rcu_object(i), std::memory_order_acq_rel);

		if (i % 50) {
			old->retire();
		} else {
			names::rcu_synchronize();
			delete old;
		}
	}
	stop = true;
	for (auto &reader : readers)
		reader.join();
	name.load()->retire();
	names::rcu_barrier();
	CHECK(alive == 0);
}

/* [saferecl.hp.holder]: empty, moved, swapped. */
static void holders()
{
	names::hazard_pointer empty, made = names::make_hazard_pointer();

	CHECK(empty.empty() && !made.empty());
	swap(empty, made);
	CHECK(!empty.empty() && made.empty());
	made = std::move(empty);
	CHECK(empty.empty() && !made.empty());

	/* More than a thread's block has, each of them its own. */
	std::vector<names::hazard_pointer> many;
	std::vector<std::atomic<hazard_object *>> sources(50);
	for (int i = 0; i < 50; i++) {
		sources[i] = new hazard_object(i);
		many.push_back(names::make_hazard_pointer());
		CHECK(many[i].protect(sources[i])->value == i);
	}
	for (auto &source : sources)
		source.exchange(nullptr)->retire();
	names::rcu_synchronize();
	CHECK(alive == 50);
	many[7].reset_protection();
	many[8].reset_protection(nullptr);
	many.erase(many.begin() + 10, many.end());
	names::hazard_pointer last = std::move(many[0]);
	many.clear();
	/* The one that is held stays. */
	while (alive != 1)
		std::this_thread::yield();
	last = names::hazard_pointer();
	names::rcu_barrier();
	CHECK(alive == 0);
}

/* try_protect: the value that it found, and no protection unless it is the old one. */
static void attempts()
{
	hazard_object *first = new hazard_object(1), *second = new hazard_object(2), *found;
	std::atomic<hazard_object *> source(second);
	names::hazard_pointer holder = names::make_hazard_pointer();

	found = first;
	CHECK(!holder.try_protect(found, source) && found == second);
	first->retire();
	names::rcu_barrier();
	CHECK(alive == 1);
	CHECK(holder.try_protect(found, source) && found == second);
	second->retire();
	names::rcu_synchronize();
	CHECK(alive == 1 && second->value == 2);
	holder.reset_protection();
	names::rcu_barrier();
	CHECK(alive == 0);
	source = nullptr;
	CHECK(holder.protect(source) == nullptr);
}

/* cppreference's example: a value that is read and replaced at the same time. */
static void hazard_readers_and_updates()
{
	std::atomic<hazard_object *> name(new hazard_object(0));
	std::atomic<bool> stop = false;
	std::vector<std::thread> readers;

	for (int i = 0; i < 3; i++)
		readers.emplace_back([&] {
			names::hazard_pointer holder = names::make_hazard_pointer();

			for (int last = 0; !stop;) {
				hazard_object *found = holder.protect(name);

				CHECK(found->value >= last && found->name == "padding");
				std::this_thread::yield();
				CHECK(found->value >= last);
				last = found->value;
			}
		});
	for (int i = 1; i <= 20000; i++)
		name.exchange(new hazard_object(i), std::memory_order_acq_rel)->retire();
	stop = true;
	for (auto &reader : readers)
		reader.join();
	name.load()->retire();
	names::rcu_barrier();
	CHECK(alive == 0);
}

int main()
{
	regions();
	retirement();
	readers_and_updates();
	holders();
	attempts();
	hazard_readers_and_updates();
	return 0;
}
