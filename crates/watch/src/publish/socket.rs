// SPDX-License-Identifier: MIT OR Apache-2.0
//! The socket where processes register: one message from either side.

use super::{Error, places};
use reprieve_guest::vmm::process;
use reprieve_hint::abi::{Hello, Welcome};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How many processes that said nothing are waited for, each for as long as it takes: a process may
/// lose its CPU before its hello.
const MOST_SILENT: usize = 64;
/// How many may have connected before the server looks.
pub const QUEUE: i32 = 128;

/// The socket, at its path until this is dropped.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

/// A process.
pub struct Connection {
    socket: OwnedFd,
    pub pid: u32,
    /// Its user in its user namespace when it connected.
    id: u32,
    /// The user who runs it. An owner of a user namespace has thousands of IDs in there.
    pub user: u32,
}

/// Processes that connected and said nothing yet, the oldest first.
#[derive(Default)]
pub struct Silent(Vec<Connection>);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a new descriptor of our own.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0).into())? as i32)) }
}

fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    // SAFETY: plain data.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "longer than a socket's path may be",
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

const ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_un>() as libc::socklen_t;

impl Listener {
    /// Listens at `path`, in place of a server that is gone. Everybody may connect: what a process
    /// can have changed is what is said of itself.
    pub fn bind(path: &Path) -> Result<Listener, Error> {
        let io = |source| Error::Io { what: path.display().to_string(), source };
        if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            make_directory(directory).map_err(io)?;
        }
        remove_dead(path)?;
        let (socket, address) = (socket().map_err(io)?, address(path).map_err(io)?);
        // SAFETY: the address is valid for its size.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS) };
        check(bound.into()).map_err(io)?;
        let listener = Listener { socket, path: path.to_owned() };
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(io)?;
        // SAFETY: no memory is passed.
        check(unsafe { libc::listen(listener.socket.as_raw_fd(), QUEUE) }.into()).map_err(io)?;
        Ok(listener)
    }

    /// A process that connected.
    pub fn accept(&self) -> Option<Connection> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a new descriptor of our own; the credentials are valid for their size.
        unsafe {
            let none = std::ptr::null_mut();
            let fd = libc::accept4(self.socket.as_raw_fd(), none, none.cast(), flags);
            let socket = OwnedFd::from_raw_fd(check(fd.into()).ok()? as i32);
            let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
            let mut size = size_of_val(&peer) as libc::socklen_t;
            let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
            let to = (&raw mut peer).cast();
            check(libc::getsockopt(socket.as_raw_fd(), level, name, to, &mut size).into()).ok()?;
            // 0: a process that this one cannot see.
            let pid = u32::try_from(peer.pid).ok().filter(|&pid| pid != 0)?;
            Some(Connection { socket, pid, id: peer.uid, user: process::user(pid)? })
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the directory, which others may enter whatever the umask is: programs of all users connect
/// there.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// Removes the socket of a server that was killed.
fn remove_dead(path: &Path) -> Result<(), Error> {
    let io = |source| Error::Io { what: path.display().to_string(), source };
    match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is a file that is no socket",
            )));
        }
        Ok(_) => {}
    }
    let (socket, address) = (socket().map_err(io)?, address(path).map_err(io)?);
    // SAFETY: the address is valid for its size.
    let connected =
        unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS) };
    if connected == 0 || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
        return Err(Error::Taken(path.to_owned()));
    }
    fs::remove_file(path).map_err(io)
}

impl Connection {
    /// Whether the process is still its user's to tell about: not one with more rights, into which
    /// it has turned, or of another user, which has its number now.
    pub fn is_still(&self) -> bool {
        // Root's, if its user may not read its memory. The directory is its user's all the same.
        fs::metadata(format!("/proc/{}/mem", self.pid)).is_ok_and(|mem| mem.uid() == self.id)
    }

    /// The hello of the process, if it has sent one: it sends that before anything else.
    pub fn hello(&self) -> Option<Hello> {
        let mut hello = Hello::default();
        let (fd, to) = (self.socket.as_raw_fd(), (&raw mut hello).cast());
        // SAFETY: a buffer of integers that is valid for its size.
        let got = unsafe { libc::recv(fd, to, size_of::<Hello>(), libc::MSG_DONTWAIT) };
        (got as usize == size_of::<Hello>()).then_some(hello)
    }

    /// Answers with a descriptor of the page.
    pub fn welcome(&self, welcome: &Welcome, page: BorrowedFd<'_>) -> io::Result<()> {
        // Room and alignment for the header and one descriptor.
        let mut control = [0u64; 8];
        let mut part = libc::iovec {
            iov_base: std::ptr::from_ref(welcome).cast_mut().cast(),
            iov_len: size_of::<Welcome>(),
        };
        // SAFETY: the message describes buffers that are valid for their lengths; the control
        // message is laid out by the C library's macros and fits.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(page.as_raw_fd());
            check(libc::sendmsg(self.socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) as i64)?;
        }
        Ok(())
    }
}

impl Silent {
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.0.iter()
    }

    /// Adds one. Returns one that is no longer waited for if they are too many: the oldest of the
    /// user with the most.
    pub fn add(&mut self, connection: Connection) -> Option<Connection> {
        self.0.push(connection);
        let most = places::most(self.0.iter().map(|connection| connection.user))?;
        let oldest = self.0.iter().position(|connection| connection.user == most)?;
        (self.0.len() > MOST_SILENT).then(|| self.0.remove(oldest))
    }

    /// Removes those that said something, or have gone. In their order: a process that gave up
    /// may be there a second time.
    pub fn take(&mut self, ready: &[bool]) -> Vec<Connection> {
        let mut ready = ready.iter();
        let (taken, silent) =
            std::mem::take(&mut self.0).into_iter().partition(|_| ready.next() == Some(&true));
        self.0 = silent;
        taken
    }
}
