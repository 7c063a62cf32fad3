// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on standard error: a live line on a terminal, plain lines elsewhere.

use super::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use reprieve_page::plain_lines;
use std::fmt;
use std::io::{IsTerminal, Write};
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

fn brief(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..=119 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}
