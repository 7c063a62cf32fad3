// SPDX-License-Identifier: MIT OR Apache-2.0
// A queue as C++ programs have it, which tells of each element; prints the elements per second.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

int main()
{
	constexpr long elements = 300000, consumers = 4;
	std::mutex mutex;
	std::condition_variable filled;
	std::deque<long> queue;
	std::vector<std::thread> threads;
	long sum = 0;
	auto begun = std::chrono::steady_clock::now();

	for (int i = 0; i < consumers; i++)
		threads.emplace_back([&] {
			for (;;) {
				std::unique_lock<std::mutex> lock(mutex);
				filled.wait(lock, [&] { return !queue.empty(); });
				long element = queue.front();
				queue.pop_front();
				if (element < 0)
					return;
				sum += element;
			}
		});
	for (long i = 1; i <= elements + consumers; i++) {
		std::lock_guard<std::mutex> lock(mutex);
		queue.push_back(i <= elements ? i : -1);
		filled.notify_one();
	}
	for (auto &thread : threads)
		thread.join();
	if (sum != elements * (elements + 1) / 2)
		abort();
	std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
	printf("%.0f\n", elements / took.count());
}
