// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers this process with `reprieve hint serve`, over its socket, and maps the page that comes
//! back.
//!
//! A socket, because it asks no right of the process but to write to it: the kernel tells the
//! server which process that is, the descriptor of the page is read-only, and the registration ends
//! with the process, however that ends. It crosses containers where the socket's directory is
//! mounted into them.
//!
//! A user who can write that directory can serve in the server's place. The page's words are
//! believed only as far as [`super`] says, and nobody may take its memory away ([`stays`]).
//!
//! > **Invariant.** Only the thread that stands in [`CONNECTING`] changes the registration (and the
//! > only thread of a forked child, which ends it in its handler): the key, the page, and the
//! > connection. So all of them are of one registration.
//!
//! The word has the epoch of its process, so the child of a fork does not wait for a thread that it
//! has not. A signal handler does not wait for the thread that it interrupts.

use super::layout::{Hello, MAGIC, Page, VERSION, Welcome};
use super::region::{self, Missing};
use super::{KEY, PAGE};
use crate::platform::cancel::CancelDisabled;
use crate::platform::{clock, fork, sys};
use crate::thread::{self, LINES, block_offset, table_address};
use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The socket, unless `REPRIEVE_HINT` names another. `REPRIEVE_HINT=off`: none.
const DEFAULT: &str = "/run/reprieve/hint.sock";
/// How long a process that did not ask for a page waits for one when it starts.
const SHORT: Duration = Duration::from_millis(100);
/// The connection's number is at least the first of these for which there is room: programs choose
/// low numbers, and expect the lowest free one. Never 0, 1 or 2.
const NUMBERS: [i32; 3] = [1000, 100, 3];

