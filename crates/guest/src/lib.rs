// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a running Linux guest from its host, with nothing installed in the guest.
//!
//! Guest RAM lies in the VMM's memory. A kernel built for crash dumps (every distribution's) keeps a page of text there that says where its page tables and its symbol
//! table are ([`kernel::vmcoreinfo`]); the symbol table leads to the types ([`kernel::btf`]) and to each CPU's own variables ([`vcpu`]); those to tasks
//! and to RCU's state ([`rcu`]). All this is worked out once per boot, in [`Guest::attach`]; what is asked for later is read live.
//!
//! What is guaranteed:
//! - **Nothing is written**, and memory that the guest has not touched stays untouched: attaching does not make the VM larger.
//! - **The guest is not trusted.** It may be damaged or lie; then calls return errors, or wrong facts about that guest, and nothing worse: lengths and loops are bounded, text is
//!   made printable.
//! - **It runs meanwhile.** One field is read in one piece; several fields belong together only where a call says so.
//!
//! ```no_run
//! use reprieve_guest::{Guest, vmm};
//! let guest = Guest::attach(&vmm::find("web")?)?;
//! for cpu in guest.online()? {
//!     let vcpu = guest.vcpu(cpu)?;
//!     let task = vcpu.current_task()?;
//!     println!("{cpu}: {} (pid {}), {} RCU readers deep", task.comm, task.pid, task.rcu_nesting.unwrap_or(0));
//! }
//! println!("grace period in progress: {:?}", guest.rcu()?.grace_period()?.age);
//! # Ok::<(), reprieve_guest::Error>(())
//! ```

mod attach;
pub mod error;
mod features;
mod guest;
pub mod kernel;
pub mod layout;
mod liveness;
pub mod memory;
mod modules;
pub mod rcu;
mod source;
pub mod task;
pub mod vcpu;
pub mod vmm;
mod zones;

pub use attach::{Options, Through};
pub use error::{Error, Result};
pub use features::{Paravirt, Settings, Use};
pub use guest::{Guest, VcpuView};
pub use kernel::symbols::{Resolved, Symbol, Symbols};
pub use kernel::types::{Field, Types};
pub use layout::BpfLayout;
pub use liveness::Liveness;
pub use memory::Memory;
pub use modules::Module;
pub use rcu::Rcu;
pub use rcu::grace::{BlockedReader, GracePeriod, KthreadState, Model, Owing, Preemption, RcuData};
pub use source::Sources;
pub use task::Task;
pub use vcpu::{PreemptBits, PreemptCount};
pub use zones::Zone;
