// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of experiment `threads`, and what is measured of them. They run in a process of
//! their own in each phase, which registers for hints with whoever serves them, and prints a
//! [`PhaseResult`].
//!
//! Preemptions are counted by an eBPF program of this process at the kernel's context switches, the
//! same under every scheduler; grace periods by the thread that asks for them; CPU time by the
//! kernel's clock of each thread.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use reprieve::Domain;
use reprieve_hint::Error as HintError;
use reprieve_init::protocol::{Better, Figure, MeasureCost, PhaseResult};
use reprieve_page::output::print;
use reprieve_watch::publish::{Counts, Observer};
use std::hint::black_box;
use std::io::ErrorKind;
use std::os::unix::thread::JoinHandleExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time in a section and between two, us of CPU time: a quarter of the time is in sections.
const SECTION_US: u64 = 50;
const PAUSE_US: u64 = 150;
/// Between two grace periods.
const REST: Duration = Duration::from_millis(1);
/// From the start of the threads to the measuring.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a server of hints may take to answer.
const ANSWER: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct ThreadsArgs {
    /// Threads per CPU
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    per_cpu: u32,
    /// How long to measure
    #[arg(long, value_parser = humantime::parse_duration)]
    length: Duration,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Announces its sections.
    Hinted,
    /// Its sections are the runtime's read-side sections.
    Reader,
    /// The same work without any section.
    Other,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Hinted, Kind::Reader, Kind::Other];
    /// The kinds of each five threads.
    const TURNS: [Kind; 5] = [Kind::Hinted, Kind::Reader, Kind::Hinted, Kind::Reader, Kind::Other];

    fn name(self) -> &'static str {
        match self {
            Kind::Hinted => "hinted threads",
            Kind::Reader => "readers",
            Kind::Other => "others",
        }
    }
}

#[repr(align(64))]
#[derive(Default)]
struct Sections(AtomicU64);

struct Worker {
    kind: Kind,
    sections: Arc<Sections>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(kind: Kind, section: u64, pause: u64, stop: &Arc<AtomicBool>) -> Result<Worker> {
        let sections = Arc::new(Sections::default());
        let (counted, stop) = (sections.clone(), stop.clone());
        let work = move || {
            while !stop.load(Relaxed) {
                match kind {
                    Kind::Hinted => {
                        let _section = reprieve_hint::non_preemptable();
                        compute(section);
                    }
                    Kind::Reader => {
                        let _guard = reprieve::read_lock();
                        compute(section);
                    }
                    Kind::Other => compute(section),
                }
                counted.0.fetch_add(1, Relaxed);
                compute(pause);
            }
        };
        let thread = thread::Builder::new().spawn(work).context("starting a thread")?;
        Ok(Worker { kind, sections, thread })
    }

