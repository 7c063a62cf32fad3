// SPDX-License-Identifier: MIT OR Apache-2.0
//! The release of a compressed x86 kernel image: the setup header (Documentation/arch/x86/boot.rst)
//! tells where it is.

use crate::error::{Error, Result};
use std::fs;
use std::path::Path;

/// `uname -r` of a bzImage.
pub fn release(path: &Path) -> Result<String> {
    let image = fs::read(path).map_err(Error::io(path))?;
    parse_release(&image).ok_or_else(|| Error::Format {
        path: path.into(),
        message: "not a compressed x86 Linux kernel (bzImage, usually named vmlinuz)".into(),
    })
}

fn parse_release(image: &[u8]) -> Option<String> {
    (image.get(0x202..0x206)? == b"HdrS").then_some(())?;
    let at = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
    let at = usize::from(at) + 0x200;
    let text = image.get(at..)?.split(|&c| c == 0 || c == b' ').next()?;
    let text = std::str::from_utf8(text).ok()?;
    (!text.is_empty()).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_the_setup_header() {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x310].copy_from_slice(b"6.1.0-50-x (root");
        assert_eq!(parse_release(&image).as_deref(), Some("6.1.0-50-x"));
        assert_eq!(parse_release(&image[..0x2ff]), None);
        assert_eq!(parse_release(b"\x7fELF"), None);
    }
}
