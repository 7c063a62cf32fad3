// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory segments.
//!
//! A segment's bytes are a file of their own in the namespace's directory, which attaching maps.
//! The segment has a list of who has attached it: process, program image and how often. Entries of
//! processes that died, or executed another program, do not count. Of the others `/proc` says how
//! often they have mapped the file, as the kernel counts: a program may unmap a part, or move it.
//! So a segment that was removed while it was attached goes with its last user, however that one
//! ended. If nobody else looks at that moment, it goes when the next process does something slow
//! in the namespace.

use crate::attachments::{self, Attachment};
use crate::bytes::{self, Place};
use crate::error::{CORRUPT, Errno, Result};
use crate::file::{self, File, Room};
use crate::grace;
use crate::helper::with_files;
use crate::ids::{self, Request};
use crate::namespace::{Namespace, Owner, Status};
use crate::object::{Is, Object};
use crate::peers::{self, Local};
use crate::permission::{CAP_IPC_LOCK, READ, WRITE, capable};
use crate::signals::Call;
use crate::space::layout::{Entry, Kind, MAX_PROCESSES, Shared};
use crate::sys;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;

const INVALID: Errno = Errno(libc::EINVAL);

/// Bounds of [`Segment::crowded`].
const FEW_USERS: u64 = 16;
const MOST_USERS: u64 = MAX_PROCESSES as u64 / 2;

/// Whether `/proc` is to be asked for the mappings of a segment's users. An answer takes a read of
/// all mappings of a process, under the lock of all ids where the last user of a removed segment is
/// waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    No,
    OnceASecond,
    Now,
}

/// In a segment's mode: removed, still attached; locked into memory.
pub const SHM_DEST: u32 = 0o1000;
pub const SHM_LOCKED: u32 = 0o2000;

#[repr(C)]
pub(crate) struct Segment {
    /// Its first chain is who has attached it.
    object: Object,
    size: AtomicU64,
    cpid: AtomicU64,
    lpid: AtomicU64,
    atime: AtomicU64,
    dtime: AtomicU64,
    /// Its file: whether it lies on the disk, what of it was promised, device and number.
    on_disk: AtomicU64,
    promised: AtomicU64,
    device: AtomicU64,
    file: AtomicU64,
    /// With so many entries of users, those of the dead are looked for: each takes system calls.
    crowded: AtomicU64,
}

/// A process that has attached a segment.
#[repr(C)]
struct User {
    next: AtomicU64,
    process: AtomicU64,
    image: AtomicU64,
    pid: AtomicU64,
    count: AtomicU64,
    /// Calls in which it is about to map the segment.
    attaching: AtomicU64,
    /// The second in which `/proc` was last asked, and said that it has the segment mapped.
    maps: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Segment {}
// SAFETY: as above.
unsafe impl Shared for User {}

impl Is for Segment {
    const KIND: Kind = Kind::Shm;

    fn object(&self) -> &Object {
        &self.object
    }

    fn expel(&self, _: &Local, _: u64) -> Result<()> {
        Ok(())
    }

    fn discard(&self, local: &Local, id: i32) {
        bytes::remove(local, self.place(), id);
    }
}

impl Segment {
    /// Drops the entries of those who are gone; how often it is attached.
    fn attached(&self, local: &Local, look: Look) -> Result<u64> {
        let (mut link, mut count, mut users) = (&self.object.chains[0], 0u64, 0);
        for _ in 0..=MAX_PROCESSES {
            let at = link.load(Relaxed);
            if at == 0 {
                self.crowded.store((2 * users).clamp(FEW_USERS, MOST_USERS), Relaxed);
                return Ok(count);
            }
            let user: &User = local.space.view(at)?;
            let times = self.times(local, user, look);
            if times != 0 {
                count = count.saturating_add(times);
                users += 1;
                link = &user.next;
                continue;
            }
            let process = user.process.load(Relaxed);
            if user.count.load(Relaxed) != 0 {
                let pid = peers::number(local.space, process);
                local.set(&self.dtime, sys::now())?;
                local.set(&self.lpid, pid.map_or(user.pid.load(Relaxed), u64::from))?;
            }
            let heap = local.heap()?;
            local.set(link, user.next.load(Relaxed))?;
            heap.free(at)?;
            local.commit();
            peers::clear_embryo(local.space, process);
        }
        Err(CORRUPT)
    }

