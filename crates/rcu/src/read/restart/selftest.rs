// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has the self-test of restartable sections run once, by whoever needs its result first.

use crate::platform::facts::{self, Restartable};
use crate::platform::sys;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::probe::run;

/// [`facts`] has the answer: there are no such sections here.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn run() -> Restartable {
    Restartable::Architecture
}

/// Runs the self-test unless its result is known, and tells whether lookups may use restartable
/// sections.
///
/// While another thread runs the test, the caller sleeps until the result is known. A lookup in a
/// plain section instead would hold grace periods up, for long where more readers start together
/// than there are CPUs. So a caller that is inside a plain section must not come here
/// (`find_restart`). A signal handler may: the thread that runs the test has its signals blocked,
/// and needs nothing that another thread holds.
pub(crate) fn restartable() -> Restartable {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    super::arch::describe_section();
    loop {
        if let Some(known) = facts::restartable() {
            return known;
        }
        let running = facts::running_self_test();
        if running.is_some_and(facts::await_self_test) {
            continue;
        }
        let _blocked = sys::SignalsBlocked::new();
        if let Some(test) = facts::begin_self_test(running) {
            match facts::end_self_test(test, run()) {
                Some(noted) => return noted,
                // The last of several tests that replaced each other counts.
                None if facts::running_self_test().is_some() => continue,
                None => return Restartable::SelfTestInconclusive,
            }
        }
    }
}

/// The final answer: after it no thread runs a self-test any more.
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn settled() -> Restartable {
    loop {
        restartable();
        match facts::restartable() {
            Some(answer) => return answer,
            None => std::thread::yield_now(),
        }
    }
}
