// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks beside their peers: threads that take a lock, work inside for a while, and outside for as
//! long.
//!
//! Work is a number of steps that takes the time named on a CPU of its own, calibrated once, so a
//! section in which the thread loses its CPU is not shorter for it. Waiting times are those of
//! every 16th section: reading the clock costs as much as the shortest ones. Each section checks
//! that it is alone (or that only readers are beside it).
//!
//! The waits of all rounds together give p99 and the longest; **samples** is their number. There is
//! no p99 of fewer than [`FEWEST`]: of long sections a short run has fewer.
//!
//! Threads begin at a [`Gate`], and warm up. Then their sections and CPU time are read twice from
//! outside while all of them run: what a thread does before, or until it sees the end, does not
//! count.
//!
//! *Fairness* is Jain's index of the numbers of sections of the threads, in percent: 100 if all are
//! equal, 100 / threads if one had all.
//!
//! *Per CPU second*: sections for each second of CPU time that the threads used. On a busy machine,
//! threads that spin get a larger share of the CPUs than threads that sleep, and so more sections
//! in the same time; what they got for it shows here.

use super::{Prepared, column};
use crate::clock;
use crate::compute::{steps, work};
use crate::error::{Error, Result};
use crate::locks::{Lock, Style, Subject, Visit};
use crate::options::Options;
use crate::result::{Column, FEWEST, Recorder, Shown, Statistic, Unit};
use crate::schedule::Job;
use crate::threads::{self, Gate, Last};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

/// Peers that `--against` takes.
pub const FAMILIES: [&str; 3] = ["pthread", "parking_lot", "std"];

/// Lengths of sections.
const LENGTHS: [Duration; 2] = [Duration::from_nanos(100), Duration::from_micros(1)];
/// The least length of a sample, some slices of the scheduler: in less time one thread may have a
/// CPU for itself.
const LEAST: Duration = Duration::from_millis(20);

const RATE: usize = 0;
const WAITS: Shown = &[(1, Statistic::P99), (2, Statistic::Max), (6, Statistic::Samples)];
const FAIRNESS: usize = 3;
const ALONE: usize = 4;
const PER_CPU: usize = 5;

fn columns() -> Vec<Column> {
    let more = |title: &str, unit| Column { more_is_better: true, ..column(title, unit) };
    vec![
        more("sections", Unit::KiloPerSecond),
        column("wait, p99", Unit::Microseconds),
        column("wait, longest", Unit::Milliseconds),
        more("fairness", Unit::Percent),
        column("lock and unlock", Unit::Nanoseconds),
        more("per CPU second", Unit::KiloPerSecond),
        column("samples", Unit::Count),
    ]
}

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let known = |a: &&String| !FAMILIES.contains(&a.as_str());
    if let Some(unknown) = options.against.iter().find(known) {
        let families = FAMILIES.join(", ");
        return Err(Error::Usage(format!(
            "--against {unknown}: no such lock; there are {families}"
        )));
    }
    let mut recorder = Recorder::new(columns());
    let mut jobs = vec![];
    for style in Style::ALL {
        let wanted = |subject: &Subject| {
            subject.style() == style
                && subject.family().is_none_or(|f| options.against.iter().any(|a| a == f))
        };
        let subjects: Vec<_> = Subject::ALL.into_iter().filter(wanted).collect();
        alone(style, &subjects, &mut recorder, &mut jobs);
        for length in LENGTHS {
            for &threads in &options.readers {
                let scene = Scene { threads, length, reads: style == Style::ReadWrite };
                crowd(style, scene, &subjects, &mut recorder, &mut jobs, options);
            }
        }
    }
    let note = |text: &str| text.to_owned();
    let notes = vec![
        note(
            "threads work outside for as long as inside; waits of every 16th section; fairness: Jain's index",
        ),
        format!(
            "waits and samples (waits timed) of all rounds together; no p99 of fewer than {FEWEST}"
        ),
        note("reader-writer locks: a section in eight writes"),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

/// The cost of a lock that nobody else wants.
fn alone(style: Style, subjects: &[Subject], recorder: &mut Recorder, jobs: &mut Vec<Job<'_>>) {
    for &subject in subjects {
        let row = recorder.row(
            &format!("{}, uncontended", style.name()),
            subject.name(),
            subject.class(),
        );
        let what = format!("uncontended, {}", subject.name());
        jobs.push(Job::figure(what, 1.0, (row, ALONE), move |length| {
            subject.visit(Alone { length })
        }));
    }
}

struct Alone {
    length: Duration,
}

impl Visit for Alone {
    type Output = Result<f64>;
    fn visit<L: Lock>(self) -> Result<f64> {
        let lock = L::new();
        super::alone(self.length, |n| {
            for _ in 0..n {
                black_box(&lock).write(|| black_box(()));
            }
            0
        })
    }
}

/// Threads that share a lock.
#[derive(Clone, Copy)]
struct Scene {
    threads: usize,
    length: Duration,
    reads: bool,
}

fn crowd<'a>(
    style: Style,
    scene: Scene,
    subjects: &[Subject],
    recorder: &mut Recorder,
    jobs: &mut Vec<Job<'a>>,
    options: &'a Options,
) {
    let Scene { threads, length, .. } = scene;
    let length = length.as_nanos() as f64 / 1e3;
    let group = format!("{}, {}, {length} us", style.name(), super::thread_label(threads));
    for &subject in subjects {
        let row = recorder.row(&group, subject.name(), subject.class());
        jobs.push(Job {
            what: format!("{group}, {}", subject.name()),
            weight: 1.0,
            run: Box::new(move |length, recorder| {
                subject.visit(Crowd { scene, length, options })?.record(recorder, row);
                Ok(())
            }),
        });
    }
}

