// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transactions of a database that is built on System V IPC: table 4 of the System V IPC paper
//! (DBT1, with a database that keeps its buffers in shared memory and guards them by semaphores).
//!
//! A buffer pool of 4 KiB pages lies in a shared memory segment; a semaphore guards each page,
//! taken with SEM_UNDO, in sets of 16. A client reads some pages, each under its semaphore; then it
//! sends an order through a message queue, from which workers take it. A worker moves an amount
//! from one page to another, under both semaphores, and answers through a second queue, by the
//! client's message type. The transaction is committed when the client has the answer.
//!
//! Everybody who holds a page checks its sum, so a semaphore that let two in is noticed. In the end
//! the pages have counted two updates for each transaction, and their amounts add up to nothing.

use super::sides::{self, Measure};
use super::{Prepared, column};
use crate::compute;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::processes::{self, MOST, Shared};
use crate::result::{Column, Unit};
use crate::sysv::{Attached, Message, Object, Sysv};
use crate::table::next_seed;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

const PAGES: u64 = 64;
/// Semaphores of a set.
const PER_SET: u64 = 16;
/// Pages that a client reads before its order.
const READS: usize = 4;
/// Other work of a worker for a transaction, in ns, outside of its pages.
const QUERIES: [u64; 2] = [0, 100_000];
/// Type of the message that sends a worker home.
const HOME: i64 = MOST as i64 + 1;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let most = MOST - workers(MOST);
    if let Some(n) = options.readers.iter().find(|&&n| n > most) {
        return Err(Error::Usage(format!("--readers {n}: txn has room for {most} clients")));
    }
    let mut measures = vec![];
    for query in QUERIES {
        for &clients in &options.readers {
            let count = if clients == 1 { "1 client".into() } else { format!("{clients} clients") };
            let title = match query {
                0 => count,
                ns => format!("{count}, {} us of queries", ns / 1000),
            };
            measures.push(Measure {
                column: Column { more_is_better: true, ..column(title, Unit::KiloPerSecond) },
                sample: Box::new(move |side, length| {
                    Ok(transactions(side, clients, query, length, options)? / 1e3)
                }),
            });
        }
    }
    let mut prepared = sides::prepare(measures)?;
    let what = "transactions per second of all clients; half as many workers, 16 at most";
    prepared.notes.insert(0, what.into());
    Ok(prepared)
}

fn workers(clients: usize) -> usize {
    (clients / 2).clamp(1, 16)
}

fn transactions(
    side: Sysv,
    clients: usize,
    query: u64,
    length: Duration,
    options: &Options,
) -> Result<f64> {
    let broken = |what: &str| Error::Broken { subject: side.name().into(), what: what.into() };
    let database = Database {
        pages: side.segment(PAGES as usize * size_of::<Page>())?,
        sets: (0..PAGES / PER_SET).map(|_| side.set(PER_SET as i32)).collect::<Result<_>>()?,
        orders: side.queue()?,
        answers: side.queue()?,
    };
    if !(0..PAGES).all(|page| database.semaphore(page, 1, 0)) {
        return Err(broken("semop failed"));
    }
    let (workers, steps) = (workers(clients), compute::steps(query));
    let work = |number: usize, shared: &Shared| {
        let Ok(pool) = database.pages.attach() else { return false };
        let process = Process { database: &database, pool };
        if number < clients {
            let well = process.client(number, shared);
            // The last one sends the workers home.
            let last = shared.guarded.fetch_add(1, SeqCst) + 1 == clients as u64;
            let home = Message { kind: HOME, data: [0; 64] };
            well && (!last || (0..workers).all(|_| database.orders.send(&home)))
        } else {
            process.worker(if query == 0 { 0 } else { steps })
        }
    };
    let check = |shared: &Shared| {
        let process = Process { database: &database, pool: database.pages.attach()? };
        let pages = (0..PAGES).map(|number| process.page(number));
        let (mut updates, mut total) = (0, 0u64);
        for page in pages {
            if !page.is_whole() {
                return Err(broken("a page was left in the middle of an update"));
            }
            updates += page.updates.load(Relaxed);
            total = total.wrapping_add(page.amount.load(Relaxed));
        }
        let committed = shared.sum();
        if updates != 2 * committed || total != 0 {
            let what = format!(
                "{committed} transactions, {updates} updates of pages, which should be twice as \
                 many; amounts that add up to {total}, which should be 0"
            );
            return Err(broken(&what));
        }
        Ok(())
    };
    processes::rate_to_the_end(clients + workers, length, options, &work, &check)
}

