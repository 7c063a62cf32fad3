// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of recordings with known content. That a browser draws them is tested in
//! `tests/page_browser.rs`.

use super::*;
use crate::model::{Class, CurrentGrace, Event, Grace, Histogram, Location, VmState};
use crate::show::recording::Writer;
use crate::show::testing::{snapshot, vcpu, vm};
use std::path::PathBuf;

const MS: u64 = 1_000_000;
const BEGIN: u64 = 5_000 * MS;

fn at(function: &str) -> Location {
    Location {
        task: Some("dbench</script>\x1b".into()),
        pid: Some(7),
        function: Some(function.into()),
    }
}

/// Two vCPUs take turns of 5 ms for `rounds` rounds; in the middle vCPU 1 is preempted for 80 ms in
/// a reader and a grace period waits for it.
fn record(rounds: u64, change: impl Fn(u64) -> Option<Event>) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut writer = Writer::create(&path).unwrap();
    let pid = 4711;
    let mut guest = vm(pid, "db </script><b>", vec![vcpu(0), vcpu(1)]);
    writer.snapshot(snapshot(BEGIN, vec![guest.clone()])).unwrap();
    let mut now = BEGIN;
    for round in 0..rounds {
        let long = round == rounds / 2;
        let (on, off) = (round as u32 % 2, (round as u32 + 1) % 2);
        let class = if long { Class::Reader } else { Class::User };
        for event in [
            Event::GraceBegan { time_ns: now, pid, seq: 4 * round },
            Event::Preempted {
                time_ns: now,
                pid,
                vcpu: off,
                class,
                reader: long,
                at: at("__d_lookup_rcu+0x42"),
            },
            Event::On { time_ns: now, pid, vcpu: on, cpu: 0, was: None },
        ] {
            writer.event(event).unwrap();
        }
        if let Some(event) = change(now) {
            writer.event(event).unwrap();
        }
        now += if long { 80 * MS } else { 5 * MS };
        if long {
            guest.grace = Some(Grace {
                durations: Histogram::default(),
                unseen: 0,
                current: Some(CurrentGrace {
                    seq: 4 * round,
                    began_ns: now - 80 * MS,
                    began_earlier: false,
                    owing: vec![off],
                    blocked_readers: vec![],
                }),
            });
            writer.snapshot(snapshot(now - MS, vec![guest.clone()])).unwrap();
        }
        writer.event(Event::GraceEnded { time_ns: now, pid, seq: 4 * round + 1 }).unwrap();
    }
    writer.finish().unwrap();
    (dir, path)
}