    /// How often a user has attached it.
    fn times(&self, local: &Local, user: &User, look: Look) -> u64 {
        let (space, process) = (local.space, user.process.load(Relaxed));
        let image = peers::place(space, process).map(|place| place.image.load(Relaxed));
        if image != Some(user.image.load(Relaxed)) || !peers::process_alive(space, process) {
            return 0;
        }
        let (count, now) = (user.count.load(Relaxed), sys::now());
        let seen = user.maps.load(Relaxed) == now;
        // Who has detached it for the last time has looked: see `unmap`.
        if count == 0 || look == Look::No || look == Look::OnceASecond && seen {
            return count;
        }
        let name = attachments::file_name(self.object.id.load(Relaxed) as i32);
        match peers::mappings(space, process, &name, self.file.load(Relaxed)) {
            // In the middle of a call it may not have mapped it yet.
            Some(times) if user.attaching.load(Relaxed) != 0 => times.max(count),
            Some(times) => {
                if times != 0 {
                    user.maps.store(now, Relaxed);
                }
                times
            }
            None => count,
        }
    }

    /// The entry of a process, if it has one; and how many there are, at least.
    fn user(&self, local: &Local, process: u64) -> Result<(Option<&'static User>, u64)> {
        let image = peers::place(local.space, process).map_or(0, |p| p.image.load(Relaxed));
        let mut at = self.object.chains[0].load(Relaxed);
        for before in 0..MAX_PROCESSES.into() {
            if at == 0 {
                return Ok((None, before));
            }
            let user: &User = local.space.view(at)?;
            if user.process.load(Relaxed) == process && user.image.load(Relaxed) == image {
                return Ok((Some(user), before));
            }
            at = user.next.load(Relaxed);
        }
        Err(CORRUPT)
    }

    fn attach(&self, local: &Local, process: u64, pid: u32) -> Result<()> {
        match self.user(local, process)? {
            (Some(user), _) => {
                local.set(&user.count, user.count.load(Relaxed) + 1)?;
                local.commit();
                return Ok(());
            }
            // An entry would else be left of each process that ever attached it.
            (None, users) if users >= self.crowded.load(Relaxed) => {
                self.attached(local, Look::No)?;
            }
            _ => {}
        }
        let heap = local.heap()?;
        let at = heap.take(size_of::<User>() as u64)?;
        let user: &User = local.space.view(at)?;
        user.next.store(self.object.chains[0].load(Relaxed), Relaxed);
        user.process.store(process, Relaxed);
        let image = peers::place(local.space, process).map_or(0, |p| p.image.load(Relaxed));
        user.image.store(image, Relaxed);
        user.pid.store(pid.into(), Relaxed);
        user.count.store(1, Relaxed);
        user.attaching.store(0, Relaxed);
        user.maps.store(0, Relaxed);
        local.set(&self.object.chains[0], at)?;
        local.commit();
        Ok(())
    }

    /// Counts this process's calls that are about to map it: by one more, or less.
    fn attaching(&self, local: &Local, more: i64) -> Result<()> {
        if let (Some(user), _) = self.user(local, local.process)? {
            let attaching = user.attaching.load(Relaxed).saturating_add_signed(more);
            user.attaching.store(attaching, Relaxed);
        }
        Ok(())
    }

    /// Notes, uncommitted, that it was attached or detached.
    fn stamp(&self, local: &Local, time: &AtomicU64) -> Result<()> {
        local.set(time, sys::now())?;
        local.set(&self.lpid, local.pid.into())
    }

