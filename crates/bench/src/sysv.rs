// SPDX-License-Identifier: MIT OR Apache-2.0
//! The subjects of the System V benchmarks: the kernel's calls and Reprieve's.

use crate::error::{Error, Result};
use crate::subject::Class;
use libc::sembuf;
use reprieve_ipc::Namespace;
use std::path::PathBuf;

#[derive(Clone, Copy)]
pub enum Sysv {
    Kernel,
    Reprieve(Namespace),
}

fn broken(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Broken { subject: what.into(), what: error.to_string() }
}

fn result(what: &str, result: i64) -> Result<i64> {
    if result == -1 { Err(broken(what, std::io::Error::last_os_error())) } else { Ok(result) }
}

impl Sysv {
    pub fn name(self) -> &'static str {
        match self {
            Sysv::Kernel => "kernel",
            Sysv::Reprieve(_) => "reprieve ipc",
        }
    }

    pub fn set(self, count: i32) -> Result<Object> {
        let id = match self {
            Sysv::Kernel => {
                // SAFETY: no memory is involved.
                let id = unsafe { libc::semget(0, count, 0o600) };
                result("semget", id.into())? as i32
            }
            Sysv::Reprieve(n) => n.semget(0, count, 0o600).map_err(|e| broken("semget", e))?,
        };
        Ok(Object { of: self, id, kind: Kind::Set })
    }

    pub fn queue(self) -> Result<Object> {
        let id = match self {
            // SAFETY: no memory is involved.
            Sysv::Kernel => result("msgget", unsafe { libc::msgget(0, 0o600) }.into())? as i32,
            Sysv::Reprieve(n) => n.msgget(0, 0o600).map_err(|e| broken("msgget", e))?,
        };
        Ok(Object { of: self, id, kind: Kind::Queue })
    }

    pub fn segment(self, size: usize) -> Result<Object> {
        let id = match self {
            Sysv::Kernel => {
                // SAFETY: no memory is involved.
                let id = unsafe { libc::shmget(0, size, 0o600) };
                result("shmget", id.into())? as i32
            }
            Sysv::Reprieve(n) => n.shmget(0, size, 0o600).map_err(|e| broken("shmget", e))?,
        };
        Ok(Object { of: self, id, kind: Kind::Segment })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Set,
    Queue,
    Segment,
}

/// A set, a queue or a segment, removed when dropped.
pub struct Object {
    of: Sysv,
    id: i32,
    kind: Kind,
}

impl Object {
    /// Whether the operation was done.
    #[inline]
    pub fn op(&self, num: u16, op: i16, flags: i32) -> bool {
        let mut op = sembuf { sem_num: num, sem_op: op, sem_flg: flags as i16 };
        match self.of {
            // SAFETY: one operation.
            Sysv::Kernel => unsafe { libc::semop(self.id, &mut op, 1) == 0 },
            Sysv::Reprieve(ref n) => n.semop(self.id, std::slice::from_ref(&op), None).is_ok(),
        }
    }

    #[inline]
    pub fn send(&self, message: &Message) -> bool {
        match self.of {
            // SAFETY: a message of its size.
            Sysv::Kernel => unsafe {
                libc::msgsnd(self.id, (&raw const *message).cast(), message.data.len(), 0) == 0
            },
            Sysv::Reprieve(ref n) => n.msgsnd(self.id, message.kind, &message.data, 0).is_ok(),
        }
    }

    /// The first message.
    #[inline]
    pub fn receive(&self, message: &mut Message) -> bool {
        self.receive_kind(0, message)
    }

    /// The first message of a kind.
    #[inline]
    pub fn receive_kind(&self, kind: i64, message: &mut Message) -> bool {
        let size = message.data.len();
        match self.of {
            // SAFETY: room for a message of that size.
            Sysv::Kernel => unsafe {
                let to = (&raw mut *message).cast();
                libc::msgrcv(self.id, to, size, kind, 0) == size as isize
            },
            Sysv::Reprieve(ref n) => {
                n.msgrcv(self.id, &mut message.data, kind, 0).is_ok_and(|(kind, n)| {
                    message.kind = kind;
                    n == size
                })
            }
        }
    }

