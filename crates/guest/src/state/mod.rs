// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a running kernel: its CPUs, tasks, modules, free memory and settings.

pub(crate) mod clock;
pub(crate) mod modules;
pub(crate) mod settings;
pub(crate) mod spins;
pub mod task;
pub mod vcpu;
