// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the eBPF program's ring buffer to the data model's events, in the order of time.

use super::view;
use crate::model::{Event, Location};
use crate::raw::clock::now_ns;
use crate::raw::types::event_kind as Kind;
use crate::raw::{Program, types};
use crate::vms::discovery::Machines;
use crate::vms::machine::Machine;
use std::collections::BTreeMap;

/// A CPU stamps an event before it puts it into the buffer, and finds a vCPU that came unseen only
/// at its next tick. So the youngest events are kept back until an older one is hardly possible.
const UNORDERED_NS: u64 = 15_000_000;

#[derive(Default)]
pub struct Events {
    /// Younger than what has been handed over.
    waiting: Vec<types::event>,
    /// Time of the last event handed over.
    last: u64,
    /// Younger than that: when events were lost, and how many.
    gaps: Vec<(u64, u64)>,
    lost: u64,
}

impl Events {
    /// Events since the last call.
    pub fn take(&mut self, program: &Program, machines: &Machines) -> Vec<Event> {
        let until = now_ns().saturating_sub(UNORDERED_NS);
        let last = self.last;
        // An event that comes too late all the same (the CPU itself was taken away before it could
        // put the event into the buffer) is moved: whoever reads events relies on their order.
        program.events(|event| {
            self.waiting.push(types::event { time: event.time.max(last), ..event });
        });
        self.waiting.sort_by_key(|event| event.time);
        let ripe = self.waiting.partition_point(|event| event.time <= until);
        let lost = program.lost();
        if lost > self.lost {
            let (first, end) = program.lost_between();
            self.gaps.extend([(first.max(last), lost - self.lost), (end.max(last), 0)]);
            self.gaps.sort_by_key(|gap| gap.0);
            self.lost = lost;
        }
        let mut out = Vec::with_capacity(ripe);
        let machines = machines.lock();
        let by_pid: BTreeMap<u32, &Machine> =
            machines.values().map(|machine| (machine.key.pid, machine)).collect();
        out.extend(
            self.waiting
                .drain(..ripe)
                .filter_map(|event| translate(&event, by_pid.get(&event.tgid).copied())),
        );
        drop(machines);
        let ripe = self.gaps.partition_point(|gap| gap.0 <= until);
        for (time_ns, count) in self.gaps.drain(..ripe) {
            let at = out.partition_point(|event: &Event| event.time_ns() <= time_ns);
            out.insert(at, Event::Lost { time_ns, count });
        }
        self.last = out.last().map_or(self.last, Event::time_ns);
        out
    }
}

fn translate(event: &types::event, machine: Option<&Machine>) -> Option<Event> {
    let (time_ns, pid, vcpu, seq) = (event.time, event.tgid, event.vcpu, event.seq as i64);
    Some(match event.kind {
        Kind::EVENT_ON => {
            let preempted = u32::from(event.class) < types::class::CLASSES.0;
            let was = preempted.then(|| view::class(types::class(event.class.into())));
            Event::On { time_ns, pid, vcpu, cpu: event.cpu, was }
        }
        Kind::EVENT_PREEMPTED => {
            let class = view::class(types::class(event.class.into()));
            let guest = machine.and_then(|m| m.attached()).map(|a| &a.guest);
            let at = Location {
                task: (event.pid >= 0).then(|| text(&event.comm)),
                pid: (event.pid >= 0).then_some(event.pid),
                function: guest.and_then(|guest| view::function(guest, class, event.rip)),
            };
            Event::Preempted { time_ns, pid, vcpu, class, reader: event.reader != 0, at }
        }
        Kind::EVENT_BLOCKED => Event::Blocked { time_ns, pid, vcpu },
        Kind::EVENT_GRACE_BEGAN => Event::GraceBegan { time_ns, pid, seq },
        Kind::EVENT_GRACE_ENDED => Event::GraceEnded { time_ns, pid, seq },
        _ => return None,
    })
}

/// A task's name, with what a terminal could take for a command made harmless.
pub(super) fn text(comm: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = comm.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    reprieve_page::plain(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::constants::NO_PID;

    #[test]
    fn a_hostile_name_is_made_harmless() {
        let comm = *b"\x1b[2Jx\xff\0secret";
        let comm: Vec<std::ffi::c_char> = comm.iter().map(|&b| b as std::ffi::c_char).collect();
        assert_eq!(text(&comm), "?[2Jx\u{fffd}");
    }

    #[test]
    fn what_the_program_cannot_have_written_is_no_event() {
        let event = types::event { kind: Kind(9), ..types::event::default() };
        assert_eq!(translate(&event, None), None);
        let event = types::event {
            kind: Kind::EVENT_PREEMPTED,
            class: 77,
            pid: NO_PID,
            ..types::event::default()
        };
        assert!(matches!(
            translate(&event, None),
            Some(Event::Preempted { class: crate::model::Class::Unknown, at, .. }) if at == Location::default()
        ));
    }
}
