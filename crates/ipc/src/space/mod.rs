// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mapped file: making and opening it, and bounds-checked sight of what is in it.

mod chunks;
pub(crate) mod layout;
mod path;
mod told;

pub use path::{begin_ipc_namespace, default_directory, ipc_namespace};

use crate::error::{CORRUPT, Errno, OpenError, Result};
use crate::file::{self, File};
use crate::helper::Helper;
use crate::kernel::call;
use crate::sys;
use chunks::Chunks;
use layout::*;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, compiler_fence, fence};
use told::Told;

/// An open namespace. Lives as long as the process: threads' robust mutexes lie in it.
pub(crate) struct Space {
    chunks: Chunks,
    pub directory: PathBuf,
    /// Device and number of the mapped file.
    pub identity: (u64, u64),
    /// For the time when this process may no longer open the lock's file: the directory may be
    /// root's, and the process has given up being root, or moved its own root.
    kept: Kept,
    /// The permission bits of files here: the directory's own.
    pub file_mode: u32,
    /// Whether this process is registered for global membarriers, so that its readers need no
    /// fence.
    pub unfenced: AtomicBool,
    /// The process's place in it; 0: none yet.
    pub process: AtomicU64,
    /// In which process that is its place: a number that changes with a fork.
    pub epoch: AtomicU64,
    /// The sizes of its objects, as this process knows them.
    pub told: Told,
}

const FILE: &str = "space";
const LOCK: &str = "lock";

impl Space {
    /// Opens the namespace in a directory, or makes it.
    pub fn open(directory: &Path) -> std::result::Result<Space, OpenError> {
        path::make_directory(directory)?;
        let io = |what| move |error| OpenError::Io { path: directory.join(FILE), what, error };
        let mode = file::about(directory).map_err(io("look at the directory of"))?.mode() & 0o666;
        let file = match open_file(directory, FILE) {
            Err(Errno(libc::ENOENT)) => {
                let lock = || Registry::open_file(directory, mode);
                let _creating = Registry::lock(lock, None).map_err(io("lock"))?;
                match open_file(directory, FILE) {
                    Err(Errno(libc::ENOENT)) => create(directory, mode).map_err(io("create"))?,
                    other => other.map_err(io("open"))?,
                }
            }
            other => other.map_err(io("open"))?,
        };
        let found = file.about().map_err(io("look at"))?;
        let length = found.length();
        if length < PAGE {
            return Err(OpenError::Foreign { path: directory.into() });
        }
        let space = Space {
            chunks: Chunks::new(&file).map_err(io("map"))?,
            directory: directory.into(),
            identity: found.identity(),
            kept: Kept::none(),
            file_mode: mode,
            unfenced: AtomicBool::new(false),
            process: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            told: Told::default(),
        };
        let header = space.header();
        let (magic, version) = (header.magic.load(Acquire), header.version.load(Acquire));
        if magic != MAGIC {
            return Err(OpenError::Foreign { path: directory.into() });
        }
        if version != VERSION || header.size.load(Acquire) != SIZE || length < SIZE {
            return Err(OpenError::Version {
                path: directory.into(),
                found: version,
                own: VERSION,
            });
        }
        space.register();
        Ok(space)
    }

