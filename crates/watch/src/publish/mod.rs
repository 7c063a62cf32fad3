// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve hint serve`: registers processes that use crate `reprieve-hint`, and gives each the
//! page that says which of its threads run and how many threads every CPU has to run.
//!
//! The page is written by an eBPF program at context switches and wake-ups (`bpf/publish.bpf.c`),
//! and is the memory of one of its maps. Processes get a descriptor of it that only reads, over a
//! socket: they need no right but to connect. Everything ends with the [`Server`]: nothing is
//! pinned.

mod places;
mod program;
mod socket;

use crate::raw::clock;
use places::{Claim, Move};
use program::Program;
use reprieve_hint::abi::{Hello, LINES, MAGIC, VERSION, Welcome};
use rustix::event::{PollFd, PollFlags, poll};
pub use socket::make_directory;
use socket::{Connection, Listener, Silent};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where programs look for the socket.
pub const SOCKET: &str = "/run/reprieve/hint.sock";

/// How often the server wakes up: the eBPF program writes the page's beat at the switch, and the
/// stop flag is read. Programs take a page for dead whose beat is ten times as old.
const BEAT: Duration = Duration::from_millis(200);

/// Why hints cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("serving hints needs {what}: {hint}")]
    Missing { what: &'static str, hint: &'static str },
    #[error("the kernel refuses the eBPF program ({step}): {message}")]
    Bpf { step: &'static str, message: String },
    #[error("{}: another `reprieve hint serve` or `reprieve guard` serves hints: end it, or choose another socket", .0.display())]
    Taken(PathBuf),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

/// Context switches of registered processes' threads since the server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Processes that are registered now.
    pub processes: usize,
    pub switches: u64,
    /// Switches at which the thread would have run on.
    pub preempted: u64,
    /// Preemptions inside a non-preemptable section.
    pub in_non_preemptable: u64,
    /// Inside a preemptable section.
    pub in_preemptable: u64,
    /// Inside a read-side section of the runtime.
    pub in_reader: u64,
}

/// A process that is registered, or waits for a place.
struct Client {
    connection: Connection,
    hello: Hello,
    claim: Claim,
}

pub struct Server {
    program: Program,
    listener: Listener,
    silent: Silent,
    clients: Vec<Client>,
    /// The last client's.
    keys: u64,
}

impl Server {
    /// Loads the eBPF program and listens at `path`.
    ///
    /// # Errors
    /// Without the rights to do so, or if another server listens there.
    pub fn start(path: &Path) -> Result<Server, Error> {
        let program = Program::load()?;
        let listener = Listener::bind(path)?;
        // Not the same in two servers: what a process remembers of the last one means nothing.
        let keys = clock::now_ns();
        Ok(Server { program, listener, silent: Silent::default(), clients: vec![], keys })
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.program.counts();
        counts.processes = self.placed().count();
        counts
    }

