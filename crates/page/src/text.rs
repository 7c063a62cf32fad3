// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text from elsewhere, made harmless for a terminal.

/// A line of text in which nothing can steer a terminal: each control character (escape
/// sequences, line feeds and tabs among them), each character that reorders the text, and each that
/// takes no room becomes `?`.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_hidden(c) { '?' } else { c }).collect()
}

/// [`plain`] for text whose line feeds are meant.
pub fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Whether `c` reorders the text around it or takes no room: what Unicode calls default-ignorable,
/// and separators of lines.
fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Breaks a paragraph into lines for a page: of at most 100 columns, with `indent` before each.
/// The first line has none, but room for it.
pub fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_ascii_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if indent.len() + line.len() + 1 + word.len() <= 100 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines.join(&format!("\n{indent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_send_escape_sequences_to_the_terminal() {
        assert_eq!(plain("6.12\x1b[2J\u{202e}x\n"), "6.12?[2J?x?");
        assert_eq!(plain("a\u{200b}b\u{2066}c\u{feff}\t"), "a?b?c??");
        assert_eq!(plain("a\u{61c}b\u{180e}c\u{fe0f}d\u{e0041}e\u{3164}"), "a?b?c?d?e?");
    }

    #[test]
    fn line_feeds_are_kept_where_they_are_meant() {
        assert_eq!(
            plain_lines("VM a: died\n    \u{1b}]0;owned\u{7}\u{1b}[2J"),
            "VM a: died\n    ?]0;owned??[2J"
        );
    }
}
