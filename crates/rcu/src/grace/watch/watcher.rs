// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch of one domain: settings, the next look and report, counters.

use super::report::{Laggard, Stall, State};
use super::task;
use crate::platform::cancel::CancelDisabled;
use crate::platform::{exit, sys};
use crate::thread::id::DomainId;
use crate::thread::record::{Record, SEIZED};
use crate::thread::registry::Registry;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

/// How often leaders look, and how long a section is known before leaders look for its owner.
const PERIOD: Duration = Duration::from_millis(100);

/// After this time the existence of a thread with the owner's id is not enough: it might be another
/// thread, or a zombie.
const DOUBT: Duration = Duration::from_secs(1);

/// The next report follows after this multiple of the time-out, as with the kernel's reports.
const NEXT_REPORT: u64 = 3;

type Hook = Box<dyn Fn(&Stall) + Send + Sync>;

/// A hook, or none, and the one it replaced.
struct Hooked {
    hook: Option<Hook>,
    older: *mut Hooked,
}

pub(crate) struct Watch {
    domain: DomainId,
    /// Nanoseconds; `u64::MAX`: never.
    timeout: AtomicU64,
    forget_dead: AtomicBool,
    /// Null, or without a hook: reports go to standard error.
    hook: AtomicPtr<Hooked>,
    /// When leaders look next, in nanoseconds of the monotonic clock.
    next_look: AtomicU64,
    next_report: AtomicU64,
    /// Reports made.
    pub(crate) stalls: AtomicU64,
    /// Dead readers given up.
    pub(crate) forgotten: AtomicU64,
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().min(u64::MAX as u128) as u64
}

fn now() -> u64 {
    nanoseconds(sys::monotonic())
}

impl Watch {
    /// When a stall is reported unless the program says otherwise. Half of the kernel's: user-space
    /// sections are meant to be short.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

    pub(crate) fn new(domain: DomainId) -> Watch {
        Watch {
            domain,
            timeout: AtomicU64::new(nanoseconds(Watch::TIMEOUT)),
            forget_dead: AtomicBool::new(true),
            hook: AtomicPtr::default(),
            next_look: AtomicU64::new(0),
            next_report: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.store(timeout.map_or(u64::MAX, nanoseconds), Ordering::Relaxed);
        // The old time-out decides nothing any more.
        self.next_report.store(0, Ordering::Relaxed);
        self.next_look.store(0, Ordering::Relaxed);
    }

    pub(crate) fn set_forget_dead(&self, forget: bool) {
        self.forget_dead.store(forget, Ordering::Relaxed);
    }

    /// A leader may be in the old hook: it is freed with the domain.
    pub(crate) fn set_hook(&self, hook: Option<Hook>) {
        let new = Box::into_raw(Box::new(Hooked { hook, older: std::ptr::null_mut() }));
        let mut older = self.hook.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours until it is published.
            unsafe { (*new).older = older };
            match self.hook.compare_exchange(older, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => older = now,
            }
        }
    }

    /// A leader that has waited since `since` looks, if it is time.
    pub(super) fn look(&self, registry: &Registry, since: u64) {
        let (now, next) = (now(), self.next_look.load(Ordering::Relaxed));
        // Leaders come one at a time.
        if now >= next {
            self.next_look.store(now + nanoseconds(PERIOD).min(self.timeout()), Ordering::Relaxed);
            self.examine(registry, since, now);
        }
    }

    /// Not shorter than a leader's sleep.
    fn timeout(&self) -> u64 {
        self.timeout.load(Ordering::Relaxed).max(1_000_000)
    }

    fn examine(&self, registry: &Registry, since: u64, now: u64) {
        self.examine_with(registry, since, now, || self.laggards(registry, now));
    }

