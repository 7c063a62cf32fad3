// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that connect to the server of hints and say nothing, or late: it waits for them,
//! serves others meanwhile, and gives up those that are too many.

use reprieve_hint::abi::{Hello, MAGIC, Welcome, hello};
use reprieve_watch::publish::Server;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Far more than the server waits for, and than wait in the socket's queue.
const MANY: usize = 300;

/// A process that has connected.
struct Client(OwnedFd);

impl Client {
    fn new(path: &Path) -> Client {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Client(socket)
    }

    /// Whether the server has not hung up.
    fn is_open(&self) -> bool {
        let got = recv(&self.0, &mut [0u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        got == Err(rustix::io::Errno::AGAIN)
    }

    /// Says hello, and waits until the server has answered.
    #[track_caller]
    fn is_served(&self) {
        let hello = hello();
        // SAFETY: integers without gaps between them, that stay until the call returns.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const hello).cast(), size_of::<Hello>()) };
        send(&self.0, bytes, SendFlags::NOSIGNAL).unwrap();
        let mut answer = [0; size_of::<Welcome>()];
        let (_, bytes) = recv(&self.0, &mut answer, RecvFlags::empty()).unwrap();
        assert_eq!((bytes, &answer[..4]), (answer.len(), &MAGIC.to_ne_bytes()[..]));
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `test` beside a server at the path that it gets.
fn served(test: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hint.sock");
    let mut server = Server::start(&path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A failed check must not leave the server running.
        let _end = End(&stop);
        scope.spawn(|| server.run(&stop, |_| true).unwrap());
        test(&path);
    });
}

#[test]
fn who_speaks_late_is_served_and_keeps_nobody_waiting() {
    served(|path| {
        let late = Client::new(path);
        // A client that came later is served first.
        Client::new(path).is_served();
        assert!(late.is_open());
        late.is_served();
        // A client that has gone without a word is not missed.
        drop(Client::new(path));
        Client::new(path).is_served();
    });
}

#[test]
fn many_that_say_nothing_keep_nobody_out() {
    served(|path| {
        let silent: Vec<Client> = (0..MANY).map(|_| Client::new(path)).collect();
        let last = Client::new(path);
        last.is_served();
        // The oldest made room.
        let open = silent.iter().filter(|client| client.is_open()).count();
        assert!(0 < open && open < MANY / 2, "{open} of {MANY} are waited for");
        assert!(!silent[0].is_open() && silent[MANY - 1].is_open());
        silent[MANY - 1].is_served();
    });
}
