// SPDX-License-Identifier: MIT OR Apache-2.0
//! The line at the top of both screens.

use super::state::View;
use crate::model::Snapshot;
use crate::show::text::{self, plain, time};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

pub fn heading(view: &View, now: &Snapshot) -> Line<'static> {
    let mut spans = vec![
        Span::styled("reprieve watch", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            "  {}, every {}, rates over {:.0} s",
            text::several(now.vms.len(), "VM"),
            time(view.interval.as_nanos() as f64),
            view.window()
        )),
    ];
    let missing = view.missing(now);
    if !missing.is_empty() {
        let missing = format!("  no VM {} yet", plain(&missing.join(", ")));
        spans.push(Span::styled(missing, view.palette.warning()));
    }
    if let Some(trouble) = &view.trouble {
        spans.push(Span::styled(format!("  {}", plain(trouble)), view.palette.warning()));
    }
    if now.cost.lost > 0 {
        let lost = format!("  {} events lost", now.cost.lost);
        spans.push(Span::styled(lost, view.palette.warning()));
    }
    Line::from(spans)
}
