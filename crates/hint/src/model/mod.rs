// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models: every interleaving (and every value a weak memory may return) of each lock's protocol,
//! on the same source, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib -p reprieve-hint`
//!
//! The model's stand-ins:
//! - membarrier and the compiler barrier it pairs with: a fence on either side;
//! - the kernel's futex: a queue under a lock, which never wakes a thread without a reason, so that
//!   a lost wake-up is a deadlock that the checker reports;
//! - what the scheduler does, and the time: a number that every waiter changes and everybody reads
//!   without any order, so the checker tries each answer (`platform::env`).
//!
//! Each protocol also stands here broken, and then the model must fail. Those tests are ignored,
//! and run in processes of their own by `broken_protocols_are_caught`.

#[cfg(test)]
mod condition;
#[cfg(test)]
mod mutex;
#[cfg(test)]
mod rw;
#[cfg(test)]
mod word;

#[cfg(test)]
pub(crate) mod tools {
    use crate::wait::set_looks;
    use loom::cell::UnsafeCell;

    /// All interleavings with at most `preemptions` switches that a thread did not ask for.
    pub(crate) fn check(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.max_branches = 20_000;
        model.check(f);
    }

    /// The same with threads that sleep at once: many more threads or switches fit into the time.
    pub(crate) fn check_sleepers(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
        set_looks(1);
        check(preemptions, f);
        set_looks(2);
    }

    /// The same with threads to which nothing says that they had better sleep.
    pub(crate) fn check_spinners(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
        set_looks(u32::MAX);
        check(preemptions, f);
        set_looks(2);
    }

    /// Tests that must fail, each with its protocol broken.
    macro_rules! caught {
        ($($name:ident: $how:ident, $check:ident($preemptions:expr), $threads:expr;)*) => {$(
            #[test]
            #[ignore = "must fail: run by broken_protocols_are_caught"]
            fn $name() {
                crate::platform::env::break_it(crate::platform::env::How::$how);
                crate::model::tools::$check($preemptions, || $threads);
            }
        )*};
    }
    pub(crate) use caught;

    /// A value that a lock protects: loom reports two accesses at the same time.
    pub(crate) struct Protected(UnsafeCell<u32>);

    impl Protected {
        pub(crate) fn new() -> Protected {
            Protected(UnsafeCell::new(0))
        }

        pub(crate) fn write(&self) {
            // SAFETY: loom reports the access if it is not alone.
            self.0.with_mut(|value| unsafe { *value += 1 });
        }

        pub(crate) fn read(&self) -> u32 {
            // SAFETY: as above.
            self.0.with(|value| unsafe { *value })
        }
    }

    #[test]
    fn broken_protocols_are_caught() {
        let tests = |args: &[&str]| {
            let exe = std::env::current_exe().unwrap();
            std::process::Command::new(exe).args(args).output().unwrap()
        };
        let list = String::from_utf8(tests(&["--list", "--ignored"]).stdout).unwrap();
        let names: Vec<_> = list.lines().filter_map(|l| l.strip_suffix(": test")).collect();
        assert!(names.len() >= 9, "{list}");
        for name in names {
            let run = tests(&["--exact", name, "--ignored", "--nocapture"]);
            let text = String::from_utf8_lossy(&run.stderr);
            assert!(!run.status.success(), "{name} was not caught");
            // By the check, not by a limit of the checker.
            let found = ["assertion", "Causality violation", "concurrent", "deadlock"]
                .iter()
                .any(|cause| text.contains(cause));
            assert!(found, "{name}: {text}");
        }
    }
}
