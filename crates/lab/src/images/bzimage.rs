// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts from a compressed x86 kernel image: its release and the names in its BTF.
//!
//! The setup header (Documentation/arch/x86/boot.rst) tells where the release string and the
//! compressed kernel are. The types and functions that eBPF programs may use are in the `.BTF`
//! section of the kernel inside.

use super::Context;
use crate::error::{Error, Result};
use object::{Object, ObjectSection};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const UNPACK_LIMIT: Duration = Duration::from_secs(60);

/// Programs that unpack a kernel, by the first bytes of their format.
const UNPACKERS: [(&[u8], &str); 5] = [
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x02\x21\x4c\x18", "lz4"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
];

/// `uname -r` of a bzImage.
pub fn release(path: &Path) -> Result<String> {
    let image = fs::read(path).map_err(Error::io(path))?;
    parse_release(&image).ok_or_else(|| Error::Format {
        path: path.into(),
        message: "not a compressed x86 Linux kernel (bzImage, usually named vmlinuz)".into(),
    })
}

/// The names in the kernel's BTF, or none if it cannot be unpacked here.
pub fn btf_names(path: &Path, scratch: &Path, cx: &Context) -> Result<Option<Vec<String>>> {
    let image = fs::read(path).map_err(Error::io(path))?;
    let Some(payload) = payload(&image) else { return Ok(None) };
    let Some((_, program)) = UNPACKERS.iter().find(|(magic, _)| payload.starts_with(magic)) else {
        return Ok(None);
    };
    // The unpacked size follows the data, except for gzip, whose format has it.
    let trailer = if *program == "gzip" { 0 } else { 4 };
    let payload = &payload[..payload.len().saturating_sub(trailer)];
    let packed = scratch.join("vmlinux.packed");
    fs::write(&packed, payload).map_err(Error::io(&packed))?;
    let mut unpack = Command::new(program);
    unpack.arg("-dc").arg(&packed);
    let result = crate::process::run(&mut unpack, UNPACK_LIMIT, cx.cancel);
    fs::remove_file(&packed).map_err(Error::io(&packed))?;
    match result {
        Ok(elf) => Ok(btf_strings(&elf)),
        Err(Error::Cancelled) => Err(Error::Cancelled),
        Err(_) => Ok(None),
    }
}

fn u16_at(data: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(data.get(at..at + 2)?.try_into().ok()?)))
}

fn u32_at(data: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?)).ok()
}

fn parse_release(image: &[u8]) -> Option<String> {
    (image.get(0x202..0x206)? == b"HdrS").then_some(())?;
    let at = u16_at(image, 0x20e)? + 0x200;
    let text = image.get(at..)?.split(|&c| c == 0 || c == b' ').next()?;
    let text = std::str::from_utf8(text).ok()?;
    (!text.is_empty()).then(|| text.to_string())
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    (image.get(0x202..0x206)? == b"HdrS" && u16_at(image, 0x206)? >= 0x208).then_some(())?;
    let sectors = usize::from(*image.get(0x1f1)?).max(1);
    let start = ((sectors + 1) * 512).checked_add(u32_at(image, 0x248)?)?;
    image.get(start..start.checked_add(u32_at(image, 0x24c)?)?)
}

fn btf_strings(elf: &[u8]) -> Option<Vec<String>> {
    let file = object::File::parse(elf).ok()?;
    let btf = file.section_by_name(".BTF")?.data().ok()?;
    // struct btf_header: magic, version, flags, hdr_len, type_off, type_len, str_off, str_len
    let start = u32_at(btf, 4)?.checked_add(u32_at(btf, 16)?)?;
    let strings = btf.get(start..start.checked_add(u32_at(btf, 20)?)?)?;
    Some(strings.split(|&c| c == 0).map(|s| String::from_utf8_lossy(s).into_owned()).collect())
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
        assert_eq!(payload(&image), None);
    }
}
