// SPDX-License-Identifier: MIT OR Apache-2.0
//! A QEMU virtual machine: booting it, talking to its init, pausing and pinning it.
//!
//! A VM lives as long as its [`Vm`]: dropping that kills QEMU, and QEMU also dies with the thread
//! that started it. All connections are inherited socket pairs and guest RAM is anonymous memory,
//! so that only the console log remains in the file system.

pub mod cgroup;
mod channel;
mod dilate;
mod qmp;
mod region;
pub mod retry;
mod threads;
mod tsc;

use cgroup::Cgroup;
use channel::Channel;
use qmp::Qmp;
use region::Region;
pub use threads::{SchedCounters, Threads, allowed_cpus};

use crate::dilation::Dilation;
use crate::error::{Error, OUT_OF_MEMORY, Result};
use crate::images::{GuestImage, Qemu};
use crate::limit::{self, scaled};
use crate::process::{self, Cancel};
use reprieve_init::protocol::{Command, Event, GuestInfo, PORT, PROTOCOL};
use serde_json::{Value, json};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long QEMU's control socket may take to answer. Generous: under TCG with many VMs QEMU's main
/// thread starves.
const QMP_LIMIT: Duration = Duration::from_secs(60);

/// How long QEMU may take to show the state of a hung guest's CPUs.
const REGISTERS_LIMIT: Duration = Duration::from_secs(10);

/// Most bytes of the events of one command. A phase of an hour has half a million samples, of some
/// 200 bytes each when a lab host passes them on, for all phases in one command. This limit keeps a
/// hostile guest from filling the disk.
const BYTES_MAX: u64 = if cfg!(test) { 4 << 20 } else { 4 << 30 };

/// How often a wait for an event looks at its limits.
const POLL: Duration = Duration::from_millis(100);

/// How QEMU executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    Kvm,
    Tcg,
}

impl Accel {
    /// The name in QEMU's options and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        }
    }
}

/// A VM to boot.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub accel: Accel,
    /// Only under TCG: KVM's guests read this machine's clocks.
    pub dilation: Dilation,
    /// QEMU's `-cpu`; `None`: the most capable that `accel` offers.
    pub cpu: Option<String>,
    pub vcpus: u32,
    /// How many more [`Vm::plug_vcpu`] can add.
    pub spare_vcpus: u32,
    pub memory_mib: u64,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Kernel parameters in addition to the lab's own.
    pub args: String,
    /// File for the console's output.
    pub console: PathBuf,
    /// Whether the guest's programs share a region with the host, for hints.
    pub region: bool,
}

impl Config {
    /// A VM of `image`, of the usual kind.
    pub fn new(name: &str, accel: Accel, image: &GuestImage, console: PathBuf) -> Config {
        Config {
            name: name.into(),
            accel,
            dilation: Dilation::NONE,
            cpu: None,
            vcpus: 1,
            spare_vcpus: 0,
            memory_mib: 256,
            kernel: image.kernel.clone(),
            initrd: image.initrd.clone(),
            args: String::new(),
            console,
            region: false,
        }
    }
}

pub struct Vm {
    pub name: String,
    pub info: GuestInfo,
    /// From the start of QEMU to the guest's first event.
    pub boot_time: Duration,
    console: PathBuf,
    /// Its logs are kept.
    failed: bool,
    child: std::process::Child,
    channel: Channel,
    qmp: Qmp,
    threads: Threads,
    dilation: Dilation,
    /// Its own, if it has one.
    cgroup: Option<Cgroup>,
}

