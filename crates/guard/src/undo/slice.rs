// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slice of a single thread under EEVDF, the stock scheduler.
//!
//! Since Linux 6.12, `sched_setattr` takes a thread's request size (`sched_runtime`): how long it
//! wants to run at a time. The share of the CPU stays the same; a thread with shorter requests gets
//! them granted sooner. The kernel takes 0.1 to 100 ms; 0 stands for its own default. Older kernels
//! ignore the field without an error, so [`supported`] tries it.

use libc::{SYS_sched_getattr, SYS_sched_setattr, pid_t, sched_attr, syscall};
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The part of `sched_attr` that every version of the kernel has (`SCHED_ATTR_SIZE_VER0`).
const SIZE: u32 = size_of::<sched_attr>() as u32;
const _: () = assert!(SIZE == 48);

/// The thread keeps its policy and whether its children have that, whoever changes them meanwhile.
const KEEP_POLICY: u64 = 8;

/// Slices that the kernel takes; it silently clamps others.
pub const MIN: Duration = Duration::from_micros(100);
pub const MAX: Duration = Duration::from_millis(100);

/// The slice that guard gives to vCPUs, and that tells them from others: half a millisecond, as an
/// administrator would choose it, and some nanoseconds, as nobody would.
pub const SHORT: Duration = Duration::from_nanos(500_017);

/// The slice of thread `tid`; zero on a kernel without custom slices.
pub fn get(tid: u32) -> io::Result<Duration> {
    Ok(Duration::from_nanos(fair(tid)?.sched_runtime))
}

/// The slice that threads have without a custom one. (A new thread has that of who starts it.)
pub fn default() -> io::Result<Duration> {
    tried(None)
}

/// What a thread of its own gets that asks for the slice.
fn tried(slice: Option<Duration>) -> io::Result<Duration> {
    let new = move || {
        set(0, slice)?;
        get(0)
    };
    std::thread::spawn(new).join().unwrap_or_else(|_| Err(io::Error::other("a panic")))
}

/// Gives thread `tid` a slice of its own, or the default again. Its policy and its nice value stay.
/// (The kernel cannot be asked to keep a nice value that somebody sets at the same moment.)
///
/// # Errors
/// [`NotFound`](io::ErrorKind::NotFound) for a thread that is gone,
/// [`Unsupported`](io::ErrorKind::Unsupported) for one that EEVDF does not schedule.
pub fn set(tid: u32, slice: Option<Duration>) -> io::Result<()> {
    let mut new = fair(tid)?;
    (new.size, new.sched_flags) = (SIZE, KEEP_POLICY);
    new.sched_runtime = slice.map_or(0, |slice| slice.as_nanos() as u64);
    // SAFETY: the kernel reads `SIZE` bytes of `new`.
    let done = unsafe { syscall(SYS_sched_setattr, tid as pid_t, &raw const new, 0) };
    let error = (done != 0).then(last_error);
    // The thread may have got another policy meanwhile, with which the call fails or means nothing.
    fair(tid)?;
    error.map_or(Ok(()), Err)
}

/// Gives thread `tid` the slice `short` if it has the `default`.
///
/// # Errors
/// If somebody has chosen another slice for it, and as [`set`].
pub fn shorten(tid: u32, default: Duration, short: Duration) -> io::Result<()> {
    match get(tid)? {
        now if now == short => Ok(()),
        now if now == default => set(tid, Some(short)),
        other => Err(io::Error::other(format!("thread {tid} has a slice of its own, {other:?}"))),
    }
}