    fn detach(&self, local: &Local) -> Result<()> {
        if let (Some(user), _) = self.user(local, local.process)? {
            local.set(&user.count, user.count.load(Relaxed).saturating_sub(1))?;
        }
        Ok(())
    }

    fn place(&self) -> Place {
        if self.on_disk.load(Relaxed) == 1 { Place::Disk } else { Place::Namespace }
    }

    fn mode(&self) -> u32 {
        self.object.mode.load(Relaxed) as u32
    }
}

/// The answer of `shmctl(IPC_STAT)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmStatus {
    pub status: Status,
    pub size: u64,
    pub attached: u64,
    pub atime: u64,
    pub dtime: u64,
    pub creator: i32,
    pub last: i32,
}

/// The answer of `shmctl(SHM_INFO)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmInfo {
    pub segments: u64,
    pub pages: u64,
    /// The highest slot in use.
    pub highest: i32,
}

impl Namespace {
    /// `shmget`.
    pub fn shmget(&self, key: i32, size: usize, flags: i32) -> Result<i32> {
        let (_call, local) = self.begin()?;
        self.sweep(local);
        let _section = local.enter();
        let size = size as u64;
        let pages = size.div_ceil(file::page_size());
        let request = Request {
            key,
            flags,
            bytes: size_of::<Segment>() as u64,
            weight: pages,
            most_weight: self.limits.shmall,
            most: self.limits.shmmni,
        };
        let size_of = |segment: &Segment| segment.size.load(Relaxed);
        let valid = (1..=self.limits.shmmax).contains(&size);
        let check = || match size {
            _ if !valid => Err(INVALID),
            // More than any process can attach.
            _ if size > 1 << 46 => Err(Errno(libc::ENOMEM)),
            _ => Ok(()),
        };
        // The kernel looks at the size of a new segment before it looks at the limits.
        let request = if valid { request } else { Request { weight: 0, ..request } };
        ids::get_sized::<Segment>(local, &request, size, size_of, |local, _, segment, id| {
            check()?;
            if flags & libc::SHM_HUGETLB != 0 {
                // As in a kernel that has no huge pages left.
                let may = capable(CAP_IPC_LOCK);
                return Err(Errno(if may { libc::ENOMEM } else { libc::EPERM }));
            }
            segment.size.store(size, Relaxed);
            segment.cpid.store(local.pid.into(), Relaxed);
            make_file(local, id, segment, size, flags & libc::SHM_NORESERVE == 0)
        })
    }