impl Vm {
    /// Boots `config` with `qemu` and waits until its init has announced itself, at most `limit`.
    /// This and all other limits are in this machine's time, also of a dilated VM.
    pub fn boot(config: &Config, qemu: &Qemu, limit: Duration, cancel: &Cancel) -> Result<Vm> {
        let start = Instant::now();
        if config.accel == Accel::Kvm && !config.dilation.is_none() {
            return Err(Error::Usage(format!(
                "VM {} cannot be {}: guests under KVM read this machine's clocks",
                config.name, config.dilation
            )));
        }
        let (ctl, qemu_ctl) = pair()?;
        let (monitor, qemu_monitor) = pair()?;
        // Before QEMU opens it: a directory that is not writable then gives a clear error.
        std::fs::write(&config.console, "").map_err(Error::io(&config.console))?;

        let region = config.region.then(|| Region::create(&config.console)).transpose()?;
        let fds = [qemu_ctl, qemu_monitor].map(OwnedFd::from);
        let mut command = command(config, qemu, fds.each_ref().map(AsRawFd::as_raw_fd));
        if let Some(region) = &region {
            command.args(region.options());
        }
        let library = dilate::preload(&mut command, config.dilation)?;
        inherit(&mut command, fds.iter().chain(&library).map(AsRawFd::as_raw_fd).collect());
        let stderr = qemu_log(&config.console);
        let log = std::fs::File::create(&stderr).map_err(Error::io(&stderr))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut qmp = Qmp::new(monitor);
        qmp.limit(scaled(QMP_LIMIT)).map_err(Error::io("QMP socket"))?;
        let channel = Channel::new(ctl).map_err(Error::io("guest channel"))?;
        // From here on nothing fails before there is a `Vm`, which ends the child.
        let child = process::spawn(&mut command)?;
        // QEMU has its copies; with ours closed, its death closes the connections.
        drop((fds, library));
        let mut vm = Vm {
            name: config.name.clone(),
            info: GuestInfo::default(),
            boot_time: Duration::ZERO,
            console: config.console.clone(),
            failed: false,
            child,
            channel,
            qmp,
            threads: Threads::new(0, Vec::new()),
            dilation: config.dilation,
            cgroup: None,
        };
        if let Err(error) = vm.greet() {
            return Err(vm.death(format!("QEMU did not start: {error}")));
        }
        // QEMU has mapped it.
        drop(region);
        vm.find_vcpus()?;
        vm.await_hello(start + limit, limit, cancel)?;
        vm.boot_time = start.elapsed();
        Ok(vm)
    }

    fn await_hello(&mut self, deadline: Instant, limit: Duration, cancel: &Cancel) -> Result<()> {
        match self.next_event(deadline, cancel) {
            Ok(Event::Hello { protocol: PROTOCOL, guest }) => {
                self.info = guest;
                Ok(())
            }
            Ok(Event::Hello { protocol, .. }) => Err(self.failure(format!(
                "its init speaks protocol {protocol}, this program {PROTOCOL}: rebuild both (`make build`)"
            ))),
            Ok(other) => Err(self.failure(format!("sent {other:?} before its hello"))),
            Err(Error::Timeout { .. }) => Err(self.hang("booting", limit)),
            Err(error) => Err(error),
        }
    }

    /// Sends a command to the guest's init.
    pub fn send(&mut self, command: &Command) -> Result<()> {
        let sent = self.channel.send(command);
        sent.map_err(|e| self.death(format!("cannot be sent a command: {e}")))
    }

    /// The next event of the guest, at the latest at `deadline`.
    pub fn next_event(&mut self, deadline: Instant, cancel: &Cancel) -> Result<Event> {
        self.event_within(deadline, Duration::MAX, cancel)
    }

    fn event_within(
        &mut self,
        deadline: Instant,
        silence: Duration,
        cancel: &Cancel,
    ) -> Result<Event> {
        let start = Instant::now();
        let mut waited = Duration::ZERO;
        loop {
            cancel.check()?;
            // Checked while events come, too: the limit also holds for a guest that never stops
            // sending.
            if Instant::now() >= deadline || waited >= silence {
                return Err(self.hang("waiting for", start.elapsed()));
            }
            match self.channel.receive(POLL) {
                Ok(Some(event)) => return Ok(event),
                // Counted rather than read from a clock: a lab that was stopped heard nothing.
                Ok(None) => waited += POLL,
                Err(error) => return Err(self.death(error.to_string())),
            }
        }
    }

    /// Sends `command` and hands its events to `each`, up to the one that ends the command, which
    /// is returned.
    ///
    /// # Errors
    /// The guest reports an error or dies; `limit` has passed; the run is cancelled.
    pub fn call(
        &mut self,
        command: &Command,
        limit: Duration,
        cancel: &Cancel,
        each: impl FnMut(Event) -> Result<()>,
    ) -> Result<Event> {
        let mut each = each;
        self.call_audible(command, limit, Duration::MAX, cancel, |event| each(event).map(|()| None))
    }

