// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of an operation that cannot be done now, as its waiter says it.

use super::{AT_A_VALUE, AT_ZERO, NOBODY, SemOp};
use crate::space::layout::Thread;
use std::sync::atomic::Ordering::*;

/// The part of an operation that cannot be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Blocked {
    pub num: u16,
    /// The sum that the operation adds to the semaphore, with this part.
    pub sum: i32,
    /// Whether the part waits for zero.
    pub zero: bool,
}

impl Blocked {
    #[cold]
    pub(super) fn at(ops: &[SemOp], part: usize) -> Blocked {
        let num = ops[part].sem_num;
        let same = ops[..=part].iter().filter(|op| op.sem_num == num);
        let sum = same.map(|op| i32::from(op.sem_op)).sum();
        Blocked { num, sum, zero: ops[part].sem_op == 0 }
    }

    /// Whether the part can be done if the semaphore has that value before the operation.
    pub(super) fn possible(self, value: i32) -> bool {
        let then = value.saturating_add(self.sum);
        if self.zero { then == 0 } else { then >= 0 }
    }

    /// Whether this part is possible with each value with which the other one is.
    pub(super) fn comes_with(self, other: Blocked) -> bool {
        (self.num, self.zero) == (other.num, other.zero)
            && (self.sum == other.sum || !self.zero && self.sum > other.sum)
    }

    /// For [`Set::zero`].
    pub(super) fn waits_for(self) -> u64 {
        match (self.zero, self.sum) {
            (false, _) => NOBODY,
            (true, 0) => AT_ZERO,
            (true, _) => AT_A_VALUE,
        }
    }

    /// As a waiter's `want`.
    pub(super) fn words(self) -> [u64; 2] {
        [self.num.into(), u64::from(self.sum as u32) | u64::from(self.zero) << 32]
    }

    pub(super) fn of_waiter(thread: &Thread) -> Blocked {
        let [num, want] = [0, 1].map(|i| thread.want[i].load(Relaxed));
        Blocked { num: num as u16, sum: want as i32, zero: want >> 32 != 0 }
    }
}