struct Crowd<'a> {
    scene: Scene,
    length: Duration,
    options: &'a Options,
}

/// The work of a thread.
#[derive(Default)]
struct Done {
    /// In ns.
    waits: Vec<u64>,
    overlaps: u64,
}

/// The part that others read of a thread that works, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Worker {
    sections: AtomicU64,
    clock: AtomicI32,
}

/// The work of all threads in the measured time.
struct Measured {
    /// Operations of each thread.
    sections: Vec<u64>,
    /// CPU time of all, in ns.
    cpu: u64,
    seconds: f64,
}

/// The result of a sample.
struct Found {
    figures: Vec<(usize, f64)>,
    /// In ns.
    waits: Vec<f64>,
}

impl Visit for Crowd<'_> {
    type Output = Result<Found>;
    fn visit<L: Lock>(self) -> Self::Output {
        let threads = self.scene.threads;
        let shared = Shared::<L>::new(threads);
        let (scene, all) = (self.scene, &shared);
        let (done, measured) = scope(|scope| -> Result<_> {
            let _end = Last(|| all.end());
            let work = move |number: usize| all.work(scene, &all.workers[number]);
            let workers = threads::start(scope, threads, work)?;
            let measured = all.measure(threads, self.length, self.options)?;
            let joined = workers.into_iter().map(|w| w.join().unwrap_or_default());
            Ok((joined.collect::<Vec<_>>(), measured))
        })?;
        shared.check(&done)?;
        Ok(Found::new(&done, &measured))
    }
}

impl Found {
    fn new(done: &[Done], measured: &Measured) -> Found {
        let sections: Vec<f64> = measured.sections.iter().map(|&n| n as f64).collect();
        let sum: f64 = sections.iter().sum();
        let squares: f64 = sections.iter().map(|n| n * n).sum();
        let mut figures = vec![(RATE, sum / measured.seconds / 1e3)];
        if measured.cpu > 0 {
            figures.push((PER_CPU, sum * 1e6 / measured.cpu as f64));
        }
        if squares > 0.0 {
            figures.push((FAIRNESS, 100.0 * sum * sum / (squares * sections.len() as f64)));
        }
        let waits = done.iter().flat_map(|d| &d.waits).map(|&ns| ns as f64).collect();
        Found { figures, waits }
    }

    fn record(&self, recorder: &mut Recorder, row: usize) {
        for &(column, value) in &self.figures {
            recorder.add(row, column, value);
        }
        recorder.add_samples(row, WAITS, &self.waits);
    }
}