fn data_of(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_preemption_that_a_grace_period_waited_for_is_named() {
    let (_dir, path) = record(100, |_| None);
    let page = page(&path).unwrap();
    let row = page.split("<tr id=\"gp-0-0\">").nth(1).unwrap().split("</tr>").next().unwrap();
    for part in [
        ">80.0 ms</a>",
        "vCPU 1, 80.0 ms reader (RCU reader)",
        "__d_lookup_rcu+0x42",
        "after 79.0 ms it waited for vCPU 1",
    ] {
        assert!(row.contains(part), "{part} in {row}");
    }
    assert!(!page.contains("too large"), "a small recording is shown whole");
    let data = data_of(&page);
    assert_eq!(data["vms"][0]["windows"][0]["periods"].as_array().unwrap().len(), 100);
    assert_eq!(data["vms"][0]["windows"][0]["segments"].as_array().unwrap().len(), 200);
}

#[test]
fn a_page_does_not_replace_its_recording() {
    let (dir, path) = record(20, |_| None);
    let before = std::fs::read(&path).unwrap();
    let link = dir.path().join("link");
    std::fs::hard_link(&path, &link).unwrap();
    for out in [&path, &link] {
        assert!(matches!(write(&path, out), Err(Error::Same(_))));
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn nothing_from_a_guest_becomes_markup() {
    let (_dir, path) = record(20, |_| None);
    let page = page(&path).unwrap();
    assert!(!page.contains("<b>") && !page.contains('\x1b'));
    assert_eq!(page.matches("</script>").count(), 2, "the data and the script");
    data_of(&page);
}

#[test]
fn a_large_recording_keeps_time_and_the_longest_grace_periods() {
    let (_dir, path) = record(30_000, |_| None);
    let page = page(&path).unwrap();
    assert!(page.contains("too large to show every switch"));
    assert!(page.contains("vCPU 1, 80.0 ms reader"), "the longest is kept in detail");
    assert!(page.len() < 2_000_000, "{}", page.len());
    let data = data_of(&page);
    // Both vCPUs run half of the time.
    let columns = data["vms"][0]["lanes"][0]["columns"].as_array().unwrap();
    assert!((256..=1024).contains(&columns.len()), "{}", columns.len());
    let middle = &columns[columns.len() / 4];
    assert_eq!(middle[0], 0);
    assert!((45..=55).contains(&middle[1].as_u64().unwrap()), "{middle}");
}

/// vCPU 1 is preempted in a reader for all of one grace period, in which vCPU 0 is preempted for
/// `rounds` times.
#[test]
fn a_stall_does_not_fill_the_page_and_its_cause_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut writer = Writer::create(&path).unwrap();
    let pid = 4711;
    writer.snapshot(snapshot(BEGIN, vec![vm(pid, "db", vec![vcpu(0), vcpu(1)])])).unwrap();
    writer.event(Event::GraceBegan { time_ns: BEGIN, pid, seq: 4 }).unwrap();
    let preempted = |time_ns, vcpu, class, reader| Event::Preempted {
        time_ns,
        pid,
        vcpu,
        class,
        reader,
        at: at("__d_lookup_rcu+0x42"),
    };
    writer.event(preempted(BEGIN, 1, Class::Reader, true)).unwrap();
    let rounds = 60_000;
    for now in (0..rounds).map(|round| BEGIN + round * MS) {
        writer.event(preempted(now, 0, Class::User, false)).unwrap();
        let on = Event::On { time_ns: now + MS / 2, pid, vcpu: 0, cpu: 0, was: None };
        writer.event(on).unwrap();
    }
    let end = BEGIN + rounds * MS;
    writer.event(Event::GraceEnded { time_ns: end, pid, seq: 5 }).unwrap();
    writer.finish().unwrap();
    let page = page(&path).unwrap();
    assert!(page.len() < 2_000_000, "{}", page.len());
    for part in
        ["vCPU 1, 60.0 s reader (RCU reader)", "not kept in detail", "There was no room for"]
    {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn of_a_vm_that_ended_nothing_is_claimed_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut writer = Writer::create(&path).unwrap();
    let other = vm(1, "other", vec![vcpu(0)]);
    let guest = vm(2, "db", vec![vcpu(0)]);
    let ended = |mut vm: crate::model::VmSnapshot| {
        vm.state = VmState::Gone;
        vm
    };
    writer.snapshot(snapshot(BEGIN, vec![other.clone(), guest.clone()])).unwrap();
    writer.event(Event::GraceBegan { time_ns: BEGIN, pid: 2, seq: 4 }).unwrap();
    writer.event(Event::On { time_ns: BEGIN + MS, pid: 2, vcpu: 0, cpu: 0, was: None }).unwrap();
    let gone = BEGIN + 10 * MS;
    writer.snapshot(snapshot(gone, vec![other.clone(), ended(guest)])).unwrap();
    // A last thread of it still runs, and a VM comes and goes between two snapshots.
    for (pid, seq) in [(2, 8), (3, 12)] {
        writer.event(Event::On { time_ns: gone + MS, pid, vcpu: 0, cpu: 0, was: None }).unwrap();
        writer.event(Event::GraceBegan { time_ns: gone + MS, pid, seq }).unwrap();
    }
    let later = BEGIN + 20 * MS;
    writer.snapshot(snapshot(later, vec![other.clone(), ended(vm(2, "db", vec![]))])).unwrap();
    writer
        .event(Event::On { time_ns: BEGIN + 500 * MS, pid: 1, vcpu: 0, cpu: 0, was: None })
        .unwrap();
    writer.snapshot(snapshot(BEGIN + 1_000 * MS, vec![other])).unwrap();
    writer.finish().unwrap();
    let page = page(&path).unwrap();
    assert!(!page.contains("<tr id=\"gp-"), "no grace period is listed");
    let data = data_of(&page);
    let segments =
        |vm: &serde_json::Value| vm["windows"][0]["segments"].as_array().unwrap().clone();
    let of_guest = segments(&data["vms"][1]);
    assert!(!of_guest.is_empty());
    for vm in &data["vms"].as_array().unwrap()[1..] {
        for segment in segments(vm) {
            let end = segment[1].as_f64().unwrap() + segment[2].as_f64().unwrap();
            assert!(end <= 20_000.0, "{segment}");
        }
    }
}

#[test]
fn lost_events_leave_gaps_and_a_warning() {
    let lost = BEGIN + 25 * MS;
    let (_dir, path) =
        record(20, |now| (now == lost).then_some(Event::Lost { time_ns: lost + MS, count: 17 }));
    let page = page(&path).unwrap();
    assert!(page.contains("17 events were lost"));
    let data = data_of(&page);
    let segments = data["vms"][0]["windows"][0]["segments"].as_array().unwrap();
    let unseen = segments.iter().filter(|s| s[3] == 11).count();
    assert_eq!(unseen, 2, "both vCPUs until their next event");
    let periods = data["vms"][0]["windows"][0]["periods"].as_array().unwrap();
    assert_eq!(periods.len(), 19, "the one across the gap is left out");
}

#[test]
fn a_recording_without_vms_has_no_page() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    Writer::create(&path).unwrap().finish().unwrap();
    assert!(matches!(page(&path), Err(Error::Empty(_))));
    assert!(matches!(write(&path, &dir.path().join("out.html")), Err(Error::Empty(_))));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn events_in_odd_order_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut writer = Writer::create(&path).unwrap();
    for time_ns in [0, u64::MAX, 5, u64::MAX - 1, 0] {
        for event in [
            Event::On { time_ns, pid: 1, vcpu: u32::MAX, cpu: 0, was: None },
            Event::Blocked { time_ns: time_ns / 2, pid: 1, vcpu: u32::MAX },
            Event::GraceEnded { time_ns, pid: 1, seq: 3 },
            Event::GraceBegan { time_ns, pid: 1, seq: 3 },
            Event::GraceEnded { time_ns: time_ns / 3, pid: 1, seq: 3 },
            Event::Lost { time_ns, count: 1 },
        ] {
            writer.event(event).unwrap();
        }
    }
    writer.finish().unwrap();
    page(&path).unwrap();
}