    /// Whether there is a namespace in that directory.
    pub fn is_there(directory: &Path) -> Result<bool> {
        match file::about(directory.join(FILE)) {
            Err(Errno(libc::ENOENT | libc::ENOTDIR)) => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Whether that directory holds the file that is mapped: by whatever name, since a process has
    /// each namespace once.
    pub fn is_at(&self, directory: &Path) -> bool {
        file::about(directory.join(FILE)).is_ok_and(|found| found.identity() == self.identity)
    }

    /// Registers this process for global membarriers.
    pub fn register(&self) {
        let registered = sys::membarrier(sys::MEMBARRIER_REGISTER_GLOBAL_EXPEDITED);
        self.unfenced.store(registered, SeqCst);
    }

    /// In the child of a fork: its name, under which it has yet to register.
    pub fn is_born(&self, name: u64, epoch: u64) {
        self.epoch.store(epoch, Release);
        self.process.store(name, Release);
    }

    /// The frequent side's fence of two: the other side executes it with a membarrier, where this
    /// process is registered for that.
    #[inline]
    pub fn fence(&self) {
        if self.unfenced.load(Relaxed) { compiler_fence(SeqCst) } else { fence(SeqCst) }
    }

    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a page long, and so aligned; atomics only.
        unsafe { &*self.chunks.first().cast() }
    }

    /// The file, if its name is still its own.
    fn file(&self) -> Option<File> {
        let file = (!sys::is_filtered()).then(|| open_file(&self.directory, FILE).ok()).flatten();
        file.filter(|file| identity(file).is_ok_and(|i| i == self.identity))
    }

    /// The value at an offset, if that is one. `ENOMEM`: its memory cannot be mapped.
    #[inline(always)]
    pub fn view<T: Shared>(&self, offset: u64) -> Result<&T> {
        if offset % align_of::<T>() as u64 != 0 {
            return Err(CORRUPT);
        }
        let at = self.bytes(offset, size_of::<T>() as u64)?;
        // SAFETY: inside the mapping, aligned, and any bytes are a T.
        Ok(unsafe { &*at.cast() })
    }

    /// `count` of them in a row.
    #[inline(always)]
    pub fn slice<T: Shared>(&self, offset: u64, count: u64) -> Result<&[T]> {
        let bytes = count.checked_mul(size_of::<T>() as u64).ok_or(CORRUPT)?;
        if offset % align_of::<T>() as u64 != 0 {
            return Err(CORRUPT);
        }
        let at = self.bytes(offset, bytes)?;
        // SAFETY: as above.
        Ok(unsafe { std::slice::from_raw_parts(at.cast(), count as usize) })
    }

    /// Memory that is read and written as bytes, under a lock of well-behaved processes.
    #[inline(always)]
    pub fn bytes(&self, offset: u64, count: u64) -> Result<*mut u8> {
        match self.chunks.in_heap(offset, count) {
            Some(at) => Ok(at),
            None => self.bytes_anywhere(offset, count),
        }
    }

    /// Outside of the heap, or before it is mapped. Out of line: its callers are many.
    #[inline(never)]
    fn bytes_anywhere(&self, offset: u64, count: u64) -> Result<*mut u8> {
        match self.chunks.at(offset, count) {
            Some(at) => Ok(at),
            None => self.chunks.map(offset, count, self.file()),
        }
    }

    /// Where something of the mapping is.
    #[inline]
    pub fn offset_of<T>(&self, what: &T) -> u64 {
        self.chunks.offset_of(&raw const *what as usize)
    }

    /// The place of a thread, by its number.
    #[inline]
    pub fn thread(&self, number: u64) -> Result<&Thread> {
        let index = number.wrapping_sub(1);
        if index >= MAX_THREADS.into() {
            return Err(CORRUPT);
        }
        self.view(THREADS + index * THREAD)
    }

    #[inline]
    pub fn process_at(&self, index: u64) -> Result<&Process> {
        if index >= MAX_PROCESSES.into() {
            return Err(CORRUPT);
        }
        self.view(PROCESSES + index * size_of::<Process>() as u64)
    }

    /// Maps all that is in use, for the time when this process may not do so any more.
    pub fn map_all(&self) {
        let _ = self.threads();
        let used = self.header().heap.reserved.load(Relaxed).min(SIZE);
        (HEAP..used).step_by(CHUNK as usize).for_each(|chunk| _ = self.bytes(chunk, 1));
    }

    /// The threads' places that have ever been used, with their numbers.
    pub fn threads(&self) -> Result<impl Iterator<Item = (u64, &Thread)>> {
        let used = self.header().threads.load(SeqCst).min(MAX_THREADS.into());
        (1..=used).step_by((CHUNK / THREAD) as usize).try_for_each(|n| self.thread(n).map(drop))?;
        self.thread(used.max(1))?;
        Ok((1..=used).filter_map(|number| Some((number, self.thread(number).ok()?))))
    }

    /// Has the file system reserve memory: a sparse page that it has none for would be a SIGBUS.
    pub fn reserve(&self, offset: u64, bytes: u64) -> Result<()> {
        match self.file() {
            None if sys::is_filtered() => Ok(()),
            Some(file) => file.reserve(offset, bytes),
            // This process may no longer open it, or its name is another file's.
            None => self.populate(offset, bytes),
        }
    }

    /// Has the file system reserve memory as if it were written to.
    fn populate(&self, offset: u64, bytes: u64) -> Result<()> {
        let page = file::page_size();
        let start = offset / page * page;
        let at = self.bytes(start, offset - start + bytes)?;
        let length = offset - start + bytes;
        loop {
            // SAFETY: inside the mapping, whose bytes do not change by it.
            match unsafe { call!(SYS_madvise, at, length, libc::MADV_POPULATE_WRITE) } {
                Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
                // Linux before 5.14, or a sandbox: as with a file system that cannot reserve.
                Ok(_) | Err(Errno(libc::EINVAL | libc::ENOSYS | libc::EPERM)) => return Ok(()),
                Err(_) => return Err(Errno(libc::ENOSPC)),
            }
        }
    }

    /// Lets one thread at a time, of all processes, register or be removed.
    pub fn registry(&self) -> Result<Registry> {
        let open = || {
            // Another namespace's lock would be no lock for this one.
            match !sys::is_filtered() && self.is_at(&self.directory) {
                true => Registry::open_file(&self.directory, self.file_mode),
                false => Err(Errno(libc::EACCES)),
            }
        };
        Registry::lock(open, Some(&self.kept))
    }
}

/// Device and number of a file.
fn identity(file: &File) -> Result<(u64, u64)> {
    file.about().map(|found| found.identity())
}

/// A descriptor of the lock's file. The program may have closed it, and have another file there.
struct Kept {
    /// Plus one; 0: none.
    number: AtomicI32,
    device: AtomicU64,
    file: AtomicU64,
}

impl Kept {
    const fn none() -> Kept {
        Kept { number: AtomicI32::new(0), device: AtomicU64::new(0), file: AtomicU64::new(0) }
    }

