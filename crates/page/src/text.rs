// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text from elsewhere, made harmless for a terminal.

/// One line of text in which nothing can steer a terminal: each control character (escape
/// sequences, line feeds and tabs among them), each character that reorders the text, and each that
/// takes no room becomes `?`.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_hidden(c) { '?' } else { c }).collect()
}

/// [`plain`] for text whose line feeds are meant.
pub fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Whether `c` reorders the text around it or takes no room.
fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_send_escape_sequences_to_the_terminal() {
        assert_eq!(plain("6.12\x1b[2J\u{202e}x\n"), "6.12?[2J?x?");
        assert_eq!(plain("a\u{200b}b\u{2066}c\u{feff}\t"), "a?b?c??");
    }

    #[test]
    fn line_feeds_are_kept_where_they_are_meant() {
        assert_eq!(
            plain_lines("VM a: died\n    \u{1b}]0;owned\u{7}\u{1b}[2J"),
            "VM a: died\n    ?]0;owned??[2J"
        );
    }
}
