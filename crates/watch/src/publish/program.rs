// SPDX-License-Identifier: MIT OR Apache-2.0
//! The eBPF program, loaded and attached, and the page that it writes. Dropping it detaches and
//! unloads it; the page's memory lives on in processes that mapped it, with a beat that has
//! stopped.

use super::{Counts, Error};
use crate::raw::{complaints, keep_complaint, lacks_right, storage};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramInput};
use reprieve_hint::abi::{Hello, PROCESSES};
use skeleton::{PublishSkel, PublishSkelBuilder, types};
use std::os::fd::{AsFd, BorrowedFd};

/// Written by libbpf-cargo from `bpf/publish.bpf.c`.
#[allow(clippy::undocumented_unsafe_blocks, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/publish.skel.rs"));
}

pub struct Program {
    _links: Vec<Link>,
    skel: PublishSkel<'static>,
}

impl Program {
    pub fn load() -> Result<Program, Error> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, keep_complaint)));
        let open = PublishSkelBuilder::default().open(storage()).map_err(refused("open"))?;
        let skel = open.load().map_err(refused("load"))?;
        // From now on, only the program writes to it: descriptors of it that may only read cannot
        // be mapped.
        let page = MapHandle::try_from(&skel.maps.page).map_err(refused("map"))?;
        page.freeze().map_err(refused("freeze"))?;
        let programs = &skel.progs;
        let programs = [
            &programs.publish_switch,
            &programs.publish_wakeup,
            &programs.publish_wakeup_new,
            &programs.publish_exec,
            &programs.publish_exit,
        ];
        let mut links = Vec::new();
        for program in programs {
            links.push(program.attach().map_err(refused("attach"))?);
        }
        let program = Program { _links: links, skel };
        // The page's head.
        program.reset(PROCESSES, 0)?;
        Ok(program)
    }

    /// The page, which can only be read, by whoever maps it.
    pub fn page(&self) -> BorrowedFd<'_> {
        self.skel.maps.page.as_fd()
    }

    /// A process's part of the page: nothing is known of its threads.
    pub fn reset(&self, slot: usize, key: u64) -> Result<(), Error> {
        let mut order = types::order { key, slot: slot as u32, pad: 0 };
        let size = size_of_val(&order);
        // SAFETY: plain integers without padding.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut order).cast::<u8>(), size) };
        let input = ProgramInput { context_in: Some(bytes), ..ProgramInput::default() };
        self.skel.progs.publish_order.test_run(input).map_err(refused("run"))?;
        Ok(())
    }

    pub fn register(&self, pid: u32, slot: usize, hello: &Hello) -> Result<(), libbpf_rs::Error> {
        let registration = types::registration {
            block: hello.block,
            reader: hello.reader,
            table: hello.table,
            lines: hello.lines,
            slot: slot as u32,
        };
        // SAFETY: plain integers without padding.
        let bytes = unsafe {
            let at = (&raw const registration).cast::<u8>();
            std::slice::from_raw_parts(at, size_of_val(&registration))
        };
        self.skel.maps.processes.update(&pid.to_ne_bytes(), bytes, MapFlags::ANY)
    }

    pub fn forget(&self, pid: u32) {
        let _ = self.skel.maps.processes.delete(&pid.to_ne_bytes());
    }

    /// The slot that the process's threads have.
    #[cfg(test)]
    pub fn slot_of(&self, pid: u32) -> Option<usize> {
        let at = std::mem::offset_of!(types::registration, slot);
        let bytes = self.skel.maps.processes.lookup(&pid.to_ne_bytes(), MapFlags::ANY).ok()??;
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
    }

    /// How many processes there are. Without one the program does nothing.
    pub fn set_registered(&mut self, processes: usize) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.registered = processes as u32;
        }
    }

    pub fn counts(&self) -> Counts {
        let values = self.skel.maps.counts.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let mut sum = Counts::default();
        for bytes in values.ok().flatten().unwrap_or_default() {
            let word = |i: usize| {
                let bytes = bytes.get(i * 8..i * 8 + 8).and_then(|b| b.try_into().ok());
                bytes.map_or(0, u64::from_ne_bytes)
            };
            sum.switches += word(0);
            sum.preempted += word(1);
            sum.in_non_preemptable += word(2);
            sum.in_preemptable += word(3);
            sum.in_reader += word(4);
        }
        sum
    }
}

fn refused(step: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |error| {
        if lacks_right(&error) {
            let (what, hint) = ("the right to load eBPF programs", "run it as root");
            return Error::Missing { what, hint };
        }
        let message = format!("{}; it needs Linux 5.18 or newer with BTF", complaints(&error));
        Error::Bpf { step, message }
    }
}
