// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's trace ring buffer, in its binary form.
//!
//! `per_cpu/cpuN/trace_pipe_raw` yields pages: a 16-byte header (time stamp of the first event;
//! number of bytes that follow, with flags), then events. Each event begins with 32 bits: a type or
//! length (5 bits) and the time since the event before it (27 bits, ns). The binary form costs the
//! kernel nothing to print and has full time resolution; the text form rounds to microseconds.
//! Layout: kernel's `include/linux/ring_buffer.h` and `events/header_page`; unchanged since 2.6.30.

use crate::bytes::{u32_at, u64_at};

/// A recorded event: its time and its raw fields (the first two bytes are the event's id).
pub struct Event<'a> {
    pub time_ns: u64,
    pub data: &'a [u8],
}

const HEADER: usize = 16;
/// The length proper; flags for missed events lie above.
const COMMIT_MASK: u64 = (1 << 20) - 1;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Calls `each` for every event of a page. A page that is not well-formed ends early.
pub fn events(page: &[u8], mut each: impl FnMut(Event)) {
    let (Some(mut time), Some(commit)) = (u64_at(page, 0), u64_at(page, 8)) else {
        return;
    };
    let end = page.len().min(HEADER + (commit & COMMIT_MASK) as usize);
    let page = &page[..end];
    let mut at = HEADER;
    while let Some(head) = u32_at(page, at) {
        let (kind, delta) = (head & 31, u64::from(head >> 5));
        let first = u32_at(page, at + 4);
        let (data_at, data_len) = match kind {
            PADDING if delta == 0 => return,
            TIME_EXTEND | TIME_STAMP => {
                let Some(high) = first else { return };
                let value = (u64::from(high) << 27) | delta;
                time = if kind == TIME_STAMP { value } else { time.wrapping_add(value) };
                at += 8;
                continue;
            }
            // The length, which counts its own four bytes, stands in the first word.
            0 | PADDING => match first {
                Some(n) if n >= 4 => (at + 8, n as usize - 4),
                _ => return,
            },
            words => (at + 4, words as usize * 4),
        };
        let Some(data) = page.get(data_at..data_at + data_len) else {
            return;
        };
        time = time.wrapping_add(delta);
        if kind != PADDING {
            each(Event { time_ns: time, data });
        }
        at = data_at + data_len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(time: u64, words: &[u32]) -> Vec<u8> {
        let mut p = time.to_ne_bytes().to_vec();
        p.extend_from_slice(&(words.len() as u64 * 4).to_ne_bytes());
        words.iter().for_each(|w| p.extend_from_slice(&w.to_ne_bytes()));
        p
    }

    fn read(page: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        events(page, |e| all.push((e.time_ns, e.data.to_vec())));
        all
    }

    #[test]
    fn times_add_up_over_extensions() {
        let p = page(
            1_000,
            &[
                (5 << 5) | 1,
                7, // one word, 5 ns later
                (1 << 5) | TIME_EXTEND,
                2, // 2 << 27 + 1 ns
                (3 << 5) | 2,
                8,
                9, // two words, 3 ns later
                TIME_STAMP | (4 << 5),
                1, // absolute: (1 << 27) + 4
                (1 << 5),
                8,
                10, // length in the first word
                PADDING,
                0, // rest of the page is empty
                (1 << 5) | 1,
                11,
            ],
        );
        let all = read(&p);
        let times: Vec<u64> = all.iter().map(|e| e.0).collect();
        assert_eq!(times, [1_005, 1_005 + (2 << 27) + 1 + 3, (1 << 27) + 4 + 1]);
        assert_eq!(all[1].1, [8u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat());
        assert_eq!(all[2].1, 10u32.to_ne_bytes());
    }

    #[test]
    fn discarded_events_advance_the_time() {
        let p = page(0, &[(7 << 5) | PADDING, 8, 0, (1 << 5) | 1, 5]);
        assert_eq!(read(&p), [(8, 5u32.to_ne_bytes().to_vec())]);
    }

    #[test]
    fn broken_pages_end_early() {
        assert!(read(&[]).is_empty());
        assert!(read(&[1; 15]).is_empty());
        // A length beyond the page, a zero length, a truncated extension.
        assert!(read(&page(0, &[28])).is_empty());
        assert!(read(&page(0, &[1 << 5, 0])).is_empty());
        assert!(read(&page(0, &[TIME_EXTEND])).is_empty());
        // Random bytes must not panic.
        let mut x = 1u64;
        for _ in 0..2_000 {
            let p: Vec<u8> = (0..128)
                .map(|_| {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (x >> 56) as u8
                })
                .collect();
            read(&p);
        }
    }
}
