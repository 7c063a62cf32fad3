// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a guard that runs: for its statistics, and to treat a VM otherwise.
//!
//! A line of JSON each way, over a socket with an abstract name: nothing of it is left when guard
//! is killed. Both sides look who the other is, since anybody may use such a name: guard answers
//! root and its own user only, and only they are believed to be guard.

use crate::backend::Guard;
use crate::error::Error;
use crate::options::Policy;
use crate::statistics::Statistics;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// A single name: the kernel runs one scheduler at a time.
const NAME: &str = "reprieve-guard";
/// How long either side waits for the other: a host may be busy.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 24 * 3600 } else { 30 });
/// Bytes of a request, and of an answer: a VM takes some 2 KiB.
const REQUEST: u64 = 64 << 10;
const ANSWER: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Statistics,
    /// For these VMs from now on: those with this name or process ID. Without one, all VMs, also
    /// ones that come later.
    Set {
        vm: Option<String>,
        policy: Policy,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Statistics(Box<Statistics>),
    /// The VMs that run and now are treated so.
    Set(Vec<String>),
    Refused(String),
}

/// Where guard is asked. The name is free again when this is dropped.
#[derive(Debug)]
pub struct Control(UnixListener);

impl Control {
    /// # Errors
    /// When the name is taken.
    pub fn listen() -> Result<Control, Error> {
        Control::listen_as(NAME)
    }

    fn listen_as(name: &str) -> Result<Control, Error> {
        let failed = |source| Error::Io { what: format!("listening at @{name}"), source };
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        let listener = UnixListener::bind_addr(&address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Control(listener))
    }

    /// Waits for at most `limit`, and answers if somebody asks.
    pub fn serve(&self, guard: &mut dyn Guard, limit: Duration) {
        let mut entry = [PollFd::new(&self.0, PollFlags::IN)];
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        // A signal, or nobody.
        if !poll(&mut entry, Some(&limit)).is_ok_and(|n| n > 0) {
            return;
        }
        if let Ok((stream, _)) = self.0.accept() {
            // A client that went away needs no answer.
            let _ = answer(stream, guard);
        }
    }
}

fn answer(mut stream: UnixStream, guard: &mut dyn Guard) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer = if trusted(&stream)? {
        let mut line = String::new();
        BufReader::new((&stream).take(REQUEST)).read_line(&mut line)?;
        match serde_json::from_str(&line) {
            Ok(Request::Statistics) => {
                guard.statistics().map(|seen| Answer::Statistics(Box::new(seen)))
            }
            Ok(Request::Set { vm, policy }) => guard.set(vm.as_deref(), policy).map(Answer::Set),
            Err(error) => Ok(Answer::Refused(format!("no request: {error}"))),
        }
        .unwrap_or_else(|error| Answer::Refused(error.to_string()))
    } else {
        Answer::Refused("it answers root, and the user that runs it, only".into())
    };
    stream.write_all((serde_json::to_string(&answer)? + "\n").as_bytes())
}

/// Whether the other side is root or this process's user.
fn trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    Ok(peer.is_root() || peer == rustix::process::geteuid())
}

/// The statistics of the guard that runs here.
///
/// # Errors
/// [`Error::NotRunning`], or what guard said.
pub fn statistics() -> Result<Statistics, Error> {
    match ask(NAME, &Request::Statistics)? {
        Answer::Statistics(statistics) => Ok(*statistics),
        other => Err(unexpected(other)),
    }
}

/// Changes the policy for VMs, and returns those that run and are treated so now. `vm` is a name
/// or a process ID; `None` stands for all.
///
/// # Errors
/// [`Error::NotRunning`], or what guard said.
pub fn set(vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
    match ask(NAME, &Request::Set { vm: vm.map(String::from), policy })? {
        Answer::Set(vms) => Ok(vms),
        other => Err(unexpected(other)),
    }
}

fn unexpected(answer: Answer) -> Error {
    match answer {
        Answer::Refused(why) => Error::Refused(why),
        _ => Error::Refused("it has another version".into()),
    }
}

