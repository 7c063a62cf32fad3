// SPDX-License-Identifier: MIT OR Apache-2.0
//! The socket where processes register: one message from either side.

use super::{Error, places};
use reprieve_guest::vmm::process;
use reprieve_hint::abi::{Hello, Welcome};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::fs;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How many processes that said nothing are waited for, each for as long as it takes: a process may
/// lose its CPU before its hello.
const MOST_SILENT: usize = 64;
/// How many may have connected before the server looks.
pub const QUEUE: i32 = 128;

const SOCKETS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

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

fn socket() -> io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    Ok(net::socket_with(AddressFamily::UNIX, kind, SOCKETS, None)?)
}

impl Listener {
    /// Listens at `path`, in place of a server that is gone. Everybody may connect: what a process
    /// can have changed is what is said of itself.
    pub fn bind(path: &Path) -> Result<Listener, Error> {
        let io = |source| Error::Io { what: path.display().to_string(), source };
        if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            make_directory(directory).map_err(io)?;
        }
        remove_dead(path)?;
        let socket = socket().map_err(io)?;
        let bound = SocketAddrUnix::new(path).and_then(|address| net::bind(&socket, &address));
        bound.map_err(|error| io(error.into()))?;
        let listener = Listener { socket, path: path.to_owned() };
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(io)?;
        net::listen(&listener.socket, QUEUE).map_err(|error| io(error.into()))?;
        Ok(listener)
    }

    /// A process that connected.
    pub fn accept(&self) -> Option<Connection> {
        let socket = net::accept_with(&self.socket, SOCKETS).ok()?;
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut size = size_of_val(&peer) as libc::socklen_t;
        let (level, name, to) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast());
        // SAFETY: the credentials are valid for their size.
        if unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &mut size) } != 0 {
            return None;
        }
        // 0: a process that this one cannot see.
        let pid = u32::try_from(peer.pid).ok().filter(|&pid| pid != 0)?;
        Some(Connection { socket, pid, id: peer.uid, user: process::user(pid)? })
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
    let socket = socket().map_err(io)?;
    let connected = SocketAddrUnix::new(path).and_then(|address| net::connect(&socket, &address));
    if matches!(connected, Ok(()) | Err(Errno::AGAIN)) {
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
        let at = std::ptr::from_ref(welcome).cast();
        // SAFETY: integers without gaps between them.
        let bytes = unsafe { std::slice::from_raw_parts(at, size_of::<Welcome>()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let page = [page];
        control.push(SendAncillaryMessage::ScmRights(&page));
        let parts = [IoSlice::new(bytes)];
        net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
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