    /// [`Vm::call`] of a guest that never says nothing for as long as `silence`, unless it hangs.
    /// `each` may return what the guest is told in answer.
    pub fn call_audible(
        &mut self,
        command: &Command,
        limit: Duration,
        silence: Duration,
        cancel: &Cancel,
        mut each: impl FnMut(Event) -> Result<Option<Command>>,
    ) -> Result<Event> {
        self.send(command)?;
        let deadline = Instant::now() + limit;
        let before = self.channel.received();
        while self.channel.received() - before <= BYTES_MAX {
            match self.event_within(deadline, silence, cancel)? {
                Event::Error { message } => return Err(self.failure(message)),
                last @ (Event::Ready | Event::PhaseDone { .. } | Event::Exited { .. }) => {
                    return Ok(last);
                }
                event => {
                    if let Some(answer) = each(event)? {
                        self.send(&answer)?;
                    }
                }
            }
        }
        Err(self.failure(format!("sent more than {BYTES_MAX} bytes for one command")))
    }

    /// Stops the vCPUs.
    pub fn pause(&mut self) -> Result<()> {
        self.monitor("stop", json!({})).map(drop)
    }

    /// Lets the vCPUs go on.
    pub fn resume(&mut self) -> Result<()> {
        self.monitor("cont", json!({})).map(drop)
    }

    /// Resets the machine, as its button does, and waits until the init of the new boot has
    /// announced itself, at most `limit`. What the guest was sending at that moment must have been
    /// a whole line.
    pub fn reset(&mut self, limit: Duration, cancel: &Cancel) -> Result<()> {
        // Everywhere else a guest that reboots has crashed, and its QEMU ends (`-no-reboot`).
        self.monitor("set-action", json!({ "reboot": "reset" }))?;
        self.monitor("system_reset", json!({}))?;
        self.await_hello(Instant::now() + limit, limit, cancel)?;
        self.monitor("set-action", json!({ "reboot": "shutdown" })).map(drop)
    }

    /// Adds one of [`Config::spare_vcpus`]. A guest under KVM finds it a moment later (others need
    /// a socket for it), and takes it into use with its next load.
    pub fn plug_vcpu(&mut self) -> Result<()> {
        let all = self.monitor("query-hotpluggable-cpus", json!({}))?;
        let spare = |cpu: &&Value| cpu["qom-path"].is_null();
        let Some(spare) = all.as_array().and_then(|all| all.iter().rev().find(spare)) else {
            return Err(self.failure("has no spare vCPU".into()));
        };
        let mut arguments = spare["props"].clone();
        arguments["driver"] = spare["type"].clone();
        self.monitor("device_add", arguments)?;
        self.find_vcpus()
    }