/// Gives all threads with this slice the default again, and counts them.
///
/// # Errors
/// When `/proc` cannot be listed, or a slice cannot be set.
pub fn restore_all(of: Duration) -> io::Result<usize> {
    let mut restored = 0;
    for process in std::fs::read_dir("/proc")?.flatten() {
        // Not a process, or gone.
        let Ok(threads) = std::fs::read_dir(process.path().join("task")) else { continue };
        let tids = threads.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
        for tid in tids.filter(|&tid| get(tid).is_ok_and(|slice| slice == of)) {
            match set(tid, None) {
                Ok(()) => restored += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(restored)
}

fn fair(tid: u32) -> io::Result<sched_attr> {
    let mut found = MaybeUninit::<sched_attr>::uninit();
    // SAFETY: the kernel writes `SIZE` bytes to `found` if it returns 0.
    let found = unsafe {
        match syscall(SYS_sched_getattr, tid as pid_t, found.as_mut_ptr(), SIZE, 0) {
            0 => found.assume_init(),
            _ => return Err(last_error()),
        }
    };
    match found.sched_policy as i32 {
        libc::SCHED_OTHER | libc::SCHED_BATCH => Ok(found),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("thread {tid} is scheduled by another policy than SCHED_OTHER"),
        )),
    }
}

fn last_error() -> io::Error {
    match io::Error::last_os_error() {
        gone if gone.raw_os_error() == Some(libc::ESRCH) => {
            io::Error::new(io::ErrorKind::NotFound, gone)
        }
        error => error,
    }
}

/// Whether this kernel schedules by custom slices now.
///
/// # Errors
/// The reason why not, as a sentence.
pub fn supported() -> Result<(), String> {
    if let Some(other) = super::server::loaded_scheduler() {
        return Err(format!("{other}, for which slices of EEVDF mean nothing: stop it"));
    }
    let own = Duration::from_micros(3700);
    match tried(Some(own)) {
        Ok(slice) if slice == own => Ok(()),
        Ok(_) => Err("this kernel has no custom slices: Linux 6.12 and newer have".into()),
        Err(error) => Err(format!("setting a slice: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_set_read_and_taken_back() {
        if let Err(why) = supported() {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
            let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
            let mut next = || numbers.next().unwrap().unwrap();
            assert!((next(), next()) < (6, 12), "{why}");
            return;
        }
        let default = default().unwrap();
        assert!(default >= MIN, "{default:?}");
        let thread = std::thread::spawn(move || {
            // Whoever runs the tests may have given them another policy.
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: `parameters` is valid for the read.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
            for slice in [MIN, Duration::from_micros(500), MAX] {
                set(0, Some(slice)).unwrap();
                assert_eq!(get(0).unwrap(), slice);
            }
            assert_eq!(super::default().unwrap(), default, "not that of this thread");
            set(0, None).unwrap();
            let policy = libc::SCHED_BATCH | libc::SCHED_RESET_ON_FORK;
            // SAFETY: as above.
            unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
            set(0, Some(MIN)).unwrap();
            // SAFETY: no memory is passed.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, policy, "it stays");
            set(0, None).unwrap();
            assert_eq!(get(0).unwrap(), default);
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_slice_that_somebody_chose_stays() {
        if supported().is_err() {
            return;
        }
        // Not SHORT: a guard that ends meanwhile would restore this thread's slice as well.
        let mark = SHORT + Duration::from_nanos(1);
        let tried = std::thread::spawn(move || {
            let (tid, default) = (rustix::thread::gettid(), super::default().unwrap());
            let tid = tid.as_raw_nonzero().get() as u32;
            set(tid, Some(2 * MIN)).unwrap();
            assert!(shorten(tid, default, mark).unwrap_err().to_string().contains("of its own"));
            assert_eq!(get(tid).unwrap(), 2 * MIN);
            set(tid, None).unwrap();
            (0..2).for_each(|_| shorten(tid, default, mark).unwrap());
            assert_eq!(get(tid).unwrap(), mark);
            assert_eq!(restore_all(mark).unwrap(), 1);
            assert_eq!(get(tid).unwrap(), default);
        });
        tried.join().unwrap();
    }

    #[test]
    fn a_thread_that_is_gone_is_not_found() {
        // The largest PID there can be is 2^22.
        let error = set(1 << 23, Some(MIN)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
