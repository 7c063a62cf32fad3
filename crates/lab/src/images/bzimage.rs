// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in a compressed x86 kernel image: the setup header (Documentation/arch/x86/boot.rst)
//! tells where its release and the kernel proper are.

use crate::error::{Error, Result};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
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

/// The program that unpacks the kernel proper, an ELF file, and the packed kernel; `None` for
/// programs that the lab does not use.
pub fn packed_kernel(image: &[u8]) -> Option<(&'static str, &[u8])> {
    let number = |at| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let at = (usize::from(*image.get(0x1f1)?) + 1) * 512 + number(0x248)?;
    // The kernel's build appends the unpacked size.
    let packed = image.get(at..(at + number(0x24c)?).checked_sub(4)?)?;
    let known = [("zstd", &b"\x28\xb5\x2f\xfd"[..]), ("xz", &b"\xfd7zXZ\0"[..])];
    known.into_iter().find(|(_, magic)| packed.starts_with(magic)).map(|(name, _)| (name, packed))
}

/// Whether QEMU can start the kernel `elf` as it is: by the note that tells the address of its PVH
/// entry.
pub fn has_pvh_entry(elf: &[u8]) -> bool {
    const PHYS32_ENTRY: u32 = 18;
    let has = || -> object::read::Result<bool> {
        let header = FileHeader64::<Endianness>::parse(elf)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, elf)? {
            let mut notes = segment.notes(endian, elf)?;
            while let Some(note) = notes.as_mut().map_or(Ok(None), |notes| notes.next())? {
                if note.name() == b"Xen" && note.n_type(endian) == PHYS32_ENTRY {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    has().unwrap_or(false)
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
    use std::process::Command;

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

    #[test]
    fn the_kernel_proper_is_found_where_the_header_says() {
        let mut image = vec![0; 0x620];
        image[0x1f1] = 1;
        image[0x248] = 0x10;
        image[0x24c] = 10;
        image[0x410..0x416].copy_from_slice(b"\x28\xb5\x2f\xfdAB");
        assert_eq!(packed_kernel(&image), Some(("zstd", &b"\x28\xb5\x2f\xfdAB"[..])));
        assert_eq!(packed_kernel(&image[..0x415]), None);
        image[0x410] = 0;
        assert_eq!(packed_kernel(&image), None);
    }

    #[test]
    fn a_pvh_entry_is_a_note() {
        let scratch = tempfile::tempdir().unwrap();
        let linked = |number: u32| {
            let [source, object, program] =
                ["s.s", "s.o", "s"].map(|name| scratch.path().join(name));
            let note = format!(
                ".section .note,\"a\",@note\n.long 4, 4, {number}\n.asciz \"Xen\"\n.long 0\n"
            );
            fs::write(&source, note).unwrap();
            for (tool, input, output) in [("as", &source, &object), ("ld", &object, &program)] {
                let status = Command::new(tool).arg("-o").arg(output).arg(input).status().unwrap();
                assert!(status.success());
            }
            fs::read(program).unwrap()
        };
        assert!(has_pvh_entry(&linked(18)));
        assert!(!has_pvh_entry(&linked(17)) && !has_pvh_entry(b"\x7fELF"));
    }
}
