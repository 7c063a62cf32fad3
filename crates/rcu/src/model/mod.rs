// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models: every interleaving (and every value a weak memory may return) of each protocol, on the
//! same source, by loom. Stands on all folders that it checks; nothing stands on it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib -p reprieve`
//!
//! The models' stand-ins:
//! - membarrier and the compiler barrier it pairs with: a sequentially consistent fence on either
//!   side (`platform/barrier.rs`);
//! - a node: an `UnsafeCell` of loom's, which fails the model when a read and the free are not
//!   ordered;
//! - a restartable section: [`Cpu`](crate::platform::cpu::Cpu). Each of its instructions runs under
//!   the CPU's lock, and membarrier's restart is taken under the same lock, that is, between two
//!   instructions.
//!
//! Each protocol also stands here broken, and then the model must fail: a check that cannot fail
//! proves nothing. Those tests are ignored, and run in processes of their own (a failing model may
//! abort) by [`tools::broken_protocols_are_caught`].

#[cfg(test)]
mod callbacks;
#[cfg(test)]
mod cell;
#[cfg(test)]
mod cpu_threads;
#[cfg(test)]
mod grace;
#[cfg(test)]
mod list;
#[cfg(test)]
mod map;
#[cfg(test)]
mod ordered;
#[cfg(test)]
mod prefix;
#[cfg(test)]
mod protect;
#[cfg(test)]
mod readers;
#[cfg(test)]
mod traversal;

#[cfg(test)]
pub(crate) mod tools {
    use crate::grace::engine::{Attempt, GraceEngine};
    use crate::grace::urgency::Urgency;
    use crate::platform::barrier::Kind;
    use crate::platform::sync::{AtomicPtr, Ordering};
    use crate::thread::pool::Pool;
    use crate::thread::record::Record;
    use crate::thread::registry::Registry;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// All interleavings with at most `preemptions` switches that a thread did not ask for.
    pub(crate) fn check(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.max_branches = 20_000;
        model.check(f);
    }

    #[test]
    fn broken_protocols_are_caught() {
        let tests = |args: &[&str]| {
            let exe = std::env::current_exe().unwrap();
            std::process::Command::new(exe).args(args).output().unwrap()
        };
        let list = String::from_utf8(tests(&["--list", "--ignored"]).stdout).unwrap();
        let names: Vec<_> = list.lines().filter_map(|l| l.strip_suffix(": test")).collect();
        assert!(names.len() >= 8, "{list}");
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

    pub(crate) struct Node(UnsafeCell<u64>);

    impl Node {
        pub(crate) fn make(value: u64) -> *mut Node {
            Box::into_raw(Box::new(Node(UnsafeCell::new(value))))
        }

        pub(crate) fn read(node: *const Node) -> u64 {
            // SAFETY: loom reports the access if the node may be freed before or while it happens;
            // the memory itself is never given back.
            unsafe { (*node).0.with(|v| *v) }
        }

        /// Free and poison.
        pub(crate) fn free(node: *mut Node) {
            // SAFETY: as above.
            unsafe { (*node).0.with_mut(|v| *v = u64::MAX) }
        }
    }

    /// A pointer, and a domain's worth of readers.
    pub(crate) struct World {
        pub(crate) registry: Registry,
        pub(crate) pool: Pool,
        pub(crate) urgency: Urgency,
        pub(crate) pointer: AtomicPtr<Node>,
    }

    impl World {
        pub(crate) fn new() -> Arc<World> {
            Arc::new(World {
                registry: Registry::new(),
                pool: Pool::new(),
                urgency: Urgency::new(),
                pointer: AtomicPtr::new(Node::make(1)),
            })
        }

        pub(crate) fn attempt(&self, barrier: Kind) -> Attempt<'_> {
            Attempt {
                registry: &self.registry,
                barrier,
                urgency: &self.urgency,
                deadline: None,
                watch: &crate::grace::watch::Watch,
            }
        }

        pub(crate) fn load(&self) -> *mut Node {
            self.pointer.load(Ordering::Acquire)
        }

        /// Unlinks the node and links another.
        pub(crate) fn replace(&self, value: u64) -> *mut Node {
            self.pointer.swap(Node::make(value), Ordering::AcqRel)
        }

        pub(crate) fn replace_and_free(&self, engine: &dyn GraceEngine, barrier: Kind) {
            let old = self.replace(2);
            assert!(engine.grace_period(&self.attempt(barrier)));
            Node::free(old);
        }

        /// A reader that registers, reads in a section, and exits.
        pub(crate) fn read_once(&self, thread: u32) {
            let record = self.registry.claim(thread).unwrap();
            self.section(record);
            record.release();
        }

        pub(crate) fn section(&self, record: &Record) {
            record.enter();
            crate::platform::barrier::light();
            assert_ne!(Node::read(self.load()), u64::MAX);
            record.leave();
        }
    }
}
