// SPDX-License-Identifier: MIT OR Apache-2.0
//! Message queues.
//!
//! A queue is a list of messages, each a block of the heap. Sending and receiving are transactions
//! under the queue's lock: bytes are copied before the commit that links a message, or before the
//! one that unlinks it, so that a death loses none and delivers none twice. Blocks of received
//! messages stay with the queue, up to a number, and are used again without the heap's lock.

mod list;

use crate::error::{Errno, Result};
use crate::ids::{self, Request};
use crate::namespace::{Namespace, Owner, Status};
use crate::object::{ALIVE, Is, Object};
use crate::peers::Local;
use crate::permission::{CAP_SYS_RESOURCE, READ, WRITE, capable};
use crate::queue::{Queue, Wait, Wakes, failure};
use crate::space::layout::{Kind, Shared};
use list::Wanted;
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;

/// A receiver, or a sender, that finds the queue empty, or full, waits for more than one message,
/// or room for more than one, as long as there comes more: a stream's two ends get into each
/// other's way less often.
struct More {
    seen: Cell<u64>,
    still: Cell<u32>,
}

/// This part of the queue's bytes is enough.
const PART: u64 = 4;
/// Anything is enough after that many looks in a row that found the same.
const STILL: u32 = 3;

impl More {
    fn new() -> More {
        More { seen: Cell::new(0), still: Cell::new(0) }
    }

    /// `now`: bytes, or room; something there is. `over`: the waiting ends.
    fn enough(&self, now: u64, room: u64, over: bool) -> bool {
        let still = if now == self.seen.replace(now) { self.still.get() + 1 } else { 0 };
        self.still.set(still);
        over || now >= room / PART || still >= STILL
    }
}

#[repr(C)]
pub(crate) struct Messages {
    /// Its chains are the messages, and the blocks that it keeps.
    object: Object,
    last: AtomicU64,
    kept: AtomicU64,
    qbytes: AtomicU64,
    cbytes: AtomicU64,
    qnum: AtomicU64,
    lspid: AtomicU64,
    lrpid: AtomicU64,
    stime: AtomicU64,
    rtime: AtomicU64,
    receivers: Queue,
    senders: Queue,
}

#[repr(C)]
struct Message {
    next: AtomicU64,
    kind: AtomicU64,
    size: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Messages {}
// SAFETY: as above.
unsafe impl Shared for Message {}

impl Is for Messages {
    const KIND: Kind = Kind::Msg;

    fn object(&self) -> &Object {
        &self.object
    }

    fn expel(&self, local: &Local, offset: u64) -> Result<()> {
        local.expel(&self.receivers, offset)?;
        local.expel(&self.senders, offset)
    }

    fn discard(&self, _: &Local, _: i32) {}
}

/// The answer of `msgctl(IPC_STAT)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsgStatus {
    pub status: Status,
    pub stime: u64,
    pub rtime: u64,
    pub bytes: u64,
    pub messages: u64,
    pub most_bytes: u64,
    pub sender: i32,
    pub receiver: i32,
}

/// The answer of `msgctl(MSG_INFO)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsgInfo {
    pub queues: u64,
    pub messages: u64,
    pub bytes: u64,
    /// The highest slot in use.
    pub highest: i32,
}

impl Namespace {
    /// `msgget`.
    pub fn msgget(&self, key: i32, flags: i32) -> Result<i32> {
        let (_call, local) = self.begin()?;
        let _section = local.enter();
        let request = Request {
            key,
            flags,
            bytes: size_of::<Messages>() as u64,
            weight: 0,
            most_weight: u64::MAX,
            most: self.limits.msgmni,
        };
        ids::get::<Messages>(
            local,
            &request,
            |_| Ok(()),
            |_, _, queue, _| {
                queue.qbytes.store(self.limits.msgmnb, Relaxed);
                Ok(())
            },
        )
    }

    /// `msgsnd`.
    pub fn msgsnd(&self, id: i32, kind: i64, data: &[u8], flags: i32) -> Result<()> {
        let (_call, local) = self.begin()?;
        let size = data.len() as u64;
        if size > self.limits.msgmax || id < 0 || kind < 1 {
            return Err(Errno(libc::EINVAL));
        }
        let attempt = |queue: &'static Messages, offset: u64, wakes: &mut Wakes<'static>| {
            queue.object.permits(WRITE)?;
            if queue.fits(size) {
                queue.append(local, offset, kind, data, wakes)?;
                return Ok(Some(()));
            }
            if flags & libc::IPC_NOWAIT != 0 { Err(Errno(libc::EAGAIN)) } else { Ok(None) }
        };
        let more = More::new();
        let may_fit = |queue: &Messages, _, over| {
            let room = queue.qbytes.load(Relaxed);
            let free = room.saturating_sub(queue.cbytes.load(Relaxed));
            queue.fits(size) && more.enough(free, room, over)
        };
        until_done(local, id, |queue| &queue.senders, [size, 0], may_fit, attempt)
    }

