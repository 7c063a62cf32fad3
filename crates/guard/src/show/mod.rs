// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard's statistics as metrics, for the server of [`reprieve_watch::show`].

mod prometheus;
#[cfg(test)]
mod testing;
