// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QEMU of one's own, with any options, and its monitor.

use crate::common::{LIMIT, Scratch};
use reprieve_lab::images::Images;
use reprieve_lab::process::{self, Cancel};
use reprieve_lab::progress::Silent;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Qemu {
    pub child: Child,
    pub scratch: Scratch,
    monitor: bool,
    /// Kept, so that this socket is busy.
    _own: Option<Monitor>,
}

impl Qemu {
    /// Starts QEMU under TCG with `args`, and waits until it has made its machine. With a `monitor`, in a socket that anybody may use.
    pub fn start(args: &[&str], monitor: bool) -> Qemu {
        let scratch = Scratch::new();
        let cancel = Cancel::default();
        let qemu = Images::open(&cancel, &Silent).unwrap().prepare(&[], &[]).unwrap().qemu;
        let mut command = Command::new(&qemu.argv[0]);
        command.args(&qemu.argv[1..]).envs(qemu.env);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-accel",
            "tcg,thread=multi",
        ]);
        // One monitor is for the test to see that the machine is made; it stays connected, and so is busy.
        let own = scratch.0.join("own");
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", own.display())]);
        if monitor {
            let path = scratch.0.join("qmp");
            command.args(["-qmp", &format!("unix:{},server=on,wait=off", path.display())]);
        }
        if !args.contains(&"-name") {
            command.args(["-name", &format!("{},debug-threads=on", scratch.name())]);
        }
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        let child = process::spawn(&mut command).unwrap();
        let mut qemu = Qemu { child, scratch, monitor, _own: None };
        let start = Instant::now();
        while UnixStream::connect(&own).is_err() {
            assert!(start.elapsed() < LIMIT, "QEMU does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The greeting comes from the main loop, which runs when everything is made.
        let mut own = Monitor::open(&own);
        own.command(r#"{"execute":"query-status"}"#);
        qemu._own = Some(own);
        qemu
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has QEMU carry out `command`, on the socket that is for anybody.
    pub fn command(&self, command: &str) -> String {
        assert!(self.monitor);
        Monitor::open(&self.scratch.0.join("qmp")).command(command)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        process::kill(&mut self.child);
    }
}

struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn open(path: &std::path::Path) -> Monitor {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut monitor = Monitor(BufReader::new(stream));
        monitor.line();
        monitor.command(r#"{"execute":"qmp_capabilities"}"#);
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.0.get_mut(), "{command}").unwrap();
        loop {
            let line = self.line();
            assert!(!line.contains("\"error\""), "{command}: {line}");
            // Events come in between.
            if line.contains("\"return\"") || line.is_empty() {
                return line;
            }
        }
    }
}
