// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's monitor (QMP), for questions only.
//!
//! A QMP socket serves one client at a time: while somebody else is connected, it accepts nobody
//! and sends nothing. So each wait here is short, and a socket that stays silent counts as busy.
//! Nothing that changes the VM is ever sent.
//!
//! Any process may have QEMU's name and answer here: each answer is bounded, in time and in bytes,
//! and what it says is checked by the callers.

use super::VcpuThread;
use crate::error::{Error, Result};
use qapi::qmp;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for QEMU.
#[derive(Clone, Copy)]
struct Limits {
    /// For the greeting, which an unused socket sends at once.
    greeting: Duration,
    /// For a whole answer: QEMU's main thread may have to wait for a CPU.
    answer: Duration,
}

const LIMITS: Limits =
    Limits { greeting: Duration::from_millis(500), answer: Duration::from_secs(5) };

/// Longest greeting, bytes.
const GREETING_MAX: u64 = 64 << 10;

/// Longest answer with the events before it, bytes: several times what the largest VMs say.
const ANSWER_MAX: usize = 8 << 20;

pub struct Monitor {
    path: PathBuf,
    limits: Limits,
    qmp: qapi::Qmp<qapi::Stream<BufReader<Bounded>, UnixStream>>,
}

/// The words of the other side, up to a time and to a number of bytes.
struct Bounded {
    stream: UnixStream,
    until: Instant,
    left: usize,
}

impl Bounded {
    /// An answer begins now.
    fn begin(&mut self, within: Duration) {
        (self.until, self.left) = (Instant::now() + within, ANSWER_MAX);
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let time = self.until.saturating_duration_since(Instant::now());
        if time.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        if self.left == 0 {
            return Err(std::io::Error::other("its answer is too long"));
        }
        self.stream.set_read_timeout(Some(time))?;
        let room = buffer.len().min(self.left);
        let read = self.stream.read(&mut buffer[..room])?;
        self.left -= read;
        Ok(read)
    }
}

impl Monitor {
    /// Connects to the socket at `path`, at which process `pid` listens.
    ///
    /// # Errors
    /// [`Error::Monitor`]: nobody listens, another process does, or somebody else is connected.
    pub fn connect(pid: u32, path: &Path) -> Result<Monitor> {
        Monitor::connect_within(pid, path, LIMITS)
    }

    fn connect_within(pid: u32, path: &Path, limits: Limits) -> Result<Monitor> {
        let error = |detail: String| Error::Monitor { path: path.into(), detail };
        let stream = open(path, limits).map_err(|e| error(e.to_string()))?;
        // The path is whatever the process's command line says: another VM's monitor, or a service
        // that only this process may reach. Nothing is said to those.
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        let peer = peer.map_err(|e| error(e.to_string()))?.pid.as_raw_nonzero().get();
        if u32::try_from(peer) != Ok(pid) {
            return Err(error(format!("process {peer} listens there, not {pid}")));
        }
        let reader = stream.try_clone().map_err(|e| error(e.to_string()))?;
        let mut reader = Bounded { stream: reader, until: Instant::now(), left: 0 };
        reader.begin(limits.greeting);
        let mut qmp = qapi::Qmp::new(qapi::Stream::new(BufReader::new(reader), stream));
        // Read here because the crate's own `handshake` panics when the other side hangs up.
        let mut greeting = String::new();
        match qmp.inner_mut().get_mut_read().take(GREETING_MAX).read_line(&mut greeting) {
            Ok(n) if n > 0 && greeting.contains("\"QMP\"") => {}
            Ok(_) => return Err(error("is not QEMU's".into())),
            Err(_) => return Err(error("does not answer; somebody else may be connected".into())),
        }
        let mut monitor = Monitor { path: path.into(), limits, qmp };
        monitor.ask(&qmp::qmp_capabilities { enable: None })?;
        Ok(monitor)
    }

    /// Whether the VM's owner has paused it.
    pub fn paused(&mut self) -> Result<bool> {
        Ok(!self.ask(&qmp::query_status {})?.running)
    }

    /// The threads of the vCPUs, by the numbers that they have in QEMU's own PID namespace.
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
        self.qmp.inner_mut().get_mut_read().get_mut().begin(self.limits.answer);
        let answer = self.qmp.execute(command);
        // Nobody asks for events.
        self.qmp.events();
        answer.map_err(|e| Error::Monitor { path: self.path.clone(), detail: e.to_string() })
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
        let own = std::process::id();
        let [result, of_another] = [own, 1].map(|pid| Monitor::connect(pid, &path));
        let _ = std::fs::remove_file(&path);
        let Err(error) = of_another else { panic!("took this process for process 1") };
        assert!(error.to_string().contains(&format!("process {own} listens there")), "{error}");
        let Err(error) = result else { panic!("connected to nobody") };
        assert!(error.to_string().contains("somebody else"), "{error}");
    }

    /// Connects to a server that says `greeting` and then `piece`, again and again, until the
    /// client has hung up. Returns the client's error.
    fn endless(name: &str, limits: Limits, greeting: &str, piece: &[u8]) -> String {
        let (path, listener) = listener(name);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(greeting.as_bytes()).unwrap();
                while stream.write_all(piece).is_ok() {
                    if piece.len() == 1 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            Monitor::connect_within(std::process::id(), &path, limits).map(drop)
        });
        let _ = std::fs::remove_file(&path);
        result.unwrap_err().to_string()
    }

    #[test]
    fn an_endless_answer_is_given_up() {
        let (day, short) = (Duration::from_secs(24 * 3600), Duration::from_millis(100));
        let greeting = "{\"QMP\":{}}\n";
        // Byte for byte, each within the time for all of them.
        let limits = Limits { greeting: short, answer: day };
        let error = endless("slow", limits, "", b"x");
        assert!(error.contains("does not answer"), "{error}");
        let limits = Limits { greeting: day, answer: short };
        let error = endless("drips", limits, greeting, b" ");
        assert!(error.contains("timed out") || error.contains("unavailable"), "{error}");
        // A line, and many that are no answer.
        let limits = Limits { greeting: day, answer: day };
        let line = [b' '; 1 << 16];
        assert!(endless("line", limits, greeting, &line).contains("too long"));
        let event = br#"{"event":"STOP","timestamp":{"seconds":1,"microseconds":2}}"#;
        let events = [&event[..], b"\n"].concat().repeat(1000);
        let error = endless("events", limits, greeting, &events);
        assert!(error.contains("too long"), "{error}");
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
        let mut monitor = Monitor::connect_within(std::process::id(), &path, limits).unwrap();
        let _ = std::fs::remove_file(&path);
        assert!(monitor.paused().unwrap());
        assert_eq!(monitor.vcpus().unwrap(), [VcpuThread { index: 1, tid: 77 }]);
        assert!(matches!(monitor.info("mtree -f"), Err(Error::Monitor { .. })));
        server.join().unwrap();
        assert!(monitor.paused().is_err(), "hung up");
    }
}
