// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which entries of an array are free, and who may have one; and whose guests' symbols and types
//! have room in memory.
//!
//! Any user can start processes that look like VMs, or that have hints. So the last quarter of each
//! is for root, and for users who have less than is free: no user but root takes all.

use std::collections::{BTreeMap, VecDeque};

/// Whether `user`, who has so much, may take `more` of what is `free` of `all`.
pub fn may_take(user: u32, has: usize, more: usize, free: usize, all: usize) -> bool {
    let Some(left) = free.checked_sub(more) else { return false };
    user == 0 || left >= all / 4 || has.saturating_add(more) <= left
}

/// Of amounts, each with the user who takes it, one after the other: the places of those for which
/// there is no room in `all`.
pub fn beyond(amounts: impl IntoIterator<Item = (u32, usize)>, all: usize) -> Vec<usize> {
    let (mut free, mut users) = (all, BTreeMap::<u32, usize>::new());
    let taken = |(place, (user, amount)): (usize, (u32, usize))| {
        let has = users.entry(user).or_default();
        if !may_take(user, *has, amount, free, all) {
            return Some(place);
        }
        (*has, free) = (*has + amount, free - amount);
        None
    };
    amounts.into_iter().enumerate().filter_map(taken).collect()
}

pub struct Room {
    entries: usize,
    free: VecDeque<u32>,
    /// How many entries each user has.
    users: BTreeMap<u32, usize>,
}

impl Room {
    pub fn new(entries: usize) -> Room {
        Room { entries, free: (0..entries as u32).collect(), users: BTreeMap::new() }
    }

    pub fn take(&mut self, user: u32) -> Option<u32> {
        let has = self.users.get(&user).copied().unwrap_or(0);
        if !may_take(user, has, 1, self.free.len(), self.entries) {
            return None;
        }
        let entry = self.free.pop_front()?;
        self.users.insert(user, has + 1);
        Some(entry)
    }

    /// Takes back what `user` had. It is the last to be used again: an event of the old vCPU may
    /// still be in the buffer.
    pub fn give_back(&mut self, user: u32, entry: u32) {
        self.free.push_back(entry);
        if let Some(has) = self.users.get_mut(&user) {
            *has = has.saturating_sub(1);
            if *has == 0 {
                self.users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many entries they get, one after the other.
    fn takes(room: &mut Room, user: u32) -> usize {
        std::iter::from_fn(|| room.take(user)).count()
    }

    #[test]
    fn no_user_takes_all_entries() {
        let mut room = Room::new(512);
        assert_eq!(takes(&mut room, 1000), 384, "all but a quarter");
        assert_eq!(takes(&mut room, 1001), 64, "half of the rest");
        assert_eq!(takes(&mut room, 1002), 32);
        assert_eq!(takes(&mut room, 1001), 0);
        assert_eq!(takes(&mut room, 0), 32, "root is not held back");
        assert_eq!(takes(&mut room, 1003), 0);
    }

    #[test]
    fn no_user_takes_all_memory() {
        let (alice, bob) = (1000, 1001);
        assert_eq!(beyond([(alice, 70), (bob, 10)], 100), [0; 0]);
        assert_eq!(beyond([(alice, 74), (alice, 6), (bob, 13), (0, 13)], 100), [1]);
        assert_eq!(beyond([(alice, 80), (bob, 60), (bob, 20), (alice, 20)], 100), [0, 2]);
        assert_eq!(beyond([(0, 101), (0, 100), (bob, 1)], 100), [0, 2]);
        assert_eq!(beyond([(bob, usize::MAX), (bob, 1)], 100), [0]);
    }

    #[test]
    fn entries_come_back() {
        let mut room = Room::new(4);
        let taken: Vec<u32> = std::iter::from_fn(|| room.take(7)).collect();
        assert_eq!(taken, [0, 1, 2]);
        for entry in taken {
            room.give_back(7, entry);
        }
        assert_eq!(room.users, BTreeMap::new());
        assert_eq!(room.take(7), Some(3), "the one that was free for longest");
        room.give_back(8, 3);
        assert_eq!(room.take(0), Some(0));
    }
}