    fn set(&self, number: i32, (device, file): (u64, u64)) {
        self.device.store(device, Relaxed);
        self.file.store(file, Relaxed);
        self.number.store(number + 1, Release);
    }

    fn get(&self) -> Option<ManuallyDrop<File>> {
        let number = self.number.load(Acquire) - 1;
        if number < 0 {
            return None;
        }
        // Not closed by us: it may be the program's.
        let file = ManuallyDrop::new(File::of_number(number));
        let known = (self.device.load(Relaxed), self.file.load(Relaxed));
        identity(&file).is_ok_and(|found| found == known).then_some(file)
    }

    /// Keeps one of that file, by a number that programs do not expect to get. It is opened for
    /// that: children have it, too, and so a lock of `file` if it were a duplicate.
    fn keep(&self, file: &File, open: impl Fn() -> Result<File>) {
        let Ok(known) = identity(file) else { return };
        if let Some(kept) = self.get() {
            if identity(&kept).is_ok_and(|kept| kept == known) {
                return;
            }
            drop(ManuallyDrop::into_inner(kept));
        }
        let Ok(file) = open() else { return };
        let Ok(known) = identity(&file) else { return };
        // None of the standard ones, whatever the limit: the program may have closed them.
        let most = sys::limit(libc::RLIMIT_NOFILE).unwrap_or(0);
        let from = most.min(1024).saturating_sub(64).max(3);
        // SAFETY: touches no memory.
        let kept = unsafe { call!(SYS_fcntl, file.number(), libc::F_DUPFD_CLOEXEC, from) };
        self.set(kept.map_or(-1, |kept| kept as i32), known);
    }
}

fn open_file(directory: &Path, name: &str) -> Result<File> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::open(directory.join(name), flags)?;
    if file.about()?.is_file() { Ok(file) } else { Err(Errno(libc::EINVAL)) }
}

/// Makes the file under another name first: whoever opens it finds it whole.
fn create(directory: &Path, mode: u32) -> Result<File> {
    if sys::longest_file() < SIZE {
        // The kernel would send a SIGXFSZ.
        return Err(Errno(libc::EFBIG));
    }
    let new = directory.join("space.new");
    // A creator that was killed left it; we hold the lock.
    let _ = file::remove(&new);
    let file = File::create(&new, mode)?;
    let filled = (|| {
        file.set_length(SIZE)?;
        file.reserve(0, PROCESSES)?;
        let chunks = Chunks::new(&file)?;
        // SAFETY: the beginning of the new mapping; atomics only.
        let header: &Header = unsafe { &*chunks.first().cast() };
        header.version.store(VERSION, Relaxed);
        header.size.store(SIZE, Relaxed);
        header.heap.top.store(HEAP, Relaxed);
        header.heap.reserved.store(HEAP, Relaxed);
        header.magic.store(MAGIC, Release);
        file::rename(&new, directory.join(FILE))
    })();
    if filled.is_err() {
        let _ = file::remove(&new);
    }
    filled.map(|()| file)
}

/// The lock of the registry. Threads of one process take turns at a flag first.
///
/// The lock is one of the open file, because a process may have two copies of this library, each
/// with a flag. The child of a fork has the file open as well, so the lock does not go when it is
/// closed here: it is released before that. Should its holder die instead, it goes as soon as the
/// child has closed the file, which is the first thing that it does here ([`forget_registering`]):
/// unless the fork came between the opening of the file and the note of it in [`LOCKED`].
///
/// The file that is kept may be open in children at any time: on it, it is a record lock, which is
/// its process's, and which closing any descriptor of that file releases.
pub(crate) struct Registry {
    file: Option<File>,
    /// The file is the one that is kept.
    kept: bool,
    /// Has it locked where this process has no number left for the file.
    helper: Option<Helper>,
}