struct Database {
    pages: Object,
    sets: Vec<Object>,
    orders: Object,
    answers: Object,
}

impl Database {
    fn semaphore(&self, page: u64, op: i16, flags: i32) -> bool {
        self.sets[(page / PER_SET) as usize].op((page % PER_SET) as u16, op, flags)
    }
}

/// A page of the pool; zeros are a page without updates.
#[repr(C)]
struct Page {
    /// The sum of all other words.
    sum: AtomicU64,
    updates: AtomicU64,
    amount: AtomicU64,
    rows: [AtomicU64; ROWS],
}

const ROWS: usize = 509;

impl Page {
    fn total(&self) -> u64 {
        let fixed = [&self.updates, &self.amount];
        let words = fixed.into_iter().chain(&self.rows);
        words.fold(0, |sum, word| sum.wrapping_add(word.load(Relaxed)))
    }

    fn is_whole(&self) -> bool {
        self.total() == self.sum.load(Relaxed)
    }

    fn update(&self, amount: u64, row: u64) {
        self.updates.store(self.updates.load(Relaxed) + 1, Relaxed);
        self.amount.store(self.amount.load(Relaxed).wrapping_add(amount), Relaxed);
        self.rows[row as usize % ROWS].store(row, Relaxed);
        self.sum.store(self.total(), Relaxed);
    }
}

/// A client or a worker.
struct Process<'d> {
    database: &'d Database,
    pool: Attached,
}

impl Process<'_> {
    fn page(&self, number: u64) -> &Page {
        assert!(number < PAGES);
        // SAFETY: within the segment, which is attached as long as this lives; atomics only, of
        // which all values are valid.
        unsafe { &*self.pool.start().cast::<Page>().add(number as usize) }
    }

    /// Whether the page could be had, and was found whole.
    fn lock(&self, page: u64) -> bool {
        self.database.semaphore(page, -1, libc::SEM_UNDO) && self.page(page).is_whole()
    }

    fn unlock(&self, page: u64) -> bool {
        self.database.semaphore(page, 1, libc::SEM_UNDO)
    }

    fn client(&self, number: usize, shared: &Shared) -> bool {
        let mut seed = number as u64 + 1;
        let mut random = || {
            seed = next_seed(seed);
            // The upper bits: the lower ones repeat soon.
            seed >> 32
        };
        let kind = number as i64 + 1;
        let mut message = Message { kind, data: [0; 64] };
        while !shared.is_over() {
            for page in [(); READS].map(|()| random() % PAGES) {
                if !(self.lock(page) && self.unlock(page)) {
                    return false;
                }
            }
            // Two pages, the lower one first: nobody waits in a circle.
            let (one, other) = (random() % PAGES, random() % (PAGES - 1));
            let other = if other < one { other } else { other + 1 };
            let order = [one.min(other), one.max(other), random() % 1000, random()];
            for (bytes, word) in message.data.chunks_exact_mut(8).zip(order) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            let sent = message.data;
            let orders = &self.database.orders;
            if !(orders.send(&message) && self.database.answers.receive_kind(kind, &mut message))
                || message.data != sent
            {
                return false;
            }
            shared.counts[number].add(1);
        }
        true
    }

    fn worker(&self, steps: u64) -> bool {
        let mut message = Message { kind: 0, data: [0; 64] };
        while self.database.orders.receive(&mut message) {
            if message.kind == HOME {
                return true;
            }
            if steps > 0 {
                compute::work(steps);
            }
            let word =
                |i: usize| message.data[i * 8..].first_chunk().map(|b| u64::from_le_bytes(*b));
            let (Some(from), Some(to), Some(amount), Some(row)) =
                (word(0), word(1), word(2), word(3))
            else {
                return false;
            };
            if !(self.lock(from) && self.lock(to)) {
                return false;
            }
            self.page(from).update(amount.wrapping_neg(), row);
            self.page(to).update(amount, row);
            if !(self.unlock(to) && self.unlock(from) && self.database.answers.send(&message)) {
                return false;
            }
        }
        false
    }
}
