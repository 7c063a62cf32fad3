// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mirror from which this machine gets Debian's archive.
//!
//! The lab asks apt (`apt-get indextargets`) instead of reading its files, which come in two
//! formats with options and mirror lists. It uses the mirror that the machine uses for Debian's
//! packages.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Releases whose kernels and programs the lab uses, oldest first.
pub const SUITES: [&str; 4] = ["bookworm", "bookworm-backports", "trixie", "trixie-backports"];

/// The release that the lab's programs come from.
pub const TOOLS_SUITE: &str = "trixie";

/// For each index of packages: origin, label, release and URI.
pub const FORMAT: &str = "$(ORIGIN)|$(LABEL)|$(RELEASE)|$(REPO_URI)";

/// Chooses from what `apt-get indextargets` prints in [`FORMAT`].
///
/// Before the first `apt-get update` apt knows only the entry of a source, not its origin: then the
/// name of the release decides.
pub fn mirror(targets: &str) -> Option<String> {
    let suites = ["bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing"];
    let fits = |line: &&str| match line.split('|').collect::<Vec<_>>()[..] {
        ["", _, release, _] => suites.contains(&release),
        [origin, label, ..] => origin == "Debian" && label == "Debian",
        _ => false,
    };
    targets.lines().find(fits)?.rsplit('|').next().map(String::from)
}

/// The keyring that verifies the archive.
pub fn keyring() -> Result<PathBuf> {
    ["debian-archive-keyring.gpg", "debian-archive-keyring.pgp"]
        .iter()
        .map(|name| Path::new("/usr/share/keyrings").join(name))
        .find(|path| path.exists())
        .ok_or_else(|| {
            Error::missing(
                "the keyring of Debian's archive",
                "install the package debian-archive-keyring (`make setup` does)",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_told_from_other_sources() {
        let text = "Vendor|Vendor|stable|http://vendor.example/apt/\n\
            Debian|Debian-Security|x|http://mirror.example/debian-security/\n\
            Debian|Debian|bookworm|mirror+file:/etc/apt/mirrors.txt\n";
        assert_eq!(mirror(text).as_deref(), Some("mirror+file:/etc/apt/mirrors.txt"));
        // Sources that were never fetched are known by their suite.
        let text = "||vendor-bookworm|http://vendor.example/apt/\n\
            ||bookworm-security|http://mirror.example/debian-security/\n\
            ||bookworm|http://mirror.example/debian/\n";
        assert_eq!(mirror(text).as_deref(), Some("http://mirror.example/debian/"));
        assert_eq!(mirror(""), None);
    }
}