/// Connects without ever waiting for room in the queue of whoever listens there.
fn connect(name: &str) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn ask(name: &str, request: &Request) -> Result<Answer, Error> {
    let failed = |source| Error::Io { what: "asking guard".into(), source };
    let mut stream = match connect(name) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(Error::NotRunning);
        }
        other => other.map_err(failed)?,
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    if !trusted(&stream).map_err(failed)? {
        let who = rustix::net::sockopt::socket_peercred(&stream).map_err(|e| failed(e.into()))?;
        let (process, user) = (who.pid.as_raw_nonzero(), who.uid.as_raw());
        return Err(failed(io::Error::other(format!(
            "process {process} of user {user} listens at @{name}: end it, and start guard again"
        ))));
    }
    let line = serde_json::to_string(request).map_err(io::Error::from).map_err(failed)?;
    match stream.write_all((line + "\n").as_bytes()) {
        // guard does not listen to this user, but says so.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other.map_err(failed)?,
    }
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER)).read_line(&mut line).map_err(failed)?;
    serde_json::from_str(&line)
        .map_err(|_| Error::Refused("it ended, or has another version".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Backend;
    use crate::statistics::VmStatistics;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Has one VM, and remembers what was set.
    struct One(Policy);

    impl Guard for One {
        fn statistics(&mut self) -> Result<Statistics, Error> {
            let vm = VmStatistics { name: "db".into(), policy: self.0, ..VmStatistics::default() };
            Ok(Statistics { vms: vec![vm], ..Statistics::new(Backend::SchedExt, Policy::Full) })
        }

        fn set(&mut self, vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
            if vm.is_some_and(|vm| vm != "db") {
                return Err(Error::NoVm {
                    asked: vm.unwrap_or_default().into(),
                    there: "db".into(),
                });
            }
            self.0 = policy;
            Ok(vec!["db".into()])
        }

        fn ended(&mut self) -> Option<String> {
            None
        }
    }

    /// Runs `what` beside a guard that is asked under `name`.
    fn beside(name: &str, what: impl FnOnce(&str)) {
        let name = format!("reprieve-test-{}-{name}", std::process::id());
        let control = Control::listen_as(&name).unwrap();
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = One(Policy::Full);
                while !end.load(Ordering::Relaxed) {
                    control.serve(&mut guard, Duration::from_millis(10));
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| what(&name)));
            end.store(true, Ordering::Relaxed);
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        });
        drop(control);
        assert!(matches!(ask(&name, &Request::Statistics), Err(Error::NotRunning)));
    }

    fn said(answer: Answer) -> String {
        match answer {
            Answer::Refused(why) => why,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_policy_is_set_and_seen() {
        beside("set", |name| {
            let set = Request::Set { vm: Some("db".into()), policy: Policy::Plain };
            assert!(matches!(ask(name, &set).unwrap(), Answer::Set(vms) if vms == ["db"]));
            let Answer::Statistics(seen) = ask(name, &Request::Statistics).unwrap() else {
                panic!("no statistics")
            };
            assert_eq!(seen.vms[0].policy, Policy::Plain);
        });
    }

    #[test]
    fn what_is_wrong_is_said() {
        beside("wrong", |name| {
            let set = Request::Set { vm: Some("web".into()), policy: Policy::Full };
            let answer = said(ask(name, &set).unwrap());
            assert!(answer.contains("web") && answer.contains("db"), "{answer}");
            assert!(Control::listen_as(name).is_err());
        });
    }

    /// Runs `what` as a user without rights. On Linux each thread has a user of its own.
    fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: no memory is passed. Not the C library's: it is for all threads.
                let done = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                assert_eq!(done, 0, "this test needs root");
                what()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn strangers_are_not_answered_and_not_believed() {
        beside("strangers", |name| {
            let answer = as_nobody(|| said(ask(name, &Request::Statistics).unwrap()));
            assert!(answer.contains("only") && !answer.contains("db"), "{answer}");
        });
        let name = format!("reprieve-test-{}-squatter", std::process::id());
        let squatter = as_nobody(|| Control::listen_as(&name).unwrap());
        let error = ask(&name, &Request::Statistics).unwrap_err().to_string();
        assert!(error.contains("of user 65534"), "{error}");
        drop(squatter);
    }

    #[test]
    fn nobody_waits_for_room_in_a_queue() {
        let name = format!("reprieve-test-{}-full", std::process::id());
        let full = Control::listen_as(&name).unwrap();
        rustix::net::listen(&full.0, 0).unwrap();
        let waits = connect(&name).unwrap();
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(waits);
    }

    #[test]
    fn nonsense_and_silence_are_no_trouble() {
        beside("nonsense", |name| {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            for nonsense in ["\n", "{}\n", "\u{0}\n", "{\"set\":{}}\n"] {
                let mut stream = UnixStream::connect_addr(&address).unwrap();
                stream.write_all(nonsense.as_bytes()).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert!(answer.contains("no request"), "{answer}");
            }
            drop(UnixStream::connect_addr(&address).unwrap());
            assert!(matches!(ask(name, &Request::Statistics).unwrap(), Answer::Statistics(_)));
        });
    }
}