    fn find_vcpus(&mut self) -> Result<()> {
        let cpus = self.monitor("query-cpus-fast", json!({}))?;
        let tid = |cpu: &Value| u32::try_from(cpu["thread-id"].as_u64()?).ok();
        let vcpus = cpus.as_array().into_iter().flatten().filter_map(tid).collect();
        self.threads = Threads::new(self.child.id(), vcpus);
        Ok(())
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its threads on the host.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Moves QEMU into `cgroup`, which goes with it.
    pub fn enter(&mut self, cgroup: Cgroup) -> Result<()> {
        cgroup.take(self.pid())?;
        self.cgroup = Some(cgroup);
        Ok(())
    }

    /// Powers the guest off and waits until QEMU ends; kills it when that takes too long, or the
    /// run is cancelled.
    pub fn shut_down(mut self, cancel: &Cancel) {
        if self.resume().and_then(|()| self.send(&Command::PowerOff)).is_ok() {
            let limit = self.dilation.outside(scaled(Duration::from_secs(10)));
            let _ = process::wait(&mut self.child, &self.name, limit, cancel);
        }
    }

    fn greet(&mut self) -> std::io::Result<()> {
        self.qmp.greet()?;
        if self.dilation.is_none() { Ok(()) } else { dilate::check(self.child.id()) }
    }

    fn monitor(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp
            .execute(command, arguments)
            .map_err(|e| self.death(format!("QEMU failed to execute {command}: {e}")))
    }

    fn qemu_log(&self) -> PathBuf {
        qemu_log(&self.console)
    }

    fn death(&mut self, message: String) -> Error {
        self.failure(message).into_death()
    }

    /// The error of a guest that does not answer. QEMU's log gets the state of its CPUs, twice:
    /// one that has not moved is stuck.
    fn hang(&mut self, doing: &str, after: Duration) -> Error {
        self.failed = true;
        let log = std::fs::OpenOptions::new().append(true).open(self.qemu_log());
        let _ = self.qmp.limit(REGISTERS_LIMIT);
        for _ in 0..2 {
            let registers = json!({ "command-line": "info registers -a" });
            // Best effort: what is wrong may be QEMU itself.
            let text = self.qmp.execute("human-monitor-command", registers);
            let (Ok(mut log), Ok(text)) = (log.as_ref(), text) else {
                break;
            };
            let _ = log.write_all(text.as_str().unwrap_or_default().replace('\r', "").as_bytes());
        }
        let what = format!("{doing} VM {}", self.name);
        Error::Timeout { what, after, log: Some(self.console.clone()) }
    }

    /// An error about this VM, with lines of its console and of QEMU's output.
    fn failure(&mut self, message: String) -> Error {
        let mut message = message;
        // QEMU's sockets close a moment before the process ends.
        for _ in 0..30 {
            if let Ok(Some(status)) = self.child.try_wait() {
                message.push_str(&format!("; QEMU ended ({status})"));
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.failed = true;
        let mut detail = String::new();
        for log in [self.qemu_log(), self.console.clone()] {
            let text = std::fs::read(&log).unwrap_or_default();
            detail += &telling_lines(&text);
        }
        Error::Guest { vm: self.name.clone(), message, detail, log: Some(self.console.clone()) }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        process::kill(&mut self.child);
        if !self.failed {
            let _ = std::fs::remove_file(self.qemu_log());
        }
    }
}

/// Where QEMU's own output goes.
fn qemu_log(console: &Path) -> PathBuf {
    console.with_extension("qemu.log")
}

fn pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(Error::io("socket pair"))
}

fn command(config: &Config, qemu: &Qemu, fds: [i32; 2]) -> std::process::Command {
    let mut command = std::process::Command::new(&qemu.argv[0]);
    command.args(&qemu.argv[1..]).envs(qemu.env.iter().cloned());
    // KVM leaves the HPET to QEMU, whose main thread a periodic timer wakes 250 times a second
    // after the guest left it: management software boots Linux guests without one.
    // Under TCG an idle CPU that waits by MWAIT spins; by HLT it sleeps.
    let (machine, accel, cpu) = match config.accel {
        Accel::Kvm => ("pc,hpet=off", "kvm", tsc::processor()),
        Accel::Tcg => ("pc", "tcg,thread=multi", "max,-monitor"),
    };
    let [ctl, monitor] = fds;
    let smp = match config.spare_vcpus {
        0 => config.vcpus.to_string(),
        spare => format!("{},maxcpus={}", config.vcpus, config.vcpus + spare),
    };
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-name", &format!("{},debug-threads=on", config.name)])
        .args(["-machine", machine, "-accel", accel])
        .args(["-cpu", config.cpu.as_deref().unwrap_or(cpu)])
        .args(["-smp", &smp, "-m", &format!("{}M", config.memory_mib)])
        .arg("-kernel")
        .arg(&config.kernel)
        .arg("-initrd")
        .arg(&config.initrd)
        .args(["-append", &kernel_args(config)])
        .args(["-serial", &format!("file:{}", config.console.display())])
        .args(["-device", "virtio-serial-pci"])
        .args(["-chardev", &format!("socket,id=ctl,fd={ctl}")])
        .args(["-device", &format!("virtserialport,chardev=ctl,name={PORT}")])
        .args(["-chardev", &format!("socket,id=qmp,fd={monitor}")])
        .args(["-mon", "chardev=qmp,mode=control"]);
    command
}

/// Keeps `fds` open in the child.
fn inherit(command: &mut std::process::Command, fds: Vec<i32>) {
    // SAFETY: fcntl is async-signal-safe; the descriptors are open in the child, being copies of
    // the parent's.
    unsafe {
        command.pre_exec(move || {
            for &fd in &fds {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

/// The guest's kernel command line.
///
/// `no_timer_check`: in an emulated machine whose CPU thread lost its CPU, the kernel's check of
/// the timer interrupt comes too early, and the boot ends in "IO-APIC + timer doesn't work". (On
/// KVM the kernel leaves the check out by itself.) `cryptomgr.notests`: nor need it test ciphers.
fn kernel_args(config: &Config) -> String {
    let factor = limit::kernel_parameter();
    let tsc = match config.accel {
        Accel::Kvm => String::new(),
        Accel::Tcg => tsc::kernel_parameters(config.dilation),
    };
    let all = [
        "console=ttyS0 panic=-1 quiet no_timer_check cryptomgr.notests",
        &factor,
        &tsc,
        &config.args,
    ];
    all.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The lines of a log that explain why a VM ended: from its last panic on, else from where it last
/// ran out of memory, else from the kernel's first complaint, else the last ones.
fn telling_lines(log: &[u8]) -> String {
    const LINES: usize = 6;
    const COMPLAINTS: [&str; 2] = ["BUG:", "Oops:"];
    const PANIC: &str = "Kernel panic";
    let text = String::from_utf8_lossy(&log[log.len().saturating_sub(64 << 10)..]).into_owned();
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    // A kernel may have complained long before it ended.
    let last = |part: &str| all.iter().rposition(|line| line.contains(part));
    let first = || all.iter().position(|line| COMPLAINTS.iter().any(|c| line.contains(c)));
    let complaint = last(PANIC).or_else(|| last(OUT_OF_MEMORY)).or_else(first);
    let from = complaint.unwrap_or(all.len().saturating_sub(LINES));
    all[from..].iter().take(LINES).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of the whole test process ends a hang.
    const FOREVER: Duration = Duration::from_secs(24 * 3600);

    /// A VM that is a process without QEMU, and the guest's end of its channel.
    fn vm(dir: &Path) -> (Vm, UnixStream) {
        let (guest, lab) = pair().unwrap();
        let (_, monitor) = pair().unwrap();
        let vm = Vm {
            name: "silent".into(),
            info: GuestInfo::default(),
            boot_time: Duration::ZERO,
            console: dir.join("silent.log"),
            failed: false,
            child: process::spawn(std::process::Command::new("sleep").arg("infinity")).unwrap(),
            channel: Channel::new(lab).unwrap(),
            qmp: Qmp::new(monitor),
            threads: Threads::new(0, vec![]),
            dilation: Dilation::NONE,
            cgroup: None,
        };
        (vm, guest)
    }

    #[test]
    fn a_guest_that_falls_silent_hangs_long_before_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let (mut vm, mut guest) = vm(dir.path());
        let line = serde_json::to_string(&Event::Notice { text: "at work".into() }).unwrap();
        writeln!(guest, "{line}").unwrap();
        let cancel = Cancel::default();
        vm.next_event(Instant::now() + FOREVER, &cancel).unwrap();
        writeln!(guest, "{line}\n{line}").unwrap();
        let mut heard = 0;
        // The reader of the lines may get no CPU in time.
        while heard < 2 {
            let error = vm.call_audible(&Command::Start, FOREVER, 3 * POLL, &cancel, |_| {
                heard += 1;
                Ok(None)
            });
            assert!(matches!(&error, Err(error) if error.is_crash()), "{error:?}");
        }
        assert_eq!(heard, 2);
    }

    #[test]
    fn a_guest_that_does_not_stop_sending_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let (mut vm, mut guest) = vm(dir.path());
        let notice = Event::Notice { text: "x".repeat(1 << 16) };
        let line = serde_json::to_string(&notice).unwrap() + "\n";
        // Until nobody reads.
        let writer = std::thread::spawn(move || while guest.write_all(line.as_bytes()).is_ok() {});
        let cancel = Cancel::default();
        vm.next_event(Instant::now() + FOREVER, &cancel).unwrap();
        for _ in 0..2 {
            let mut heard = 0;
            let error = vm.call(&Command::Start, FOREVER, &cancel, |_| {
                heard += 1;
                Ok(())
            });
            let error = error.unwrap_err().to_string();
            assert!(error.contains("bytes for one command") && heard == 64, "{error}: {heard}");
        }
        drop(vm);
        writer.join().unwrap();
    }

    #[test]
    fn a_panic_is_what_explains_an_end() {
        let mut log = "booting\n".repeat(50) + "[ 2.3] Kernel panic - not syncing: no init\n";
        log += &"[ 2.4]  call trace\n".repeat(30);
        assert!(telling_lines(log.as_bytes()).starts_with("[ 2.3] Kernel panic"));
        let lockup = "[ 2.1] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\n".repeat(2);
        let stall = "[ 2.2] rcu: INFO: rcu_sched self-detected stall on CPU\n".repeat(9);
        let log = lockup.clone() + &stall + &log;
        assert!(telling_lines(log.as_bytes()).starts_with("[ 2.3] Kernel panic"));
        let log = lockup.clone() + &stall + "[ 2.5] Out of memory: Killed process 1 (init)\n";
        assert!(telling_lines(log.as_bytes()).starts_with("[ 2.5] Out of memory"));
        assert!(telling_lines((lockup + &stall).as_bytes()).starts_with("[ 2.1] watchdog"));
        assert_eq!(telling_lines(b"one\r\n\r\ntwo\r\n"), "one\ntwo\n");
        assert_eq!(telling_lines(b""), "");
    }
}
