// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libreprieve_ipc.so`: the C library's System V IPC functions, for `LD_PRELOAD`.
//!
//! `opened` has the namespace, `calls` the functions, `numbers` has `syscall` for programs that go
//! round them, `structures` the kernel's layouts. `signals` stands before the program's signal
//! handlers, `process` watches forks and changes of credentials. `next` finds the C library's own
//! functions; `reach` has those of System V IPC lead here.

mod calls;
mod next;
mod numbers;
mod opened;
mod process;
mod reach;
mod signals;
mod structures;
