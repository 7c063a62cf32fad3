// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls. Two of the C library's functions take a variable number of arguments: `semctl` and
//! `syscall`; on the platforms that are supported these come where fixed ones would.

use crate::opened::{namespace, tell};
use crate::structures::{self, MsgInfo, ShmInfo, ShmLimits};
use libc::{c_int, c_long, c_ulong, c_void, key_t, sembuf, seminfo, size_t, ssize_t, timespec};
use reprieve_ipc_core::{Errno, Namespace, Owner, Result};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("how variable arguments are passed is known for x86-64 and aarch64 only");

const SEM_INFO: c_int = 19;
const MSG_STAT: c_int = 11;
const MSG_INFO: c_int = 12;
const MSG_STAT_ANY: c_int = 13;
const SHM_LOCK: c_int = 11;
const SHM_UNLOCK: c_int = 12;
const SHM_STAT: c_int = 13;
const SHM_INFO: c_int = 14;
const SHM_STAT_ANY: c_int = 15;
const IPC_INFO: c_int = 3;
// Values of IPC_INFO that the kernel never changes: its defaults.
const SEMMNS: c_int = 1_024_000_000;
const SEMOPM: c_int = 500;
const MSGMNI: c_int = 32000;
const MSGMNB: c_int = 16384;

const INVALID: Errno = Errno(libc::EINVAL);
const FAULT: Errno = Errno(libc::EFAULT);

/// Calls `f` with a copy of `count` values of the program's: as the kernel does, at once and before
/// any lock. Another thread may change them while the call waits, and where they are not mapped,
/// that concerns nobody else.
///
/// # Safety
/// `from` is valid for reads of so many.
#[inline(never)]
unsafe fn with_copy<T: Copy, R>(from: *const T, count: usize, f: impl FnOnce(&[T]) -> R) -> R {
    // SAFETY: the caller's promise; as many bytes are filled in as are read. Programs may pass what
    // is not aligned.
    let copy = |to: *mut T| unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), count * size_of::<T>());
    };
    if count * size_of::<T>() <= SMALL && align_of::<T>() <= align_of::<Small>() {
        let mut small = Small([MaybeUninit::uninit(); SMALL]);
        let to = small.0.as_mut_ptr().cast::<T>();
        copy(to);
        // SAFETY: so many were filled in.
        return f(unsafe { std::slice::from_raw_parts(to, count) });
    }
    let mut large = Vec::with_capacity(count);
    copy(large.as_mut_ptr());
    // SAFETY: as above.
    unsafe { large.set_len(count) };
    f(&large)
}

/// Bytes copied on the stack: the longest message and the longest array of operations, as long as
/// nobody has raised the system's limits.
const SMALL: usize = 8192;

#[repr(align(8))]
struct Small([MaybeUninit<u8>; SMALL]);

/// The same of a message that is received.
const RECEIVED: usize = 4096;

fn zeros(bytes: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    bytes.fill(MaybeUninit::new(0));
    // SAFETY: these were filled in.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [u8]) }
}

/// Returns as the C library does.
#[inline]
pub fn returns<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|Errno(errno)| {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = errno };
        T::from(-1)
    })
}

/// Whether there may be memory of a program's: below the kernel's half, with whatever page tables.
const fn may_be_mapped(address: usize) -> bool {
    4096 <= address && address < 1 << 56
}

const _: () = {
    assert!(!may_be_mapped(8) && !may_be_mapped(usize::MAX));
    // The stack: of x86-64, with five levels of page tables, of arm64, and there with 52 bits.
    assert!(may_be_mapped(0x7fff_ffff_f000) && may_be_mapped(0xff_ffff_ffff_f000));
    assert!(may_be_mapped(0xffff_ffff_f000) && may_be_mapped(0xf_ffff_ffff_f000));
};

/// A pointer that may be one. Those that cannot be are `EFAULT`; a program that passes a wild one
/// gets a signal, where the kernel would have told it.
#[inline]
fn valid<T>(pointer: *const T) -> Result<*const T> {
    if may_be_mapped(pointer as usize) { Ok(pointer) } else { Err(FAULT) }
}

