// SPDX-License-Identifier: MIT OR Apache-2.0
//! Takes the terminal, and restores it however the view ends.
//!
//! On return and on errors a guard restores it, on panic a hook. SIGINT, SIGTERM, SIGHUP and
//! SIGQUIT only set a flag that the loop checks. Before a stop (Ctrl-Z, or SIGTSTP from elsewhere)
//! the view leaves the screen, then stops itself. No wait is longer than [`STEP`].

use super::input::{Keys, Ready};
use super::state::{Request, View};
use crate::show::{Source, SourceError};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{Clear, ClearType};
use ratatui::crossterm::{cursor, execute};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use std::io::stdout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a signal or an event may go unnoticed.
const STEP: Duration = Duration::from_millis(100);

/// How a view ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The user asked for it.
    Quit,
    /// A signal ended it, or its terminal went away.
    Signal,
}

/// Signals that arrived. They stay caught until this is dropped.
struct Signals {
    end: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    resumed: Arc<AtomicBool>,
    ids: Vec<signal_hook::SigId>,
}

impl Signals {
    fn catch() -> std::io::Result<Signals> {
        let flag = || Arc::new(AtomicBool::new(false));
        let mut all = Signals { end: flag(), stop: flag(), resumed: flag(), ids: vec![] };
        for (signals, flag) in [
            (&[SIGINT, SIGTERM, SIGHUP, SIGQUIT][..], &all.end),
            (&[SIGTSTP][..], &all.stop),
            (&[SIGCONT][..], &all.resumed),
        ] {
            for signal in signals {
                all.ids.push(signal_hook::flag::register(*signal, flag.clone())?);
            }
        }
        Ok(all)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Restores the terminal when dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // A terminal that is gone cannot be restored, and needs not.
        let _ = ratatui::try_restore();
        let _ = execute!(stdout(), cursor::Show);
    }
}

/// Shows `view` of what `source` sees until the user or a signal ends it.
pub fn run(source: &mut dyn Source, mut view: View) -> Result<Outcome, SourceError> {
    let signals = Signals::catch()?;
    // Sets the panic hook as well.
    let mut terminal = ratatui::try_init()?;
    let restore = Restore;
    let outcome = show(source, &mut view, &mut terminal, &signals);
    drop(restore);
    outcome
}

fn show(
    source: &mut dyn Source,
    view: &mut View,
    terminal: &mut DefaultTerminal,
    signals: &Signals,
) -> Result<Outcome, SourceError> {
    let keys = Keys::open()?;
    let mut next = Instant::now();
    let mut changed = true;
    loop {
        if signals.end.load(Ordering::Relaxed) {
            return Ok(Outcome::Signal);
        }
        if signals.stop.swap(false, Ordering::Relaxed) {
            stop(terminal)?;
            changed = true;
        }
        // Stopped without being asked (SIGSTOP): somebody else has drawn on the screen since.
        if signals.resumed.swap(false, Ordering::Relaxed) {
            terminal.clear()?;
            changed = true;
        }
        if Instant::now() >= next {
            match source.snapshot() {
                Ok(snapshot) => view.update(snapshot),
                Err(error) => view.fail(error.to_string()),
            }
            // After a long stop there is nothing to catch up with.
            next = (next + view.interval).max(Instant::now());
            changed = true;
        }
        source.events();
        if changed {
            terminal.draw(|frame| view.draw(frame))?;
            changed = false;
        }
        let wait = next.saturating_duration_since(Instant::now()).min(STEP);
        let event = match keys.wait(wait)? {
            Ready::Event(event) => event,
            Ready::Nothing => continue,
            Ready::Gone => return Ok(Outcome::Signal),
        };
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('c') if control => return Ok(Outcome::Quit),
                    KeyCode::Char('z') if control => stop(terminal)?,
                    KeyCode::Char('l') if control => terminal.clear()?,
                    code if view.key(code) == Request::Quit => return Ok(Outcome::Quit),
                    _ => (),
                }
                changed = true;
            }
            Event::Resize(..) => changed = true,
            _ => (),
        }
    }
}

/// Leaves the screen, stops this process as its shell expects, and takes the screen again when it
/// goes on.
fn stop(terminal: &mut DefaultTerminal) -> Result<(), SourceError> {
    ratatui::try_restore()?;
    execute!(stdout(), cursor::Show)?;
    signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
    *terminal = ratatui::try_init()?;
    execute!(stdout(), Clear(ClearType::All))?;
    Ok(())
}
