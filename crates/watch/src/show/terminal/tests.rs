// SPDX-License-Identifier: MIT OR Apache-2.0
//! The view, drawn into a buffer.

use super::View;
use super::state::Request;
use crate::model::VmState;
use crate::show::testing::busy;
use crate::show::{lines, prometheus};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;
use std::time::Duration;

fn view(colour: bool) -> View {
    let mut view = View::new(Duration::from_secs(1), colour);
    view.update(busy(1));
    view.update(busy(2));
    view
}

fn draw(view: &mut View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    terminal
}

fn lines(terminal: &Terminal<TestBackend>) -> Vec<String> {
    let buffer = terminal.backend().buffer();
    let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| row(y).trim_end().to_string()).collect()
}

fn text(view: &mut View, width: u16, height: u16) -> String {
    lines(&draw(view, width, height)).join("\n")
}

#[test]
fn a_row_tells_what_happens_to_a_vm() {
    let all = text(&mut view(false), 160, 20);
    let row = all.lines().find(|line| line.contains("db-primary")).unwrap();
    for part in [
        "1 / 1 / 0",
        "203",
        "44 %",
        "uukkRRPSw",
        "49 %",
        "55.0",
        "17.0 ms",
        "55.0 ms",
        "vCPU 0 reader, off for 41.0 ms: __d_lookup",
    ] {
        assert!(row.contains(part), "{part} in\n{all}");
    }
    assert!(all.contains("unreadable: memory is encrypted"), "{all}");
    assert!(all.contains("cache-server     domain 0: 16 threads, 3 in a section"), "{all}");
    assert!(all.contains("q quit"), "{all}");
}

#[test]
fn enter_shows_the_vcpus_and_the_grace_period() {
    let mut view = view(false);
    assert_eq!(view.key(KeyCode::Enter), Request::Nothing);
    let all = text(&mut view, 160, 30);
    for part in [
        "db-primary  pid 4711, qemu-kvm, Linux 6.12.117+deb12-cloud-amd64",
        "now: grace period 1060, 55.0 ms old, waits for 1 vCPU:",
        "vCPU 0   preempted 41.0 ms in reader at __d_lookup_rcu+0x42 (postmark?[31m 733)",
        "* 0    preempted   41.0 ms  reader",
        "  1    running     2.00 ms",
    ] {
        assert!(all.contains(part), "{part} in\n{all}");
    }
    view.key(KeyCode::Esc);
    assert!(text(&mut view, 160, 20).contains("web-1"));
    assert_eq!(view.key(KeyCode::Esc), Request::Quit);
}

#[test]
fn what_matters_most_stays_on_a_narrow_terminal() {
    for (width, kept, gone) in [
        (80, &["ready", "GP mean", "GP now"][..], "kernel"),
        (40, &["ready", "GP now"], "by class"),
    ] {
        let all = text(&mut view(false), width, 12);
        let heading = all.lines().nth(1).unwrap();
        assert!(kept.iter().all(|k| heading.contains(k)), "{all}");
        assert!(!heading.contains(gone), "{all}");
    }
}

#[test]
fn an_unreadable_vm_looks_unreadable_at_any_width() {
    for width in [40, 50, 60, 80, 100, 120, 143, 144, 200] {
        let all = text(&mut view(false), width, 12);
        assert!(all.contains("unreadable"), "{width}:\n{all}");
        // Columns are not left out to leave the room blank.
        let heading = all.lines().nth(1).unwrap();
        let blank = usize::from(width) - heading.chars().count();
        assert!(width < 80 || heading.contains("held up by"), "{width}:\n{all}");
        assert!(heading.contains("held up by") || blank < 22, "{width}: {blank}\n{all}");
    }
}