/// Why there is no page.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// `REPRIEVE_HINT=off` is set.
    Off,
    /// Nobody serves hints at that socket, or not to this process.
    Connect(PathBuf, io::Error),
    /// Another thread of this process waits for that socket's server, or the function that a signal
    /// handler interrupted.
    Busy(PathBuf),
    /// The server did not answer as one of this version does.
    Answer(PathBuf, String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Off => f.write_str("REPRIEVE_HINT=off: unset it to register for hints"),
            Error::Connect(path, error) => write!(
                f,
                "{}: {error}: run `reprieve hint serve` as root on this host, or name its socket in REPRIEVE_HINT",
                path.display()
            ),
            Error::Busy(path) => write!(
                f,
                "{}: another thread of this process waits for an answer: try again",
                path.display()
            ),
            Error::Answer(path, what) => write!(
                f,
                "{}: {what}: is that `reprieve hint serve` of this version?",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Error {}

/// The connection, kept open: the registration ends with it. Its descriptor, and in the low half
/// its inode: in one word, so that a thread that reads it never has those of two connections.
static CONNECTION: AtomicU64 = AtomicU64::new(NONE);
const NONE: u64 = u64::MAX;
/// In place of an inode, of which no file has this number: the process may not ask for it. Such a
/// connection is taken to be open, and never closed: the program may have done so.
const UNKNOWN: u32 = 0;
/// The process of which the page and the connection are, by its epoch: a child of a bare `clone`
/// has a copy of them.
static REGISTERED: AtomicU32 = AtomicU32::new(0);
/// The thread that connects, below its process's epoch; 0: none.
static CONNECTING: AtomicU64 = AtomicU64::new(0);
/// The device that all sockets are on.
static SOCKETS: AtomicU64 = AtomicU64::new(0);
/// Distance of the pointer to the runtime's reader record from the thread pointer, or 0.
static READER: AtomicIsize = AtomicIsize::new(0);

/// Says where the runtime keeps each thread's pointer to its read-side record, as a distance from
/// the thread pointer. Counts from the next registration on.
pub(crate) fn set_reader(offset: isize) {
    READER.store(offset, Ordering::Relaxed);
}

/// Registers this process with `reprieve hint serve`, if it is not registered, and waits for the
/// page at most `time`. A process does the same when it is loaded, for a short time; this is for a
/// program that wants to know, that started before the server, or that is the child of a fork. In a
/// guest it also looks for the region that the host may offer ([`connect_host`]), which is enough.
///
/// # Errors
/// Without effect: locks wait by what they find out themselves.
pub fn connect(time: Duration) -> Result<(), Error> {
    // Programs are not told that this is a cancellation point.
    let _whole = CancelDisabled::new();
    let begun = Instant::now();
    let left = || time.saturating_sub(begun.elapsed());
    let host = connect_host();
    let registered = || {
        super::page(clock::now()).and_then(super::place).is_some()
            && REGISTERED.load(Ordering::Acquire) == fork::epoch()
            && is_open(CONNECTION.load(Ordering::Acquire))
    };
    if registered() {
        return Ok(());
    }
    let path = socket_path().ok_or(Error::Off);
    let result = path.and_then(|path| {
        let _connecting = Connecting::begin(&left).ok_or_else(|| Error::Busy(path.clone()))?;
        if registered() {
            return Ok(());
        }
        // The socket of a server that is gone, or one that the program has closed.
        forget();
        serve_me(&path, &left)
    });
    result.or_else(|error| host.map_err(|_| error))
}

/// The mark that this thread connects, until it is dropped.
struct Connecting;

impl Connecting {
    /// Waits for another thread while there is time `left`.
    fn begin(left: &dyn Fn() -> Duration) -> Option<Connecting> {
        const STEP: Duration = Duration::from_millis(1);
        let me = u64::from(fork::epoch()) << 32 | u64::from(sys::thread_id());
        loop {
            let other = CONNECTING.load(Ordering::Relaxed);
            if other >> 32 != me >> 32 {
                let order = (Ordering::Acquire, Ordering::Relaxed);
                if CONNECTING.compare_exchange(other, me, order.0, order.1).is_ok() {
                    return Some(Connecting);
                }
            } else if other == me || left().is_zero() {
                return None;
            } else {
                std::thread::sleep(STEP);
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        CONNECTING.store(0, Ordering::Release);
    }
}

/// Inside a guest: has this process's hints reach the host, and the host's answers this process, if
/// the host offers a region. [`connect`] does it, too; this says why there is none.
///
/// # Errors
/// Without effect, as above.
pub fn connect_host() -> Result<(), Missing> {
    let _whole = CancelDisabled::new();
    let named = variable(c"REPRIEVE_HINT_REGION");
    if named.as_deref() == Some("off".as_ref()) || socket_path().is_none() {
        return Err(Missing::Off);
    }
    region::map(named.as_ref().map(Path::new))
}

/// An environment variable. Read without the lock of the standard library, which another thread may
/// hold for ever in the child of a fork.
fn variable(name: &CStr) -> Option<OsString> {
    // SAFETY: who changes the environment answers for those who read it at that moment; getenv
    // returns null or a string. A program with more privileges than its caller ignores it.
    unsafe {
        let secure = libc::getauxval(libc::AT_SECURE) != 0;
        let found = libc::getenv(name.as_ptr());
        let bytes = (!secure && !found.is_null()).then(|| CStr::from_ptr(found).to_bytes());
        bytes.map(|bytes| OsStr::from_bytes(bytes).to_owned())
    }
}

fn serve_me(path: &Path, left: &dyn Fn() -> Duration) -> Result<(), Error> {
    let socket = open(path, left()).map_err(|error| Error::Connect(path.into(), error))?;
    let answer = |what: &str| Error::Answer(path.into(), what.into());
    let received = limit(&socket, libc::SO_RCVTIMEO, left()).and_then(|()| receive(&socket));
    let (welcome, page) =
        received.map_err(|error| answer(&error.to_string()))?.ok_or(answer("no page"))?;
    if (welcome.magic, welcome.version) != (MAGIC, VERSION) {
        return Err(answer("another version"));
    }
    let at = map(&page).map_err(|error| answer(&error.to_string()))?;
    drop(page);
    KEY.store(welcome.key, Ordering::Relaxed);
    PAGE.store(at, Ordering::Release);
    keep(socket);
    REGISTERED.store(fork::epoch(), Ordering::Release);
    Ok(())
}

/// When the image that contains this is loaded: no lock is held yet, and no filter forbids it.
#[used]
#[unsafe(link_section = ".init_array.00100")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    clock::keep_errno(|| {
        thread::find_out();
        // SAFETY: the function lives as long as the image, as the key's destructor (`thread`).
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
        let _ = connect(SHORT);
    });
}

/// In the child of a fork, which is not registered unless it calls [`connect`]: a fork may be in
/// any state of the program.
extern "C" fn after_fork() {
    fork::forget();
    // The page tells about the parent's threads.
    forget();
    thread::after_fork();
}

/// Forgets the page. The connection ends; in the child of a fork that is a copy of the parent's,
/// which stays.
fn forget() {
    PAGE.store(std::ptr::null_mut(), Ordering::Relaxed);
    close(CONNECTION.swap(NONE, Ordering::AcqRel));
}

/// Keeps the connection, in place of the one before.
fn keep(socket: OwnedFd) {
    let inode = identity(socket.as_raw_fd()).map_or(UNKNOWN, |(device, inode)| {
        SOCKETS.store(device, Ordering::Relaxed);
        inode
    });
    let fd = socket.into_raw_fd();
    close(CONNECTION.swap((fd as u64) << 32 | u64::from(inode), Ordering::AcqRel));
}

/// Whether the program has not closed that connection. It may close all descriptors (`closefrom`),
/// and have a file of its own by that number now.
fn is_open(connection: u64) -> bool {
    let ours = (SOCKETS.load(Ordering::Relaxed), connection as u32);
    connection != NONE
        && (ours.1 == UNKNOWN
            || identity((connection >> 32) as i32).is_ok_and(|found| found == ours))
}

/// Closes a connection that is open still. (Another thread that replaces the descriptor between the
/// two calls here is not seen.)
fn close(connection: u64) {
    if connection as u32 != UNKNOWN && is_open(connection) {
        // SAFETY: a socket that this module opened and nobody else uses. A fork is no cancellation
        // point, and the C library's `close` is one.
        unsafe { sys::call(libc::SYS_close, [(connection >> 32) as usize, 0, 0, 0, 0, 0]) };
    }
}

/// The identity of an open socket among all open files: the device, and the inode, of which the
/// kernel gives sockets 32 bits.
fn identity(fd: i32) -> io::Result<(u64, u32)> {
    // SAFETY: plain data, which the call fills in.
    let (found, file) = unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        let at = (&raw mut file).expose_provenance();
        (sys::call(libc::SYS_fstat, [fd as usize, at, 0, 0, 0, 0]), file)
    };
    if found != 0 {
        return Err(io::Error::from_raw_os_error(-found as i32));
    }
    Ok((file.st_dev, file.st_ino as u32))
}

