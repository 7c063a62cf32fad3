// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files a process has mapped, as `/proc/PID/maps` tells.
//!
//! Linux 6.11 and newer answer questions about single mappings (`PROCMAP_QUERY`), and pass over
//! mappings that are not shared. Older kernels write all mappings down as text.

use crate::error::{Errno, Result};
use crate::file::{self, File};
use crate::helper::with_files;
use crate::kernel::call;
use crate::sys::{is_filtered, proc_has_our_numbers};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file's mappings: the addresses of each, and where the file's beginning is or would be.
pub(crate) type Mappings = Vec<(Range<usize>, usize)>;

struct Mapping {
    addresses: Range<usize>,
    /// Where the file's beginning is or would be.
    base: usize,
    inode: u64,
    path: Vec<u8>,
}

/// The files that a process has mapped and shares.
pub(crate) struct Maps(Vec<Mapping>);

impl Maps {
    /// `None`: `/proc` does not tell. All threads have the same mappings, but those that have ended
    /// have none.
    fn new(process: &str) -> Option<Maps> {
        if is_filtered() {
            return None;
        }
        let tasks = PathBuf::from(format!("/proc/{process}/task"));
        look(&tasks.with_file_name("maps")).map(Maps).or_else(|| {
            let names = file::names(&tasks).ok()?;
            names.iter().find_map(|task| look(&tasks.join(&**task).join("maps"))).map(Maps)
        })
    }

    /// Mappings of this process.
    pub fn own() -> Option<Maps> {
        Maps::new("self")
    }

    /// Mappings of a process of this PID namespace.
    pub fn of_process(pid: u32) -> Option<Maps> {
        proc_has_our_numbers().then(|| Maps::new(&pid.to_string())).flatten()
    }

    /// The mappings of a file, in whatever directory: its name begins with a slash.
    pub fn of(&self, name: &str, inode: u64) -> Mappings {
        let is_of_file = |mapping: &&Mapping| {
            let path = &mapping.path;
            let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
            mapping.inode == inode && path.ends_with(name.as_bytes())
        };
        let found = self.0.iter().filter(is_of_file);
        found.map(|mapping| (mapping.addresses.clone(), mapping.base)).collect()
    }
}

fn look(path: &Path) -> Option<Vec<Mapping>> {
    let mappings = with_files(|| {
        let file = File::open(path, libc::O_RDONLY)?;
        asked(&file).or_else(|_| {
            let text = file.read_all()?;
            let mappings = text.split(|&b| b == b'\n').filter_map(parsed).collect();
            if text.is_empty() { Err(Errno(libc::ESRCH)) } else { Ok(mappings) }
        })
    });
    mappings.ok()
}

/// A line of `maps`, if it is of a file that is shared.
fn parsed(line: &[u8]) -> Option<Mapping> {
    // Some of the path may not be UTF-8, and it may hold blanks.
    let mut fields = line.splitn(6, |&b| b == b' ');
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = field()?.split_once('-')?;
    let (start, end, rights) = (number(start)?, number(end)?, field()?);
    let (offset, _device) = (number(field()?)?, field()?);
    let inode = field()?.parse().ok()?;
    let path = fields.next()?.trim_ascii_start().to_vec();
    let base = start.wrapping_sub(offset);
    let mapping = Mapping { addresses: start..end, base, inode, path };
    (rights.ends_with('s') && inode != 0).then_some(mapping)
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// Asks the kernel for each mapping that is shared and of a file. An error: an older kernel, or a
/// process that has no memory any more.
fn asked(maps: &File) -> Result<Vec<Mapping>> {
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: u32 =
        3 << 30 | (size_of::<Query>() as u32) << 16 | (b'f' as u32) << 8 | 17;
    const SHARED: u64 = 0x8;
    const COVERING_OR_NEXT: u64 = 0x10;
    const OF_A_FILE: u64 = 0x20;
    let (mut found, mut address) = (Vec::new(), 0);
    let mut name = [const { std::mem::MaybeUninit::<u8>::uninit() }; libc::PATH_MAX as usize];
    loop {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: SHARED | COVERING_OR_NEXT | OF_A_FILE,
            address,
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the structure and the name's buffer outlive the call.
        match unsafe { call!(SYS_ioctl, maps.number(), PROCMAP_QUERY, &raw mut query) } {
            Err(Errno(libc::ENOENT)) => return Ok(found),
            asked => asked?,
        };
        let length = (query.name_size as usize).saturating_sub(1).min(name.len());
        // SAFETY: the kernel has filled in so many bytes, and a null.
        let path = unsafe { std::slice::from_raw_parts(name.as_ptr().cast::<u8>(), length) };
        found.push(Mapping {
            addresses: query.start as usize..query.end as usize,
            base: (query.start as usize).wrapping_sub(query.offset as usize),
            inode: query.inode,
            path: path.to_vec(),
        });
        address = query.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_a_file_are_found() {
        let text: &[u8] =
            b"7f00a000-7f00c000 rw-s 00003000 00:19 42    /dev/shm/my dir/shm.5 (deleted)\n\
              7f00c000-7f00d000 rw-p 00003000 00:19 42    /dev/shm/my dir/shm.5\n\
              7f00d000-7f00e000 r--s 00000000 00:19 43    /dev/shm/\xff/shm.5\n\n\
              7f00e000-7f00f000 rw-p 00000000 00:00 0 \n7f00a000";
        let maps = Maps(text.split(|&b| b == b'\n').filter_map(parsed).collect());
        assert_eq!(maps.of("/shm.5", 42), [(0x7f00_a000..0x7f00_c000, 0x7f00_7000)]);
        assert_eq!(maps.of("/shm.5", 43), [(0x7f00_d000..0x7f00_e000, 0x7f00_d000)]);
        assert_eq!((maps.of("/hm.5", 42), maps.of("/shm.5", 44)), (vec![], vec![]));
    }

    /// Parts, moved and read-only ones, of a file that was removed.
    #[test]
    fn the_kernel_says_the_same_when_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a file");
        let file = File::create(&path, 0o600).unwrap();
        file.set_length(8 * file::page_size()).unwrap();
        let read_only = File::open(&path, libc::O_RDONLY).unwrap();
        let page = file::page_size() as usize;
        // SAFETY: new mappings, of which nothing is used.
        let (all, part) = unsafe {
            let all = file.map(0, 8 * page, libc::PROT_READ, libc::MAP_SHARED, 0).unwrap();
            file::unmap(all + 2 * page, page);
            (all, read_only.map(0, page, libc::PROT_READ, libc::MAP_SHARED, 3 * page as u64))
        };
        let part = part.unwrap();
        file::remove(&path).unwrap();
        let inode = file.about().unwrap().identity().1;
        let maps = || File::open("/proc/self/maps", libc::O_RDONLY).unwrap();
        let text = maps().read_all().unwrap();
        let read = Maps(text.split(|&b| b == b'\n').filter_map(parsed).collect());
        let mut wanted = vec![
            (all..all + 2 * page, all),
            (all + 3 * page..all + 8 * page, all),
            (part..part + page, part - 3 * page),
        ];
        wanted.sort_by_key(|(addresses, _)| addresses.start);
        assert_eq!(read.of("/a file", inode), wanted);
        match asked(&maps()) {
            Ok(asked) => assert_eq!(Maps(asked).of("/a file", inode), wanted),
            Err(error) => println!("SKIPPED: PROCMAP_QUERY: {error}"),
        }
        // SAFETY: nothing in it is used.
        unsafe {
            file::unmap(all, 8 * page);
            file::unmap(part, page);
        }
    }
}
