// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping on a word.

use super::clock::timespec;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` and `time` outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, time) };
}

pub(crate) fn futex_wake(word: &AtomicU32, threads: i32) {
    // SAFETY: the kernel only uses the address of `word`.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            threads,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_times_are_slept() {
        let word = std::sync::Arc::new(AtomicU32::new(0));
        let sleeper = word.clone();
        let thread = std::thread::spawn(move || {
            while sleeper.load(std::sync::atomic::Ordering::SeqCst) == 0 {
                futex_wait(&sleeper, 0, Some(Duration::MAX));
                assert_ne!(sleeper.load(std::sync::atomic::Ordering::SeqCst), 0, "woke early");
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        word.store(1, std::sync::atomic::Ordering::SeqCst);
        futex_wake(&word, 1);
        thread.join().unwrap();
    }
}