    /// `laggards` looks at the readers once more.
    fn examine_with(
        &self,
        registry: &Registry,
        since: u64,
        now: u64,
        laggards: impl FnOnce() -> Vec<Laggard>,
    ) {
        let mut oldest = now;
        let mut dead = Vec::new();
        for record in registry.records().filter(|r| r.awaited()) {
            let Some((since, _)) = record.lag() else {
                record.set_lag(since, sys::cpu_time(record.owner()).unwrap_or(0));
                continue;
            };
            oldest = oldest.min(since);
            if now - since >= nanoseconds(PERIOD) {
                dead.extend(self.forget_if_dead(record, now));
            }
        }
        let waiting = now - oldest;
        if waiting < self.timeout() {
            // A new stall, if there will be one.
            self.next_report.store(0, Ordering::Relaxed);
        }
        let timeout = self.timeout.load(Ordering::Relaxed);
        if timeout == u64::MAX {
            return;
        }
        let (forgotten, mut reported) = (dead.len(), dead);
        if waiting >= self.timeout() && now >= self.next_report.load(Ordering::Relaxed) {
            reported.extend(laggards());
            let long = Duration::from_nanos(self.timeout());
            // The reader that it was due for may have left its section in between.
            if reported.iter().any(|laggard| laggard.waiting >= long) {
                let next = now.saturating_add(timeout.saturating_mul(NEXT_REPORT));
                self.next_report.store(next, Ordering::Relaxed);
                self.stalls.fetch_add(1, Ordering::Relaxed);
            } else {
                reported.truncate(forgotten);
            }
        }
        if !reported.is_empty() {
            self.report(reported);
        }
    }

    /// Gives the record up if its owner is dead and may be forgotten.
    fn forget_if_dead(&self, record: &Record, now: u64) -> Option<Laggard> {
        if !self.forget_dead.load(Ordering::Relaxed) {
            return None;
        }
        let waiting = record.lag().map_or(0, |(since, _)| now.saturating_sub(since));
        // The cheap question first: most laggards are merely preempted.
        if waiting < nanoseconds(DOUBT) && sys::exists_here(record.owner()) {
            return None;
        }
        self.forget(record).map(|thread| Laggard {
            thread,
            name: String::new(),
            waiting: Duration::from_nanos(waiting),
            ran: None,
            state: State::Dead { forgotten: true, leaked: false },
            cpu: None,
        })
    }

    /// Releases the record if its owner is dead. Returns the owner.
    fn forget(&self, record: &Record) -> Option<u32> {
        let thread = record.owner();
        // A first look that changes nothing. The time may already be another owner's: only the
        // second look counts.
        let dead = !matches!(thread, 0 | SEIZED)
            && record.left_behind().is_none()
            && task::dead(thread, record.taken())
            && record.release_if(thread, |taken| {
                // Where exits are not noticed, the thread may have left guards.
                task::dead(thread, taken) && (exit::noticed() || !record.outlives_owner())
            });
        dead.then(|| {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            thread
        })
    }

    /// Gives up what dead threads left in the registry, sections or not. Returns how many there
    /// were.
    pub(crate) fn forget_all_dead(&self, registry: &Registry) -> usize {
        registry.records().filter(|r| self.forget(r).is_some()).count()
    }

    /// The same for threads that died in the middle of a registration, unless they may not be
    /// forgotten.
    pub(crate) fn forget_dead_registering(&self, registry: &Registry) {
        if self.forget_dead.load(Ordering::Relaxed) {
            registry.records().filter(|r| r.buffer.registering()).for_each(|r| {
                self.forget(r);
            });
        }
    }

    /// The noted readers that the grace period in progress waits for.
    fn laggards(&self, registry: &Registry, now: u64) -> Vec<Laggard> {
        let mut laggards: Vec<Laggard> = registry
            .records()
            .filter(|r| r.awaited())
            .filter_map(|r| {
                let (since, ran) = r.lag()?;
                let found = laggard(r, now.saturating_sub(since), ran);
                // The reader may have left meanwhile, and ended.
                (r.awaited() && !matches!(found.thread, 0 | SEIZED)).then_some(found)
            })
            .collect();
        laggards.sort_by_key(|laggard| std::cmp::Reverse(laggard.waiting));
        laggards
    }

