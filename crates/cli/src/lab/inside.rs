// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program inside a lab host: KVM on this machine, messages instead of results.

use super::outside::Outside;
use crate::progress::Messages;
use crate::signals::cancel_on_signal;
use anyhow::{Context as _, Result};
use reprieve_lab::error::Error;
use reprieve_lab::execute::{self, Context};
use reprieve_lab::host::{self, Message};
use reprieve_lab::images::ImageSet;
use reprieve_lab::plan::Plan;
use reprieve_lab::vm::Accel;
use std::path::Path;

/// Carries out the plan, each record a message.
pub fn execute(plan: &str, from: u32, images: &str, watch: bool) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("--plan")?;
    let images: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = tempfile::tempdir().context("log directory")?;
    // The logs get the names they have in here in the results' directory outside, so errors must name them without a directory of here.
    std::env::set_current_dir(logs.path()).context("log directory")?;
    let cancel = cancel_on_signal()?;
    let context = Context {
        images: &images,
        accel: Accel::Kvm,
        logs: Path::new("logs"),
        boot_limit: host::BOOT_LIMIT,
        progress: &Messages,
        cancel: &cancel,
        watcher: watch.then_some(&Outside),
    };
    std::fs::create_dir(context.logs).context("log directory")?;
    let info = host::info("kvm", "inside a lab host", &images.qemu.version);
    let ran = execute::execute(&plan, from, info, &context, &mut |record| {
        Messages::send(&Message::Record { record: Box::new(record) })
            .map_err(Error::io("standard output"))
    });
    for entry in context.logs.read_dir()?.flatten() {
        let text = std::fs::read(entry.path()).unwrap_or_default();
        let text =
            String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_MAX)..]).into_owned();
        let name = entry.file_name().to_string_lossy().into_owned();
        for piece in pieces(&text, LOG_PIECE) {
            Messages::send(&Message::Log { name: name.clone(), text: piece.into() })?;
        }
    }
    Ok(ran?)
}

/// Bytes of a guest's console that leave the lab host, and how many at a time: a message is a line, and lines are bounded.
const LOG_MAX: usize = 64 << 10;
const LOG_PIECE: usize = 4 << 10;

/// `text` in pieces of at most `most` bytes, cut between characters.
fn pieces(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = (0..=most.min(rest.len())).rev().find(|&i| rest.is_char_boundary(i));
        let (piece, after) = rest.split_at(end.unwrap_or(0));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

pub fn probe(images: &str) -> Result<()> {
    let images: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = tempfile::tempdir().context("log directory")?;
    Ok(host::prove_kvm(&images, logs.path(), &cancel_on_signal()?)?)
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_hold_everything_and_cut_no_character() {
        let text = "aä€😀".repeat(1000);
        let all: Vec<&str> = pieces(&text, 10).collect();
        assert_eq!(all.concat(), text);
        assert!(all.iter().all(|piece| piece.len() <= 10));
        assert_eq!(pieces("", 10).count(), 0);
    }
}