/// The process a thread of which holds it; 0: nobody here.
static REGISTERING: AtomicU32 = AtomicU32::new(0);
/// The file that a thread has opened for the lock.
static LOCKED: Kept = Kept::none();

impl Registry {
    fn lock(open: impl Fn() -> Result<File>, kept: Option<&Kept>) -> Result<Registry> {
        let process = sys::process_id();
        while REGISTERING.compare_exchange(0, process, Acquire, Relaxed).is_err() {
            sys::pause(std::time::Duration::from_micros(50));
        }
        // Releases the flag, and the lock, from here on.
        let mut registry = Registry { file: None, kept: false, helper: None };
        let file = match open() {
            Ok(file) => {
                LOCKED.set(file.number(), identity(&file)?);
                kept.inspect(|kept| kept.keep(&file, &open));
                registry.file.insert(file)
            }
            Err(error) => match kept.and_then(Kept::get) {
                Some(file) => {
                    registry.kept = true;
                    registry.file.insert(ManuallyDrop::into_inner(file))
                }
                None if error == Errno(libc::EMFILE) => {
                    // Open in the helper until that ends.
                    let lock = || lock_whole(&ManuallyDrop::new(open()?), false, libc::F_WRLCK);
                    let (helper, locked) = Helper::start(lock)?;
                    registry.helper = Some(helper);
                    return locked.map(|()| registry);
                }
                None => return Err(error),
            },
        };
        lock_whole(file, registry.kept, libc::F_WRLCK)?;
        Ok(registry)
    }

    fn open_file(directory: &Path, mode: u32) -> Result<File> {
        let path = directory.join(LOCK);
        let open = || File::open(&path, libc::O_RDWR | libc::O_NOFOLLOW);
        // Almost always it is there.
        open().or_else(|_| File::create(&path, mode)).or_else(|_| open())
    }
}

/// Locks or unlocks a file, for this process or for whoever has it open as it is here.
fn lock_whole(file: &File, for_process: bool, how: libc::c_int) -> Result<()> {
    // SAFETY: plain data, initialized below.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = how as libc::c_short;
    let mut command = if for_process { libc::F_SETLKW } else { libc::F_OFD_SETLKW };
    // SAFETY: a file that is open, and data that outlives the call.
    while let Err(error) = unsafe { call!(SYS_fcntl, file.number(), command, &raw const whole) } {
        match error.0 {
            libc::EINTR => {}
            // Linux before 3.15, and kernels that are not Linux.
            libc::EINVAL if command == libc::F_OFD_SETLKW => command = libc::F_SETLKW,
            // The kernel takes all threads of a process for one: another thread of the holder may
            // wait for a lock of this program's. The holder itself waits for nobody.
            libc::EDEADLK => sys::pause(std::time::Duration::from_micros(200)),
            _ => return Err(error),
        }
    }
    Ok(())
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The flag last.
        drop(self.helper.take());
        if let Some(file) = self.file.take() {
            let _ = lock_whole(&file, self.kept, libc::F_UNLCK);
            if self.kept {
                std::mem::forget(file);
            } else {
                LOCKED.set(-1, (0, 0));
            }
        }
        REGISTERING.store(0, Release);
    }
}

/// In the child of a fork no other thread registers. The file that one had open here is closed.
pub(crate) fn forget_registering() {
    drop(LOCKED.get().map(ManuallyDrop::into_inner));
    LOCKED.set(-1, (0, 0));
    REGISTERING.store(0, Release);
}

/// The same in what may be the child of a fork without handlers, or no child.
pub(crate) fn forget_registering_of_others() {
    if REGISTERING.load(Acquire) != sys::process_id() {
        forget_registering();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record lock of this process's own is one that another copy of the library might have.
    #[test]
    fn the_registry_is_locked_for_others_in_this_process_too() {
        let directory = tempfile::tempdir().unwrap();
        let space = Space::open(directory.path()).unwrap();
        let file = Registry::open_file(directory.path(), space.file_mode).unwrap();
        let is_free = || {
            // SAFETY: plain data, a file that is open, and data that outlives the call.
            unsafe {
                let mut whole: libc::flock = std::mem::zeroed();
                whole.l_type = libc::F_WRLCK as libc::c_short;
                call!(SYS_fcntl, file.number(), libc::F_SETLK, &raw const whole).is_ok()
            }
        };
        let registry = space.registry().unwrap();
        assert!(!is_free());
        // As a child has it that was forked now.
        let locked = registry.file.as_ref().unwrap().number();
        // SAFETY: touches no memory.
        let copy = File::of_number(unsafe { call!(SYS_dup, locked) }.unwrap() as i32);
        drop(registry);
        assert!(is_free());
        drop(copy);
    }
}