    /// `shmat`: where the segment is attached.
    ///
    /// # Safety
    /// With `SHM_REMAP`: nothing that is mapped there is used any more.
    pub unsafe fn shmat(&self, id: i32, address: usize, flags: i32) -> Result<*mut u8> {
        let (call, local) = self.begin()?;
        if id < 0 {
            return Err(INVALID);
        }
        let has = |flag| flags & flag != 0;
        let page = file::page_size() as usize;
        let at = match (address, address % page) {
            (0, _) if has(libc::SHM_REMAP) => return Err(INVALID),
            (_, 0) => address,
            (_, rest) if has(libc::SHM_RND) => address - rest,
            _ => return Err(INVALID),
        };
        if address != 0 && at == 0 && has(libc::SHM_REMAP) {
            return Err(INVALID);
        }
        let (mut wanted, mut protection) = (READ, libc::PROT_READ);
        if !has(libc::SHM_RDONLY) {
            wanted |= WRITE;
            protection |= libc::PROT_WRITE;
        }
        if has(libc::SHM_EXEC) {
            wanted |= 0o111;
            protection |= libc::PROT_EXEC;
        }
        let (size, place, identity) = self.with_living(local, id, |local, segment| {
            segment.object.permits(wanted)?;
            let size = segment.size.load(Relaxed);
            self.space.told.check(Kind::Shm, id, size)?;
            segment.attach(local, local.process, local.pid)?;
            segment.attaching(local, 1)?;
            let identity = (segment.device.load(Relaxed), segment.file.load(Relaxed));
            Ok((size as usize, segment.place(), identity))
        })?;
        let length = size.next_multiple_of(page);
        let fixed = match (address, has(libc::SHM_REMAP)) {
            (0, _) => 0,
            (_, true) => libc::MAP_FIXED,
            _ => libc::MAP_FIXED_NOREPLACE,
        };
        let write = !has(libc::SHM_RDONLY);
        let map = |file: &File| {
            // SAFETY: replaces a mapping only where the caller allows it.
            match unsafe { file.map(at, length, protection, libc::MAP_SHARED | fixed, 0) } {
                Ok(found) if fixed == libc::MAP_FIXED_NOREPLACE && found != at => {
                    // Linux before 4.17, and some emulators, take the address as a hint.
                    // SAFETY: mapped just now, and nobody knows it.
                    unsafe { file::unmap(found, length) };
                    Err(INVALID)
                }
                Err(Errno(libc::EEXIST)) => Err(INVALID),
                mapped => mapped.map(|found| found as *mut u8),
            }
        };
        let mapped = with_files(|| {
            let file = bytes::open(local, place, id, write, size as u64, identity)?;
            // In one step for a fork: what its child has mapped is in its list.
            attachments::with(&call, |list| {
                let pointer = map(&file)?;
                let address = pointer as usize;
                let gone = attachments::take_replaced(list, address..address + length);
                let inode = identity.1;
                list.push(Attachment { namespace: *self, id, inode, address, length });
                Ok((pointer, gone))
            })
        });
        let (pointer, replaced) = match mapped {
            Ok(mapped) => mapped,
            Err(error) => {
                let _ = self.detach(local, id, |local, segment| {
                    segment.attaching(local, -1)?;
                    segment.detach(local)
                });
                return Err(error);
            }
        };
        // The stamp fails in a damaged namespace only, and the segment is mapped.
        let _ = with_segment(local, id, |local, segment| {
            segment.attaching(local, -1)?;
            segment.stamp(local, &segment.atime)?;
            local.commit();
            Ok(())
        });
        replaced.iter().for_each(|attachment| _ = detached(&call, attachment, true));
        Ok(pointer)
    }

    /// `shmdt`, for a segment of whatever namespace.
    ///
    /// # Safety
    /// Nothing in the segment is used any more.
    pub unsafe fn shmdt(address: usize) -> Result<()> {
        // Before the list is locked: a handler may want it.
        let call = Call::begin();
        if !call.here().is_one_call() {
            return Err(Errno(libc::EDEADLK));
        }
        // SAFETY: the caller's promise.
        let found = attachments::with(&call, |list| unsafe { attachments::unmap(list, address) });
        let (attachment, last) = found.ok_or(INVALID)?;
        detached(&call, &attachment, last)
    }

    /// Has `f` change the segment. It goes if it was removed and nobody has attached it any more.
    fn detach(
        &self,
        local: &Local,
        id: i32,
        f: impl FnOnce(&Local, &Segment) -> Result<()>,
    ) -> Result<()> {
        let removed = with_segment(local, id, |local, segment| {
            f(local, segment)?;
            local.commit();
            Ok(segment.mode() & SHM_DEST != 0)
        })?;
        if removed {
            self.destroy_unused(local, id);
        }
        Ok(())
    }

    /// [`with_segment`], unless it was removed and its last user has died.
    fn with_living<R>(
        &self,
        local: &Local,
        id: i32,
        f: impl FnOnce(&Local, &Segment) -> Result<R>,
    ) -> Result<R> {
        let done = with_segment(local, id, |local, segment| {
            if segment.mode() & SHM_DEST != 0 && segment.attached(local, Look::Now)? == 0 {
                return Ok(None);
            }
            f(local, segment).map(Some)
        })?;
        done.ok_or_else(|| {
            self.destroy_unused(local, id);
            INVALID
        })
    }