    /// `msgrcv`: the message's type and how many of its bytes are in the buffer.
    pub fn msgrcv(&self, id: i32, to: &mut [u8], kind: i64, flags: i32) -> Result<(i64, usize)> {
        let (_call, local) = self.begin()?;
        if id < 0 {
            return Err(Errno(libc::EINVAL));
        }
        let has = |flag| flags & flag != 0;
        let copies = has(libc::MSG_COPY);
        if copies && (has(libc::MSG_EXCEPT) || !has(libc::IPC_NOWAIT)) {
            return Err(Errno(libc::EINVAL));
        }
        let wanted = Wanted::new(kind, flags);
        let attempt = |queue: &'static Messages, offset: u64, wakes: &mut Wakes<'static>| {
            queue.object.permits(READ)?;
            let Some(found) = queue.look_for(local, wanted)? else {
                return if has(libc::IPC_NOWAIT) { Err(Errno(libc::ENOMSG)) } else { Ok(None) };
            };
            if found.message.size.load(Relaxed) > to.len() as u64 {
                if !has(libc::MSG_NOERROR) {
                    return Err(Errno(libc::E2BIG));
                }
                if copies {
                    return Err(Errno(libc::EINVAL));
                }
            }
            let kind = found.message.kind.load(Relaxed) as i64;
            let bytes = queue.copy(local, &found, to)?;
            if !copies {
                queue.unlink(local, &found)?;
                if queue.senders.first.load(Relaxed) != 0 {
                    queue.poke_senders(local, offset, wakes)?;
                }
            }
            Ok(Some((kind, bytes)))
        };
        let more = More::new();
        let came = |queue: &Messages, last, over| {
            let (bytes, room) = (queue.cbytes.load(Relaxed), queue.qbytes.load(Relaxed));
            queue.last.load(Relaxed) != last && more.enough(bytes, room, over)
        };
        until_done(local, id, |queue| &queue.receivers, [kind as u64, flags as u64], came, attempt)
    }

    /// `msgctl(IPC_STAT)`.
    pub fn msg_status(&self, id: i32) -> Result<MsgStatus> {
        let (_call, local) = self.begin()?;
        let _section = local.enter();
        let (queue, _, _held) = local.find_locked::<Messages>(id)?;
        queue.object.permits(READ)?;
        Ok(status(queue))
    }

    /// `msgctl(MSG_STAT)`, with `any` `MSG_STAT_ANY`.
    pub fn msg_slot_status(&self, slot: i32, any: bool) -> Result<MsgStatus> {
        let (_call, local) = self.begin()?;
        let _section = local.enter();
        let (queue, _, _held) = local.find_slot::<Messages>(slot)?;
        if !any {
            queue.object.permits(READ)?;
        }
        Ok(status(queue))
    }

    /// `msgctl(IPC_SET)`.
    pub fn set_msg_owner(&self, id: i32, owner: Owner, most_bytes: u64) -> Result<()> {
        self.set_owner::<Messages>(id, owner, |local, queue| {
            if most_bytes > self.limits.msgmnb && !capable(CAP_SYS_RESOURCE) {
                return Err(Errno(libc::EPERM));
            }
            local.set(&queue.qbytes, most_bytes)
        })?;
        let (_call, local) = self.begin()?;
        let mut wakes = Wakes::new();
        let _section = local.enter();
        let (queue, offset, _held) = local.find_locked::<Messages>(id)?;
        queue.poke_all(local, offset, &mut wakes)
    }

    /// `msgctl(IPC_RMID)`.
    pub fn remove_msg(&self, id: i32) -> Result<()> {
        self.remove::<Messages>(id)
    }

    /// The answer of `msgctl(IPC_INFO)` and `MSG_INFO`.
    pub fn msg_info(&self) -> Result<MsgInfo> {
        let (_call, local) = self.begin()?;
        ids::complete::<Messages>(local)?;
        let _section = local.enter();
        let ids = local.ids(Kind::Msg);
        let (mut messages, mut bytes) = (0u64, 0u64);
        for entry in local.entries(Kind::Msg)? {
            let offset = entry.object.load(Acquire);
            if offset != 0 {
                let queue: &Messages = local.space.view(offset)?;
                messages = messages.wrapping_add(queue.qnum.load(Relaxed));
                bytes = bytes.wrapping_add(queue.cbytes.load(Relaxed));
            }
        }
        let highest = ids.high.load(Relaxed).saturating_sub(1) as i32;
        Ok(MsgInfo { queues: ids.used.load(Relaxed), messages, bytes, highest })
    }
}