/// A lock, and behind it what it guards, as in programs; nothing else is in these cache lines,
/// whatever the size of the lock.
#[repr(C, align(128))]
struct Guarded<L> {
    lock: L,
    inside: AtomicU32,
}

impl<L: Lock> Guarded<L> {
    fn new() -> Guarded<L> {
        Guarded { lock: L::new(), inside: AtomicU32::new(0) }
    }
}

/// State that the threads of a sample share.
struct Shared<L> {
    guarded: Guarded<L>,
    start: Gate,
    workers: Vec<Worker>,
    /// Threads that have passed the gate.
    begun: AtomicUsize,
    phase: AtomicU32,
    /// Whether a wait has been measured.
    waited: AtomicBool,
}

const WRITER: u32 = 1 << 16;

const WARMING: u32 = 0;
const MEASURING: u32 = 1;
const STOPPED: u32 = 2;

impl<L: Lock> Shared<L> {
    fn new(threads: usize) -> Shared<L> {
        Shared {
            guarded: Guarded::new(),
            start: Gate::default(),
            workers: (0..threads).map(|_| Worker::default()).collect(),
            begun: AtomicUsize::new(0),
            phase: AtomicU32::new(WARMING),
            waited: AtomicBool::new(false),
        }
    }

    fn begin(&self) {
        self.start.pass();
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn stopped(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == STOPPED
    }

    /// Has all threads end, also those that wait at the gate.
    fn end(&self) {
        self.phase.store(STOPPED, Ordering::SeqCst);
        self.start.open(0);
    }

    /// Lets `threads` threads start, measures what the workers do for `length` when they have
    /// warmed up, and stops all.
    fn measure(&self, threads: usize, length: Duration, options: &Options) -> Result<Measured> {
        self.start.open(threads);
        while self.begun.load(Ordering::SeqCst) < threads {
            std::thread::sleep(Duration::from_millis(1));
        }
        let length = length.max(LEAST);
        let measured = self.count(length, options);
        self.phase.store(STOPPED, Ordering::SeqCst);
        measured
    }

    fn count(&self, length: Duration, options: &Options) -> Result<Measured> {
        let sections =
            || self.workers.iter().map(|w| w.sections.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let read = || {
            let clocks = self.workers.iter().map(|w| w.clock.load(Ordering::Relaxed));
            (sections(), clocks.map(clock::cpu_of).sum::<u64>(), clock::now())
        };
        // Again if this thread lost its CPU in the middle.
        let read = || {
            let mut last = read();
            for _ in 0..10 {
                let begun = clock::now();
                last = read();
                if last.2 - begun < 100_000 {
                    break;
                }
            }
            last
        };
        pass(length / 8, options, || true)?;
        let (before, cpu_before, start) = read();
        self.phase.store(MEASURING, Ordering::SeqCst);
        // On a busy machine longer, until there is something to count.
        let counts = || self.waited.load(Ordering::SeqCst) && sections() != before;
        pass(length, options, counts)?;
        let (after, cpu, end) = read();
        Ok(Measured {
            sections: after.iter().zip(&before).map(|(after, before)| after - before).collect(),
            cpu: cpu - cpu_before,
            seconds: (end - start) as f64 / 1e9,
        })
    }

    fn work(&self, scene: Scene, worker: &Worker) -> Done {
        let mut done = Done::default();
        let steps = steps(scene.length.as_nanos() as u64);
        worker.clock.store(clock::of_this_thread(), Ordering::Relaxed);
        self.begin();
        let (mut sections, mut untimed, mut measuring) = (0, 0, false);
        while !self.stopped() {
            // The first section that begins in the measured time is timed.
            if !measuring && self.phase.load(Ordering::Relaxed) == MEASURING {
                (measuring, untimed) = (true, 0);
            }
            let timed = untimed == 0;
            untimed = (untimed + 1) % 16;
            let before = if timed { clock::now() } else { 0 };
            let mut after = 0;
            let mut section = |weight: u32| {
                if timed {
                    after = clock::now();
                }
                // Not one instruction: a lock that lets two in is noticed.
                let inside = self.guarded.inside.load(Ordering::Relaxed);
                if weight == WRITER {
                    self.guarded.inside.store(inside + WRITER, Ordering::Relaxed);
                }
                work(steps);
                if weight == WRITER {
                    self.guarded.inside.store(0, Ordering::Relaxed);
                }
                u64::from(inside != 0)
            };
            done.overlaps += if scene.reads && sections % 8 != 0 {
                self.guarded.lock.read(|| section(1))
            } else {
                self.guarded.lock.write(|| section(WRITER))
            };
            sections += 1;
            worker.sections.store(sections, Ordering::Relaxed);
            // A wait that outlasts the warm-up counts, as does one that outlasts the measured time:
            // the longest are like that.
            if timed && (measuring || self.phase.load(Ordering::Relaxed) != WARMING) {
                done.waits.push(after - before);
                if done.waits.len() == 1 {
                    self.waited.store(true, Ordering::SeqCst);
                }
            }
            work(steps);
        }
        done
    }

    fn check(&self, done: &[Done]) -> Result<()> {
        let overlaps: u64 = done.iter().map(|d| d.overlaps).sum();
        if overlaps == 0 {
            return Ok(());
        }
        let what = format!("{overlaps} sections were not alone");
        Err(Error::Broken { subject: "a lock".into(), what })
    }
}

/// Sleeps for `length`, and until there is `enough`.
fn pass(length: Duration, options: &Options, enough: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + length;
    loop {
        options.check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() && enough() {
            return Ok(());
        }
        std::thread::sleep(left.clamp(Duration::from_micros(500), Duration::from_millis(20)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::plain(LEAST, 1)
    }

    /// A hand-over moves one line with the lock and its data, whichever lock it is.
    #[test]
    fn each_lock_is_in_the_cache_lines_of_what_it_guards() {
        struct Fits;
        impl Visit for Fits {
            type Output = bool;
            fn visit<L: Lock>(self) -> bool {
                // A lock that owns memory elsewhere would have to free it.
                size_of::<Guarded<L>>() == 128 && !std::mem::needs_drop::<L>()
            }
        }
        for subject in Subject::ALL {
            assert!(subject.visit(Fits), "{}", subject.name());
        }
    }

    /// A thread counts much before and after the measured time.
    #[test]
    fn only_the_measured_time_counts() {
        let shared = Shared::<std::sync::Mutex<()>>::new(1);
        let worker = &shared.workers[0];
        let wait_for = |phase: u32| {
            while shared.phase.load(Ordering::SeqCst) != phase {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let measured = scope(|scope| {
            scope.spawn(|| {
                worker.clock.store(clock::of_this_thread(), Ordering::Relaxed);
                worker.sections.store(1_000, Ordering::Relaxed);
                shared.begin();
                wait_for(MEASURING);
                worker.sections.store(1_005, Ordering::Relaxed);
                shared.waited.store(true, Ordering::SeqCst);
                wait_for(STOPPED);
                worker.sections.store(2_000, Ordering::Relaxed);
            });
            shared.measure(1, Duration::ZERO, &options())
        });
        let measured = measured.unwrap();
        assert_eq!(measured.sections, [5]);
        assert!(measured.seconds >= LEAST.as_secs_f64(), "{}", measured.seconds);
        let found = Found::new(&[Done { waits: vec![7_000], overlaps: 0 }], &measured);
        let figure = |column| found.figures.iter().find(|figure| figure.0 == column).unwrap().1;
        assert_eq!(figure(RATE), 5.0 / measured.seconds / 1e3);
        assert_eq!((figure(FAIRNESS), found.waits), (100.0, vec![7e3]));
    }

    #[test]
    fn a_cancelled_sample_stops_its_threads() {
        let shared = Shared::<std::sync::Mutex<()>>::new(1);
        let options = options();
        options.cancel.store(true, Ordering::Relaxed);
        let measured = scope(|scope| {
            scope.spawn(|| {
                shared.begin();
                while !shared.stopped() {
                    work(1_000);
                }
            });
            shared.measure(1, Duration::from_secs(3600), &options)
        });
        assert!(matches!(measured, Err(Error::Cancelled)));
    }
}