    /// Serves until `stop` is set, or `each` returns false, which is called several times a second.
    ///
    /// # Errors
    /// If waiting fails.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut each: impl FnMut(&Server) -> bool,
    ) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) && each(self) {
            self.step()?;
        }
        Ok(())
    }

    /// Waits for something to happen, not long, and sees to it.
    fn step(&mut self) -> io::Result<()> {
        let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: BEAT.as_nanos() as i64 };
        let registered = self.clients.iter().map(|client| &client.connection);
        let connections = registered.chain(self.silent.connections());
        let mut fds: Vec<_> = connections.map(|c| PollFd::new(c, PollFlags::IN)).collect();
        fds.push(PollFd::new(&self.listener, PollFlags::IN));
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (clients, silent) = ready.split_at(self.clients.len());
        // From the last to the first, so that the numbers of the others stay.
        for index in (0..clients.len()).rev().filter(|&i| clients[i]) {
            // A process says nothing after its hello: it has gone.
            self.remove(index);
        }
        self.give_places();
        for connection in self.silent.take(silent) {
            self.register(connection);
        }
        // Then those that wait are looked at again.
        for _ in 0..socket::QUEUE {
            let Some(connection) = self.listener.accept() else { break };
            if let Some(connection) = self.silent.add(connection) {
                // The process may have spoken since the wait.
                self.register(connection);
            }
        }
        Ok(())
    }

    /// Takes in a process that said what it has to, and hangs up on another.
    fn register(&mut self, connection: Connection) {
        let Some(hello) = connection.hello().filter(sensible) else { return };
        if !connection.is_still() {
            return;
        }
        self.keys += 1;
        let key = self.keys;
        let claim = Claim { user: connection.user, key, place: None };
        self.clients.push(Client { connection, hello, claim });
        if let Some(excess) = places::excess(&self.claims()) {
            self.remove(excess);
        }
        self.give_places();
        // Now, so that a process which has a place finds it at once.
        let welcome = Welcome { magic: MAGIC, version: VERSION, pad: [0; 2], key };
        if let Some(index) = self.clients.iter().position(|client| client.claim.key == key) {
            let connection = &self.clients[index].connection;
            if connection.welcome(&welcome, self.program.page()).is_err() {
                self.remove(index);
            }
        }
    }

    fn claims(&self) -> Vec<Claim> {
        self.clients.iter().map(|client| client.claim).collect()
    }

    /// Clients that have a place.
    fn placed(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter(|client| client.claim.place.is_some())
    }

    /// Gives places to clients that wait.
    fn give_places(&mut self) {
        while let Some(Move { place, from, to }) = places::next(&self.claims()) {
            if let Some(from) = from {
                self.take_place(from);
            }
            self.clients[to].claim.place = Some(place);
            let Client { connection, hello, claim } = &self.clients[to];
            if self.program.reset(place, claim.key).is_err()
                || self.program.register(connection.pid, place, hello).is_err()
                // From here on the eBPF program notices. The process may have gone meanwhile, and
                // its number is another's.
                || !connection.is_still()
            {
                self.remove(to);
            }
        }
        self.program.set_registered(self.placed().count());
    }

    fn remove(&mut self, index: usize) {
        self.take_place(index);
        self.clients.swap_remove(index);
    }

    /// The eBPF program relies on this order: a place gets another key only when nobody is
    /// registered with it.
    fn take_place(&mut self, index: usize) {
        let Some(place) = self.clients[index].claim.place.take() else { return };
        let pid = self.clients[index].connection.pid;
        // The process may have another connection, whose place its threads have from now on.
        let other = self.placed().find(|other| other.connection.pid == pid);
        let restored = other.is_some_and(|other| {
            let place = other.claim.place.unwrap_or_default();
            self.program.register(pid, place, &other.hello).is_ok() && other.connection.is_still()
        });
        if !restored {
            self.program.forget(pid);
        }
        let _ = self.program.reset(place, 0);
    }
}

