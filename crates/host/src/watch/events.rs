// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the eBPF program's ring buffer to the data model's events, in the order of time.

use super::clock::now_ns;
use super::keeper::Machines;
use super::machine::Machine;
use super::model::{Event, Place};
use super::raw::{Program, types};
use super::view;
use std::collections::BTreeMap;

/// CPUs stamp an event before they put it into the buffer: younger ones are kept back until others cannot be older any more.
/// That a vCPU came unseen is found at the next tick of its CPU.
const UNORDERED_NS: u64 = 15_000_000;

/// `enum event_kind` of `bpf/watch.h`.
const ON: u32 = 0;
const PREEMPTED: u32 = 1;
const BLOCKED: u32 = 2;
const GRACE_BEGAN: u32 = 3;
const GRACE_ENDED: u32 = 4;

#[derive(Default)]
pub struct Events {
    /// Younger than what has been handed over.
    waiting: Vec<types::event>,
    lost: u64,
}

impl Events {
    /// What happened since the last call.
    pub fn take(&mut self, program: &Program, machines: &Machines) -> Vec<Event> {
        let until = now_ns().saturating_sub(UNORDERED_NS);
        program.events(|event| self.waiting.push(event));
        self.waiting.sort_by_key(|event| event.time);
        let ripe = self.waiting.partition_point(|event| event.time <= until);
        let mut out = Vec::with_capacity(ripe + 1);
        let lost = program.lost();
        if lost > self.lost {
            let time_ns = self.waiting.first().map_or(until, |event| event.time);
            out.push(Event::Lost { time_ns, count: lost - self.lost });
            self.lost = lost;
        }
        let machines = machines.lock();
        let by_pid: BTreeMap<u32, &Machine> =
            machines.values().map(|machine| (machine.key.pid, machine)).collect();
        out.extend(
            self.waiting
                .drain(..ripe)
                .filter_map(|event| translate(&event, by_pid.get(&event.tgid).copied())),
        );
        out
    }
}

fn translate(event: &types::event, machine: Option<&Machine>) -> Option<Event> {
    let (time_ns, pid, vcpu, seq) = (event.time, event.tgid, event.vcpu, event.seq);
    Some(match event.kind {
        ON => Event::On { time_ns, pid, vcpu, cpu: event.cpu },
        PREEMPTED => {
            let class = view::class(event.class.into());
            let guest = machine.and_then(|m| m.attached.as_ref()).map(|a| &a.guest);
            let at = Place {
                task: (event.pid >= 0).then(|| text(&event.comm)),
                pid: (event.pid >= 0).then_some(event.pid),
                function: guest.and_then(|guest| view::function(guest, class, event.rip)),
            };
            Event::Preempted { time_ns, pid, vcpu, class, reader: event.reader != 0, at }
        }
        BLOCKED => Event::Blocked { time_ns, pid, vcpu },
        GRACE_BEGAN => Event::GraceBegan { time_ns, pid, seq },
        GRACE_ENDED => Event::GraceEnded { time_ns, pid, seq },
        _ => return None,
    })
}

/// A task's name, with what a terminal could take for a command made harmless.
fn text(comm: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = comm.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_made_harmless() {
        let comm = *b"\x1b[2Jx\xff\0secret";
        let comm: Vec<std::ffi::c_char> = comm.iter().map(|&b| b as std::ffi::c_char).collect();
        assert_eq!(text(&comm), "?[2Jx\u{fffd}");
    }

    #[test]
    fn what_the_program_cannot_have_written_is_no_event() {
        let event = types::event { kind: 9, ..types::event::default() };
        assert_eq!(translate(&event, None), None);
        let event = types::event { kind: PREEMPTED, class: 77, pid: -1, ..types::event::default() };
        assert!(matches!(
            translate(&event, None),
            Some(Event::Preempted { class: super::super::model::Class::Unknown, at, .. }) if at == Place::default()
        ));
    }
}
