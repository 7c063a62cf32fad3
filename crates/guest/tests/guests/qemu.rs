// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU processes that a test starts with options of its own, with their monitors and guests.

use crate::common::{Scratch, images};
use crate::patience::{NO_TIMER_CHECK, Wait, wait_for};
use reprieve_guest::{Error, Guest, Options, vmm};
use reprieve_lab::images::Images;
use reprieve_lab::process::{self, Cancel};
use reprieve_lab::progress::Silent;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

pub struct Qemu {
    pub child: Child,
    pub scratch: Scratch,
    monitor: Option<Monitor>,
}

impl Qemu {
    /// Starts QEMU under TCG with `args`, and waits until it has made its machine.
    pub fn start(args: &[&str]) -> Qemu {
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
        let path = scratch.0.join("qmp");
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", path.display())]);
        if !args.contains(&"-name") {
            command.args(["-name", &format!("{},debug-threads=on", scratch.name())]);
        }
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        let child = process::spawn(&mut command).unwrap();
        let mut qemu = Qemu { child, scratch, monitor: None };
        wait_for("QEMU's monitor", || {
            assert_eq!(qemu.child.try_wait().unwrap(), None, "QEMU does not start");
            UnixStream::connect(&path).is_ok()
        });
        // The greeting comes from the main loop, which runs when everything is made.
        qemu.monitor = Some(Monitor::open(&path));
        qemu.command(r#"{"execute":"query-status"}"#);
        qemu
    }

    /// Boots `kernel` of the lab with one CPU of two, so that another can be plugged in. The guest
    /// can be reset.
    pub fn with_guest(kernel: &str) -> Qemu {
        let set = images(kernel);
        let image = &set.guests[kernel];
        let (kernel, initrd) = (image.vmlinuz.to_str().unwrap(), image.initrd.to_str().unwrap());
        let append = format!("console=ttyS0 panic=-1 quiet {NO_TIMER_CHECK}");
        let args = [
            "-machine",
            "q35",
            "-cpu",
            "max",
            "-smp",
            "1,maxcpus=2",
            "-m",
            "512M",
            "-kernel",
            kernel,
        ];
        // The guest's init waits for commands on the second serial line; nothing is sent there.
        let more = ["-initrd", initrd, "-append", &append, "-serial", "null", "-serial", "null"];
        Qemu::start(&[&args[..], &more].concat())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn vm(&self) -> vmm::Vm {
        vmm::find(&self.pid().to_string()).unwrap()
    }

    /// Waits until a kernel runs, and attaches to it.
    pub fn attach(&self, options: &Options) -> Guest {
        let vm = self.vm();
        let mut wait = Wait::new("a kernel to attach to");
        loop {
            let state = match Guest::attach_with(&vm, options) {
                // The symbol table can be read long before the kernel has finished to start.
                Ok(guest) if guest.modules().is_ok_and(|m| !m.is_empty()) => return guest,
                Ok(_) => "no modules are loaded yet".into(),
                Err(
                    error @ (Error::NoKernel { .. }
                    | Error::Corrupt { .. }
                    | Error::NotMapped { .. }),
                ) => error.to_string(),
                Err(error) => panic!("{error}"),
            };
            wait.pause(|| state);
        }
    }

    /// Has QEMU carry out `command`.
    pub fn command(&mut self, command: &str) -> String {
        self.monitor.as_mut().unwrap().command(command)
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
