// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which entries of an array are free, and who may have one.
//!
//! Any user can start processes that look like VMs. So the last quarter of the entries is for root,
//! and for users who have fewer entries than are free: no user but root takes them all.

use std::collections::{BTreeMap, VecDeque};

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
        let scarce = self.free.len() <= self.entries / 4;
        if user != 0 && scarce && has >= self.free.len() {
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