    /// Destroys a segment that was removed, if nobody has attached it.
    fn destroy_unused(&self, local: &Local, id: i32) {
        {
            let _section = local.enter();
            let _ = ids::remove::<Segment>(local, id, |segment| {
                let unused = segment.mode() & SHM_DEST != 0
                    && segment.attached(local, Look::OnceASecond)? == 0;
                if unused { Ok(()) } else { Err(Errno(libc::EBUSY)) }
            });
        }
        grace::reclaim(local);
    }

    /// Destroys removed segments whose last users died.
    pub(crate) fn sweep(&self, local: &Local) {
        let mut removed = Vec::new();
        local.mark_the_unmarked();
        {
            let _section = local.enter();
            for entry in local.entries(Kind::Shm).unwrap_or_default() {
                let offset = entry.object.load(Acquire);
                let segment = local.space.view::<Segment>(offset).ok().filter(|_| offset != 0);
                let segment = segment.filter(|segment| segment.mode() & SHM_DEST != 0);
                removed.extend(segment.map(|segment| segment.object.id.load(Relaxed) as i32));
            }
        }
        removed.into_iter().for_each(|id| self.destroy_unused(local, id));
    }

    /// Removes the files of segments that were never finished, or whose remover died.
    pub(crate) fn sweep_files(&self, local: &Local) {
        let _section = local.enter();
        let Ok(_ids) = local.lock(&local.ids(Kind::Shm).lock) else { return };
        bytes::sweep(local, |id| matches!(local.find::<Segment>(id), Err(INVALID)));
    }

    /// Why a segment of that size could not be made, where the file systems lack room.
    #[doc(hidden)]
    pub fn why_no_room(&self, size: usize) -> String {
        let promised = self.begin().map(|(_call, local)| {
            let _section = local.enter();
            promised(local)
        });
        bytes::why_no_room(self.space, size as u64, promised.unwrap_or(0))
    }

    /// `shmctl(IPC_RMID)`.
    pub fn remove_shm(&self, id: i32) -> Result<()> {
        let (_call, local) = self.begin()?;
        local.mark_the_unmarked();
        let removed = {
            let _section = local.enter();
            ids::remove::<Segment>(local, id, |segment| {
                segment.object.controls()?;
                if segment.attached(local, Look::Now)? == 0 {
                    return Ok(());
                }
                // The segment can no longer be found by its key, only by its id.
                ids::forget_key(local, Kind::Shm, id)?;
                local.set(&segment.object.key, 0)?;
                let mode = segment.mode() | SHM_DEST;
                local.set(&segment.object.mode, mode.into())?;
                local.commit();
                Err(Errno(libc::EBUSY))
            })
        };
        grace::reclaim(local);
        if removed == Err(Errno(libc::EBUSY)) { Ok(()) } else { removed }
    }

    /// `shmctl(IPC_STAT)`.
    pub fn shm_status(&self, id: i32) -> Result<ShmStatus> {
        let (_call, local) = self.begin()?;
        self.with_living(local, id, |local, segment| {
            segment.object.permits(READ)?;
            status(local, segment, Some(id))
        })
    }

    /// `shmctl(SHM_STAT)`, with `any` `SHM_STAT_ANY`.
    pub fn shm_slot_status(&self, slot: i32, any: bool) -> Result<ShmStatus> {
        let (_call, local) = self.begin()?;
        local.mark_the_unmarked();
        let _section = local.enter();
        let (segment, _, _held) = local.find_slot::<Segment>(slot)?;
        if !any {
            segment.object.permits(READ)?;
        }
        status(local, segment, None)
    }

