// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two threads that do nothing but wake each other want a CPU, one after the other. Each was woken
//! a moment ago whenever the other sleeps; a scheduler that always prefers such threads would never
//! run anybody else there.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::Spinner;
use crate::vm::{Threads, allowed_cpus};
use anyhow::{Result, anyhow};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long shares are measured, and the time before.
const WINDOW: Duration = Duration::from_secs(1);
const SETTLE: Duration = Duration::from_millis(300);
/// How long each of the two computes before it wakes the other.
const COMPUTES: Duration = Duration::from_micros(20);

/// Where threads may run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Where {
    /// On one CPU only.
    Pinned,
    Anywhere,
}

/// By what the two wake each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    Futex,
    /// The kernel is told that who wakes is about to sleep.
    Socket,
}

/// How a pair and threads that compute meet.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub by: By,
    pub pair: Where,
    pub others: Where,
}

const fn scene(by: By, pair: Where, others: Where) -> Scene {
    Scene { by, pair, others }
}

/// All four ways in which they can meet; and where a CPU is idle, on which the pair could run.
pub const SCENES: [Scene; 5] = [
    scene(By::Futex, Where::Pinned, Where::Pinned),
    scene(By::Futex, Where::Pinned, Where::Anywhere),
    scene(By::Futex, Where::Anywhere, Where::Pinned),
    scene(By::Futex, Where::Anywhere, Where::Anywhere),
    scene(By::Socket, Where::Anywhere, Where::Pinned),
];

/// An end of what the two wake each other by.
enum End {
    Futex(Receiver<()>, Sender<()>),
    Socket(UnixStream),
}

impl End {
    fn both(by: By) -> Result<[End; 2]> {
        Ok(match by {
            By::Futex => {
                let ((to_first, from_second), (to_second, from_first)) = (channel(), channel());
                [End::Futex(from_second, to_second), End::Futex(from_first, to_first)]
            }
            By::Socket => {
                let (first, second) = UnixStream::pair()?;
                [End::Socket(first), End::Socket(second)]
            }
        })
    }

    /// Whether the other has woken this one.
    fn wait(&mut self) -> bool {
        match self {
            End::Futex(from, _) => from.recv().is_ok(),
            End::Socket(socket) => socket.read_exact(&mut [0]).is_ok(),
        }
    }

    fn wake(&mut self) -> bool {
        match self {
            End::Futex(_, to) => to.send(()).is_ok(),
            End::Socket(socket) => socket.write_all(&[0]).is_ok(),
        }
    }
}

/// Wakes, again and again, whoever waits at the other end.
fn partner(mut end: End, stop: &AtomicBool) {
    while end.wait() && !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        while began.elapsed() < COMPUTES {
            std::hint::spin_loop();
        }
        if !end.wake() {
            return;
        }
    }
}

/// The two threads, until it is dropped.
struct Pair {
    tids: Vec<u32>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pair {
    fn start(by: By) -> Result<Pair> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut pair = Pair { tids: Vec::new(), stop, threads: Vec::new() };
        let mut ends = End::both(by)?;
        // The other waits, and then it.
        ends[0].wake();
        for end in ends {
            let (stop, (send, tid)) = (pair.stop.clone(), channel());
            let thread = std::thread::Builder::new().name("partner".into()).spawn(move || {
                let _ = send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
                partner(end, &stop);
            })?;
            pair.threads.push(thread);
            pair.tids.push(tid.recv()?);
        }
        Ok(pair)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Whoever sees it first takes its end along, and so wakes the other.
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The least that a thread had which computes, in percent of a CPU, beside a pair. There is a
/// thread for each of two CPUs; a pinned pair is on the first of them. Where a CPU is to be idle,
/// there is one for the first, and the pair begins there.
pub fn least_share(setup: &GuestSetup, scene: Scene) -> Result<f64> {
    let cpus: Vec<u32> = few_cpus().into_iter().take(2).collect();
    let first = *cpus.first().ok_or_else(|| anyhow!("no CPU"))?;
    let all: Vec<u32> = (0..allowed_cpus().len() as u32).collect();
    let this = |tid| Threads::new(std::process::id(), vec![tid]);
    let pin = |tids: &[u32], to: &[u32]| {
        tids.iter().try_for_each(|&tid| this(tid).pin(&[to.to_vec()], &[]))
    };

    let idle = scene.by == By::Socket;
    let two = Pair::start(scene.by)?;
    if idle || scene.pair == Where::Pinned {
        pin(&two.tids, &[first])?;
    }
    let busy = if idle { &cpus[..1] } else { &cpus[..] };
    let spinners = busy.iter().map(|&cpu| Spinner::start(cpu)).collect::<Result<Vec<_>>>()?;
    if scene.others == Where::Anywhere {
        for spinner in &spinners {
            pin(&[spinner.tid], &all)?;
        }
    }
    setup.sleep(SETTLE)?;
    if idle {
        pin(&two.tids, &all)?;
    }
    let ran = || spinners.iter().map(|spinner| this(spinner.tid).vcpu_counters().run_ns);
    let (began, before) = (Instant::now(), ran().collect::<Vec<u64>>());
    setup.sleep(WINDOW)?;
    let shares = ran().zip(before).map(|(after, before)| after - before);
    let least = shares.min().unwrap_or(0) as f64;
    Ok(100.0 * least / began.elapsed().as_nanos() as f64)
}
