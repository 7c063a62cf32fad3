// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the documents' pictures from a real run; `make pictures` (scripts/pictures) runs it.
//!
//!     pictures VM ALL.rec OUT
//!
//! `ALL.rec` is a recording of all VMs. The live view is drawn as `reprieve watch` draws it, into a
//! buffer that becomes SVG.

use maud::{Markup, PreEscaped, html};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier};
use reprieve_watch::model::Snapshot;
use reprieve_watch::show::recording::{Reader, Record};
use reprieve_watch::show::terminal::View;
use std::path::Path;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Columns and lines of the terminal.
const TERMINAL: (u16, u16) = (150, 16);
/// Snapshots before the first that is shown: rates are over the last ten intervals.
const SETTLED: usize = 5;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [vm, all, out] = &arguments[..] else {
        return Err("usage: pictures VM ALL.rec OUT".into());
    };
    let out = Path::new(out);
    let mut view = view(&snapshots(Path::new(all))?, vm)?;
    std::fs::write(out.join("watch.svg"), svg(&draw(&mut view)?))?;
    enter(&mut view, vm)?;
    std::fs::write(out.join("watch-vm.svg"), svg(&draw(&mut view)?))?;
    Ok(())
}

fn snapshots(recording: &Path) -> Result<Vec<Snapshot>> {
    let mut snapshots = vec![];
    for record in Reader::open(recording)? {
        if let Record::Snapshot(snapshot) = record? {
            snapshots.push(*snapshot);
        }
    }
    Ok(snapshots)
}

/// The view at the snapshot in which `vm` has waited longest for a vCPU in the grace period in
/// progress.
fn view(snapshots: &[Snapshot], vm: &str) -> Result<View> {
    let age = |snapshot: &Snapshot| {
        let vm = snapshot.vms.iter().find(|v| v.name == vm)?;
        let current = vm.grace.as_ref()?.current.as_ref()?;
        let waits = !current.owing.is_empty();
        waits.then(|| snapshot.time_ns.saturating_sub(current.began_ns))
    };
    let chosen = (SETTLED..snapshots.len()).max_by_key(|&i| age(&snapshots[i]));
    let chosen = chosen.ok_or("the recording is too short")?;
    age(&snapshots[chosen])
        .ok_or("no snapshot of the VM has a grace period that waits for a vCPU")?;
    let mut view = View::new(Duration::from_secs(1), true);
    snapshots[..=chosen].iter().cloned().for_each(|snapshot| view.update(snapshot));
    Ok(view)
}

/// Presses keys until the view shows the vCPUs of `vm`.
fn enter(view: &mut View, vm: &str) -> Result<()> {
    for _ in 0..100 {
        view.key(KeyCode::Enter);
        let buffer = draw(view)?;
        // Under the heading.
        let title: String = (0..TERMINAL.0).map(|x| buffer[(x, 1)].symbol()).collect();
        if title.starts_with(&format!("{vm}  pid ")) {
            return Ok(());
        }
        view.key(KeyCode::Esc);
        view.key(KeyCode::Down);
    }
    Err(format!("the view has no VM {vm}").into())
}

fn draw(view: &mut View) -> Result<Buffer> {
    let mut terminal = Terminal::new(TestBackend::new(TERMINAL.0, TERMINAL.1))?;
    terminal.draw(|frame| view.draw(frame))?;
    Ok(terminal.backend().buffer().clone())
}

/// Size of a character's cell.
const CELL: (f32, f32) = (8.0, 17.0);
const MARGIN: f32 = 12.0;
const BACKGROUND: &str = "#14171c";

/// The buffer as a picture: a rectangle per run of cells with one background, a text per run of
/// cells with one style.
fn svg(buffer: &Buffer) -> String {
    let (width, height) = (buffer.area.width, buffer.area.height);
    let size =
        (f32::from(width) * CELL.0 + 2.0 * MARGIN, f32::from(height) * CELL.1 + 2.0 * MARGIN);
    let view_box = format!("0 0 {} {}", size.0, size.1);
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(view_box) width=(size.0) height=(size.1)
            font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
            font-size="13" xml:space="preserve" {
            rect width="100%" height="100%" rx="6" fill=(BACKGROUND) {}
            @for y in 0..height { (line(buffer, y)) }
        }
    }
    .into_string()
}

fn line(buffer: &Buffer, y: u16) -> Markup {
    let look = |x: u16| Look::of(&buffer[(x, y)]);
    let mut runs: Vec<(u16, String, Look)> = vec![];
    for x in 0..buffer.area.width {
        let symbol = buffer[(x, y)].symbol();
        match runs.last_mut() {
            Some((_, text, same)) if *same == look(x) => text.push_str(symbol),
            _ => runs.push((x, symbol.to_owned(), look(x))),
        }
    }
    let top = MARGIN + f32::from(y) * CELL.1;
    html! {
        @for (x, text, look) in &runs {
            @let left = MARGIN + f32::from(*x) * CELL.0;
            @let width = text.chars().count() as f32 * CELL.0;
            @if look.background != BACKGROUND {
                rect x=(left) y=(top) width=(width) height=(CELL.1) fill=(look.background) {}
            }
            @if !text.trim().is_empty() {
                // The same grid whatever font there is.
                text x=(left) y=(top + 13.0) textLength=(width) lengthAdjust="spacingAndGlyphs"
                    fill=(look.colour) font-weight=[look.bold.then_some("bold")]
                    opacity=[look.dim.then_some("0.65")] { (PreEscaped(escape(text))) }
            }
        }
    }
}

/// Text of an SVG element; the spaces are meant.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace(' ', "\u{a0}")
}

/// How a cell looks.
#[derive(PartialEq)]
struct Look {
    colour: &'static str,
    background: &'static str,
    bold: bool,
    dim: bool,
}

impl Look {
    fn of(cell: &Cell) -> Look {
        let (mut colour, mut background) = (rgb(cell.fg, "#e6e9ed"), rgb(cell.bg, BACKGROUND));
        if cell.modifier.contains(Modifier::REVERSED) {
            std::mem::swap(&mut colour, &mut background);
        }
        let (bold, dim) =
            (cell.modifier.contains(Modifier::BOLD), cell.modifier.contains(Modifier::DIM));
        Look { colour, background, bold, dim }
    }
}

/// A colour of a terminal's sixteen, on a dark background.
fn rgb(colour: Color, otherwise: &'static str) -> &'static str {
    match colour {
        Color::Black => "#14171c",
        Color::Red => "#f2594b",
        Color::Green => "#4fb477",
        Color::Yellow => "#e0a92e",
        Color::Blue => "#4c8fe6",
        Color::Magenta => "#c678c0",
        Color::Cyan => "#4fb8c4",
        Color::Gray => "#b9c0c8",
        Color::DarkGray => "#7a838d",
        Color::LightRed => "#ff8a7d",
        Color::LightGreen => "#8ad9a8",
        Color::LightYellow => "#f4d46a",
        Color::LightBlue => "#8ab8f5",
        Color::LightMagenta => "#e3a6de",
        Color::LightCyan => "#8fdbe3",
        Color::White => "#ffffff",
        _ => otherwise,
    }
}
