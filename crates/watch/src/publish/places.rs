// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has the page's places. Users share them evenly, so a user who starts programs without end
//! keeps no other user's out; root's programs go first, and keep their places.
//!
//! A client without a place waits. The user with the fewest places gets the next one. If none is
//! free, the user with the most gives one up, as long as that user has two more.

use reprieve_hint::abi::PROCESSES;
use std::collections::HashMap;

/// How many clients there are at most, those that wait among them.
const MOST_CLIENTS: usize = 4 * PROCESSES;

/// A client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub user: u32,
    /// Greater than those of the clients before.
    pub key: u64,
    pub place: Option<usize>,
}

/// A client gets a place.
#[derive(Debug, PartialEq, Eq)]
pub struct Move {
    pub place: usize,
    /// The clients, by their indices: who gives it up, and who gets it.
    pub from: Option<usize>,
    pub to: usize,
}

/// What is to be done next, if anything is. Each move between users makes their shares more even,
/// so the moves end.
pub fn next(claims: &[Claim]) -> Option<Move> {
    let mut places = count(claims.iter().filter(|claim| claim.place.is_some()).map(|c| c.user));
    places.remove(&0);
    let held = |user: u32| places.get(&user).copied().unwrap_or(0);
    let rank = |&index: &usize| (held(claims[index].user), claims[index].key);
    let (placed, waiting): (Vec<usize>, Vec<usize>) =
        (0..claims.len()).partition(|&index| claims[index].place.is_some());
    let to = waiting.into_iter().min_by_key(rank)?;
    let free = |place: &usize| claims.iter().all(|claim| claim.place != Some(*place));
    if let Some(place) = (0..PROCESSES).find(free) {
        return Some(Move { place, from: None, to });
    }
    // The youngest client of the user with the most.
    let from = placed.into_iter().max_by_key(rank)?;
    let fair = held(claims[from].user) > held(claims[to].user) + 1;
    claims[from].place.filter(|_| fair).map(|place| Move { place, from: Some(from), to })
}

/// The client that is one too many: the youngest of the user with the most.
pub fn excess(claims: &[Claim]) -> Option<usize> {
    let most = most(claims.iter().map(|claim| claim.user)).filter(|_| claims.len() > MOST_CLIENTS);
    let of_user = |&index: &usize| Some(claims[index].user) == most;
    (0..claims.len()).filter(of_user).max_by_key(|&index| claims[index].key)
}

/// The user who is there most often.
pub fn most(users: impl Iterator<Item = u32>) -> Option<u32> {
    count(users).into_iter().max_by_key(|&(user, times)| (times, user)).map(|(user, _)| user)
}

fn count(users: impl Iterator<Item = u32>) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    users.for_each(|user| *counts.entry(user).or_default() += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients as they come, each of the user that is named, and the places in the end.
    fn after(claims: &mut Vec<Claim>, users: impl IntoIterator<Item = u32>) -> HashMap<u32, usize> {
        for user in users {
            let key = claims.last().map_or(1, |claim| claim.key + 1);
            claims.push(Claim { user, key, place: None });
            if let Some(excess) = excess(claims) {
                claims.remove(excess);
            }
            while let Some(Move { place, from, to }) = next(claims) {
                if let Some(from) = from {
                    assert_eq!(claims[from].place.take(), Some(place));
                }
                claims[to].place = Some(place);
            }
        }
        count(claims.iter().filter(|claim| claim.place.is_some()).map(|claim| claim.user))
    }

    #[test]
    fn users_share_the_places_evenly() {
        let mut claims = vec![];
        assert_eq!(after(&mut claims, [1; 500])[&1], PROCESSES);
        let places = after(&mut claims, [2; 500]);
        assert_eq!([places[&1], places[&2]], [PROCESSES / 2; 2]);
        // The oldest keep theirs.
        assert!(claims[..PROCESSES / 2].iter().all(|claim| claim.place.is_some()));
        let places = after(&mut claims, [3, 4]);
        assert_eq!([places[&3], places[&4]], [1; 2]);
        assert!(claims.len() <= MOST_CLIENTS);
        // Who is one of many users gets no more than they have.
        let places = after(&mut claims, 5..200);
        assert!(places.len() == PROCESSES && places.values().all(|&places| places == 1));
        let places = after(&mut claims, [0, 1, 0]);
        assert!(!places.contains_key(&0), "one each is fair, even to root");
    }

    #[test]
    fn root_goes_first() {
        let mut claims = vec![];
        after(&mut claims, [1; 300]);
        let places = after(&mut claims, [0; 40]);
        assert_eq!([places[&0], places[&1]], [40, PROCESSES - 40]);
        let places = after(&mut claims, [2; 40]);
        assert_eq!([places[&0], places[&1], places[&2]], [40, 12, 12]);
    }
}
