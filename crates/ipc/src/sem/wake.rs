// SPDX-License-Identifier: MIT OR Apache-2.0
//! The waiters that a change of values wakes up.

use super::blocked::Blocked;
use super::{AT_ZERO, NOBODY, Set};
use crate::error::Result;
use crate::peers::Local;
use crate::queue::Wakes;
use crate::space::layout::Thread;
use std::sync::atomic::Ordering::*;

impl Set {
    /// Pokes those whose operation may be possible now.
    #[cold]
    pub(super) fn poke(
        &self,
        local: &Local,
        offset: u64,
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        let semaphores = self.semaphores(local)?;
        // Units that waiters before will take, of the first few semaphores with a taker.
        let mut taken = [(0usize, 0i32); 8];
        // Whether to look behind those who take what there is: at others who wait for other
        // semaphores, or for a value.
        let all = match (semaphores, self.zero.load(Relaxed)) {
            ([_], NOBODY) => false,
            ([only], AT_ZERO) => only.value() == 0,
            _ => true,
        };
        // The starving waiter goes first: those whom it holds up would only wake each other in
        // turns. If it waits for zero, that is everybody else at its semaphore: they would take
        // units that it needs, or raise what it has to find at zero. (Who would not looks for
        // itself, and is poked when it is done.)
        let first = self.starver(local);
        let aside = first.and_then(|(number, thread)| {
            let its = Blocked::of_waiter(thread);
            let value = semaphores.get(usize::from(its.num))?.value();
            (its.zero && its.possible(value)).then_some((number, its.num))
        });
        let mut zero = NOBODY;
        let mut each = |number, thread: &'static Thread| {
            let blocked = Blocked::of_waiter(thread);
            let num = usize::from(blocked.num);
            let Some(semaphore) = semaphores.get(num) else { return true };
            let value = semaphore.value();
            zero = zero.max(blocked.waits_for());
            if aside.is_some_and(|(starver, at)| starver != number && at == blocked.num) {
                return true;
            }
            if blocked.zero {
                if !blocked.possible(value) {
                    return true;
                }
            } else {
                let place = taken.iter_mut().find(|(n, t)| *t == 0 || *n == num);
                let left = value.saturating_sub(place.as_ref().map_or(0, |place| place.1));
                if !blocked.possible(left) {
                    // Others may want less.
                    return left > 0 || all;
                }
                if let Some(place) = place {
                    *place = (num, place.1.saturating_sub(blocked.sum));
                }
            }
            if number != u64::from(local.number) {
                wakes.poke(local, thread);
            }
            true
        };
        if let Some((number, thread)) = first {
            each(number, thread);
        }
        let first = first.map(|(number, _)| number);
        local.waiters(&self.queue, offset, |number, thread| {
            first == Some(number) || each(number, thread)
        })?;
        if all {
            self.zero.store(zero, Relaxed);
        }
        Ok(())
    }
}
