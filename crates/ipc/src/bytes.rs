// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that hold the bytes of segments.
//!
//! A segment's file lies in the namespace's directory: as a rule in memory. The file is sparse, and
//! a page that the file system has no memory for is a SIGBUS when a program touches it. So a new
//! segment must fit into what is free, less what other segments were promised and have not touched.
//!
//! A segment that does not fit (Docker gives `/dev/shm` 64 MiB) gets a file below `/var/tmp`, on a
//! disk as a rule, whose blocks the file system reserves at once. A memfd would stay in memory, but
//! it ends with the last process that has it, and a segment has to outlive all processes.

use crate::error::{CORRUPT, Errno, Result};
use crate::file::{self, File, Room};
use crate::helper::with_files;
use crate::peers::Local;
use crate::space::Space;
use std::path::PathBuf;

/// In whose directory a segment's file lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Namespace,
    Disk,
}

pub(crate) const PLACES: [Place; 2] = [Place::Namespace, Place::Disk];
const DISK: &str = "/var/tmp";

fn directory(space: &Space, place: Place) -> PathBuf {
    let (device, number) = space.identity;
    match place {
        Place::Namespace => space.directory.clone(),
        Place::Disk => format!("{DISK}/reprieve-ipc-{device:x}-{number:x}").into(),
    }
}

/// The name of the file in its directory.
pub(crate) fn name(id: i32) -> String {
    format!("shm.{id}")
}

pub(crate) fn path(local: &Local, place: Place, id: i32) -> PathBuf {
    directory(local.space, place).join(name(id))
}

/// Fails unless the namespace's directory is still its own. Another namespace may have been made
/// there since, whose segments have the same ids, and so the same file names: they are not ours to
/// map or to remove. Asked before each use of such a name. (On the disk the directory is named
/// after the namespace.)
fn own_directory(local: &Local, place: Place) -> Result<()> {
    let space = local.space;
    let own = place == Place::Disk || space.is_at(&space.directory);
    if own { Ok(()) } else { Err(Errno(libc::EACCES)) }
}

/// A new file.
pub(crate) struct Made {
    pub place: Place,
    /// The part of it that the namespace's file system has promised.
    pub promised: u64,
    /// Device and number.
    pub identity: (u64, u64),
}

/// Makes the file of a segment that has `length` bytes. Under the lock of the ids. `promised`: to
/// others, for whose bytes the kernel would have accounted as well (not `SHM_NORESERVE`).
pub(crate) fn make(
    local: &Local,
    id: i32,
    length: u64,
    promised: Option<impl Fn(Room) -> u64>,
) -> Result<Made> {
    own_directory(local, Place::Namespace)?;
    if length > crate::sys::longest_file() {
        return Err(Errno(libc::ENOMEM));
    }
    let place = Place::Namespace;
    let made = create(local, place, id, |file| {
        let promises = promised.as_ref().zip(file.room());
        if promises.is_some_and(|(promised, room)| {
            room.free < length || room.free - length < promised(room)
        }) {
            return Err(Errno(libc::ENOMEM));
        }
        file.set_length(length)
    });
    match made {
        Ok(identity) => {
            let promised = if promised.is_some() { length } else { 0 };
            Ok(Made { place, promised, identity })
        }
        Err(Errno(libc::ENOMEM | libc::ENOSPC)) => {
            let place = Place::Disk;
            make_directory(local.space)?;
            let identity = create(local, place, id, |file| {
                file.set_length(length)?;
                file.reserve(0, length)
            });
            let identity = identity.inspect_err(|_| remove_directory(local.space));
            Ok(Made { place, promised: 0, identity: identity.map_err(|_| Errno(libc::ENOMEM))? })
        }
        Err(error) => Err(error),
    }
}

