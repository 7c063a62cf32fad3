// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small pictures made of characters: shares as a bar.

use super::colours::{Palette, letter};
use crate::model::Class;
use crate::show::activity::{Activity, position};
use ratatui::text::{Line, Span};

/// The time off the CPU by class, then the waits after wake-ups, as a bar: `width` is all the time
/// that a CPU was wanted.
pub fn classes(activity: &Activity, width: usize, palette: Palette) -> Line<'static> {
    let wanted = (activity.ready_ns() + activity.on_ns) as f64;
    let mut spans = vec![];
    let (mut sum, mut filled) = (0u64, 0);
    let parts = Class::ALL.map(|class| {
        let glyph = if palette.colour { '█' } else { letter(class) };
        (activity.off_ns[position(class)], glyph, palette.class(class))
    });
    let woken = (activity.woken_ns, woken(palette), palette.preempted());
    for (ns, glyph, style) in parts.into_iter().chain([woken]).filter(|_| wanted > 0.0) {
        sum += ns;
        // Ends are rounded, not lengths, so that the whole is never wider or narrower than it
        // should be.
        let end = ((sum as f64 / wanted) * width as f64).round() as usize;
        if end > filled {
            let text: String = std::iter::repeat_n(glyph, end - filled).collect();
            spans.push(Span::styled(text, style));
            filled = end;
        }
    }
    let rest: String = std::iter::repeat_n('·', width.saturating_sub(filled)).collect();
    spans.push(Span::styled(rest, palette.soft()));
    Line::from(spans)
}

/// Stands for waits after wake-ups.
fn woken(palette: Palette) -> char {
    if palette.colour { '▒' } else { 'w' }
}

/// The colour or letter of each class.
pub fn legend(palette: Palette) -> Line<'static> {
    let mut spans = vec![];
    for class in Class::ALL {
        let glyph = if palette.colour { '■' } else { letter(class) };
        spans.push(Span::styled(glyph.to_string(), palette.class(class)));
        spans.push(Span::raw(format!(" {}  ", class.name())));
    }
    spans.push(Span::styled(woken(palette).to_string(), palette.preempted()));
    spans.push(Span::raw(" woken"));
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &Line) -> String {
        line.spans.iter().map(|s| s.content.as_ref()).collect()
    }

    #[test]
    fn a_bar_is_as_long_as_the_share_of_time_without_a_cpu() {
        let mut activity = Activity { on_ns: 500, ..Activity::default() };
        activity.off_ns[position(Class::User)] = 300;
        activity.off_ns[position(Class::Reader)] = 200;
        let bar = classes(&activity, 10, Palette { colour: false });
        assert_eq!(text(&bar), "uuuRR·····");
        let none = classes(&Activity::default(), 4, Palette { colour: true });
        assert_eq!(text(&none), "····");
    }
}
