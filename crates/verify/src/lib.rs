// SPDX-License-Identifier: MIT OR Apache-2.0
//! Proves from the machine code of a linked program or shared object that its restartable section
//! keeps the rules that grace periods rely on.
//!
//! A thread inside the section must be either sent back to its start or done when a grace period
//! has ended. That holds as long as everything the thread executes between arming and disarming
//! lies in the section (the kernel compares addresses), and as long as it may be abandoned after
//! any instruction.
//!
//! # What is shown
//! Every byte of the section is decoded, and every function interpreted over abstract values
//! (`interpret`): where each register may point. Code that no function reaches is a finding,
//! unless it is padding, a trap, or within the size of a function's symbol, as landing pads are. If
//! [`verify`] reports no finding, then
//! - **control** stays inside: each branch and call leads to an instruction of the section, each
//!   indirect branch goes through a constant table whose index is bounded by a comparison (as
//!   optimizing compilers write it) and whose entries all lead inside, and each return pops the
//!   address its own call pushed. The one way out besides an entry's return is a jump to the abort
//!   handler, which does what the kernel would do there;
//! - **no system call**, software interrupt, or privileged instruction is there at all, nor one
//!   that uses what a restart does not restore (x87 and MMX registers, control words such as MXCSR)
//!   or writes a segment register, or sets the direction flag;
//! - **stores** go to the stack below the function's return address, or to the result: the memory
//!   the caller passed as the second argument (a copied value's place, or the protection slot);
//! - **arming** comes first: a function that is entered from outside reads nothing but its stack,
//!   constants and the result's place before it has stored the address of a well-formed descriptor
//!   of this very section, nor after it has disarmed.
//!
//! # What is not
//! - How large the result is: a store at an unknown distance from the second argument counts as one
//!   to the result. So does, for the stack, one to an array on it at an index that is not constant,
//!   or by a function that was passed the address of a local variable, and a stack pointer moved by
//!   a size that is not constant: a program that overflows its own array or variable can leave the
//!   section.
//! - That pointers read from shared memory lead to live nodes, and that loops end: the lookup's
//!   author answers for those.
//! - Whether code outside enters a function elsewhere than at its beginning.
//!
//! A trap (`ud2`, `int3`) is allowed: the kernel sends the thread out of the section before it
//! delivers the signal.
//!
//! # Input
//! Linked ELF files for x86-64 with their symbols and a section table. Files may be hostile: sizes
//! and work are bounded, nothing panics.

mod code;
mod descriptor;
mod error;
mod image;
mod interpret;
mod report;
mod table;
mod value;

pub use error::Error;
pub use image::SECTION;
pub use report::{Finding, Report, Rule};

/// Examines the restartable section of a linked ELF file, given its bytes.
///
/// # Errors
/// See [`Error`]: the file cannot be examined.
pub fn verify(file: &[u8]) -> Result<Report, Error> {
    let image = image::Image::parse(file)?;
    let code = code::Code::decode(&image)?;
    interpret::examine(&image, &code)
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
