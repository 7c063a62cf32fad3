// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process 1 of the lab's guests and lab hosts: sets the system up, then executes the lab's
//! commands.
//!
//! The console (first serial line) is for the kernel's messages and for panics. If init dies, the
//! VM ends: the kernel runs with `panic=-1` and QEMU with `-no-reboot`, so the lab never waits for
//! a guest without an init.

mod boot;
mod calibrate;
mod channel;
mod children;
mod exec;
mod gate;
mod guest;
mod kmod;
mod measure;
mod read;
mod session;
mod sys;
mod workload;

use protocol::{Command, Event, PROTOCOL};
use reprieve_init::protocol;
use std::sync::mpsc;

fn main() {
    if std::process::id() != 1 {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        if arguments.first().is_some_and(|a| a == workload::WORKER_ROLE) {
            if let Err(e) = workload::worker(&arguments[1..]) {
                eprintln!("reprieve-init: {e}");
                std::process::exit(1);
            }
            return;
        }
        eprintln!("reprieve-init is the init of Reprieve's lab guests; it runs as process 1 only");
        std::process::exit(2);
    }
    let notices = boot::boot();
    if let Err(e) = run(notices) {
        eprintln!("reprieve-init: {e}");
    }
    sys::restart();
}

/// Everything after the set-up; returns only after an error that ends the guest.
fn run(notices: Vec<String>) -> sys::Result<()> {
    let (mut input, out) = channel::open()?;
    let dying = out.clone();
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("reprieve-init: {panic}");
        dying.try_send(&Event::Error { message: format!("init died: {panic}") });
        sys::restart();
    }));
    children::start_reaper()?;
    out.send(&Event::Hello { protocol: PROTOCOL, guest: guest::info() });
    for text in notices {
        out.send(&Event::Notice { text });
    }
    let (queue, commands) = mpsc::channel();
    let mut session = session::Session::new(out.clone());
    let receive = move || loop {
        let line = input.line();
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(Command::PowerOff) => sys::power_off(),
            Ok(Command::Input { line }) => exec::input(&line),
            Ok(command) => {
                if queue.send(command).is_err() {
                    return;
                }
            }
            Err(e) => out.send(&Event::Error { message: format!("not a command: {e}") }),
        }
    };
    std::thread::Builder::new()
        .name("receiver".into())
        .spawn(receive)
        .map_err(|e| format!("starting the receiver thread: {e}"))?;
    for command in commands {
        session.handle(command);
    }
    Err("the receiver thread died".into())
}
