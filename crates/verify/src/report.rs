// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of an examination: the rules, and the instructions that break one.

use serde::Serialize;

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
    /// A use of x87 or MMX registers, or a change of a control word, the direction flag or a
    /// segment register.
    State,
    /// A store to something that cannot be shown to be the stack or the result.
    Store,
    /// Memory is read before the section is armed or after it is disarmed.
    Arming,
    /// The descriptor that arms the section is not one of this section.
    Descriptor,
    /// Bytes that are not an instruction.
    Undecodable,
    /// Code that was not interpreted, because nothing tells how it is entered.
    Unreached,
}

impl Rule {
    /// In one line, for people.
    pub fn explain(self) -> &'static str {
        match self {
            Rule::Control => "leaves the section",
            Rule::Indirect => "goes to an address that cannot be bounded",
            Rule::Return => "returns to an address that cannot be shown to be the caller's",
            Rule::System => "enters the kernel",
            Rule::State => "changes state of the processor that must stay as it is",
            Rule::Store => "stores to memory that cannot be shown to be the stack or the result",
            Rule::Arming => "reads memory while the section is not armed",
            Rule::Descriptor => "arms with something that is not a descriptor of this section",
            Rule::Undecodable => "is not an instruction",
            Rule::Unreached => "has not been examined",
        }
    }
}

/// An instruction that breaks a rule.
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
    /// The fault and, where known, its consequence and remedy.
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

/// The extent of the examination, and its findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Size of the section in bytes.
    pub bytes: u64,
    /// Functions in it.
    pub functions: usize,
    /// The functions that are entered from outside.
    pub entries: usize,
    /// Instructions.
    pub instructions: usize,
    /// In order of address. Empty: the section keeps the rules.
    pub findings: Vec<Finding>,
}
