// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends files to the lab, mostly of `/proc`: what the guest's kernel reports about itself, to
//! compare with what a watcher sees from outside.

use crate::sys::{Context, Result};
use std::fs::File;
use std::io::Read;

/// Bytes per event: below the longest line even if each byte becomes six as JSON.
const PART: usize = 128 << 10;

/// Longest file: `/proc/kallsyms` has about 10 MiB.
const LONGEST: u64 = 256 << 20;

/// Hands the text of the file at `path` to `each`, in parts: the length of a file of `/proc` is not
/// known in advance.
pub fn file(path: &str, mut each: impl FnMut(String)) -> Result<()> {
    let mut file = File::open(path).context(path)?.take(LONGEST);
    let mut part = Vec::with_capacity(PART);
    loop {
        let read =
            file.by_ref().take((PART - part.len()) as u64).read_to_end(&mut part).context(path)?;
        if read == 0 && part.is_empty() {
            return Ok(());
        }
        // A character that was cut comes with the next part, if there is one.
        let cut = match std::str::from_utf8(&part) {
            Err(e) if e.error_len().is_none() && read > 0 => e.valid_up_to(),
            _ => part.len(),
        };
        each(String::from_utf8_lossy(&part[..cut]).into_owned());
        part.drain(..cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_arrives_whole() {
        let path = std::env::temp_dir().join(format!("reprieve-read-{}", std::process::id()));
        let text = "aä€".repeat(PART / 5);
        std::fs::write(&path, &text).unwrap();
        let mut parts = Vec::new();
        let read = file(path.to_str().unwrap(), |part| parts.push(part));
        let _ = std::fs::remove_file(&path);
        assert!(read.is_ok() && parts.len() > 1 && parts.concat() == text);
        let mut proc = String::new();
        assert!(file("/proc/self/status", |part| proc += &part).is_ok());
        assert!(proc.starts_with("Name:"));
        assert!(file("/no/such/file", |_| ()).is_err());
    }
}
