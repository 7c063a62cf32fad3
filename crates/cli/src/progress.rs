// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on standard error: a live line on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use reprieve_lab::host::{Message, SIGN_OF_LIFE};
use reprieve_lab::progress::Progress;
use reprieve_page::plain_lines;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A live line if standard error is a terminal, else plain lines.
pub fn for_stderr() -> Box<dyn Progress> {
    if std::io::stderr().is_terminal() { Box::new(Live::new()) } else { Box::new(Plain::new()) }
}

/// The expected end of the run, if it is known.
#[derive(Default)]
struct End(Mutex<Option<Instant>>);

impl End {
    fn set(&self, left: Duration) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = Some(Instant::now() + left);
    }

    /// `, about 5 min left`, or nothing.
    fn left(&self) -> String {
        let end = *self.0.lock().unwrap_or_else(|e| e.into_inner());
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        left.map(|left| format!(", about {} left", brief(left))).unwrap_or_default()
    }
}

struct Live {
    bar: ProgressBar,
    end: End,
}

impl Live {
    fn new() -> Live {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.enable_steady_tick(Duration::from_millis(200));
        Live { bar, end: End::default() }
    }

    fn show(&self, what: &str, length: Option<Duration>) {
        let began = Instant::now();
        let elapsed = move |_: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = match length {
                Some(length) => write!(out, "{} of {}", brief(began.elapsed()), brief(length)),
                None => write!(out, "{}", brief(began.elapsed())),
            };
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {clock}") {
            self.bar.set_style(style.with_key("clock", elapsed));
        }
        self.bar.set_message(plain_lines(&format!("{what}{}:", self.end.left())));
    }
}

impl Progress for Live {
    fn step(&self, what: &str) {
        self.show(what, None);
    }

    fn timed(&self, what: &str, length: Duration) {
        self.show(what, Some(length));
    }

    fn notice(&self, text: &str) {
        self.bar.println(plain_lines(text));
    }

    fn remaining(&self, left: Duration) {
        self.end.set(left);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

struct Plain {
    start: Instant,
    end: End,
}

impl Plain {
    fn new() -> Plain {
        Plain { start: Instant::now(), end: End::default() }
    }

    fn line(&self, text: std::fmt::Arguments) {
        // A closed standard error must not end a run.
        let _ = writeln!(
            std::io::stderr(),
            "[{:>5.1} s] {}",
            self.start.elapsed().as_secs_f64(),
            plain_lines(&text.to_string())
        );
    }
}

impl Progress for Plain {
    fn step(&self, what: &str) {
        self.line(format_args!("{what}"));
    }

    fn timed(&self, what: &str, length: Duration) {
        self.line(format_args!("{what} ({}){}", brief(length), self.end.left()));
    }

    fn notice(&self, text: &str) {
        self.line(format_args!("{text}"));
    }

    fn remaining(&self, left: Duration) {
        self.end.set(left);
    }
}

/// Progress of the program inside a lab host: messages on standard output.
pub struct Messages;

impl Messages {
    /// Writes one message to standard output, which the outer program reads.
    pub fn send(message: &Message) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, message)?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// Says again and again that this program runs, as long as somebody reads it.
    pub fn show_life() {
        while Messages::send(&Message::Alive).is_ok() {
            std::thread::sleep(SIGN_OF_LIFE);
        }
    }

    /// Sends the end of a log to the program outside, and removes it here.
    pub fn send_log(log: &Path) -> std::io::Result<()> {
        let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read(log)?;
        let end = &text[text.len().saturating_sub(LOG_MAX)..];
        // An empty log is a file, too, which a message may name.
        Messages::send(&Message::Log { name: name.clone(), text: String::new() })?;
        for piece in pieces(&String::from_utf8_lossy(end), LOG_PIECE) {
            Messages::send(&Message::Log { name: name.clone(), text: piece.into() })?;
        }
        std::fs::remove_file(log)
    }
}

/// Most bytes of a guest's console that are sent, and bytes per message: a message is a line, and
/// the length of lines is bounded.
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

impl Progress for Messages {
    fn step(&self, what: &str) {
        let _ = Messages::send(&Message::Step { what: what.into() });
    }

    fn timed(&self, what: &str, length: Duration) {
        let ms = length.as_millis() as u64;
        let _ = Messages::send(&Message::Timed { what: what.into(), ms });
    }

    fn notice(&self, text: &str) {
        let _ = Messages::send(&Message::Notice { text: text.into() });
    }

    fn keep_log(&self, log: &Path) {
        // With what QEMU itself said. Sent now: the lab host may die before the run ends.
        for log in [log.to_path_buf(), log.with_extension("qemu.log")] {
            let _ = Messages::send_log(&log);
        }
    }

    fn remaining(&self, left: Duration) {
        let _ = Messages::send(&Message::Remaining { ms: left.as_millis() as u64 });
    }
}

fn brief(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..=119 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
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