/// The same socket by a high number.
fn move_up(socket: OwnedFd) -> io::Result<OwnedFd> {
    let fd = socket.as_raw_fd();
    for least in NUMBERS {
        // SAFETY: a new descriptor of our own.
        unsafe {
            let moved = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, least);
            if moved >= 0 {
                return Ok(OwnedFd::from_raw_fd(moved));
            }
        }
    }
    // No room is left for one more. The socket may have to stay where it is.
    let error = io::Error::last_os_error();
    if fd >= NUMBERS[2] { Ok(socket) } else { Err(error) }
}

fn socket_path() -> Option<PathBuf> {
    let path = variable(c"REPRIEVE_HINT").unwrap_or(DEFAULT.into());
    (path != "off").then(|| path.into())
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Has calls that send or receive wait at most `time`.
fn limit(socket: &OwnedFd, option: i32, time: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: time.as_secs().try_into().unwrap_or(i32::MAX.into()),
        // 0 would mean for ever.
        tv_usec: time.subsec_micros().max(1) as _,
    };
    let (fd, size) = (socket.as_raw_fd(), size_of_val(&time) as libc::socklen_t);
    let value = (&raw const time).cast();
    // SAFETY: the option is valid for its size.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value, size) }.into())?;
    Ok(())
}

/// A connection, over which the process has said who it is.
fn open(path: &Path, time: Duration) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor of our own; the address is valid for its size.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let socket = check(libc::socket(libc::AF_UNIX, kind, 0).into())? as i32;
        let socket = OwnedFd::from_raw_fd(socket);
        limit(&socket, libc::SO_SNDTIMEO, time)?;
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() >= address.sun_path.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
        }
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let size = size_of_val(&address) as libc::socklen_t;
        check(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size).into())?;
        // Not before somebody serves: a large table of descriptors takes the kernel a grace period.
        let socket = move_up(socket)?;
        let hello = hello();
        let sent = (&raw const hello).cast();
        let fd = socket.as_raw_fd();
        check(libc::send(fd, sent, size_of_val(&hello), libc::MSG_NOSIGNAL) as i64)?;
        Ok(socket)
    }
}