    /// CPU time so far, ns.
    fn cpu_ns(&self) -> Result<u64> {
        let thread = self.thread.as_pthread_t();
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: the thread has not been joined; both are written before they are used.
        let failed = unsafe {
            libc::pthread_getcpuclockid(thread, &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        if failed {
            bail!("the CPU time of a thread is not known");
        }
        Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// All that is counted, at one time.
struct Reading {
    at: Instant,
    counts: Counts,
    sections: Vec<u64>,
    cpu_ns: Vec<u64>,
}

impl Reading {
    fn take(observer: &Observer, workers: &[Worker]) -> Result<Reading> {
        Ok(Reading {
            cpu_ns: workers.iter().map(Worker::cpu_ns).collect::<Result<_>>()?,
            at: Instant::now(),
            counts: observer.counts(),
            sections: workers.iter().map(|worker| worker.sections.0.load(Relaxed)).collect(),
        })
    }
}

pub fn main(args: &ThreadsArgs) -> Result<()> {
    let cpus = thread::available_parallelism().context("the number of CPUs")?.get();
    // Before the first hint.
    reprieve_hint::set_reader_block(reprieve::abi::reader_offset());
    match reprieve_hint::connect(ANSWER) {
        // Nobody serves hints under the stock scheduler.
        Err(HintError::Connect(_, error))
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
        done => done?,
    }
    let observer = Observer::start()?;
    let (section, pause) = (steps_in(SECTION_US), steps_in(PAUSE_US));
    let stop = Arc::new(AtomicBool::new(false));
    let kinds = Kind::TURNS.into_iter().cycle().take(args.per_cpu as usize * cpus);
    let workers = kinds.map(|kind| Worker::start(kind, section, pause, &stop));
    let workers = workers.collect::<Result<Vec<_>>>()?;
    let writer = thread::spawn({
        let stop = stop.clone();
        move || write(&stop)
    });
    thread::sleep(SETTLE);
    let before = Reading::take(&observer, &workers)?;
    thread::sleep(args.length);
    let after = Reading::take(&observer, &workers)?;
    stop.store(true, Relaxed);
    let graces = writer.join().ok().context("the writer")?;
    let within = |(begun, _): &&(Instant, Duration)| (before.at..after.at).contains(begun);
    let graces: Vec<f64> =
        graces.iter().filter(within).map(|(_, took)| took.as_secs_f64() * 1e3).collect();
    let result = result(&before, &after, &workers, &graces);
    for worker in workers {
        worker.thread.join().ok().context("a thread")?;
    }
    print(&(serde_json::to_string(&result)? + "\n"))
}

/// Asks for grace periods; when each began, and how long it took.
fn write(stop: &AtomicBool) -> Vec<(Instant, Duration)> {
    let mut graces = Vec::new();
    while !stop.load(Relaxed) {
        let begun = Instant::now();
        Domain::global().synchronize();
        graces.push((begun, begun.elapsed()));
        thread::sleep(REST);
    }
    graces
}

fn result(before: &Reading, after: &Reading, workers: &[Worker], graces: &[f64]) -> PhaseResult {
    let elapsed = after.at - before.at;
    let mut figures = Vec::new();
    let mut figure = |measure: &str, subject: &str, unit: &str, value: f64| {
        figures.push(Figure {
            subject: subject.into(),
            group: String::new(),
            measure: measure.into(),
            unit: unit.into(),
            value,
            at_least: false,
            better: Better::Lower,
        });
    };
    let counted = |of: fn(&Counts) -> u64| (of(&after.counts) - of(&before.counts)) as f64;
    let preempted = counted(|counts| counts.preempted);
    let within = [
        (Kind::Hinted, counted(|counts| counts.in_non_preemptable)),
        (Kind::Reader, counted(|counts| counts.in_reader)),
    ];
    for (kind, count) in within {
        let rate = count / elapsed.as_secs_f64();
        figure("preemptions in sections", kind.name(), "1/s", rate);
    }
    let all: f64 = within.iter().map(|(_, count)| count).sum();
    figure("preemptions in sections", "of all", "%", 100.0 * all / preempted.max(1.0));
    if !graces.is_empty() {
        let mean = graces.iter().sum::<f64>() / graces.len() as f64;
        figure("grace periods", "mean", "ms", mean);
        figure("grace periods", "longest", "ms", graces.iter().copied().fold(0.0, f64::max));
    }
    let ran = |i: usize| (after.cpu_ns[i] - before.cpu_ns[i]) as f64;
    let due = (0..workers.len()).map(ran).sum::<f64>() / workers.len() as f64;
    let off = |ns: f64| 100.0 * (ns / due - 1.0).abs();
    for kind in Kind::ALL {
        let own: Vec<f64> =
            (0..workers.len()).filter(|&i| workers[i].kind == kind).map(ran).collect();
        if !own.is_empty() {
            let mean = own.iter().sum::<f64>() / own.len() as f64;
            figure("CPU time off an equal share", kind.name(), "%", off(mean));
        }
    }
    let farthest = (0..workers.len()).map(|i| off(ran(i))).fold(0.0, f64::max);
    figure("CPU time off an equal share", "farthest thread", "%", farthest);
    let sections = workers.iter().zip(after.sections.iter().zip(&before.sections));
    let sections = sections.filter(|(worker, _)| worker.kind != Kind::Other);
    PhaseResult {
        elapsed_ns: elapsed.as_nanos() as u64,
        operations: sections.map(|(_, (after, before))| after - before).sum::<u64>() as f64,
        unit: "section".into(),
        figures,
        cost: MeasureCost::default(),
    }
}

/// Steps of [`compute`] that take `us` of CPU time. Other threads may take the CPU meanwhile: the
/// shortest of some times counts.
fn steps_in(us: u64) -> u64 {
    const MEASURED: u64 = 100_000;
    let measure = |_| {
        let begun = Instant::now();
        compute(MEASURED);
        begun.elapsed().as_nanos().max(1) as u64
    };
    let ns = (0..16).map(measure).min().unwrap_or(1);
    (MEASURED * us * 1_000 / ns).max(1)
}

fn compute(steps: u64) {
    let mut x = 1u64;
    for i in 0..steps {
        x = black_box(x.wrapping_mul(3).wrapping_add(i));
    }
}
