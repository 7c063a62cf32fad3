// SPDX-License-Identifier: MIT OR Apache-2.0
//! The only system call of this crate that needs `unsafe`: many small reads from another process at
//! once.

use std::io;

/// The start of each page at `pages` in process `pid`, `WIDTH` bytes. Returns how many were read;
/// the next one could not be.
///
/// # Errors
/// What `process_vm_readv` says when the first cannot be read.
pub fn read_starts<const WIDTH: usize>(
    pid: u32,
    pages: &[u64],
    starts: &mut [[u8; WIDTH]],
) -> io::Result<usize> {
    let count = pages.len().min(starts.len()).min(libc::UIO_MAXIOV as usize);
    let from: Vec<libc::iovec> = pages[..count]
        .iter()
        .map(|&page| libc::iovec { iov_base: page as usize as *mut libc::c_void, iov_len: WIDTH })
        .collect();
    let to = libc::iovec { iov_base: starts.as_mut_ptr().cast(), iov_len: count * WIDTH };
    // SAFETY: `to` is `count * WIDTH` bytes of `starts`, exclusively borrowed; `from` lives through
    // the call, and its addresses are the other process's, which the kernel checks.
    let read = unsafe {
        libc::process_vm_readv(pid as libc::pid_t, &to, 1, from.as_ptr(), count as libc::c_ulong, 0)
    };
    if read < 0 { Err(io::Error::last_os_error()) } else { Ok(read as usize / WIDTH) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_up_to_what_is_not_there() {
        let values = [*b"abcd", *b"efgh"];
        let at = values.as_ptr() as u64;
        let mut starts = [[0; 4]; 4];
        let pid = std::process::id();
        assert_eq!(read_starts(pid, &[at + 4, at, 8, at], &mut starts).unwrap(), 2);
        assert_eq!(starts[..2], [*b"efgh", *b"abcd"]);
        assert!(read_starts(pid, &[8], &mut starts).is_err());
        assert_eq!(read_starts(pid, &[], &mut starts).unwrap(), 0);
    }
}