/// The facts that this process tells of itself.
pub(crate) fn hello() -> Hello {
    Hello {
        magic: MAGIC,
        version: VERSION,
        block: block_offset() as i64,
        reader: READER.load(Ordering::Relaxed) as i64,
        table: table_address() as u64,
        lines: LINES as u32,
        pad: 0,
    }
}

/// The answer, and the page's descriptor if there is one.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Welcome, OwnedFd)>> {
    let mut welcome = Welcome::default();
    // Room and alignment for the header and one descriptor.
    let mut control = [0u64; 8];
    // SAFETY: the message describes buffers that are valid for their lengths; the kernel fills in
    // the control message, which is walked by the C library's macros.
    unsafe {
        let mut part =
            libc::iovec { iov_base: (&raw mut welcome).cast(), iov_len: size_of::<Welcome>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        // The kernel closes further ones.
        message.msg_controllen = libc::CMSG_LEN(size_of::<i32>() as u32) as _;
        let fd = socket.as_raw_fd();
        let got = check(libc::recvmsg(fd, &mut message, libc::MSG_CMSG_CLOEXEC) as i64)?;
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null()
            || ((*header).cmsg_level, (*header).cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS)
        {
            return Ok(None);
        }
        let page = OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned());
        Ok((got as usize == size_of::<Welcome>()).then_some((welcome, page)))
    }
}

/// Whether the file is as long as a page, if it can be mapped, and stays so: a file that was cut
/// under those who have mapped it would end them.
fn stays(page: &OwnedFd) -> io::Result<bool> {
    // `*_MAGIC` of linux/magic.h.
    const ANON_INODE_FS: u64 = 0x0904_1934;
    const TMPFS: u64 = 0x0102_1994;
    let fd = page.as_raw_fd();
    // SAFETY: plain data, which the calls fill in.
    unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        check(libc::fstatfs(fd, &mut system).into())?;
        match system.f_type as u64 {
            // A map of eBPF's, as the server's: it has one size, and no more of it is mapped.
            ANON_INODE_FS => Ok(true),
            // A memfd may be sealed.
            TMPFS => {
                let seals = check(libc::fcntl(fd, libc::F_GET_SEALS).into())?;
                let (mut byte, last) = (0u8, size_of::<Page>() - 1);
                let got = libc::pread(fd, (&raw mut byte).cast(), 1, last as libc::off_t);
                Ok(seals & i64::from(libc::F_SEAL_SHRINK) != 0 && got == 1)
            }
            _ => Ok(false),
        }
    }
}

fn map(page: &OwnedFd) -> io::Result<*mut Page> {
    if !stays(page)? {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its page may be cut"));
    }
    // SAFETY: a new read-only mapping. The server has a map of that size, or mmap fails.
    let at = unsafe {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), size_of::<Page>(), protection, flags, page.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}