    /// Maps the segment.
    pub fn attach(&self) -> Result<Attached> {
        let at = match self.of {
            // SAFETY: wherever there is room.
            Sysv::Kernel => unsafe {
                let at = libc::shmat(self.id, std::ptr::null(), 0);
                result("shmat", at as i64)?;
                at.cast()
            },
            Sysv::Reprieve(ref n) => {
                // SAFETY: as above.
                let at = unsafe { n.shmat(self.id, 0, 0) };
                at.map_err(|e| broken("shmat", e))?
            }
        };
        Ok(Attached { of: self.of, at })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        match (self.of, self.kind) {
            // SAFETY: what was made above.
            (Sysv::Kernel, Kind::Queue) => unsafe {
                libc::msgctl(self.id, libc::IPC_RMID, std::ptr::null_mut());
            },
            // SAFETY: as above.
            (Sysv::Kernel, Kind::Set) => unsafe {
                libc::semctl(self.id, 0, libc::IPC_RMID);
            },
            // SAFETY: as above.
            (Sysv::Kernel, Kind::Segment) => unsafe {
                libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut());
            },
            (Sysv::Reprieve(n), Kind::Queue) => drop(n.remove_msg(self.id)),
            (Sysv::Reprieve(n), Kind::Set) => drop(n.remove_sem(self.id)),
            (Sysv::Reprieve(n), Kind::Segment) => drop(n.remove_shm(self.id)),
        }
    }
}

/// A segment in this process's memory, until this is dropped.
pub struct Attached {
    of: Sysv,
    at: *mut u8,
}

impl Attached {
    /// Where it begins; of a page's alignment.
    pub fn start(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        match self.of {
            // SAFETY: attached by `attach`; whoever used it is done.
            Sysv::Kernel => unsafe {
                libc::shmdt(self.at.cast());
            },
            // SAFETY: as above.
            Sysv::Reprieve(_) => drop(unsafe { Namespace::shmdt(self.at as usize) }),
        }
    }
}

#[repr(C)]
pub struct Message {
    pub kind: i64,
    pub data: [u8; 64],
}

/// A namespace for a run; its directory goes when this is dropped.
pub struct Stage {
    directory: PathBuf,
    namespace: Namespace,
}

const PREFIX: &str = "reprieve-bench-ipc.";

impl Stage {
    pub fn new() -> Result<Stage> {
        // Kernel objects then go with this process, however it ends. Takes root: without it they
        // are removed one by one.
        // SAFETY: this thread's, whose children inherit it.
        unsafe { libc::unshare(libc::CLONE_NEWIPC) };
        let parent = ["/dev/shm", "/tmp"].into_iter().find(|p| std::path::Path::new(p).is_dir());
        let parent = PathBuf::from(parent.unwrap_or("/tmp"));
        remove_stale(&parent);
        let directory = parent.join(format!("{PREFIX}{}", std::process::id()));
        let namespace =
            Namespace::open(&directory).map_err(|error| broken("the namespace", error))?;
        Ok(Stage { directory, namespace })
    }

    /// The subjects: ours, and the kernel's if it has System V IPC. Else a note that says so.
    pub fn sides(&self) -> (Vec<(Sysv, Class)>, Option<String>) {
        let ours = (Sysv::Reprieve(self.namespace), Class::Reprieve);
        let all = Sysv::Kernel.set(1).and(Sysv::Kernel.queue()).and(Sysv::Kernel.segment(1));
        match all {
            Ok(_) => (vec![ours, (Sysv::Kernel, Class::Peer)], None),
            Err(error) => {
                (vec![ours], Some(format!("no System V IPC in the kernel here: {error}")))
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Removes what runs left that were killed.
fn remove_stale(parent: &std::path::Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|p| p.parse::<i32>().ok());
        // SAFETY: signal 0 only asks.
        if pid.is_some_and(|pid| unsafe { libc::kill(pid, 0) } == -1) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
