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

/// The words at `addresses` in process `pid`, in one system call: as close to one moment as can be.
pub fn read_words(pid: u32, addresses: &[u64]) -> io::Result<Vec<u64>> {
    const WORD: usize = size_of::<u64>();
    let mut words = vec![0u64; addresses.len()];
    for (words, addresses) in
        words.chunks_mut(libc::UIO_MAXIOV as usize).zip(addresses.chunks(libc::UIO_MAXIOV as usize))
    {
        let remote = |&at: &u64| libc::iovec { iov_base: at as *mut _, iov_len: WORD };
        let remote: Vec<_> = addresses.iter().map(remote).collect();
        let bytes = words.len() * WORD;
        let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
        let count = remote.len() as libc::c_ulong;
        // SAFETY: `local` describes `words`; the kernel checks the addresses in `remote`.
        let read =
            unsafe { libc::process_vm_readv(pid as i32, &local, 1, remote.as_ptr(), count, 0) };
        match usize::try_from(read) {
            Err(_) => return Err(io::Error::last_os_error()),
            Ok(n) if n < bytes => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_in_the_order_asked_for() {
        let words: Vec<u64> = (0..3000).collect();
        let asked: Vec<u64> = words.iter().rev().map(|word| word as *const u64 as u64).collect();
        let read = read_words(std::process::id(), &asked).unwrap();
        assert!(read.iter().eq(words.iter().rev()));
        assert!(read_words(std::process::id(), &[asked[0], 8]).is_err());
        assert!(read_words(std::process::id(), &[]).unwrap().is_empty());
    }
}
