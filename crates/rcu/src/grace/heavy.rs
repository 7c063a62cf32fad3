// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heavy half of the asymmetric fence, in each of its forms. `platform/barrier.rs` says what
//! the two halves guarantee together.
//!
//! | function | how | for |
//! |---|---|---|
//! | [`interrupt`] | membarrier, which spins until every CPU has answered | callers that must be quick, or that keep others out |
//! | [`cheapest`] | per-CPU threads where the membarrier was seen to spin | callers that may sleep |
//! | [`restart_until`] | the same for [`Kind::Restart`], with a deadline | leaders of grace periods |

#[cfg(not(loom))]
use super::cpu_threads::{self, Reached};
use crate::platform::barrier::Kind;
#[cfg(not(loom))]
use crate::platform::barrier::{fence_all, restart_all};
use crate::thread::registry::Registry;

/// By interrupts, at once.
#[cfg(not(loom))]
pub(crate) fn interrupt(kind: Kind, _: &Registry) {
    match kind {
        Kind::Restart => restart_all(),
        kind => fence_all(kind),
    }
}

/// In a model the restart is an interrupt on each reader's CPU, between two of its instructions.
#[cfg(loom)]
pub(crate) fn interrupt(kind: Kind, registry: &Registry) {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    if kind == Kind::Restart {
        registry.records().for_each(|r| r.cpu.lock().unwrap().interrupt());
    }
}

/// For a caller that may sleep instead of spinning: by per-CPU threads where that is cheaper now.
pub(crate) fn cheapest(kind: Kind, registry: &Registry) {
    #[cfg(not(loom))]
    if kind != Kind::Fence && cpu_threads::cheaper() {
        // Without a deadline it is done. It restarts sections, too, which harms nobody.
        cpu_threads::restart_sections(None);
        return;
    }
    interrupt(kind, registry);
}

/// The heavy barrier of [`Kind::Restart`], the cheaper way. The deadline ends the wait for per-CPU
/// threads only.
#[cfg(not(loom))]
pub(crate) fn restart_until(deadline: Option<crate::platform::Instant>) -> Reached {
    cpu_threads::restart_sections(deadline)
}
