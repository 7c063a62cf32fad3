// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to the server of hints, among the program's own descriptors. A process takes the
//! place of the server; at first its page has no beat, so every call of `connect` connects again.

use reprieve_hint::abi::{Hello, MAGIC, Page, VERSION, Welcome};
use reprieve_hint::{Error, ThreadId, connect, preemptable, state};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const FOR_EVER: Duration = Duration::from_secs(1 << 30);

fn check(result: i64) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result as i32
}

/// Runs `f` in a child, which ends with this thread. The child's number.
fn child(f: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `f` and ends, without running what the parent would on its way out.
    unsafe {
        let child = check(libc::fork().into());
        if child == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            libc::_exit(i32::from(done.is_err()));
        }
        child
    }
}

/// The answer of `f` in a child.
fn ask_child(f: impl FnOnce() -> bool) -> bool {
    const NO: i32 = 2;
    let answer = || {
        if !f() {
            // SAFETY: ends the child.
            unsafe { libc::_exit(NO) };
        }
    };
    let (child, mut status) = (child(answer), 0);
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(status == 0 || status == NO << 8, "{status}");
    status == 0
}

fn in_child(f: impl FnOnce()) {
    ask_child(|| {
        f();
        true
    });
}

fn listen(path: &Path) -> i32 {
    // SAFETY: a new descriptor; the address is valid for its size.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let listener = check(libc::socket(libc::AF_UNIX, kind, 0).into());
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.as_os_str().as_bytes();
        assert!(bytes.len() < address.sun_path.len());
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let size = size_of_val(&address) as libc::socklen_t;
        check(libc::bind(listener, (&raw const address).cast(), size).into());
        check(libc::listen(listener, 128).into());
        listener
    }
}

/// How many have connected, whom nobody serves.
fn unserved(listener: i32) -> usize {
    let mut queue = libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 };
    let none = std::ptr::null_mut();
    let mut count = 0;
    // SAFETY: descriptors of this process.
    unsafe {
        while check(libc::poll(&mut queue, 1, 0).into()) == 1 {
            libc::close(check(libc::accept(listener, none, none.cast()).into()));
            count += 1;
        }
    }
    count
}

/// Answers all who connect, with one descriptor more than is wanted.
fn serve(listener: i32, page: i32) -> ! {
    let welcome = Welcome { magic: MAGIC, version: VERSION, pad: [0; 2], key: 1 };
    // SAFETY: descriptors of this process; buffers that are valid for their sizes. The control
    // message is laid out by the C library's macros and fits.
    unsafe {
        loop {
            let none = std::ptr::null_mut();
            let client = check(libc::accept(listener, none, none.cast()).into());
            let mut hello = Hello::default();
            // A client that has gone meanwhile is not served.
            libc::recv(client, (&raw mut hello).cast(), size_of::<Hello>(), 0);
            let mut control = [0u64; 8];
            let mut part = libc::iovec {
                iov_base: (&raw const welcome).cast_mut().cast(),
                iov_len: size_of::<Welcome>(),
            };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(8) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(8) as _;
            libc::CMSG_DATA(header).cast::<[i32; 2]>().write_unaligned([page; 2]);
            if libc::sendmsg(client, &message, libc::MSG_NOSIGNAL) < 0 {
                libc::close(client);
            }
        }
    }
}

/// The memory of a page.
fn page() -> i32 {
    // SAFETY: a new descriptor.
    unsafe {
        let page = check(libc::memfd_create(c"page".as_ptr(), libc::MFD_ALLOW_SEALING).into());
        check(libc::ftruncate(page, size_of::<Page>() as libc::off_t).into());
        page
    }
}

fn inode(fd: i32) -> Option<u64> {
    // SAFETY: plain data, which the call fills in.
    unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut file) == 0).then_some(file.st_ino)
    }
}

fn open() -> Vec<i32> {
    (0..4096).filter(|&fd| inode(fd).is_some()).collect()
}

fn others_than(known: &[i32]) -> Vec<i32> {
    open().into_iter().filter(|fd| !known.contains(fd)).collect()
}

/// The descriptor that is open beside those.
#[track_caller]
fn other_than(known: &[i32]) -> i32 {
    let others = others_than(known);
    assert_eq!(others.len(), 1, "{others:?} beside {known:?}");
    others[0]
}

/// Has the kernel refuse to say what a descriptor is.
fn refuse_fstat() {
    let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let is = |call: i64, jt| line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, 0, call as u32);
    let end = |with| line(libc::BPF_RET | libc::BPF_K, 0, 0, with);
    let refused = end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let (by_fd, by_path) = (is(libc::SYS_fstat, 2), is(libc::SYS_newfstatat, 1));
    let mut lines = [load, by_fd, by_path, end(libc::SECCOMP_RET_ALLOW), refused];
    let filter = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: a valid filter, for this process.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into());
        check(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter).into());
    }
}

