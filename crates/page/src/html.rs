// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell of every HTML page: its head with the content security policy, around a body.
//!
//! A page needs no other file: its style is inside, charts are inline SVG. Its policy forbids every
//! request and every script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The parts of a page.
pub struct Page<'a> {
    pub title: &'a str,
    /// CSS.
    pub style: &'a str,
    pub body: Markup,
}

/// The page as HTML.
pub fn document(page: Page<'_>) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(concat!("reprieve ", env!("CARGO_PKG_VERSION")));
                title { (page.title) }
                style { (PreEscaped(page.style)) }
            }
            body { (page.body) }
        }
    }
    .into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_style_is_not() {
        let body = html! { p { "<script>" } };
        let page = document(Page { title: "<a>", style: "p > b {}", body });
        assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\"><head>"), "{page}");
        assert!(page.contains("<title>&lt;a&gt;</title><style>p > b {}</style>"), "{page}");
        assert!(page.ends_with("<body><p>&lt;script&gt;</p></body></html>"), "{page}");
        assert!(page.contains(&html! { (POLICY) }.into_string()), "{page}");
    }
}
