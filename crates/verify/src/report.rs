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

impl Report {
    /// The findings for people, one a line. Those of a build with overflow checks are one line
    /// together: unoptimized Rust code always has some, in functions of any crate.
    pub fn lines(&self) -> Vec<String> {
        let checked =
            |f: &&Finding| f.detail.contains("panic_const_") && f.detail.contains("_overflow");
        match self.findings.iter().filter(checked).count() {
            0 => self.findings.iter().map(ToString::to_string).collect(),
            checks => vec![format!(
                "{} instructions break a rule, and {checks} of them check for overflow, as \
                 unoptimized builds do: verify optimized builds",
                self.findings.len()
            )],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(detail: &str) -> Finding {
        Finding {
            rule: Rule::Control,
            function: "protect_body".into(),
            offset: 1,
            address: 2,
            instruction: "call rax".into(),
            detail: detail.into(),
        }
    }

    /// Twenty lines about checks of the library's own would tell nothing.
    #[test]
    fn an_unoptimized_program_is_one_line() {
        let report = |details: &[&str]| Report {
            bytes: 0,
            functions: 0,
            entries: 0,
            instructions: 0,
            findings: details.iter().map(|detail| finding(detail)).collect(),
        };
        let check = "calls `core::panicking::panic_const::panic_const_add_overflow`: a check";
        let lines = report(&[check, "calls `memcpy`", check]).lines();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("2 of them") && lines[0].contains("verify optimized builds"));
        assert_eq!(report(&["calls `memcpy`", "calls `f`"]).lines().len(), 2);
    }
}
