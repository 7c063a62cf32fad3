// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's monitor (QMP), for questions only.
//!
//! A QMP socket serves one client at a time: while somebody else is connected, it accepts nobody
//! and sends nothing. So each wait here is short, and a socket that stays silent counts as busy.
//! Nothing that changes the VM is ever sent.

use super::VcpuThread;
use crate::error::{Error, Result};
use qapi::qmp;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for QEMU.
#[derive(Clone, Copy)]
struct Limits {
    /// For the greeting, which an unused socket sends at once.
    greeting: Duration,
    /// For an answer: QEMU's main thread may have to wait for a CPU.
    answer: Duration,
}

const LIMITS: Limits =
    Limits { greeting: Duration::from_millis(500), answer: Duration::from_secs(5) };

/// Longest greeting, bytes.
const GREETING_MAX: u64 = 64 << 10;

pub struct Monitor {
    path: PathBuf,
    qmp: qapi::Qmp<qapi::Stream<BufReader<UnixStream>, UnixStream>>,
}

impl Monitor {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`Error::Monitor`]: nobody listens, or somebody else is connected.
    pub fn connect(path: &Path) -> Result<Monitor> {
        Monitor::connect_within(path, LIMITS)
    }

    fn connect_within(path: &Path, limits: Limits) -> Result<Monitor> {
        let error = |detail: String| Error::Monitor { path: path.into(), detail };
        let stream = open(path, limits).map_err(|e| error(e.to_string()))?;
        let reader = stream.try_clone().map_err(|e| error(e.to_string()))?;
        let mut qmp = qapi::Qmp::new(qapi::Stream::new(BufReader::new(reader), stream));
        // Read here because the crate's own `handshake` panics when the other side hangs up.
        let mut greeting = String::new();
        match qmp.inner_mut().get_mut_read().take(GREETING_MAX).read_line(&mut greeting) {
            Ok(n) if n > 0 && greeting.contains("\"QMP\"") => {}
            Ok(_) => return Err(error("is not QEMU's".into())),
            Err(_) => return Err(error("does not answer; somebody else may be connected".into())),
        }
        let timeout = |stream: &UnixStream| stream.set_read_timeout(Some(limits.answer));
        timeout(qmp.inner_mut().get_mut_read().get_ref()).map_err(|e| error(e.to_string()))?;
        let mut monitor = Monitor { path: path.into(), qmp };
        monitor.ask(&qmp::qmp_capabilities { enable: None })?;
        Ok(monitor)
    }

    /// Whether the VM's owner has paused it.
    pub fn paused(&mut self) -> Result<bool> {
        Ok(!self.ask(&qmp::query_status {})?.running)
    }

    pub fn vcpus(&mut self) -> Result<Vec<VcpuThread>> {
        let cpus = self.ask(&qmp::query_cpus_fast {})?;
        let thread = |cpu: &qmp::CpuInfoFast| match cpu {
            qmp::CpuInfoFast::x86_64(base) | qmp::CpuInfoFast::i386(base) => Some(VcpuThread {
                index: u32::try_from(base.cpu_index).ok()?,
                tid: u32::try_from(base.thread_id).ok()?,
            }),
            _ => None,
        };
        Ok(cpus.iter().filter_map(thread).collect())
    }

    /// The answer of a command of the human monitor: `info mtree -f`, `info ramblock`.
    pub fn info(&mut self, what: &str) -> Result<String> {
        let command = qmp::human_monitor_command { command_line: what.into(), cpu_index: None };
        self.ask(&command)
    }

    fn ask<C: qapi::Command>(&mut self, command: &C) -> Result<C::Ok> {
        self.qmp
            .execute(command)
            .map_err(|e| Error::Monitor { path: self.path.clone(), detail: e.to_string() })
    }
}

/// Connects without ever waiting for room in the socket's queue.
fn open(path: &Path, limits: Limits) -> std::io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(limits.greeting))?;
    socket.set_write_timeout(Some(limits.greeting))?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    fn listener(name: &str) -> (PathBuf, UnixListener) {
        let path = std::env::temp_dir().join(format!("reprieve-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        (path, listener)
    }

    #[test]
    fn a_busy_socket_is_given_up() {
        let (path, _silent) = listener("busy");
        let stream = open(&path, LIMITS).unwrap();
        for limit in [stream.read_timeout().unwrap(), stream.write_timeout().unwrap()] {
            assert_eq!(limit, Some(LIMITS.greeting), "no wait for the greeting is longer");
        }
        let result = Monitor::connect(&path);
        let _ = std::fs::remove_file(&path);
        let Err(error) = result else { panic!("connected to nobody") };
        assert!(error.to_string().contains("somebody else"), "{error}");
    }

    #[test]
    fn asks_and_understands() {
        let (path, listener) = listener("qmp");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            writeln!(stream, r#"{{"QMP":{{"version":{{}},"capabilities":[]}}}}"#).unwrap();
            for answer in [
                r#"{"return":{}}"#,
                r#"{"return":{"status":"paused","running":false,"singlestep":false}}"#,
                r#"{"return":[{"cpu-index":1,"qom-path":"/m","thread-id":77,"target":"x86_64"}]}"#,
                r#"{"error":{"class":"GenericError","desc":"no"}}"#,
            ] {
                lines.next().unwrap().unwrap();
                writeln!(stream, "{answer}").unwrap();
            }
        });
        let day = Duration::from_secs(24 * 3600);
        let limits = Limits { greeting: day, answer: day };
        let mut monitor = Monitor::connect_within(&path, limits).unwrap();
        let _ = std::fs::remove_file(&path);
        assert!(monitor.paused().unwrap());
        assert_eq!(monitor.vcpus().unwrap(), [VcpuThread { index: 1, tid: 77 }]);
        assert!(matches!(monitor.info("mtree -f"), Err(Error::Monitor { .. })));
        server.join().unwrap();
        assert!(monitor.paused().is_err(), "hung up");
    }
}
