// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of a guest's RAM: this host's memory, or a file.
//!
//! Whoever reads a page that is not in memory waits until it is. A file system of another process
//! (FUSE) or another host (NFS) may never bring it, and often not even SIGKILL ends that wait. So
//! RAM in such a file is not read at all. The kernel gives a mapping's file system as a number; its
//! kind is in the lists of mounts of the VMM, of this process and of the host.

use super::maps::{self, Mapping};
use super::{Segment, Vm, process};
use crate::error::{Error, Result};
use rustix::fs::{MemfdFlags, fstat, major, memfd_create, minor};
use std::collections::HashMap;

/// Kinds of file system whose files are in this host's memory or on its disks.
const LOCAL: [&str; 20] = [
    "tmpfs",
    "ramfs",
    "rootfs",
    "hugetlbfs",
    "devtmpfs",
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "f2fs",
    "bcachefs",
    "zfs",
    "jfs",
    "nilfs2",
    "ntfs3",
    "reiserfs",
    "vfat",
    "exfat",
    "erofs",
];

/// Major numbers of block devices that may be a file (loop) or another host's (nbd).
const REMOTE_DISKS: [u32; 2] = [7, 43];

/// Bytes of a list of mounts that are read at most.
const MOUNTS_MAX: u64 = 32 << 20;

/// Characters of a path and a kind that are kept: a path may have thousands.
const PATH_MAX: usize = 256;
const KIND_MAX: usize = 64;

type Device = (u32, u32);

/// Makes sure that no page of the VM's RAM may have to come from elsewhere.
///
/// # Errors
/// [`Error::RemoteRam`]; those of reading the VMM's mappings.
pub fn check_local(vm: &Vm) -> Result<()> {
    let mappings = maps::read(vm.pid)?;
    let internal = internal();
    // Most guests' RAM has no file, or one without a name.
    let doubtful = |m: &&Mapping| m.device != (0, 0) && !internal.contains(&m.device);
    let doubtful: Vec<&Mapping> = mappings
        .iter()
        .filter(doubtful)
        .filter(|mapping| layouts(vm).flatten().any(|segment| is_in(segment, mapping)))
        .collect();
    if doubtful.is_empty() {
        return Ok(());
    }
    let mut kinds = HashMap::new();
    // A VMM in a directory of its own sees few mounts, and so may this process.
    for pid in [1, std::process::id(), vm.pid] {
        kinds.extend(mounts(pid));
    }
    match doubtful.iter().find_map(|m| Some((m, remote(m, &kinds)?))) {
        None => Ok(()),
        Some((mapping, kind)) => Err(Error::RemoteRam {
            path: last(&mapping.path, PATH_MAX),
            kind: last(kind, KIND_MAX),
        }),
    }
}

fn layouts(vm: &Vm) -> impl Iterator<Item = &Vec<Segment>> {
    std::iter::once(&vm.memory).chain(&vm.alternatives)
}

fn is_in(segment: &Segment, mapping: &Mapping) -> bool {
    mapping.start < segment.hva.saturating_add(segment.len) && segment.hva < mapping.end
}

/// The kind of the mapping's file system if its pages may have to come from elsewhere.
fn remote<'a>(mapping: &Mapping, kinds: &'a HashMap<Device, String>) -> Option<&'a str> {
    if REMOTE_DISKS.contains(&mapping.device.0) {
        return Some("on a loop or network block device");
    }
    match kinds.get(&mapping.device) {
        Some(kind) if LOCAL.contains(&kind.as_str()) => None,
        Some(kind) => Some(kind),
        // A disk: only root can mount one.
        None if mapping.device.0 != 0 => None,
        None => Some("mounted nowhere that is known"),
    }
}

