// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell of every HTML page: its head with the content security policy, around a body.
//!
//! A page needs no other file: style and script are inside, charts are inline SVG. Its policy
//! forbids every request, and every script but the one that it was made with, which it names by
//! hash.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

/// The parts of a page.
pub struct Page<'a> {
    pub title: &'a str,
    /// CSS.
    pub style: &'a str,
    /// JavaScript, run when the body is there. The page runs no other script.
    pub script: Option<&'a str>,
    pub body: Markup,
}

/// The page as HTML.
pub fn document(page: Page<'_>) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy(page.script));
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(concat!("reprieve ", env!("CARGO_PKG_VERSION")));
                title { (page.title) }
                style { (PreEscaped(page.style)) }
            }
            body {
                (page.body)
                @if let Some(script) = page.script { script { (PreEscaped(script)) } }
            }
        }
    }
    .into_string()
}

fn policy(script: Option<&str>) -> String {
    let hash = |script| format!("script-src 'sha256-{}'; ", BASE64.encode(Sha256::digest(script)));
    format!(
        "default-src 'none'; style-src 'unsafe-inline'; {}base-uri 'none'; form-action 'none'",
        script.map(hash).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(script: Option<&str>) -> String {
        document(Page { title: "<a>", style: "p > b {}", script, body: html! { p { "<script>" } } })
    }

    #[test]
    fn text_is_escaped_and_style_is_not() {
        let page = page(None);
        assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\"><head>"), "{page}");
        assert!(page.contains("<title>&lt;a&gt;</title><style>p > b {}</style>"), "{page}");
        assert!(page.ends_with("<body><p>&lt;script&gt;</p></body></html>"), "{page}");
        assert!(!page.contains("script-src"), "{page}");
    }

    #[test]
    fn the_policy_allows_one_script() {
        let page = page(Some("1 < 2"));
        // printf '1 < 2' | openssl dgst -sha256 -binary | base64
        let hash = "T8Xibs7zV8KTQdRXjpKJTlizX17SudRlddrZKaeFg9E=";
        assert!(page.contains(&format!("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri")), "{page}");
        assert!(page.contains("</p><script>1 < 2</script></body>"), "{page}");
    }
}