fn create(
    local: &Local,
    place: Place,
    id: i32,
    fill: impl FnOnce(&File) -> Result<()>,
) -> Result<(u64, u64)> {
    let (path, mode) = (path(local, place, id), local.space.file_mode);
    let file = File::create(&path, mode).or_else(|error| match error {
        // A file that was never finished: its maker died. We hold the lock of the ids.
        Errno(libc::EEXIST) => file::remove(&path).and_then(|()| File::create(&path, mode)),
        _ => Err(error),
    })?;
    let made = fill(&file).and_then(|()| file.about());
    made.map(|made| made.identity()).inspect_err(|_| {
        let _ = file::remove(&path);
    })
}

/// The directory on the disk, with the mode of the namespace's. One that is there must be ours, or
/// belong to whom the namespace does: anybody can make one.
fn make_directory(space: &Space) -> Result<()> {
    let path = directory(space, Place::Disk);
    let of_namespace = file::about(&space.directory)?;
    match file::make_directory(&path, of_namespace.mode()) {
        Ok(()) => File::open(&path, libc::O_DIRECTORY)?.set_mode(of_namespace.mode()),
        Err(Errno(libc::EEXIST)) => {
            let found = file::about_link(&path)?;
            let owners = [crate::sys::user(), of_namespace.user()];
            let ours = found.is_directory() && owners.contains(&found.user());
            if ours { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
        }
        Err(_) => Err(Errno(libc::ENOMEM)),
    }
}

/// Unless there is a file in it.
fn remove_directory(space: &Space) {
    let _ = file::remove_directory(directory(space, Place::Disk));
}

/// Opens the file of a segment that has so many bytes.
pub(crate) fn open(
    local: &Local,
    place: Place,
    id: i32,
    write: bool,
    size: u64,
    identity: (u64, u64),
) -> Result<File> {
    // Also where the namespace is out of this process's sight (`chroot`).
    own_directory(local, place)?;
    let flags = if write { libc::O_RDWR } else { libc::O_RDONLY };
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::open(path(local, place, id), flags).map_err(|error| match error {
        Errno(libc::ENOENT) => Errno(libc::EIDRM),
        _ => error,
    })?;
    // Access beyond a file's end is a SIGBUS.
    let found = file.about()?;
    let same = found.is_file() && found.identity() == identity && found.length() >= size;
    if same { Ok(file) } else { Err(CORRUPT) }
}

pub(crate) fn remove(local: &Local, place: Place, id: i32) {
    if own_directory(local, place).is_err() {
        return;
    }
    let path = path(local, place, id);
    if file::remove(&path).is_err() {
        // Somebody else's, in a sticky directory: at least it holds no memory.
        let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let _ = with_files(|| File::open(&path, flags)?.set_length(0));
    }
    if place == Place::Disk {
        remove_directory(local.space);
    }
}

/// Removes the files of segments that are not there: they were never finished, or their remover
/// died. Under the lock of the ids.
pub(crate) fn sweep(local: &Local, is_gone: impl Fn(i32) -> bool) {
    for place in PLACES {
        let names = file::names(directory(local.space, place)).unwrap_or_default();
        let ids = names.iter().filter_map(|name| name.to_str()?.strip_prefix("shm.")?.parse().ok());
        ids.filter(|&id| is_gone(id)).for_each(|id| remove(local, place, id));
    }
}

/// The room that a segment of that size lacks.
pub(crate) fn why_no_room(space: &Space, size: u64, promised: u64) -> String {
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let free = |path: &std::path::Path| {
        let room = File::open(path, libc::O_RDONLY | libc::O_DIRECTORY).ok().and_then(|f| f.room());
        room.map_or("an unknown size".into(), |room| {
            format!("{} of {} free", mebibytes(room.free), mebibytes(room.total))
        })
    };
    format!(
        "no room for a segment of {}: {} has {}, of which other segments were promised {}, and \
         {DISK} has {}: give `reprieve ipc run --dir` (REPRIEVE_IPC_DIR) a directory on a file \
         system with more",
        mebibytes(size),
        space.directory.display(),
        free(&space.directory),
        mebibytes(promised),
        free(DISK.as_ref())
    )
}