#[test]
fn no_size_and_no_key_breaks_it() {
    let keys = [
        KeyCode::Down,
        KeyCode::Enter,
        KeyCode::PageDown,
        KeyCode::Char('w'),
        KeyCode::Char('s'),
        KeyCode::Up,
        KeyCode::PageUp,
        KeyCode::Esc,
        KeyCode::Char('z'),
    ];
    for (width, height) in [(0, 0), (1, 1), (2, 3), (7, 40), (20, 4), (300, 2), (500, 100)] {
        let mut view = View::new(Duration::from_secs(1), true);
        draw(&mut view, width, height);
        view.key(KeyCode::Enter);
        for seconds in 1..14 {
            view.update(busy(seconds));
            for key in keys {
                view.key(key);
                draw(&mut view, width, height);
            }
        }
        view.fail("the collector\x1b[2J died".into());
        draw(&mut view, width, height);
    }
}

#[test]
fn nothing_from_a_guest_reaches_the_terminal_unescaped() {
    let mut view = View::new(Duration::from_secs(1), true);
    for seconds in [1, 2] {
        let mut odd = busy(seconds);
        odd.vms[0].name = "\x1b]0;owned\x07\u{202e}".into();
        odd.vms[0].kernel = Some("\x1b[2J".into());
        odd.vms[0].vmm = "\u{9b}2J".into();
        odd.vms[0].blind = vec!["\x1b[2J".into()];
        odd.vms[1].state = VmState::Unreadable("\x1b[2J".into());
        odd.processes[0].name = "\x1b[2J".into();
        view.update(odd);
    }
    for _ in 0..2 {
        let all = text(&mut view, 200, 40);
        assert!(!all.chars().any(|c| c != '\n' && c.is_control()), "{all:?}");
        assert!(!all.contains('\u{202e}'));
        assert!(all.contains("?]0;owned"), "{all}");
        view.key(KeyCode::Enter);
    }
}

#[test]
fn without_colour_letters_tell_the_classes_apart() {
    let coloured = |view: &mut View| {
        let terminal = draw(view, 160, 20);
        let buffer = terminal.backend().buffer();
        buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(coloured(&mut view(true)));
    assert!(!coloured(&mut view(false)));
    assert!(text(&mut view(false), 160, 20).contains("R reader"));
}

#[test]
fn the_selection_stays_with_its_vm_and_leaves_when_it_ends() {
    let mut view = view(false);
    view.key(KeyCode::Down);
    let selected = view.selected.unwrap();
    let mut next = busy(3);
    next.vms.reverse();
    view.update(next);
    assert_eq!(view.selected, Some(selected));
    let mut last = busy(4);
    last.vms.retain(|vm| vm.pid != selected);
    view.update(last);
    assert_ne!(view.selected, Some(selected));
    assert!(view.selected.is_some());
}

#[test]
fn vms_that_were_asked_for_and_are_not_there_are_named() {
    let named = |named: &[&str], snapshot| {
        let named: Vec<String> = named.iter().map(|name| name.to_string()).collect();
        let mut view = View::new(Duration::from_secs(1), false).of(&named);
        view.update(snapshot);
        text(&mut view, 160, 20)
    };
    let mut none = busy(1);
    none.vms.clear();
    let all = named(&["nosuch", "4711"], none);
    assert!(all.contains("No virtual machine nosuch, 4711 runs here yet"), "{all}");
    let all = named(&["nosuch", "4711"], busy(1));
    assert!(all.contains("no VM nosuch yet") && all.contains("db-primary"), "{all}");
    assert!(!named(&["4712", "db-primary"], busy(1)).contains("no VM"));
}

/// It is attached to, and its vCPUs are not known.
#[test]
fn a_vm_in_its_first_seconds_does_not_have_no_vcpus() {
    let mut first = busy(1);
    first.vms.truncate(1);
    (first.vms[0].vcpus, first.vms[0].state) = (vec![], VmState::Attaching);
    let line = lines::text(None, &first);
    assert!(line.contains(" vcpus=- "), "{line}");
    let page = prometheus::text(&first, &mut prometheus::Served::default()).unwrap();
    assert!(!page.contains("reprieve_vm_vcpus{"), "{page}");
    let mut view = View::new(Duration::from_secs(1), false);
    view.update(first);
    let all = text(&mut view, 160, 20);
    assert!(all.contains("attaching") && !all.contains("0 / 0 / 0"), "{all}");
}