#[test]
fn the_programs_descriptors_stay() {
    let path = std::env::temp_dir().join(format!("connection-{}.sock", std::process::id()));
    let path = Socket(path);
    let (listener, page) = (listen(&path.0), page());
    // SAFETY: no other thread of this process runs yet that reads the environment.
    unsafe {
        std::env::set_var("REPRIEVE_HINT", &path.0);
        std::env::set_var("REPRIEVE_HINT_REGION", "off");
    }
    // Nobody answers yet: the process connects, and so waits, once.
    in_child(|| assert!(connect(Duration::from_millis(10)).is_err()));
    assert_eq!(unserved(listener), 1);

    child(|| serve(listener, page));
    let mut known = open();

    // A page that its server may cut.
    in_child(|| assert!(matches!(connect(FOR_EVER), Err(Error::Answer(..)))));
    // SAFETY: takes numbers.
    check(unsafe { libc::fcntl(page, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }.into());

    // A child registers neither by a fork nor by a hint, but if it asks for that.
    connect(FOR_EVER).unwrap();
    let was = inode(other_than(&known));
    in_child(|| {
        drop(preemptable());
        assert!(others_than(&known).is_empty());
        connect(FOR_EVER).unwrap();
        assert_ne!(inode(other_than(&known)), was);
    });

    // A program without an input.
    // SAFETY: nobody here uses it.
    unsafe { libc::close(0) };
    known.retain(|&fd| fd != 0);
    drop(preemptable());
    connect(FOR_EVER).unwrap();
    let connection = other_than(&known);
    assert!(connection > 2, "{connection}");

    // The connection is closed where nothing has happened to it.
    connect(FOR_EVER).unwrap();
    let connection = other_than(&known);
    let was = inode(connection);
    in_child(|| {
        assert!(others_than(&known).is_empty(), "registered by the fork itself");
        drop(preemptable());
        assert_ne!(inode(connection), was);
    });

    // A fork is no cancellation point, although it ends the child's connection.
    std::thread::scope(|scope| {
        let forks = || {
            // SAFETY: no cancellation point follows but, if it is one, the fork. The child ends.
            let (child, mut status) = unsafe {
                libc::pthread_cancel(libc::pthread_self());
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(7);
                }
                pthread_setcancelstate(1, std::ptr::null_mut());
                (check(child.into()), 0)
            };
            // SAFETY: our child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 7 << 8);
        };
        scope.spawn(forks).join().unwrap();
    });

    // The program has closed it, and has a socket of its own by that number.
    let own = inode(listener);
    let take = |connection| {
        // SAFETY: as a program that knows nothing of the connection does.
        check(unsafe { libc::dup2(listener, connection) }.into());
        connection
    };
    known.push(take(connection));
    connect(FOR_EVER).unwrap();
    assert_eq!(inode(connection), own, "closed by a second connection");
    let connection = other_than(&known);
    known.push(take(connection));
    in_child(|| {
        drop(preemptable());
        assert_eq!(inode(connection), own, "closed in the child of a fork");
    });

    // Where there are no high numbers.
    // SAFETY: plain data; only this process is limited.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit).into());
        limit.rlim_cur = 64;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit).into());
    }
    connect(FOR_EVER).unwrap();
    let connection = other_than(&known);
    assert!((3..64).contains(&connection), "{connection}");

    // A server that lives. Who has closed the connection is registered no more, and connects again.
    let (beat, at) = (u64::MAX, std::mem::offset_of!(Page, beat) as libc::off_t);
    // SAFETY: a number, as long as it is.
    check(unsafe { libc::pwrite(page, (&raw const beat).cast(), 8, at) } as i64);
    // It has given this process a place, though not the first one.
    let (key, place) = (1u64, 5 * size_of::<u64>());
    let at = (std::mem::offset_of!(Page, keys) + place) as libc::off_t;
    // SAFETY: as above.
    check(unsafe { libc::pwrite(page, (&raw const key).cast(), 8, at) } as i64);
    connect(FOR_EVER).unwrap();
    let same = other_than(&known);
    assert_eq!(same, connection);
    let was = inode(same);
    connect(FOR_EVER).unwrap();
    assert_eq!(inode(same), was);
    // C may name any number as a thread.
    for number in [u64::from(u32::MAX), u64::MAX] {
        assert_eq!(state(ThreadId::from_number(number)), None);
    }
    // SAFETY: as a program that closes what it does not know.
    check(unsafe { libc::close(same) }.into());
    connect(FOR_EVER).unwrap();
    let connection = other_than(&known);

    // Threads that connect at the same time: one does, for all.
    for _ in 0..20 {
        // SAFETY: as above.
        check(unsafe { libc::close(connection) }.into());
        let start = std::sync::Barrier::new(8);
        let connect_all = || {
            start.wait();
            connect(FOR_EVER).unwrap();
            inode(other_than(&known))
        };
        let connections: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(connect_all)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(connections.iter().all(|inode| *inode == connections[0]), "{connections:?}");
        assert_eq!(other_than(&known), connection);
    }

    // A descriptor's owner cannot be told: the connection is kept, and is the only one.
    in_child(|| {
        refuse_fstat();
        // SAFETY: only asks.
        let is_open = |&fd: &i32| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        let count = || (0..4096).filter(is_open).count();
        connect(FOR_EVER).unwrap();
        let before = count();
        connect(FOR_EVER).unwrap();
        assert_eq!(count(), before);
    });
}