/// # Safety
/// The pointer, unless it cannot be one, is valid for a write.
unsafe fn write<T>(pointer: usize, value: T) -> Result<()> {
    let pointer = valid(pointer as *const T)?.cast_mut();
    // SAFETY: the caller's promise.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// # Safety
/// The pointer, unless it cannot be one, is valid for a read.
pub unsafe fn read<T: Copy>(pointer: usize) -> Result<T> {
    // SAFETY: the caller's promise.
    Ok(unsafe { valid(pointer as *const T)?.read_unaligned() })
}

/// # Safety
/// As for the C library's.
#[inline]
unsafe fn operate(id: c_int, ops: *const sembuf, count: size_t, timeout: usize) -> Result<c_int> {
    let namespace = namespace()?;
    let time = match timeout {
        0 => None,
        // SAFETY: the caller's promise.
        pointer => Some(unsafe { read::<timespec>(pointer) }?),
    };
    if count as u64 > namespace.limits().semopm {
        return Err(Errno(libc::E2BIG));
    }
    // Known before the numbers are looked at, as in the kernel.
    let ops = if count == 0 { ops } else { valid(ops)? };
    if count == 0 || id < 0 {
        return Err(INVALID);
    }
    let timeout = match time {
        None => None,
        Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => {
            return Err(INVALID);
        }
        Some(time) => Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
    };
    let operate = |ops: &[sembuf]| namespace.semop(id, ops, timeout).map(|()| 0);
    if count == 1 {
        // SAFETY: the caller's promise.
        return operate(&[unsafe { ops.read_unaligned() }]);
    }
    // SAFETY: as above.
    unsafe { with_copy(ops, count, operate) }
}

fn owner(perm: &libc::ipc_perm) -> Owner {
    Owner { uid: perm.uid, gid: perm.gid, mode: perm.mode as u32 }
}

/// # Safety
/// `argument` is what the command takes.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the caller's promise, for all")]
unsafe fn sem_control(id: c_int, num: c_int, command: c_int, argument: usize) -> Result<c_int> {
    let n = namespace()?;
    if id < 0 {
        return Err(INVALID);
    }
    // SAFETY, for all writes and reads here: the caller's promise.
    match command {
        libc::IPC_RMID => n.remove_sem(id).map(|()| 0),
        libc::IPC_SET => {
            let ds = unsafe { read::<libc::semid_ds>(argument) }?;
            n.set_sem_owner(id, owner(&ds.sem_perm)).map(|()| 0)
        }
        libc::IPC_STAT => {
            let status = n.sem_status(id)?;
            unsafe { write(argument, structures::sem(&status)) }.map(|()| 0)
        }
        libc::SEM_STAT | libc::SEM_STAT_ANY => {
            let (id, status) = n.sem_slot_status(id, command == libc::SEM_STAT_ANY)?;
            unsafe { write(argument, structures::sem(&status)) }.map(|()| id)
        }
        IPC_INFO | SEM_INFO => {
            let (limits, info) = (n.limits(), n.sem_info()?);
            let (usage, adjustment) = match command {
                SEM_INFO => (info.sets as c_int, info.semaphores as c_int),
                _ => (20, reprieve_ipc_core::MOST_SEM_VALUE),
            };
            let filled = seminfo {
                semmap: SEMMNS,
                semmni: limits.semmni as c_int,
                semmns: limits.semmns as c_int,
                semmnu: SEMMNS,
                semmsl: limits.semmsl as c_int,
                semopm: limits.semopm as c_int,
                semume: SEMOPM,
                semusz: usage,
                semvmx: reprieve_ipc_core::MOST_SEM_VALUE,
                semaem: adjustment,
            };
            unsafe { write(argument, filled) }.map(|()| info.highest)
        }
        libc::GETVAL => n.sem_value(id, num),
        libc::GETPID => n.sem_pid(id, num),
        libc::GETNCNT => n.sem_waiters(id, num, false),
        libc::GETZCNT => n.sem_waiters(id, num, true),
        libc::SETVAL => n.set_sem_value(id, num, argument as c_int).map(|()| 0),
        libc::GETALL => {
            for (i, value) in n.sem_values(id)?.into_iter().enumerate() {
                unsafe { write(argument + 2 * i, value) }?;
            }
            Ok(0)
        }
        libc::SETALL => {
            let count = n.sem_count(id)?;
            let values = (0..count).map(|i| unsafe { read::<u16>(argument + 2 * i) });
            let values: Vec<u16> = values.collect::<Result<_>>()?;
            n.set_sem_values(id, &values).map(|()| 0)
        }
        _ => Err(INVALID),
    }
}

/// # Safety
/// As for the C library's.
unsafe fn send(id: c_int, message: usize, size: size_t, flags: c_int) -> Result<c_int> {
    let n = namespace()?;
    // SAFETY: the caller's promise: a type, then the bytes.
    let kind = unsafe { read::<c_long>(message) }?;
    if size as u64 > n.limits().msgmax {
        return Err(INVALID);
    }
    // Known before the bytes are looked at, as in the kernel.
    if id < 0 || kind < 1 {
        return Err(INVALID);
    }
    let data = (message + size_of::<c_long>()) as *const u8;
    // SAFETY: as above.
    unsafe { with_copy(data, size, |data| n.msgsnd(id, kind, data, flags).map(|()| 0)) }
}

/// # Safety
/// As for the C library's.
unsafe fn receive(
    id: c_int,
    message: usize,
    size: size_t,
    kind: c_long,
    flags: c_int,
) -> Result<ssize_t> {
    let n = namespace()?;
    if size > isize::MAX as usize {
        return Err(INVALID);
    }
    let place = valid(message as *const c_long);
    let to = message.wrapping_add(size_of::<c_long>()) as *mut u8;
    // By way of the stack: where the program's buffer is not mapped, that concerns nobody else. A
    // program may pass a size far larger than its buffer, so a message that does not fit here stays
    // in the queue at first.
    let (small, short) = (size <= RECEIVED, flags & !libc::MSG_NOERROR);
    let mut buffer = [MaybeUninit::uninit(); RECEIVED];
    let part = zeros(&mut buffer[..size.min(RECEIVED)]);
    let (kind, bytes) = match n.msgrcv(id, part, kind, if small { flags } else { short }) {
        Err(Errno(libc::E2BIG)) if !small && place.is_ok() => {
            // No message is longer than this.
            let most = size.min(1 << 30);
            // SAFETY: the caller's promise: room for a type, and for the longest message's bytes.
            let to = unsafe { std::slice::from_raw_parts_mut(to, most) };
            n.msgrcv(id, to, kind, flags)?
        }
        received => {
            let (kind, bytes) = received?;
            // After the message was taken, as in the kernel.
            place?;
            // SAFETY: as above; no more than `size`.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, bytes) };
            (kind, bytes)
        }
    };
    // SAFETY: as above.
    unsafe { write(message, kind as c_long) }?;
    Ok(bytes as ssize_t)
}

/// # Safety
/// `argument` is what the command takes.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the caller's promise, for all")]
unsafe fn msg_control(id: c_int, command: c_int, argument: usize) -> Result<c_int> {
    let n = namespace()?;
    if id < 0 {
        return Err(INVALID);
    }
    // SAFETY, for all writes and reads here: the caller's promise.
    match command {
        libc::IPC_RMID => n.remove_msg(id).map(|()| 0),
        libc::IPC_SET => {
            let ds = unsafe { read::<libc::msqid_ds>(argument) }?;
            n.set_msg_owner(id, owner(&ds.msg_perm), ds.msg_qbytes as u64).map(|()| 0)
        }
        libc::IPC_STAT => {
            let status = n.msg_status(id)?;
            unsafe { write(argument, structures::msg(&status)) }.map(|()| 0)
        }
        MSG_STAT | MSG_STAT_ANY => {
            let status = n.msg_slot_status(id, command == MSG_STAT_ANY)?;
            unsafe { write(argument, structures::msg(&status)) }.map(|()| status.status.id)
        }
        IPC_INFO | MSG_INFO => {
            let (limits, info) = (n.limits(), n.msg_info()?);
            let whole = |n: u64| n.min(c_int::MAX as u64) as c_int;
            let (pool, map, tql) = match command {
                MSG_INFO => (whole(info.queues), whole(info.messages), whole(info.bytes)),
                _ => (MSGMNI * MSGMNB / 1024, MSGMNB, MSGMNB),
            };
            let filled = MsgInfo {
                pool,
                map,
                max: whole(limits.msgmax),
                mnb: whole(limits.msgmnb),
                mni: whole(limits.msgmni),
                ssz: 16,
                tql,
                seg: 0xffff,
            };
            unsafe { write(argument, filled) }.map(|()| info.highest)
        }
        _ => Err(INVALID),
    }
}

/// # Safety
/// `argument` is what the command takes.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the caller's promise, for all")]
unsafe fn shm_control(id: c_int, command: c_int, argument: usize) -> Result<c_int> {
    let n = namespace()?;
    if id < 0 {
        return Err(INVALID);
    }
    // SAFETY, for all writes and reads here: the caller's promise.
    match command {
        libc::IPC_RMID => n.remove_shm(id).map(|()| 0),
        libc::IPC_SET => {
            let ds = unsafe { read::<libc::shmid_ds>(argument) }?;
            n.set_shm_owner(id, owner(&ds.shm_perm)).map(|()| 0)
        }
        libc::IPC_STAT => {
            let status = n.shm_status(id)?;
            unsafe { write(argument, structures::shm(&status)) }.map(|()| 0)
        }
        SHM_STAT | SHM_STAT_ANY => {
            let status = n.shm_slot_status(id, command == SHM_STAT_ANY)?;
            unsafe { write(argument, structures::shm(&status)) }.map(|()| status.status.id)
        }
        SHM_LOCK | SHM_UNLOCK => n.lock_shm(id, command == SHM_LOCK).map(|()| 0),
        IPC_INFO => {
            let limits = n.limits();
            let filled = ShmLimits {
                max: limits.shmmax as c_ulong,
                min: 1,
                mni: limits.shmmni as c_ulong,
                seg: limits.shmmni as c_ulong,
                all: limits.shmall as c_ulong,
                unused: [0; 4],
            };
            unsafe { write(argument, filled) }?;
            Ok(n.shm_info()?.highest)
        }
        SHM_INFO => {
            let info = n.shm_info()?;
            let filled = ShmInfo {
                used_ids: info.segments as c_int,
                total: info.pages as c_ulong,
                resident: 0,
                swapped: 0,
                attempts: 0,
                successes: 0,
            };
            unsafe { write(argument, filled) }.map(|()| info.highest)
        }
        _ => Err(INVALID),
    }
}

fn get_segment(key: key_t, size: size_t, flags: c_int) -> Result<c_int> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let n = namespace()?;
    n.shmget(key, size, flags).inspect_err(|&error| {
        let no_room = error == Errno(libc::ENOMEM) && flags & libc::SHM_HUGETLB == 0;
        if no_room && !TOLD.swap(true, Relaxed) {
            tell(&n.why_no_room(size));
        }
    })
}

