// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much several threads write to one structure, in thousands per second: what the structures'
//! locks are judged by. `cargo run --release -p reprieve --example writers`

use reprieve::structures::{IdTable, Map};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const KEYS: u64 = 4096;
const TIME: Duration = Duration::from_millis(500);

/// Operations of so many threads in a second: `work` gets a number that is random enough.
fn rate(threads: usize, work: &(impl Fn(u64) + Sync)) -> f64 {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let done: u64 = thread::scope(|scope| {
        let worker = |seed: u64| {
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                work((seed << 32 | done).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32);
                done += 1;
            }
            done
        };
        let workers: Vec<_> = (0..threads as u64).map(|i| scope.spawn(move || worker(i))).collect();
        thread::sleep(TIME);
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    done as f64 / start.elapsed().as_secs_f64() / 1e3
}

fn main() {
    let map = Map::new();
    (0..KEYS).for_each(|key| assert!(map.insert(key, 0).is_none()));
    let ids = IdTable::new();
    let id = ids.insert(0_u64).expect("the first of a table");
    let replace_one = |n| assert!(map.insert(7, n).is_some());
    let replace = |n| assert!(map.insert(n % KEYS, n).is_some());
    let insert_and_remove = |n| {
        map.insert(KEYS + n % 16, n);
        map.remove(&(KEYS + n % 16));
    };
    let object = |n| {
        let entry = ids.protect(id).expect("nobody removes it");
        *entry.lock().expect("nobody removes it") += n;
    };
    println!("threads  replace one  replace any  insert, remove  lock one object   (K/s)");
    for threads in [1, 2, 4, 16, 64] {
        let rates = [
            rate(threads, &replace_one),
            rate(threads, &replace),
            rate(threads, &insert_and_remove),
            rate(threads, &object),
        ];
        println!(
            "{threads:7}  {:11.0}  {:11.0}  {:14.0}  {:15.0}",
            rates[0], rates[1], rates[2], rates[3]
        );
    }
}