    /// `shmctl(IPC_SET)`.
    pub fn set_shm_owner(&self, id: i32, owner: Owner) -> Result<()> {
        self.set_owner::<Segment>(id, owner, |_, _| Ok(()))
    }

    /// `shmctl(SHM_LOCK)` and `SHM_UNLOCK`. The segment only says so: pages of a file stay in
    /// memory as long as a process has locked them, not a segment.
    pub fn lock_shm(&self, id: i32, lock: bool) -> Result<()> {
        let (_call, local) = self.begin()?;
        self.with_living(local, id, |local, segment| {
            if !capable(CAP_IPC_LOCK) {
                segment.object.belongs_to_caller()?;
                let most = sys::limit(libc::RLIMIT_MEMLOCK).unwrap_or(0);
                if lock && most == 0 {
                    return Err(Errno(libc::EPERM));
                }
                let locked = segment.mode() & SHM_LOCKED != 0;
                if lock && !locked && segment.size.load(Relaxed) > most {
                    return Err(Errno(libc::ENOMEM));
                }
            }
            let mode = segment.mode() & !SHM_LOCKED | if lock { SHM_LOCKED } else { 0 };
            local.set(&segment.object.mode, mode.into())?;
            local.commit();
            Ok(())
        })
    }

    /// The answer of `shmctl(IPC_INFO)` and `SHM_INFO`.
    pub fn shm_info(&self) -> Result<ShmInfo> {
        let (_call, local) = self.begin()?;
        self.sweep(local);
        ids::complete::<Segment>(local)?;
        let ids = local.ids(Kind::Shm);
        Ok(ShmInfo {
            segments: ids.used.load(Relaxed),
            pages: ids.total.load(Relaxed),
            highest: ids.high.load(Relaxed).saturating_sub(1) as i32,
        })
    }
}

fn with_segment<R>(
    local: &Local,
    id: i32,
    f: impl FnOnce(&Local, &Segment) -> Result<R>,
) -> Result<R> {
    local.mark_the_unmarked();
    let _section = local.enter();
    let (segment, _, _held) = local.find_locked::<Segment>(id)?;
    f(local, segment)
}

/// Notes that a segment was detached, for the last time by this process or not.
fn detached(call: &Call, attachment: &Attachment, last: bool) -> Result<()> {
    let local = attachment.namespace.begin_in(call)?;
    // A segment that is gone has nobody to tell.
    let _ = attachment.namespace.detach(local, attachment.id, |local, segment| {
        segment.stamp(local, &segment.dtime)?;
        if last { segment.detach(local) } else { Ok(()) }
    });
    Ok(())
}

/// For the child of a fork, by its parent.
pub(crate) fn attach_for(local: &Local, id: i32, process: u64) -> Result<()> {
    with_segment(local, id, |local, segment| {
        segment.stamp(local, &segment.atime)?;
        segment.attach(local, process, local.pid)
    })
}

/// By the child: it has the segment attached so many times, whether or not it still counts. (It may
/// have been taken for dead before it could say that it lives.)
pub(crate) fn inherit(local: &Local, id: i32, times: u64) -> Result<()> {
    with_segment(local, id, |local, segment| {
        let (user, _) = segment.user(local, local.process)?;
        let counts = user.map_or(0, |user| user.count.load(Relaxed));
        (counts..times).try_for_each(|_| {
            segment.stamp(local, &segment.atime)?;
            segment.attach(local, local.process, local.pid)
        })
    })
}

/// `id`: what the program calls the segment. `None`: what the segment says, which the program is
/// told.
fn status(local: &Local, segment: &Segment, id: Option<i32>) -> Result<ShmStatus> {
    let attached = segment.attached(local, Look::Now)?;
    let (status, size) = (Status::of(&segment.object), segment.size.load(Relaxed));
    local.space.told.tell(Kind::Shm, id.unwrap_or(status.id), size);
    Ok(ShmStatus {
        status,
        size,
        attached,
        atime: segment.atime.load(Relaxed),
        dtime: segment.dtime.load(Relaxed),
        creator: segment.cpid.load(Relaxed) as i32,
        last: segment.lpid.load(Relaxed) as i32,
    })
}

