// SPDX-License-Identifier: MIT OR Apache-2.0
//! A real-time thread takes the CPU of a thread that computes, for long, while another CPU is idle.
//! Nothing but the scheduler can bring the thread there.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::{Spinner, real_time};
use crate::vm::Threads;
use anyhow::{Result, anyhow, bail};
use std::time::{Duration, Instant};

const SETTLE: Duration = Duration::from_millis(100);
/// How long the CPU is taken. Less than a second, after which the kernel takes it from the thread.
const TAKEN: Duration = Duration::from_millis(300);
const ROUNDS: usize = 3;

/// The least that the thread had of a CPU while its own was taken, in percent.
pub fn least_share(setup: &GuestSetup) -> Result<f64> {
    let cpus = few_cpus();
    if cpus.len() < 2 {
        bail!("the scene needs two CPUs, and this process may use {}", cpus.len());
    }
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let spinner = Spinner::start(cpus[0])?;
        setup.sleep(SETTLE)?;
        let thread = Threads::new(std::process::id(), vec![spinner.tid]);
        thread.pin(std::slice::from_ref(&cpus), &[])?;
        least = least.min(share_while_taken(cpus[0], thread)?);
    }
    Ok(least)
}

/// Takes the CPU, in a thread of its own that ends by itself: it may keep all others of this
/// process from running.
fn share_while_taken(cpu: u32, thread: Threads) -> Result<f64> {
    let taker = std::thread::Builder::new().name("real-time".into()).spawn(move || {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        // In this order: an ordinary thread would only send the other one away.
        real_time(tid)?;
        Threads::new(std::process::id(), vec![tid]).pin(&[vec![cpu]], &[])?;
        let (began, before) = (Instant::now(), thread.vcpu_counters().run_ns);
        while began.elapsed() < TAKEN {
            std::hint::spin_loop();
        }
        let ran = thread.vcpu_counters().run_ns - before;
        Ok(100.0 * ran as f64 / began.elapsed().as_nanos() as f64)
    })?;
    taker.join().map_err(|_| anyhow!("the real-time thread panicked"))?
}
