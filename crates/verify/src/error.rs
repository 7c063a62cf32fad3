// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a file cannot be examined.

/// Why a file could not be examined. Nothing is known about it then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not an ELF file, or a damaged one.
    #[error("not an ELF file that can be read: {0}")]
    Malformed(String),
    /// Built for something else.
    #[error(
        "built for {0}: restartable sections exist on x86-64 only, so there is nothing to verify"
    )]
    Architecture(String),
    /// An object file before linking: addresses are not known yet.
    #[error(
        "an object file that has not been linked: verify the program or shared object that contains it"
    )]
    NotLinked,
    /// No section table: the section cannot be found.
    #[error("no section table (removed by sstrip or a packer?): verify the file before that step")]
    NoSectionTable,
    /// No symbols: nothing tells where functions begin.
    #[error(
        "no symbols of restartable functions (removed by strip?): verify the file before that step"
    )]
    NoSymbols,
    /// No restartable code in it.
    #[error("no section `reprieve_restart`: the file contains no restartable code")]
    NoSection,
    /// More than any real program has, or an analysis that does not come to an end.
    #[error("{0}: more than this command examines")]
    TooLarge(String),
}
