// SPDX-License-Identifier: MIT OR Apache-2.0
//! Proves from the machine code of a linked program or shared object that its restartable section keeps the rules that
//! grace periods rely on.
//!
//! A thread inside the section must be either sent back to its start or done when a grace period has ended. That holds as long
//! as everything the thread executes between arming and disarming lies in the section (the kernel compares addresses), and as
//! long as it may be abandoned after any instruction.
//!
//! # What is shown
//! Every byte of the section is decoded, and every function interpreted over abstract values (`interpret.rs`): where each register may point.
//! If [`verify`] reports no finding, then
//! - **control** stays inside: each branch and call leads to an instruction of the section, each indirect branch goes through a constant table
//!   whose index is bounded by a comparison (as optimizing compilers write it) and whose entries all lead inside, and each return pops the address its own call pushed.
//!   The one way out besides an entry's return is a jump to the abort handler, which does what the kernel would do there;
//! - **no system call**, software interrupt, or privileged instruction is there at all;
//! - **stores** go to the stack below the function's return address, or to the result: the memory the caller passed as the second argument
//!   (a copied value's place, or the protection slot);
//! - **arming** comes first: a function that is entered from outside reads nothing but its stack, constants and the result's place before it has stored the address of a well-formed descriptor of this very section, nor after it has disarmed.
//!
//! # What is not
//! - How large the result is: a store at an unknown distance from the second argument counts as one to the result. So does, for the
//!   stack, one to an array on it at an index that is not constant: a program that overflows its own array can leave the section.
//! - That pointers read from shared memory lead to live nodes, and that loops end: the lookup's author answers for those.
//! - Whether a restartable function is also called from outside without being armed, in a file without a symbol that says so.
//!
//! A trap (`ud2`, `int3`) is allowed: the kernel sends the thread out of the section before it delivers the signal.
//!
//! # Input
//! Linked ELF files for x86-64, stripped or not, as long as they have a section table. Files may be hostile: sizes and work
//! are bounded, nothing panics.
//!
//! ```
//! let program = std::fs::read("/proc/self/exe").unwrap();
//! match reprieve_verify::verify(&program) {
//!     Ok(report) => assert!(report.findings.is_empty()),
//!     Err(error) => assert_eq!(error, reprieve_verify::Error::NoSection),
//! }
//! ```

mod code;
mod descriptor;
mod image;
mod interpret;
mod table;
mod value;

use serde::Serialize;

/// The section's name.
pub const SECTION: &str = "reprieve_restart";

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
    #[error(
        "no section table (removed by sstrip or a packer?): verify the file before that step; `strip` keeps it"
    )]
    NoSectionTable,
    /// No restartable code in it.
    #[error("no section `reprieve_restart`: the file contains no restartable code")]
    NoSection,
    /// More than any real program has, or an analysis that does not come to an end.
    #[error("{0}: more than this command examines")]
    TooLarge(String),
}

/// The rule that an instruction breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Rule {
    /// A call or jump leads out of the section, or into the middle of an instruction.
    Control,
    /// An indirect call or jump that cannot be shown to stay inside.
    Indirect,
    /// A return that cannot be shown to go back to the caller, or with changed registers.
    Return,
    /// A system call, software interrupt, or privileged instruction.
    System,
    /// A store to something that cannot be shown to be the stack or the result.
    Store,
    /// Memory is read before the section is armed or after it is disarmed.
    Arming,
    /// The descriptor that arms the section is not one of this section.
    Descriptor,
    /// Bytes that are not an instruction.
    Undecodable,
}

impl Rule {
    /// In one line, for people.
    pub fn explain(self) -> &'static str {
        match self {
            Rule::Control => "leaves the section",
            Rule::Indirect => "goes to an address that cannot be bounded",
            Rule::Return => "returns to an address that cannot be shown to be the caller's",
            Rule::System => "enters the kernel",
            Rule::Store => "stores to memory that cannot be shown to be the stack or the result",
            Rule::Arming => "reads memory while the section is not armed",
            Rule::Descriptor => "arms with something that is not a descriptor of this section",
            Rule::Undecodable => "is not an instruction",
        }
    }
}

/// One instruction that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Function that contains the instruction, demangled; its address if it has no symbol.
    pub function: String,
    /// Distance of the instruction from the function's beginning, in bytes.
    pub offset: u64,
    /// Virtual address in the file.
    pub address: u64,
    /// The instruction in Intel syntax.
    pub instruction: String,
    /// What is wrong with it and, where known, what it leads to and what to do.
    pub detail: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}+{:#x} ({:#x}): `{}` {}: {}",
            self.function,
            self.offset,
            self.address,
            self.instruction,
            self.rule.explain(),
            self.detail
        )
    }
}

/// What was examined and found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Size of the section in bytes.
    pub bytes: u64,
    /// Functions in it.
    pub functions: usize,
    /// Of those, the ones entered from outside.
    pub entries: usize,
    /// Instructions.
    pub instructions: usize,
    /// In order of address. Empty: the section keeps the rules.
    pub findings: Vec<Finding>,
}

/// Examines the restartable section of a linked ELF file, given its bytes.
///
/// # Errors
/// See [`Error`]: the file cannot be examined.
pub fn verify(file: &[u8]) -> Result<Report, Error> {
    let image = image::Image::parse(file)?;
    let code = code::Code::decode(&image)?;
    interpret::examine(&image, &code)
}