/// The file systems that process `pid` sees; none if they cannot be read.
fn mounts(pid: u32) -> HashMap<Device, String> {
    let text = process::file(pid, "mountinfo", MOUNTS_MAX).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(mount).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: device and kind. What a user
/// has chosen of it has no spaces.
fn mount(line: &str) -> Option<(Device, String)> {
    let mut fields = line.split(' ');
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let kind = fields.skip_while(|field| *field != "-").nth(1)?;
    Some((device, kind.to_owned()))
}

/// The kernel's own file systems for memory without a name (memfd, System V shared memory), with
/// pages of each size.
fn internal() -> Vec<Device> {
    let huge = MemfdFlags::HUGETLB;
    let sizes = [MemfdFlags::empty(), huge | MemfdFlags::HUGE_2MB, huge | MemfdFlags::HUGE_1GB];
    let device = |size| {
        // The host's administrator may insist on the flag, which old kernels do not know.
        let flags = MemfdFlags::CLOEXEC | size;
        let file = memfd_create("reprieve", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create("reprieve", flags));
        let device = fstat(file.ok()?).ok()?.st_dev;
        Some((major(device), minor(device)))
    };
    sizes.into_iter().filter_map(device).collect()
}

/// The last characters of `text`, safe for a terminal.
fn last(text: &str, most: usize) -> String {
    let from = text.char_indices().rev().nth(most - 1).map_or(0, |(at, _)| at);
    text[from..].escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{Accel, Kind};
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /dev/shm rw,nosuid master:3 shared:7 - tmpfs tmpfs rw
24 22 0:44 / /home/me/\\040-\\040tmpfs rw - fuse.sshfs me@there:/ rw,user_id=1000
25 22 0:45 / /srv rw - nfs4 server:/ rw
26 22 0:46 / /merged rw - overlay overlay rw,lowerdir=/a
27 22 9:1 / /ntfs rw - fuseblk /dev/md1 rw
28 22 7:0 / /image rw - ext4 /dev/loop0 rw
nonsense
";

    fn mapping(device: Device, path: &str) -> Mapping {
        Mapping {
            start: 0x1000,
            end: 0x9000,
            writable: true,
            shared: true,
            offset: 0,
            device,
            // A FUSE server chooses the number, which may be that of no file.
            inode: 0,
            path: path.into(),
        }
    }

    #[test]
    fn pages_that_others_have_are_not_waited_for() {
        let kinds: HashMap<Device, String> = MOUNTS.lines().filter_map(mount).collect();
        assert_eq!(kinds.len(), 7);
        for (device, path, kind) in [
            ((254, 1), "/var/ram", None),
            ((0, 21), "/dev/shm/ram", None),
            ((0, 44), "/home/me/ram", Some("fuse.sshfs")),
            ((0, 45), "/dev/shm/ram", Some("nfs4")),
            ((0, 46), "/merged/ram", Some("overlay")),
            ((9, 1), "/ntfs/ram", Some("fuseblk")),
            ((7, 0), "/image/ram", Some("on a loop or network block device")),
            ((8, 3), "/ram", None),
            ((0, 99), "/memfd:ram (deleted)", Some("mounted nowhere that is known")),
        ] {
            assert_eq!(remote(&mapping(device, path), &kinds), kind, "{device:?} {path}");
        }
    }

    #[test]
    fn a_message_is_short_and_steers_no_terminal() {
        assert_eq!(last(&"/ä".repeat(5000), PATH_MAX).chars().count(), PATH_MAX);
        assert_eq!(last("/a\x1b[2J", PATH_MAX), "/a\\u{1b}[2J");
        assert_eq!(last("", KIND_MAX), "");
    }

    fn own(hva: u64) -> Vm {
        let pid = std::process::id();
        Vm {
            pid,
            start_time: process::start_time(pid).unwrap(),
            name: None,
            kind: Kind::Qemu(Accel::Tcg),
            memory: vec![Segment { gpa: 0, len: 4096, hva }],
            vcpus: Vec::new(),
            encrypted: None,
            alternatives: Vec::new(),
        }
    }

    /// A page of `file`, in this process.
    fn mapped(file: OwnedFd) -> u64 {
        // SAFETY: a new mapping, which stays.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }

    #[test]
    fn memory_of_this_host_is_read() {
        let on_heap = vec![1u8; 1 << 20];
        let local = |hva| check_local(&own(hva)).unwrap();
        local(on_heap.as_ptr().addr() as u64);
        let named = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&named, 4096).unwrap();
        local(mapped(named));
    }
}