    /// See `Domain::stalled`.
    pub(crate) fn stalled(&self, registry: &Registry, longer_than: Duration) -> Option<Stall> {
        let laggards = self.laggards(registry, now());
        let waiting = laggards.first()?.waiting;
        (waiting >= longer_than).then_some(Stall { domain: self.domain, waiting, laggards })
    }

    fn report(&self, mut laggards: Vec<Laggard>) {
        laggards.sort_by_key(|laggard| std::cmp::Reverse(laggard.waiting));
        let waiting = laggards.first().map_or(Duration::ZERO, |l| l.waiting);
        let stall = Stall { domain: self.domain, waiting, laggards };
        // SAFETY: null or a hook that is not freed before the domain is.
        let hooked = unsafe { self.hook.load(Ordering::Acquire).as_ref() };
        match hooked.and_then(|hooked| hooked.hook.as_ref()) {
            // A panic must not unwind through the grace period, nor one in the drop of what it
            // carries. Its message has been printed.
            Some(hook) => {
                // The hook may enable cancellation; the leader must not be cancelled.
                let _cancel = CancelDisabled::new();
                let called = std::panic::AssertUnwindSafe(|| hook(&stall));
                if let Err(payload) = std::panic::catch_unwind(called) {
                    std::mem::forget(payload);
                }
            }
            None => sys::print(&format!("reprieve: {stall}\n")),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut next = *self.hook.get_mut();
        while !next.is_null() {
            // SAFETY: made by `set_hook`, and no leader is left.
            next = unsafe { Box::from_raw(next) }.older;
        }
    }
}

fn laggard(record: &Record, waiting: u64, ran: u64) -> Laggard {
    // Read first: it is left behind for good.
    let thread = record.owner();
    if let Some(thread) = record.left_behind() {
        // Another thread may have its id now.
        return Laggard {
            thread,
            name: String::new(),
            waiting: Duration::from_nanos(waiting),
            ran: None,
            state: State::Dead { forgotten: false, leaked: true },
            cpu: None,
        };
    }
    let stat = task::Stat::of(thread);
    let cpu_time = sys::cpu_time(thread);
    let state = match &stat {
        _ if task::dead(thread, record.taken()) => State::Dead { forgotten: false, leaked: false },
        Some(stat) if matches!(stat.state, 'T' | 't') => State::Stopped,
        Some(stat) if stat.state != 'R' => State::Blocked {
            call: task::blocked_in(thread),
            function: task::kernel_function(thread),
        },
        _ => match task::on_cpu(thread) {
            Some(true) => State::Running,
            Some(false) if stat.is_some() => State::Preempted,
            _ => State::Unknown,
        },
    };
    Laggard {
        thread,
        name: stat.as_ref().map_or_else(String::new, |stat| stat.name.clone()),
        waiting: Duration::from_nanos(waiting),
        ran: cpu_time.map(|now| Duration::from_nanos(now.saturating_sub(ran))),
        state,
        cpu: stat.and_then(|stat| stat.cpu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// The reader that a report is due for leaves its section before the report has been made.
    #[test]
    fn a_reader_that_has_just_left_is_not_reported() {
        let (registry, watch) = (Registry::new(), Watch::new(DomainId::GLOBAL));
        let reports = Arc::new(Mutex::new(Vec::new()));
        let sink = reports.clone();
        watch.set_hook(Some(Box::new(move |stall| sink.lock().unwrap().push(stall.clone()))));
        let record = registry.claim(sys::thread_id()).unwrap();
        record.stamp();
        let now = now();
        let since = now - nanoseconds(2 * Watch::TIMEOUT).min(now);
        watch.set_timeout(Some(Duration::from_nanos((now - since) / 2)));
        for leaves in [true, false] {
            record.enter();
            assert!(record.look());
            record.set_lag(since, 0);
            watch.examine_with(&registry, since, now, || {
                if leaves {
                    record.leave();
                }
                watch.laggards(&registry, now)
            });
        }
        record.leave();
        let reports = reports.lock().unwrap();
        assert!(reports.iter().all(|stall| stall.laggards.len() == 1), "{reports:?}");
        assert_eq!((reports.len(), watch.stalls.load(Ordering::Relaxed)), (1, 1));
    }
}
