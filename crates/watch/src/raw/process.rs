// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading another process's memory.

use std::io;

/// Fills `buffer` from `address` in process `pid`.
pub fn read_process(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: buffer.len() };
    // SAFETY: `local` describes `buffer`; the kernel checks `remote`.
    let read = unsafe { libc::process_vm_readv(pid as i32, &local, 1, &remote, 1, 0) };
    match usize::try_from(read) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n < buffer.len() => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(()),
    }
}
