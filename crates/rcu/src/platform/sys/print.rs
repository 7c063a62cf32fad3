// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard error, and the end of the process.

use super::{Instant, PipeSignalBlocked, errno, sleep};
use std::time::Duration;

/// Prints to standard error, without a lock that another thread may hold. Text that a full pipe or
/// terminal does not take within a second is lost: the caller leads a grace period, and there may
/// be no reader. No signal tells that.
pub(crate) fn print(text: &str) {
    /// A pipe that is ready takes this many bytes at once.
    const CHUNK: usize = 4096;
    const LONGEST: Duration = Duration::from_secs(1);
    /// A terminal that is ready may not have room for a line's end.
    const PAUSE: Duration = Duration::from_millis(1);
    let deadline = Instant::now() + LONGEST;
    let _blocked = PipeSignalBlocked::new();
    let stderr = Stderr::open();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let mut ready = libc::pollfd { fd: stderr.fd, events: libc::POLLOUT, revents: 0 };
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
        // SAFETY: one descriptor; errno's location is this thread's own.
        match unsafe { (libc::poll(&mut ready, 1, left), *errno()) } {
            (1, _) if ready.revents == libc::POLLOUT => {}
            (-1, libc::EINTR) if Instant::now() < deadline => continue,
            _ => return,
        }
        let written = stderr.write(&rest[..rest.len().min(CHUNK)]);
        // SAFETY: errno's location is this thread's own.
        match written.try_into().map_err(|_| unsafe { *errno() }) {
            Ok(0) => return,
            Ok(written) => rest = &rest[written..],
            // Or another writer was quicker.
            Err(libc::EAGAIN) if Instant::now() < deadline => sleep(PAUSE),
            Err(libc::EINTR) if Instant::now() < deadline => {}
            Err(_) => return,
        }
    }
}

/// Standard error, to be written to without sleeping.
struct Stderr {
    fd: i32,
    socket: bool,
}

impl Stderr {
    /// A pipe or a terminal that is ready may still make a writer sleep: it is full again, or has
    /// room for less. So it is opened once more, not to sleep: a flag of descriptor 2 itself would
    /// change for all who share it. If it cannot be opened, descriptor 2 has to do.
    fn open() -> Stderr {
        // SAFETY: plain data that the call fills in.
        unsafe {
            let mut file: libc::stat = std::mem::zeroed();
            let kind = if libc::fstat(2, &mut file) == 0 { file.st_mode & libc::S_IFMT } else { 0 };
            let sleeps = kind == libc::S_IFIFO || kind == libc::S_IFCHR && libc::isatty(2) == 1;
            let fd = if sleeps { Stderr::open_again() } else { -1 };
            Stderr { fd: if fd >= 0 { fd } else { 2 }, socket: kind == libc::S_IFSOCK }
        }
    }

    /// Negative if it cannot be. Bare system calls, here and to close it, which are no cancellation
    /// points.
    #[cfg(target_os = "linux")]
    fn open_again() -> i32 {
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let path = c"/proc/self/fd/2".as_ptr();
        // SAFETY: a string.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) as i32 }
    }

    #[cfg(not(target_os = "linux"))]
    fn open_again() -> i32 {
        -1
    }

    fn write(&self, bytes: &[u8]) -> isize {
        let (start, length) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: a buffer that is valid for its length.
        unsafe {
            if self.socket {
                libc::send(self.fd, start, length, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            } else {
                libc::write(self.fd, start, length)
            }
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Stderr {
    fn drop(&mut self) {
        if self.fd != 2 {
            // SAFETY: opened by `open`.
            unsafe { libc::syscall(libc::SYS_close, self.fd) };
        }
    }
}

/// Ends the process: going on would free memory under a reader.
pub(crate) fn die(message: &str) -> ! {
    // A thread that was cancelled would end in place of the process.
    let _cancel = crate::platform::cancel::CancelDisabled::new();
    ["reprieve: ", message, "\n"].into_iter().for_each(print);
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints in a child whose standard error is `fd`, and in which SIGPIPE ends the process; its
    /// wait status. It exits with 0 if `check` says so.
    fn print_to(fd: i32, text: &str, check: &dyn Fn() -> bool) -> i32 {
        crate::platform::start::tests::in_child(&|| {
            // SAFETY: the child has no other use for standard error.
            unsafe {
                libc::dup2(fd, 2);
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            }
            print(text);
            i32::from(!check())
        })
    }

    fn pair(make: impl FnOnce(*mut i32) -> i32) -> [i32; 2] {
        let mut ends = [-1; 2];
        assert_eq!(make(ends.as_mut_ptr()), 0);
        ends
    }

    fn close(fd: i32) {
        // SAFETY: the test's own.
        unsafe { libc::close(fd) };
    }

    #[test]
    fn a_reader_of_messages_that_has_gone_ends_nobody() {
        // SAFETY: room for two descriptors.
        let pipe = pair(|ends| unsafe { libc::pipe2(ends, libc::O_CLOEXEC) });
        let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: as above.
        let sockets = pair(|ends| unsafe { libc::socketpair(libc::AF_UNIX, stream, 0, ends) });
        for [reader, writer] in [pipe, sockets] {
            close(reader);
            assert_eq!(print_to(writer, "text", &|| true), 0);
            close(writer);
        }
    }

    #[test]
    fn a_reader_of_messages_gets_all() {
        let text = "0123456789".repeat(1000);
        // SAFETY: room for two descriptors.
        let [reader, writer] = pair(|ends| unsafe { libc::pipe2(ends, libc::O_CLOEXEC) });
        assert_eq!(print_to(writer, &text, &|| true), 0);
        close(writer);
        // SAFETY: the test's own, and nobody else closes it.
        let mut reader: std::fs::File = unsafe { std::os::fd::FromRawFd::from_raw_fd(reader) };
        let mut read = String::new();
        std::io::Read::read_to_string(&mut reader, &mut read).unwrap();
        assert_eq!(read, text);
    }

    /// A terminal that has room for a few bytes is ready, and makes a writer of more sleep. (If
    /// `print` sleeps, the test hangs.) The flags that other writers share stay.
    #[test]
    fn a_terminal_that_is_full_holds_nobody_up() {
        // SAFETY: descriptors of the test's own; a buffer that is valid for its length.
        unsafe {
            let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
            let screen = libc::posix_openpt(flags);
            if screen < 0 || libc::grantpt(screen) != 0 || libc::unlockpt(screen) != 0 {
                return println!("no terminals here: skipped");
            }
            let mut name = [0; 64];
            assert_eq!(libc::ptsname_r(screen, name.as_mut_ptr(), name.len()), 0);
            let terminal = libc::open(name.as_ptr(), flags | libc::O_NONBLOCK);
            assert!(terminal >= 0);
            let mut bytes = [b'x'; 1000];
            while libc::write(terminal, bytes.as_ptr().cast(), 1) == 1 {}
            assert!(libc::read(screen, bytes.as_mut_ptr().cast(), bytes.len()) > 0);
            libc::fcntl(terminal, libc::F_SETFL, libc::O_RDWR);
            let text = "0123456789".repeat(10000);
            let sleeps = || libc::fcntl(2, libc::F_GETFL) & libc::O_NONBLOCK == 0;
            assert_eq!(print_to(terminal, &text, &sleeps), 0);
            close(terminal);
            close(screen);
        }
    }
}
