// SPDX-License-Identifier: MIT OR Apache-2.0
//! System V shared memory, the kernel's and ours: a segment's life (made, attached, detached,
//! removed), of one page and of 1 MiB of which each page is written once; attaching alone; what the
//! first write to a page costs; and a fork by a process that has a segment attached.

use super::sides::{self, Measure, Sample};
use super::{Prepared, alone, column};
use crate::clock;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::result::{Unit, median};
use crate::sysv::{Attached, Sysv};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

pub fn prepare<'a>(options: &'a Options) -> Result<Prepared<'a>> {
    let measure = |title: &str, unit, sample: Box<Sample<'a>>| Measure {
        column: column(title, unit),
        sample,
    };
    let whole = move |side, length| Ok(written(side, length, options)?.0 / 1e3);
    let first = move |side, length| Ok(written(side, length, options)?.1);
    let mut prepared = sides::prepare(vec![
        measure("life, one page untouched", Unit::Microseconds, Box::new(life)),
        measure("attach and detach", Unit::Microseconds, Box::new(attach)),
        measure("fork and wait, attached", Unit::Microseconds, Box::new(fork)),
        measure("life, 1 MiB written", Unit::Microseconds, Box::new(whole)),
        measure("first write to a page", Unit::Nanoseconds, Box::new(first)),
    ])?;
    let what = "a life: made, attached, detached and removed";
    prepared.notes.insert(0, what.into());
    Ok(prepared)
}

fn page_size() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn life(side: Sysv, length: Duration) -> Result<f64> {
    let live = || side.segment(1)?.attach().map(drop);
    Ok(alone(length, |n| (0..n).filter(|_| live().is_err()).count() as u64)? / 1e3)
}

fn attach(side: Sysv, length: Duration) -> Result<f64> {
    let segment = side.segment(MIB)?;
    let once = || segment.attach().map(drop);
    Ok(alone(length, |n| (0..n).filter(|_| once().is_err()).count() as u64)? / 1e3)
}

unsafe extern "C" {
    /// The C library's fork without handlers.
    fn _Fork() -> libc::pid_t;
}

/// A fork, until its child has ended.
fn fork(side: Sysv, length: Duration) -> Result<f64> {
    let segment = side.segment(MIB)?;
    let _attached = segment.attach()?;
    let once = || {
        // SAFETY: the child ends at once. The handlers are ours: none run on the kernel's side.
        unsafe {
            let child = match side {
                Sysv::Kernel => _Fork(),
                Sysv::Reprieve(_) => libc::fork(),
            };
            if child == 0 {
                libc::_exit(0);
            }
            if matches!(side, Sysv::Reprieve(_)) {
                reprieve_ipc::forked(child);
            }
            libc::waitpid(child, std::ptr::null_mut(), 0) == child
        }
    };
    Ok(alone(length, |n| (0..n).filter(|_| !once()).count() as u64)? / 1e3)
}

/// A life whose pages are all written, and the first write to one of them; in ns.
fn written(side: Sysv, length: Duration, options: &Options) -> Result<(f64, f64)> {
    let page = page_size();
    let (mut lives, mut writes) = (vec![], vec![]);
    let end = Instant::now() + length;
    while lives.is_empty() || Instant::now() < end {
        options.check()?;
        let begun = clock::now();
        let segment = side.segment(MIB)?;
        let attached = segment.attach()?;
        let before = clock::now();
        let found = write(&attached, page);
        writes.push((clock::now() - before) as f64 / (MIB / page) as f64);
        drop((attached, segment));
        lives.push((clock::now() - begun) as f64);
        if found != 0 {
            let what = "a new segment was not all zeros".into();
            return Err(Error::Broken { subject: side.name().into(), what });
        }
    }
    Ok((median(&lives), median(&writes)))
}

/// Writes to each page; what was there before, added up.
fn write(attached: &Attached, page: usize) -> u64 {
    let words = (0..MIB).step_by(page).map(|at| {
        // SAFETY: within the segment, of which nobody else knows.
        unsafe {
            let word = attached.start().add(at).cast::<u64>();
            let found = word.read_volatile();
            word.write_volatile(at as u64 + 1);
            found
        }
    });
    words.sum()
}
