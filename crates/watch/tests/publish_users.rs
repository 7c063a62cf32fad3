// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two users connect to the server of hints without end: programs of others get a place all the
//! same, and theirs get one when there is room, without another call.

use reprieve_hint::abi::{Hello, Welcome, hello};
use reprieve_hint::{current_thread, state};
use reprieve_watch::publish::Server;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// More than are served, and than may be silent.
const MANY: usize = 80;
/// Users without a name.
const FLOOD: [u32; 2] = [70_001, 70_002];
const OTHER: u32 = 70_003;
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

fn open(path: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn say_hello(socket: &OwnedFd) {
    let hello = hello();
    // SAFETY: integers without gaps between them, that stay until the call returns.
    let bytes =
        unsafe { std::slice::from_raw_parts((&raw const hello).cast(), size_of::<Hello>()) };
    send(socket, bytes, SendFlags::NOSIGNAL).unwrap();
}

/// Whether the server answers, rather than hang up.
fn is_served(socket: &OwnedFd) -> bool {
    let mut answer = [0; size_of::<Welcome>()];
    recv(socket, &mut answer, RecvFlags::empty()).is_ok_and(|(_, bytes)| bytes == answer.len())
}

/// A process of `user`'s that runs `f`, and ends with this value.
struct Process {
    pid: i32,
    talk: UnixStream,
}

impl Process {
    fn start(user: u32, f: impl FnOnce(&mut UnixStream)) -> Process {
        let (talk, mut theirs) = UnixStream::pair().unwrap();
        // SAFETY: the child gives up its rights, and is one that its user may look at, as a program
        // that is executed then. It runs `f` and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                libc::syscall(libc::SYS_setresgid, user, user, user);
                libc::syscall(libc::SYS_setresuid, user, user, user);
                libc::prctl(libc::PR_SET_DUMPABLE, 1);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let done =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut theirs)));
                libc::_exit(i32::from(done.is_err()));
            }
        }
        Process { pid, talk }
    }

    /// Waits until the process says that it got somewhere.
    #[track_caller]
    fn arrives(&mut self) {
        self.talk.read_exact(&mut [0]).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: our child.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

fn arrive(talk: &mut UnixStream) {
    talk.write_all(&[0]).unwrap();
}

fn wait_for_parent(talk: &mut UnixStream) {
    let _ = talk.read(&mut [0]);
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn two_users_who_connect_without_end_keep_nobody_out() {
    // SAFETY: no preconditions.
    assert_eq!(unsafe { libc::geteuid() }, 0, "as for all tests with eBPF programs");
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = directory.path().join("hint.sock");
    // SAFETY: no other thread of this process runs yet that reads the environment.
    unsafe {
        std::env::set_var("REPRIEVE_HINT", &path);
        std::env::set_var("REPRIEVE_HINT_REGION", "off");
    }
    let mut server = Server::start(&path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A failed check must not leave the server running.
        let _end = End(&stop);
        scope.spawn(|| server.run(&stop, |_| true).unwrap());

        // A process that lost its CPU before its hello, and hundreds of others that say nothing.
        let mut late = Process::start(OTHER, |talk| {
            let socket = open(&path);
            arrive(talk);
            wait_for_parent(talk);
            say_hello(&socket);
            assert!(is_served(&socket));
            arrive(talk);
        });
        late.arrives();
        let silent = |talk: &mut UnixStream| {
            let sockets: Vec<_> = (0..MANY).map(|_| open(&path)).collect();
            // The server has hung up on the first by then.
            assert!(!is_served(&sockets[0]));
            arrive(talk);
            wait_for_parent(talk);
        };
        let mut flood = FLOOD.map(|user| Process::start(user, silent));
        flood.iter_mut().for_each(Process::arrives);
        late.talk.write_all(&[0]).unwrap();
        late.arrives();

        // The same, of processes that do speak.
        let speak = |talk: &mut UnixStream| {
            let served = || {
                let socket = open(&path);
                say_hello(&socket);
                assert!(is_served(&socket));
                socket
            };
            let _sockets: Vec<_> = (0..MANY).map(|_| served()).collect();
            arrive(talk);
            wait_for_parent(talk);
        };
        let mut flood = FLOOD.map(|user| Process::start(user, speak));
        flood.iter_mut().for_each(Process::arrives);
        let mut other = Process::start(OTHER, |talk| {
            reprieve_hint::connect(FOR_EVER).unwrap();
            assert!(state(current_thread()).is_some());
            arrive(talk);
            wait_for_parent(talk);
        });
        other.arrives();
        let mut waits = Process::start(FLOOD[0], |talk| {
            reprieve_hint::connect(FOR_EVER).unwrap();
            assert!(state(current_thread()).is_none());
            arrive(talk);
            while state(current_thread()).is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            arrive(talk);
        });
        waits.arrives();
        drop(flood);
        waits.arrives();
    });
}
