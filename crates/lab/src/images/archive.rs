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

/// Kernels of Debian 12 that are newer than its last point release.
pub const SECURITY_SUITE: &str = "bookworm-security";

/// The release that the lab's programs come from.
pub const TOOLS_SUITE: &str = "trixie";

/// The machine's mirrors, as apt writes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirrors {
    pub main: String,
    pub security: Option<String>,
}

/// For each index of packages: origin, label, release and URI.
pub const FORMAT: &str = "$(ORIGIN)|$(LABEL)|$(RELEASE)|$(REPO_URI)";

/// Chooses from what `apt-get indextargets` prints in [`FORMAT`].
///
/// Before the first `apt-get update` apt knows only the entry of a source, not its origin: then the
/// name of the release decides.
pub fn mirrors(targets: &str) -> Option<Mirrors> {
    let find = |label: &str, named: fn(&str) -> bool| {
        let fits = |line: &&str| match line.split('|').collect::<Vec<_>>()[..] {
            ["", _, release, _] => named(release),
            [origin, of, ..] => origin == "Debian" && of == label,
            _ => false,
        };
        targets.lines().find(fits)?.rsplit('|').next().map(String::from)
    };
    let security = |name: &str| name.ends_with("-security");
    Some(Mirrors {
        main: find("Debian", |name| {
            let suites = ["bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing"];
            suites.contains(&name)
        })?,
        security: find("Debian-Security", security),
    })
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
        let found = mirrors(text).unwrap();
        assert_eq!(found.main, "mirror+file:/etc/apt/mirrors.txt");
        assert_eq!(found.security.as_deref(), Some("http://mirror.example/debian-security/"));
    }

    #[test]
    fn sources_never_fetched_are_known_by_their_suite() {
        let text = "||vendor-bookworm|http://vendor.example/apt/\n\
            ||bookworm-security|http://mirror.example/debian-security/\n\
            ||bookworm|http://mirror.example/debian/\n";
        let found = mirrors(text).unwrap();
        assert_eq!(found.main, "http://mirror.example/debian/");
        assert_eq!(found.security.as_deref(), Some("http://mirror.example/debian-security/"));
        assert_eq!(mirrors(""), None);
    }
}