/// The calls, and the C library's names, by which they are exported. A library that stands before
/// this one may have the same names: who is to reach ours calls what is not exported.
macro_rules! exported {
    ($($name:ident = $own:ident($($argument:ident: $type:ty),*) -> $result:ty $call:block)*) => {
        $(
            /// # Safety
            /// As for the C library's.
            #[allow(unused_unsafe, reason = "some have no preconditions")]
            pub unsafe extern "C" fn $own($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise.
                returns(unsafe { $call }) as $result
            }

            /// # Safety
            /// As for the C library's.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe { $own($($argument),*) }
            }
        )*

        /// The names, each with a zero at its end, and what they are here.
        pub fn functions() -> impl Iterator<Item = (&'static str, usize)> {
            [$((concat!(stringify!($name), "\0"), $own as *const () as usize)),*].into_iter()
        }
    };
}

exported! {
    semget = own_semget(key: key_t, count: c_int, flags: c_int) -> c_int {
        namespace().and_then(|n| n.semget(key, count, flags))
    }
    semop = own_semop(id: c_int, ops: *mut sembuf, count: size_t) -> c_int {
        operate(id, ops, count, 0)
    }
    semtimedop = own_semtimedop(
        id: c_int, ops: *mut sembuf, count: size_t, timeout: *const timespec
    ) -> c_int {
        operate(id, ops, count, timeout as usize)
    }
    semctl = own_semctl(id: c_int, num: c_int, command: c_int, argument: usize) -> c_int {
        sem_control(id, num, command, argument)
    }
    msgget = own_msgget(key: key_t, flags: c_int) -> c_int {
        namespace().and_then(|n| n.msgget(key, flags))
    }
    msgsnd = own_msgsnd(id: c_int, message: *const c_void, size: size_t, flags: c_int) -> c_int {
        send(id, message as usize, size, flags)
    }
    msgrcv = own_msgrcv(
        id: c_int, message: *mut c_void, size: size_t, kind: c_long, flags: c_int
    ) -> ssize_t {
        receive(id, message as usize, size, kind, flags)
    }
    msgctl = own_msgctl(id: c_int, command: c_int, argument: *mut libc::msqid_ds) -> c_int {
        msg_control(id, command, argument as usize)
    }
    shmget = own_shmget(key: key_t, size: size_t, flags: c_int) -> c_int {
        get_segment(key, size, flags)
    }
    shmat = own_shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
        namespace().and_then(|n| n.shmat(id, address as usize, flags)).map(|at| at as isize)
    }
    shmdt = own_shmdt(address: *const c_void) -> c_int {
        Namespace::shmdt(address as usize).map(|()| 0)
    }
    shmctl = own_shmctl(id: c_int, command: c_int, argument: *mut libc::shmid_ds) -> c_int {
        shm_control(id, command, argument as usize)
    }
}