fn status(queue: &Messages) -> MsgStatus {
    MsgStatus {
        status: Status::of(&queue.object),
        stime: queue.stime.load(Relaxed),
        rtime: queue.rtime.load(Relaxed),
        bytes: queue.cbytes.load(Relaxed),
        messages: queue.qnum.load(Relaxed),
        most_bytes: queue.qbytes.load(Relaxed),
        sender: queue.lspid.load(Relaxed) as i32,
        receiver: queue.lrpid.load(Relaxed) as i32,
    }
}

/// Tries until it is done, or fails; waits in a queue meanwhile. `came`: whether another try may do
/// by now, told which message was the last one at the first try, and whether the waiting ends;
/// looks without the lock.
fn until_done<R>(
    local: &'static Local,
    id: i32,
    queue_of: impl Fn(&'static Messages) -> &'static Queue,
    want: [u64; 2],
    came: impl Fn(&'static Messages, u64, bool) -> bool,
    mut attempt: impl FnMut(&'static Messages, u64, &mut Wakes<'static>) -> Result<Option<R>>,
) -> Result<R> {
    let mut wakes = Wakes::new();
    let mut section = local.enter();
    let (found, offset, mut held) = local.find_locked::<Messages>(id)?;
    let mut result = attempt(found, offset, &mut wakes);
    let mut wait = None;
    if matches!(result, Ok(None)) && local.lingers() {
        wait = Some(Wait::until(None));
        let last = found.last.load(Relaxed);
        drop(held);
        local.linger(|over| came(found, last, over) || found.object.state.load(Relaxed) != ALIVE);
        held = local.lock(&found.object.lock)?;
        if found.object.state.load(Relaxed) != ALIVE {
            return Err(Errno(libc::EIDRM));
        }
        result = attempt(found, offset, &mut wakes);
    }
    loop {
        let queue = queue_of(found);
        if let Some(over) = result.transpose() {
            wait.as_ref().inspect(|wait| local.waited(wait));
            let poked = local.waits_on(offset) && local.is_poked(local.thread);
            let left = found.leave(local, queue, offset);
            if poked {
                let _ = found.hand_on(local, queue, offset, over.is_ok(), &mut wakes);
            }
            return left.and(over);
        }
        if local.waits_on(offset) {
            let poked = local.is_poked(local.thread);
            local.prepare();
            if poked {
                let _ = found.hand_on(local, queue, offset, false, &mut wakes);
            }
        } else {
            local.enqueue(queue, offset, want)?;
            local.prepare();
            local.commit();
        }
        drop(held);
        drop(section);
        wakes.wake();
        let woken = local.wait(wait.get_or_insert_with(|| Wait::until(None)), false, &[]);
        section = local.enter();
        if local.was_removed::<Messages>(offset)? {
            return Err(Errno(libc::EIDRM));
        }
        held = local.lock(&found.object.lock)?;
        if !local.waits_on(offset) || found.object.state.load(Relaxed) != ALIVE {
            found.leave(local, queue, offset)?;
            return Err(Errno(libc::EIDRM));
        }
        result = attempt(found, offset, &mut wakes);
        if let (Ok(None), Some(error)) = (&result, failure(woken)) {
            result = Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::{only_pokes, poked, with_waiters};
    use std::thread;

    /// A thread that waits for pokes only, behind so many others.
    fn waiter<R: Send + 'static>(
        n: &Namespace,
        id: i32,
        queue: fn(&'static Messages) -> &'static Queue,
        others: usize,
        call: impl FnOnce() -> R + Send + 'static,
    ) -> thread::JoinHandle<R> {
        let waiter = thread::spawn(move || {
            only_pokes();
            call()
        });
        with_waiters(n, id, queue, others + 1, |_, _, _| ());
        waiter
    }

    fn senders(queue: &'static Messages) -> &'static Queue {
        &queue.senders
    }

    /// A queue without room for a message, and how many bytes it takes.
    fn full_queue() -> (tempfile::TempDir, Namespace, i32, u64) {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.msgget(libc::IPC_PRIVATE, 0o600).unwrap();
        let most = n.msg_status(id).unwrap().most_bytes;
        with_waiters(&n, id, senders, 0, |_, queue, _| queue.cbytes.store(most, Relaxed));
        (directory, n, id, most)
    }

    #[test]
    fn a_sender_whose_room_was_taken_pokes_who_fits() {
        let (_directory, n, id, most) = full_queue();
        let send = |size| move || n.msgsnd(id, 1, &vec![0; size], 0);
        let large = waiter(&n, id, senders, 0, send(100));
        let small = waiter(&n, id, senders, 1, send(50));
        with_waiters(&n, id, senders, 2, |local, queue, offset| {
            let mut wakes = Wakes::new();
            // Room for bytes, and for no message.
            queue.cbytes.store(most - 100, Relaxed);
            queue.qnum.store(most, Relaxed);
            queue.poke_senders(local, offset, &mut wakes).unwrap();
            assert_eq!(poked(local, &queue.senders, offset), [false, false]);
            queue.qnum.store(0, Relaxed);
            queue.poke_senders(local, offset, &mut wakes).unwrap();
            assert_eq!(poked(local, &queue.senders, offset), [true, false]);
            // A newcomer's message.
            queue.cbytes.store(most - 50, Relaxed);
            wakes.wake();
        });
        assert_eq!(small.join().unwrap(), Ok(()));
        n.remove_msg(id).unwrap();
        assert_eq!(large.join().unwrap(), Err(Errno(libc::EIDRM)));
    }

    /// The type of the message that comes.
    fn receive(n: Namespace, id: i32, kind: i64) -> impl FnOnce() -> Result<i64> + Send {
        move || n.msgrcv(id, &mut [0; 8], kind, 0).map(|(kind, _)| kind)
    }

    #[test]
    fn a_receiver_that_takes_a_lower_type_pokes_who_waits_for_the_other_one() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.msgget(libc::IPC_PRIVATE, 0o600).unwrap();
        let receivers = |queue: &'static Messages| &queue.receivers;
        let lowest = waiter(&n, id, receivers, 0, receive(n, id, -9));
        let other = waiter(&n, id, receivers, 1, receive(n, id, 9));
        with_waiters(&n, id, receivers, 2, |local, queue, offset| {
            let mut wakes = Wakes::new();
            for kind in [9, 1] {
                queue.append(local, offset, kind, b"", &mut wakes).unwrap();
            }
            assert_eq!(poked(local, &queue.receivers, offset), [true, false]);
            wakes.wake();
        });
        assert_eq!((lowest.join().unwrap(), other.join().unwrap()), (Ok(1), Ok(9)));
    }

    /// A waiter poked for the other message has taken the first one, or an earlier one of its type.
    #[test]
    fn a_receiver_pokes_who_waits_for_what_others_have_left() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.msgget(libc::IPC_PRIVATE, 0o600).unwrap();
        let receivers = |queue: &'static Messages| &queue.receivers;
        for taken in [false, true] {
            let first = waiter(&n, id, receivers, 0, receive(n, id, 1));
            let second = waiter(&n, id, receivers, 1, receive(n, id, 2));
            with_waiters(&n, id, receivers, 2, |local, queue, offset| {
                let mut wakes = Wakes::new();
                queue.append(local, offset, 1, b"", &mut wakes).unwrap();
                // The poke for this one went to somebody who is gone.
                let waits = local.space.thread(queue.receivers.last.load(Relaxed)).unwrap();
                waits.want[0].store(3, Relaxed);
                queue.append(local, offset, 2, b"", &mut wakes).unwrap();
                waits.want[0].store(2, Relaxed);
                if taken {
                    let found = queue.look_for(local, Wanted::Equal(1)).unwrap().unwrap();
                    queue.unlink(local, &found).unwrap();
                }
                assert_eq!(poked(local, &queue.receivers, offset), [true, false]);
                wakes.wake();
            });
            assert_eq!(second.join().unwrap(), Ok(2));
            if taken {
                n.msgsnd(id, 1, b"", 0).unwrap();
            }
            assert_eq!(first.join().unwrap(), Ok(1));
        }
    }

    #[test]
    fn a_small_message_is_sent_before_a_large_one_that_does_not_fit() {
        let (_directory, n, id, most) = full_queue();
        let send = |size| move || n.msgsnd(id, 1, &vec![0; size], 0);
        let large = thread::spawn(send(100));
        with_waiters(&n, id, senders, 1, |_, _, _| ());
        let small = thread::spawn(send(10));
        with_waiters(&n, id, senders, 2, |local, queue, offset| {
            queue.cbytes.store(most - 50, Relaxed);
            let mut wakes = Wakes::new();
            queue.poke_senders(local, offset, &mut wakes).unwrap();
            assert_eq!(poked(local, &queue.senders, offset), [false, true]);
            wakes.wake();
        });
        assert_eq!(small.join().unwrap(), Ok(()));
        n.remove_msg(id).unwrap();
        assert_eq!(large.join().unwrap(), Err(Errno(libc::EIDRM)));
    }
}
