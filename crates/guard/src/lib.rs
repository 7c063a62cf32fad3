// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard`: schedules a host's virtual machines with regard to their critical sections and grace
//! periods.
//!
//! [`start`] chooses the backend that [`Options::backend`] names and attaches it; [`run`] lets it
//! work until cancelled and hands out [`Statistics`]. Dropping the [`Guard`] detaches it: the stock
//! scheduler takes over, with every setting as it was before.

mod backend;
mod constants;
pub mod control;
mod dry_run;
mod eevdf;
mod error;
mod metrics;
mod options;
mod sched_ext;
mod statistics;
pub mod undo;

pub use backend::Guard;
use control::Control;
pub use error::Error;
pub use options::{Backend, MAX_EXTEND, Options, Policy};
pub use reprieve_watch::raw::{Step, Times};
pub use sched_ext::{ticks_hidden, timers_in_threads};
pub use statistics::{
    Did, Granted, HeldUp, Preempted, PutOff, RegionStatistics, Statistics, VmStatistics, Would,
};
pub use undo::server::loaded_scheduler;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Attaches the backend that `options` name. When this returns, the backend schedules; in a dry run
/// it observes.
///
/// # Errors
/// Where the kernel lacks what the backend needs, or refuses it. Then nothing has changed.
pub fn start(options: &Options) -> Result<Box<dyn Guard>, Error> {
    options.check()?;
    match options.backend {
        Backend::SchedExt if options.dry_run => Ok(Box::new(dry_run::DryRun::start(options)?)),
        Backend::SchedExt => Ok(Box::new(sched_ext::SchedExt::start(options)?)),
        Backend::Eevdf => Ok(Box::new(eevdf::Eevdf::start(options)?)),
    }
}

/// How often a cancellation is looked for.
const NAP: Duration = Duration::from_millis(250);

/// Lets `guard` work until `cancel` is set or `length` has passed; hands its statistics to `each`
/// every `interval`, and at the end. Meanwhile answers who asks by `control`.
///
/// # Errors
/// [`Error::Ended`] when the backend was thrown out, or what `each` returned.
pub fn run<E: From<Error>>(
    guard: &mut dyn Guard,
    interval: Duration,
    length: Option<Duration>,
    cancel: &AtomicBool,
    control: Option<&Control>,
    mut each: impl FnMut(&Statistics) -> Result<(), E>,
) -> Result<(), E> {
    let begun = Instant::now();
    let mut due = begun + interval;
    loop {
        guard.look()?;
        let over = length.is_some_and(|length| begun.elapsed() >= length);
        let ended = guard.ended();
        let done = over || ended.is_some() || cancel.load(Ordering::Relaxed);
        if done || Instant::now() >= due {
            each(&guard.statistics()?)?;
            due = Instant::now() + interval;
        }
        if let Some(why) = ended {
            return Err(Error::Ended(why).into());
        }
        if done {
            return Ok(());
        }
        let nap = NAP.min(due.saturating_duration_since(Instant::now()));
        match control {
            Some(control) => control.serve(guard, nap),
            None => std::thread::sleep(nap),
        }
    }
}
