// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a guard that runs: for its statistics, and to treat a VM otherwise.
//!
//! A line of JSON each way, over a socket in guard's directory. Only root may connect, and only
//! root can put a socket there, so neither side asks who the other is. A guard that was killed
//! leaves a socket where nobody listens: its supervisor, or the next guard, removes that.

use crate::backend::Guard;
use crate::error::Error;
use crate::options::Policy;
use crate::statistics::Statistics;
use crate::undo::DIRECTORY;
use crate::undo::lock::{SOCKET, forget_dead, make_directory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long either side waits for the other: a host may be busy.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 24 * 3600 } else { 30 });
/// Bytes of a request, and of an answer: a VM takes some 2 KiB.
const REQUEST: u64 = 64 << 10;
const ANSWER: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Statistics,
    /// For these VMs from now on: those with this name or process ID. Without one, all VMs, also
    /// ones that come later.
    Set {
        vm: Option<String>,
        policy: Policy,
    },
}

/// Where guard is asked. The name is free again when this is dropped.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// # Errors
    /// When another guard listens, or without root's rights.
    pub fn listen() -> Result<Control, Error> {
        Control::listen_in(Path::new(DIRECTORY))
    }

    fn listen_in(directory: &Path) -> Result<Control, Error> {
        let path = directory.join(SOCKET);
        let listen = || {
            make_directory(directory)?;
            forget_dead(&path);
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let what = || format!("listening at {}", path.display());
        let listener = listen().map_err(|source| Error::Io { what: what(), source })?;
        Ok(Control { listener, path })
    }

    /// Waits for at most `limit`, and answers if somebody asks.
    pub fn serve(&self, guard: &mut dyn Guard, limit: Duration) {
        let mut entry = [PollFd::new(&self.listener, PollFlags::IN)];
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        // A signal, or nobody.
        if !poll(&mut entry, Some(&limit)).is_ok_and(|n| n > 0) {
            return;
        }
        if let Ok((stream, _)) = self.listener.accept() {
            // A client that went away needs no answer.
            let _ = answer(stream, guard);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn answer(mut stream: UnixStream, guard: &mut dyn Guard) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(REQUEST)).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Request::Statistics) => say(&mut stream, guard.statistics()),
        Ok(Request::Set { vm, policy }) => say(&mut stream, guard.set(vm.as_deref(), policy)),
        Err(error) => say::<()>(&mut stream, Err(Error::Refused(format!("no request: {error}")))),
    }
}

fn say<T: Serialize>(stream: &mut UnixStream, answer: Result<T, Error>) -> io::Result<()> {
    let answer = answer.map_err(|error| error.to_string());
    stream.write_all((serde_json::to_string(&answer)? + "\n").as_bytes())
}

/// The statistics of the guard that runs here.
///
/// # Errors
/// [`Error::NotRunning`], or what guard said.
pub fn statistics() -> Result<Statistics, Error> {
    ask(Path::new(DIRECTORY), &Request::Statistics)
}

/// Changes the policy for VMs, and returns those that run and are treated so now. `vm` is a name
/// or a process ID; `None` stands for all.
///
/// # Errors
/// [`Error::NotRunning`], or what guard said.
pub fn set(vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
    ask(Path::new(DIRECTORY), &Request::Set { vm: vm.map(String::from), policy })
}

fn ask<T: DeserializeOwned>(directory: &Path, request: &Request) -> Result<T, Error> {
    let ask = || {
        let mut stream = UnixStream::connect(directory.join(SOCKET))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all((serde_json::to_string(request)? + "\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream.take(ANSWER)).read_line(&mut line)?;
        Ok(line)
    };
    let line = ask().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NotRunning,
        io::ErrorKind::PermissionDenied => Error::Refused("it answers root only".into()),
        _ => Error::Io { what: "asking guard".into(), source },
    })?;
    match serde_json::from_str(&line) {
        Ok(answer) => Result::map_err(answer, Error::Refused),
        Err(_) => Err(Error::Refused("it ended, or has another version".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::VmStatistics;

    /// Has one VM, and remembers what was set.
    struct One(Policy);

    impl Guard for One {
        fn statistics(&mut self) -> Result<Statistics, Error> {
            let vm = VmStatistics { name: "db".into(), policy: self.0, ..VmStatistics::default() };
            Ok(Statistics { vms: vec![vm], ..Statistics::default() })
        }

        fn set(&mut self, vm: Option<&str>, policy: Policy) -> Result<Vec<String>, Error> {
            if vm.is_some_and(|vm| vm != "db") {
                return Err(Error::NoVm { asked: "web".into(), there: "db".into() });
            }
            self.0 = policy;
            Ok(vec!["db".into()])
        }
    }

    /// A directory where a guard is asked, for ever.
    fn running() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let control = Control::listen_in(directory.path()).unwrap();
        std::thread::spawn(move || {
            let mut guard = One(Policy::Full);
            loop {
                control.serve(&mut guard, PATIENCE);
            }
        });
        directory
    }

    fn seen(directory: &Path) -> Result<Statistics, Error> {
        ask(directory, &Request::Statistics)
    }

    #[test]
    fn a_policy_is_set_and_seen() {
        let directory = running();
        let set = Request::Set { vm: Some("db".into()), policy: Policy::Plain };
        assert_eq!(ask::<Vec<String>>(directory.path(), &set).unwrap(), ["db"]);
        assert_eq!(seen(directory.path()).unwrap().vms[0].policy, Policy::Plain);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let directory = running();
        let set = Request::Set { vm: Some("web".into()), policy: Policy::Full };
        let answer = ask::<Vec<String>>(directory.path(), &set).unwrap_err().to_string();
        assert!(answer.contains("web") && answer.contains("db"), "{answer}");
        assert!(Control::listen_in(directory.path()).is_err());
        let mode = fs::metadata(directory.path().join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "others than root cannot connect");
    }

    #[test]
    fn a_dead_guards_socket_is_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let dead = || drop(UnixListener::bind(directory.path().join(SOCKET)).unwrap());
        dead();
        assert!(matches!(seen(directory.path()), Err(Error::NotRunning)));
        drop(Control::listen_in(directory.path()).unwrap());
        dead();
        forget_dead(&directory.path().join(SOCKET));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn nonsense_and_silence_are_no_trouble() {
        let directory = running();
        let connect = || UnixStream::connect(directory.path().join(SOCKET)).unwrap();
        for nonsense in ["\n", "{}\n", "\u{0}\n", "{\"set\":{}}\n"] {
            let mut stream = connect();
            stream.write_all(nonsense.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("no request"), "{answer}");
        }
        drop(connect());
        assert!(seen(directory.path()).is_ok());
    }
}