/// Bytes that the namespace's file system has promised to segments, and they have not touched.
fn promised(local: &Local) -> u64 {
    let left = |entry: &Entry| {
        let offset = entry.object.load(Relaxed);
        let segment = local.space.view::<Segment>(offset).ok().filter(|_| offset != 0)?;
        let promised = Some(segment.promised.load(Relaxed)).filter(|&promised| promised != 0)?;
        let path = bytes::path(local, Place::Namespace, segment.object.id.load(Relaxed) as i32);
        let takes = file::about(path).map_or(0, |found| found.takes());
        Some(promised.saturating_sub(takes))
    };
    let entries = local.entries(Kind::Shm).unwrap_or_default();
    entries.iter().filter_map(left).fold(0, u64::saturating_add)
}

fn make_file(local: &Local, id: i32, segment: &Segment, size: u64, reserve: bool) -> Result<()> {
    let length = size.next_multiple_of(file::page_size());
    // As long as all segments together fit, nobody is asked what is left of them.
    let all = local.ids(Kind::Shm).total.load(Relaxed).saturating_mul(file::page_size());
    let others = |room: Room| if room.free - length >= all { 0 } else { promised(local) };
    let made = with_files(|| bytes::make(local, id, length, reserve.then_some(others)))?;
    segment.on_disk.store((made.place == Place::Disk).into(), Relaxed);
    segment.promised.store(made.promised, Relaxed);
    segment.device.store(made.identity.0, Relaxed);
    segment.file.store(made.identity.1, Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_own<R>(n: &Namespace, id: i32, f: impl FnOnce(&Local, &Segment) -> R) -> R {
        let (_call, local) = n.begin().unwrap();
        with_segment(local, id, |local, segment| Ok(f(local, segment))).unwrap()
    }

    /// With `SHM_REMAP` it would take the place of what is mapped behind it.
    #[test]
    fn a_segment_that_has_grown_is_damaged() {
        let _one = crate::forks::tests::one();
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.shmget(5, 4096, libc::IPC_CREAT | 0o600).unwrap();
        // SAFETY: nothing is used.
        let attach = |address, flags| unsafe { n.shmat(id, address, flags) };
        let at = attach(0, 0).unwrap() as usize;
        with_own(&n, id, |_, segment| segment.size.store(1 << 20, Relaxed));
        let file = File::open(directory.path().join(bytes::name(id)), libc::O_WRONLY);
        file.unwrap().set_length(1 << 20).unwrap();
        assert_eq!(attach(at, libc::SHM_REMAP), Err(CORRUPT));
        assert_eq!(n.shmget(5, 0, 0), Err(CORRUPT));
        assert_eq!(n.shm_status(id).map(|status| (status.size, status.attached)), Ok((1 << 20, 1)));
        // The program knows by now.
        attach(0, 0).unwrap();
    }

    /// Its parent was dead, and its number not known, when somebody looked.
    #[test]
    fn a_child_that_was_taken_for_dead_counts_again() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.shmget(libc::IPC_PRIVATE, 4096, 0o600).unwrap();
        let counted = || {
            with_own(&n, id, |local, segment| {
                let (user, _) = segment.user(local, local.process).unwrap();
                user.map_or(0, |user| user.count.load(Relaxed))
            })
        };
        for before in 0..3 {
            {
                let (_call, local) = n.begin().unwrap();
                inherit(local, id, before).unwrap();
                inherit(local, id, 2).unwrap();
            }
            assert_eq!(counted(), 2);
            with_own(&n, id, |local, segment| {
                (0..2).for_each(|_| segment.detach(local).unwrap());
                local.commit();
            });
            assert_eq!(counted(), 0);
        }
    }
}