/// Whether a program of this version says `hello`. All else about its numbers is its own affair:
/// the eBPF program reads its memory by them, and nobody else's.
fn sensible(hello: &Hello) -> bool {
    (hello.magic, hello.version) == (MAGIC, VERSION) && hello.lines as usize <= LINES
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprieve_hint::abi::{Page, hello};
    use rustix::net::{self, AddressFamily, SendFlags, SocketAddrUnix, SocketType};
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    fn bytes(hello: &Hello) -> &[u8] {
        // SAFETY: integers without gaps between them.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(hello).cast(), size_of::<Hello>()) }
    }

    /// Connects this process, and says hello.
    fn connect(path: &Path) -> OwnedFd {
        let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        net::send(&socket, bytes(&hello()), SendFlags::NOSIGNAL).unwrap();
        socket
    }

    /// A child connects by a descriptor that this process has, too: nobody hangs up when it ends,
    /// or executes another program.
    #[test]
    fn a_registration_ends_with_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hint.sock");
        let mut server = Server::start(&path).unwrap();
        for executes in [false, true] {
            let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            let (mut go_on, mut told) = UnixStream::pair().unwrap();
            let address = SocketAddrUnix::new(&path).unwrap();
            let hello = hello();
            // SAFETY: the child makes system calls, and ends or executes a program.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // The child goes with its parent, should the test fail.
                // SAFETY: no memory is passed.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let _ = net::connect(&socket, &address);
                let _ = net::send(&socket, bytes(&hello), SendFlags::NOSIGNAL);
                let _ = told.read(&mut [0]);
                // SAFETY: as above.
                unsafe {
                    if executes {
                        let arguments = [c"sleep".as_ptr(), c"1000000".as_ptr(), std::ptr::null()];
                        libc::execvp(arguments[0], arguments.as_ptr());
                    }
                    libc::_exit(0);
                }
            }
            let pid = child as u32;
            while server.program.slot_of(pid).is_none() {
                server.step().unwrap();
            }
            go_on.write_all(&[0]).unwrap();
            while server.program.slot_of(pid).is_some() {
                server.step().unwrap();
            }
            assert_eq!(server.clients.len(), 1, "the connection is there still");
            drop(socket);
            // SAFETY: our child.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
            while !server.clients.is_empty() {
                server.step().unwrap();
            }
        }
    }

    /// As a set-uid program, or one with capabilities: its user may not read its memory.
    #[test]
    fn who_has_given_up_rights_is_not_registered() {
        // SAFETY: no preconditions.
        assert_eq!(unsafe { libc::geteuid() }, 0, "as for all tests with eBPF programs");
        let directory = tempfile::tempdir().unwrap();
        let everyone = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), everyone).unwrap();
        let path = directory.path().join("hint.sock");
        let mut server = Server::start(&path).unwrap();
        let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        let hello = hello();
        // SAFETY: the child makes system calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no memory is passed but a buffer that is valid for its size. It goes with its
            // parent, should the test fail: that ends with the change of user.
            unsafe {
                let (mut answer, nobody) = ([0u8; size_of::<Welcome>()], 65534);
                libc::syscall(libc::SYS_setresgid, nobody, nobody, nobody);
                libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let said = net::connect(&socket, &address).is_ok()
                    && net::send(&socket, bytes(&hello), SendFlags::NOSIGNAL).is_ok();
                let (fd, to) = (socket.as_raw_fd(), answer.as_mut_ptr().cast());
                // The server hangs up, or says welcome.
                let got = libc::recv(fd, to, answer.len(), 0);
                libc::_exit(if said && got == 0 { 0 } else { 1 });
            }
        }
        drop(socket);
        let mut status = 0;
        // SAFETY: our child.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            server.step().unwrap();
        }
        assert_eq!(status, 0, "welcome, or not heard");
        assert!(server.clients.is_empty());
    }

    /// The page, mapped into this process for as long as it lives.
    fn view(program: &Program) -> &'static Page {
        let page = program.page().as_raw_fd();
        // SAFETY: a new mapping, which the kernel checks against the size of the map, and which
        // nobody ends.
        unsafe {
            let null = std::ptr::null_mut();
            let at =
                libc::mmap(null, size_of::<Page>(), libc::PROT_READ, libc::MAP_SHARED, page, 0);
            assert_ne!(at, libc::MAP_FAILED);
            &*at.cast()
        }
    }

    #[test]
    fn a_process_that_ends_one_of_two_connections_keeps_the_other_ones_slot() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hint.sock");
        let mut server = Server::start(&path).unwrap();
        let serve = |server: &mut Server, clients: usize| {
            while server.clients.len() != clients {
                server.step().unwrap();
            }
            server.program.slot_of(std::process::id())
        };
        let first = connect(&path);
        assert_eq!(serve(&mut server, 1), Some(0));
        let second = connect(&path);
        assert_eq!(serve(&mut server, 2), Some(1));
        drop(second);
        assert_eq!(serve(&mut server, 1), Some(0), "another process may get slot 1");
        drop(first);
        assert_eq!(serve(&mut server, 0), None);
    }

    #[test]
    fn a_thread_writes_nothing_into_a_slot_that_is_another_process_s_by_now() {
        let mut program = Program::load().unwrap();
        let threads = &view(&program).threads[..LINES];
        let known = || threads.iter().any(|thread| thread.state.load(Ordering::Relaxed) != 0);
        let sleep = || std::thread::sleep(Duration::from_millis(1));
        let pid = std::process::id();
        // The thread has a line from now on.
        drop(reprieve_hint::non_preemptable());
        program.reset(0, 7).unwrap();
        program.register(pid, 0, &hello()).unwrap();
        program.set_registered(1);
        while !known() {
            sleep();
        }
        program.forget(pid);
        program.reset(0, 8).unwrap();
        // Switches of this thread, of whose place the program knows.
        for _ in 0..50 {
            sleep();
            assert!(!known(), "the slot is another's");
        }
    }

    /// Threads for which there was no line share the first.
    #[test]
    fn the_first_line_says_nothing() {
        let mut program = Program::load().unwrap();
        let first = &view(&program).threads[0].state;
        let table = reprieve_hint::abi::line() as u64;
        program.reset(0, 7).unwrap();
        let hello = Hello { table, lines: 1, ..hello() };
        program.register(std::process::id(), 0, &hello).unwrap();
        program.set_registered(1);
        while program.counts().switches < 50 {
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(first.load(Ordering::Relaxed), 0);
        }
    }
}
